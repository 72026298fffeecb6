"""The model: folder and weights on disk, decoder, runner, sampler. `folder`, `fetch` and `spec` stay free of torch."""

import kernels as _kernels  # noqa: F401  # before torch, so that its OpenMP threads spin within bounds
