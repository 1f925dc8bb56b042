"""Benchmarks of towers on the machine at hand: `encoder-pool bench tower`.

Knows nothing of Ray or HTTP. `cases`, `floor`, `results` and `command` import no torch.
"""
