"""All tests. Loaded before anything else, by the first of them or by the services that they use."""

import os

# Triton decides when it is imported whether kernels are interpreted. Whoever imports it first, here they are.
os.environ.setdefault("TRITON_INTERPRET", "1")
