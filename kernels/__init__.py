"""Tensor kernels behind one interface: `kernels.ops.select_backend` is the only door.

Import this package before torch: it bounds how long idle OpenMP threads spin, which libgomp reads once, as torch loads.
"""

import os

# A spinning thread whose partner has lost its core waits for a whole scheduling quantum, at each of some four hundred
# barriers of a step: with other processes about, 20,000 spins cost 450 ms a step where 300 cost 25 ms.
os.environ.setdefault("GOMP_SPINCOUNT", "300")
