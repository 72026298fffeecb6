"""The Triton backend. START HERE: `ops.py`; one kernel a file, `tuning.py` for tile sizes, `aot.py` for what they cost."""
