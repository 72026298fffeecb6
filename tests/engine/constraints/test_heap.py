"""What a prepared grammar may take of memory."""

import pytest

from engine.constraints.heap import bounded, heap_bytes
from engine.errors import GrammarError


def test_what_is_in_use_is_counted() -> None:
    """What is taken counts while it is held."""
    before = heap_bytes()
    held = bytearray(64 << 20)
    assert heap_bytes() - before > 32 << 20
    del held
    assert heap_bytes() - before < 32 << 20


def test_what_takes_too_much_is_refused() -> None:
    """The refusal says how much it may be; what takes less is handed on."""
    assert bounded(lambda: bytearray(1 << 20), 32 << 20) == bytes(1 << 20)
    with pytest.raises(GrammarError, match="may take 32"):
        bounded(lambda: bytearray(64 << 20), 32 << 20)
