"""One tenant in the scheduler: its policy, its own lines, its virtual counter."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from typing import TYPE_CHECKING

from engine.policy import TenantPolicy
from engine.request import TenantId
from engine.scheduler.predict import OutputLengths
from engine.scheduler.trial import Trial

if TYPE_CHECKING:
    from engine.memory.accounts import Account
    from engine.scheduler.sequence import SequenceState

PREFILL_COST = 1.0  # of one prompt token, before division by the weight
OUTPUT_COST = 2.0
LEAST_WEIGHT = 0.001  # a counter must never grow so much in one step that others' tokens no longer change theirs


class Line:
    """Waiting sequences of one service class in order of arrival; sequences that come back keep their place."""

    __slots__ = ("_back", "_fresh", "served_at")

    def __init__(self) -> None:
        self.served_at = 0.0  # when a sequence of this line last got prefill tokens; ageing counts from here
        self._fresh: OrderedDict[int, SequenceState] = OrderedDict()
        self._back: list[tuple[int, SequenceState]] = []  # those that came back, by number

    def __len__(self) -> int:
        return len(self._fresh) + len(self._back)

    def add(self, sequence: SequenceState) -> None:
        """Give a sequence the place that its number has: the end for a new arrival."""
        if not self._fresh or sequence.number > next(reversed(self._fresh)):
            self._fresh[sequence.number] = sequence
        else:
            insort(self._back, (sequence.number, sequence), key=_number)

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out, wherever it stands."""
        if self._fresh.pop(sequence.number, None) is None:
            index = bisect_left(self._back, sequence.number, key=_number)
            assert self._back[index][1] is sequence, "a waiting sequence stands in its line"
            del self._back[index]

    def waiting_since(self) -> float:
        """Return since when the one has waited that has waited longest; infinity when nobody does."""
        back = min((sequence.waiting_since for _, sequence in self._back), default=math.inf)
        fresh = next(iter(self._fresh.values())) if self._fresh else None
        return back if fresh is None else min(back, fresh.waiting_since)

    def head(self) -> SequenceState | None:
        """Return the first in line, or None."""
        fresh = next(iter(self._fresh.values())) if self._fresh else None
        if self._back and (fresh is None or self._back[0][0] < fresh.number):
            return self._back[0][1]
        return fresh


class Tenant:
    """What the scheduler knows of a tenant. `counter` is the service it has had, weighted (see fairness.py)."""

    __slots__ = (
        "account",
        "counter",
        "lengths",
        "lines",
        "name",
        "num_ahead",
        "num_held",
        "num_live",
        "num_preemptions",
        "output_cost",
        "output_tokens",
        "parked",
        "policy",
        "policy_stamp",
        "prefill_cost",
        "prefill_tokens",
        "recomputed_tokens",
        "running",
        "trial",
    )

    def __init__(self, name: TenantId) -> None:
        self.name = name
        self.policy: TenantPolicy | None = None
        self.policy_stamp = 0  # counts policy changes
        self.account: Account | None = None
        self.counter = 0.0
        self.prefill_cost = PREFILL_COST
        self.output_cost = OUTPUT_COST
        self.lengths = OutputLengths()  # of its outputs so far
        self.running: list[SequenceState] = []
        self.lines = (Line(), Line(), Line())  # by service class
        self.parked: dict[int, SequenceState] = {}
        self.num_live = 0  # all its sequences, held ones too
        self.num_held = 0  # outputs and beams of those that are held
        self.num_ahead = 0  # further outputs and beams of those that have never run
        self.output_tokens = 0
        self.prefill_tokens = 0  # that it was charged for
        self.num_preemptions = 0
        self.trial: Trial | None = None  # of limits that are not in force
        self.recomputed_tokens = 0  # that it had to compute again after preemptions: those are not charged twice

    def adopt(self, policy: TenantPolicy | None, account: Account | None) -> None:
        """Take a policy over, or lose it."""
        self.policy = policy
        self.account = account
        self.policy_stamp += 1
        if policy is not None:
            weight = max(policy.weight, LEAST_WEIGHT)
            self.prefill_cost = PREFILL_COST / weight
            self.output_cost = OUTPUT_COST / weight

    @property
    def service(self) -> float:
        """The service it has had, in weighted tokens: what its counter is made of, before division by the weight."""
        return self.prefill_tokens * PREFILL_COST + self.output_tokens * OUTPUT_COST

    @property
    def num_waiting(self) -> int:
        """Sequences in its lines."""
        return len(self.lines[0]) + len(self.lines[1]) + len(self.lines[2])


def _number(item: tuple[int, SequenceState]) -> int:
    return item[0]
