"""What a child process of the front asks of the kernel."""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
LOWEST = 19  # niceness


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process when its parent is gone, however it went; exit if it is gone already.

    `parent` is its process id, for a child that may have come to life after its parent's end.
    """
    parent = parent or os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(1)


def give_way(niceness: int = LOWEST) -> None:
    """Let others go first: at the lowest priority by the kernel's idle class too, where it may be chosen.

    So it runs only where nobody else wants to. Priorities count within a session's group of processes where the kernel
    groups them so; then the group gives way.
    """
    os.nice(niceness)
    if niceness == LOWEST:
        with contextlib.suppress(OSError, AttributeError):  # not Linux, or forbidden: the lowest priority has to do
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))
