"""Tensor kernels behind one interface: `kernels.ops.select_backend` is the only door.

Import this package before torch: it sets what libgomp reads once, as torch loads, and torch at its first allocation.
"""

import os

# A spinning thread whose partner has lost its core waits for a whole scheduling quantum, at each of some four hundred
# barriers of a step: with other processes about, 20,000 spins cost 450 ms a step where 300 cost 25 ms.
os.environ.setdefault("GOMP_SPINCOUNT", "300")
# Weights and KV pages on huge pages, where the system lets a program ask for them: blocks lie scattered over the pool,
# and with pages of 4 KiB each of them is looked up anew (decode attention: 30 GB/s where huge pages give 45).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
