"""Which sequences get how many tokens in each step. Plain data, no tensors; `plan.py` is the way in."""
