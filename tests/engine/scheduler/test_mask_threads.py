"""Masks that threads make, of several tenants at once."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.scheduler.mask_threads import MaskThreads
from tests.engine.alternating import DEADLINE_SECONDS


class Constraint:
    """Notes whose turn it is; the first one waits until the gate is open."""

    def __init__(self, name: str, turns: list[str], gate: threading.Event) -> None:
        self._name, self._turns, self._gate = name, turns, gate

    def follow(self, tokens: Sequence[int], num_prompt: int, most: int) -> Sequence[int]:
        """Make a mask."""
        self._turns.append(self._name)
        assert self._gate.wait(DEADLINE_SECONDS)
        return ()


class Waiting:
    """What the threads see of a sequence."""

    def __init__(self, tenant: str, constraint: Constraint) -> None:
        self.tenant = SimpleNamespace(name=tenant)
        self.tokens: list[int] = []
        self.num_prompt = 0
        self.constraint = constraint


@pytest.mark.parametrize("slow", [False, True])
def test_many_masks_of_one_tenant_keep_no_other_waiting(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes last with one has it made as the next, behind the one in work."""
    monkeypatch.setattr("engine.scheduler.mask_threads._MOST_QUICK", 1)
    threads, turns, gate = MaskThreads(), list[str](), threading.Event()

    def give(tenant: str) -> None:
        sequence: Any = Waiting(tenant, Constraint(tenant, turns, gate))
        threads.give(sequence, 0, slow=slow)

    give("whale")
    while not turns:
        threading.Event().wait(0.001)
    for _ in range(20):
        give("whale")
    give("minnow")
    gate.set()
    num_made = 0
    while num_made < 22:
        num_made += len(threads.take())
        threading.Event().wait(0.001)
    assert turns.index("minnow") == 1
    assert not threads.late
