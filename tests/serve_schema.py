"""Ray Serve's schema of a configuration file, without the warnings that importing Ray raises."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray.serve.schema import HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema

__all__ = ["HTTPOptionsSchema", "ServeApplicationSchema", "ServeDeploySchema"]
