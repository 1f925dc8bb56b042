"""A Ray cluster of several nodes on this machine, in a process of its own that does what it is told.

It prints the address of the head node, and then answers a line for each line it reads:

    add CPUS    starts a node and prints its id
    remove ID   ends a node and prints "removed"
    kill ID     kills a node, with all that it has started, and prints "killed"
    stop all    ends them all
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import psutil
from ray.cluster_utils import Cluster

OBJECT_STORE_BYTES = 80 * 1024 * 1024


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def kill(node: Any) -> None:
    """The raylet first, so that it tells nobody of the others."""
    (raylet,) = node.all_processes["raylet"]
    process = psutil.Process(raylet.process.pid)
    family = [process, *process.children(recursive=True)]
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()


def main() -> None:
    size: dict[str, Any] = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": float(sys.argv[1]), **size})
    nodes = {}
    say(cluster.address)
    for line in sys.stdin:
        command, argument = line.split()
        if command == "add":
            node = cluster.add_node(num_cpus=float(argument), **size)
            nodes[node.node_id] = node
            say(node.node_id)
        elif command == "remove":
            cluster.remove_node(nodes.pop(argument))
            say("removed")
        elif command == "kill":
            node = nodes.pop(argument)
            kill(node)
            cluster.remove_node(node, allow_graceful=False)
            say("killed")
        else:
            break
    cluster.shutdown()


if __name__ == "__main__":
    main()
