"""From the YAML to a Serve application: the `import_path` of every configuration.

Annotations are evaluated here: Serve reads the parameter's class to validate the YAML's `args` with it.
"""

from typing import TYPE_CHECKING

from encoder_pool.config import PoolConfig
from encoder_pool.pool.sizing import size_pool
from encoder_pool.towers.adapter import adapter_class
from encoder_pool.weights import ensure

if TYPE_CHECKING:
    from ray.serve import Application

REQUEST_SLACK = 64
"""Requests Serve lets through beyond our own limit: our own 429 answers, and health is never queued."""


def build_app(args: PoolConfig) -> "Application":
    """One model's application. Raises ValueError, naming the key, if the configuration cannot work."""
    from encoder_pool.pool.deployment import deployment

    size_pool(args, adapter_class(args.model.adapter)(ensure(args.model.checkpoint)))
    application: Application = deployment.options(
        max_ongoing_requests=args.queue.max_requests + REQUEST_SLACK,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=args.queue.deadline_s,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": args.replica.cpus},
        placement_group_bundles=[{"CPU": args.replica.cpus}, {"CPU": args.shard.cpus}],
        placement_group_strategy="STRICT_PACK",
        num_replicas=args.scaling.min_replicas,
    ).bind(args)
    return application
