"""The graph side: a ladder of captured shapes, static memory, packing, and the runner that joins them.

Knows no model, no Ray, no HTTP. `ladder`, `plan` with its `runs` and `partition`, `counters` and `mismatch`
import no torch, so that a replica can plan; `arena`, `runner` with `cpu` and `cuda`, `measure` and `encode`
live where the tower lives.
"""
