"""Speed, measured beside peers; nothing here is a test."""

import kernels as _kernels  # noqa: F401  # before torch, so that its OpenMP threads spin within bounds
