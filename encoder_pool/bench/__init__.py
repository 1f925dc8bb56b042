"""Benchmarks on the machine at hand: of towers, `encoder-pool bench tower`, and of the planner, `plan`.

Knows nothing of Ray or HTTP. `cases`, `floor`, `results` and `command` import no torch.
"""
