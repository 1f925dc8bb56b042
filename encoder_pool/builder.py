"""From the YAML to a Serve application: the `import_path` of every configuration.

Annotations are evaluated here: Serve reads the parameter's class to validate the YAML's `args` with it.
"""

import logging
import os
from typing import TYPE_CHECKING, Any

from encoder_pool.auth import load_keys
from encoder_pool.config import PoolConfig, ScalingConfig
from encoder_pool.pool.sizing import size_pool
from encoder_pool.towers.adapter import adapter_class
from encoder_pool.weights import ensure

if TYPE_CHECKING:
    from ray.serve import Application

logger = logging.getLogger("ray.serve")

REQUEST_SLACK = 64
"""Requests Serve lets through beyond our own limit: our own 429 answers, and health is never queued."""


def build_app(args: PoolConfig) -> "Application":
    """One model's application. Raises ValueError, naming the key, if the configuration cannot work."""
    load_keys(args.auth)
    from encoder_pool.pool.deployment import deployment

    size_pool(args, adapter_class(args.model.adapter)(ensure(args.model.checkpoint)))
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
        logger.warning("Serve's own proxy is used; RAY_SERVE_ENABLE_HA_PROXY=1 carries several times as much")
    application: Application = deployment.options(
        max_ongoing_requests=args.queue.max_requests + REQUEST_SLACK,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=args.queue.deadline_s,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": args.replica.cpus},
        placement_group_bundles=bundles(args),
        placement_group_strategy="STRICT_PACK",
        **_scale(args.scaling),
    ).bind(args)
    return application


def bundles(args: PoolConfig) -> list[dict[str, float]]:
    """What Ray reserves, on one host: for a replica, and for each of its shards."""
    shard = {"CPU": args.shard.cpus} | ({"GPU": args.gpus} if args.gpus else {})
    return [{"CPU": args.replica.cpus}, *[shard] * args.shards]


def _scale(scaling: ScalingConfig) -> dict[str, Any]:
    """Serve's options for a fixed number of replicas, or for one that follows the work.

    Replicas report each second and the policy sees the largest value of the last five: with Serve's
    defaults a burst would be answered after 50 s, with these after 4.
    """
    if scaling.min_replicas == scaling.max_replicas:
        return {"num_replicas": scaling.min_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": scaling.min_replicas,
            "initial_replicas": scaling.first_replicas,
            "max_replicas": scaling.max_replicas,
            "metrics_interval_s": 1.0,
            "look_back_period_s": 5.0,
            "aggregation_function": "max",
            "upscale_delay_s": scaling.upscale_delay_s,
            "downscale_delay_s": scaling.downscale_delay_s,
            "policy": {
                "policy_function": "encoder_pool.pool.scaling:WorkPolicy",
                "policy_kwargs": {"target_drain_s": scaling.target_drain_s},
            },
        }
    }
