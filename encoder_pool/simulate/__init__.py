"""The pool in virtual time: its own batcher, packer, admission, dispatch and policy, on hosts of numbers.

`encoder-pool simulate` answers how many GPUs some traffic needs, and what breaks first. Imports neither torch
nor Ray.
"""
