"""Tensor kernels behind one interface: `kernels.ops.select_backend` is the only door.

Import this package before torch: it bounds how long idle OpenMP threads spin, which libgomp reads once, as torch loads.
"""

import os

# Unbounded spinning collapses when another process needs the core (step p99 6 -> 161 ms); with none at all every
# parallel region pays a futex wake-up. This spins for some tens of microseconds: longer than the gap between two ops.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
