"""Errors of the kernels.

KernelError
└── BackendUnavailable   the backend asked for cannot run here; the message says why and what to do
"""


class KernelError(Exception):
    """Base of all errors of the kernels."""


class BackendUnavailable(KernelError):  # named as the tree of errors reads
    """The backend asked for cannot run on this machine."""
