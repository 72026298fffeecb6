"""The engine worker: paged KV memory, scheduler and model, served over gRPC.

Free of Django; this module stays free of torch.
"""

__version__ = "0.1.0"
