"""Build command lines that run through `tether.py`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

TETHER = Path(__file__).with_name("tether.py")


def tethered(command: Sequence[str], *, options: Sequence[str] = (), parent: int | None = None) -> list[str]:
    """Return `command` tied to its parent's life; `parent` None: the program that supervisord's own tether became."""
    tie = [] if parent is None else ["--parent", str(parent)]
    return [sys.executable, "-I", "-S", str(TETHER), *options, *tie, "--", *command]


def tethered_here(command: Sequence[str], *, options: Sequence[str] = ()) -> list[str]:
    """Return `command` tied to the life of this process."""
    return tethered(command, options=options, parent=os.getpid())
