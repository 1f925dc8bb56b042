"""A Ray cluster of several nodes on this machine, in a process of its own that does what it is told.

It prints the address of the head node, and then answers a line for each line it reads:

    add CPUS    starts a node and prints its id
    remove ID   ends a node and prints "removed"
    stop all    ends them all
"""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster

OBJECT_STORE_BYTES = 80 * 1024 * 1024


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


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
        else:
            break
    cluster.shutdown()


if __name__ == "__main__":
    main()
