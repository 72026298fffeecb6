"""The Triton backend. START HERE: `ops.py`; one kernel a file, `tuning.py` has tile sizes, `aot.py` what they cost."""
