"""What a replica costs beside its GPU, and the hosts that pay for it: the modelled inputs of a simulation.

Every number says where it is from. Those of other machines are given in a JSON file, `--machines`. Rates are
of decimal gigabytes. Knows nothing of towers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from encoder_pool.config import Positive, Section

NonNegative = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]


class Costs(Section):
    """Work of one request, one item, one pack. A host's cores do it, unless it says otherwise."""

    request_ms: NonNegative = Field(
        0.9,
        description="Of the replica's interpreter, for a request: headers, admission, reply. From README: a "
        "photo seen before, inside the replica.",
    )
    reply_ms_per_mb: NonNegative = Field(
        0.65,
        description="Of the replica's interpreter, for a megabyte of reply. From replies of 16 MB through "
        "HAProxy, 1.5 GB/s out of one replica.",
    )
    prepare_ms: NonNegative = Field(0.4, description="Of a thread, for an item: its header, its buffers.")
    prepare_ms_per_megapixel: NonNegative = Field(
        21.0,
        description="Of a thread, for a million pixels as sent: decode, then resize. From JPEGs of 1 to 3 "
        "megapixels on one core of an AMD EPYC; 26 at 0.26 megapixels, 9 at 12, which are decoded in small.",
    )
    copy_gb_s: Rate = Field(
        8.0, description="Of a core that copies into the ring or out of it; 17 measured with the core alone."
    )
    hand_over_ms: NonNegative = Field(
        1.8,
        description="From the replica to the shard and back, for a pack: messages on a socket, threads that "
        "wake. From an H200's host: encoding a lone photo took 2.4 ms beyond its replay; less the launch.",
    )
    launch_ms: NonNegative = Field(
        0.65,
        description="Of the shard's thread, for a pack: metadata and launch. From h200-tower.json: "
        "ours_run_ms less ours_ms, the median.",
    )
    pcie_gb_s: Rate = Field(55.0, description="Of pinned memory to the GPU, and at once from it.")
    hop_ms: NonNegative = Field(
        0.3, description="From HAProxy to a replica, and back: a tiny reply takes 1 ms in all."
    )


class Hardware(Section):
    """The hosts, all alike."""

    gpus_per_host: Positive = Field(8, description="GPUs of a host; the last host may have fewer in use.")
    cores_per_host: Positive = Field(128, description="Cores of a host; 16 a GPU, as the measured host has.")
    nic_gbit_s: Rate = Field(200.0, description="Of a host's network, each way. An assumption.")
    proxy_gb_s: Rate = Field(
        3.2,
        description="Of a host's HAProxy, both ways together. The most that was measured, with two clients "
        "and Serve's four threads of HAProxy (RAY_SERVE_HAPROXY_NBTHREAD).",
    )
    proxy_on_every_host: bool = Field(
        True,
        description="Whether requests come in at every host's HAProxy in turn (proxy_location EveryNode), or "
        "all at the first (HeadOnly).",
    )
    replica_start_s: NonNegative = Field(
        15.0,
        description="Until a replica that is added serves: process, weights, kernels, capture. From "
        "h200-tower.json: 13 s of load, warm-up, measuring; and Ray's start of two actors.",
    )


class Machines(Section):
    """What `--machines` gives in JSON: any key of both, the others keep their defaults."""

    hardware: Hardware = Hardware()
    costs: Costs = Costs()
