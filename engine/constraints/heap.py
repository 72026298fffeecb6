"""How much memory a prepared grammar takes: the library does not say, so the C library is asked."""

import ctypes
from collections.abc import Callable
from typing import TypeVar

from engine.errors import GrammarError

T = TypeVar("T")

MAX_COMPILED_BYTES = 32 << 20  # of a prepared grammar, its first mask included
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later: `uordblks` bytes are in use, and `hblkhd` mapped for large ones."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def heap_bytes() -> int:
    """Return how many bytes of the heap are in use; 0 where the C library cannot say."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _Heap
    heap = ask()
    return int(heap.uordblks) + int(heap.hblkhd)


def bounded(make: Callable[[], T], most: int = MAX_COMPILED_BYTES) -> T:
    """Return what is made, unless it takes more memory than it may; nothing else may work meanwhile.

    Raises:
        GrammarError: it takes more than `most` bytes.
    """
    before = heap_bytes()
    made = make()
    taken = heap_bytes() - before
    if taken > most:
        raise GrammarError(f"the grammar takes {taken >> 20} MiB, and may take {most >> 20}: make it simpler")
    return made
