"""Limits on trial: what each would have refused or delayed is counted, and nothing is done.

    refused   at arrival: it can never fit the ceiling, its prompt or output is too long, the queue is full
    delayed   while it runs: under the limit it would have waited, for a place or for memory, the newest ones first

Each limit is judged alone, in place of the one in force, and counts a request once. One that it would have refused
takes up no room under it; beyond that, what runs is what runs: that others would have ended sooner is not worked out.
Counts go on when a limit's value moves, as grants do, and are lost when it is taken off trial.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from engine.policy import ShadowLimits, TenantPolicy
from engine.request import RefusalCode, SequenceId
from engine.scheduler.outputs import Refusal
from engine.scheduler.sizing import Limits, size

if TYPE_CHECKING:
    from engine.scheduler.roster import Roster
    from engine.scheduler.sequence import SequenceState
    from engine.scheduler.tenant import Tenant


class TrialCount(NamedTuple):
    """What a limit on trial has done so far, in requests. `limit`: a field of ShadowLimits."""

    limit: str
    refused: int
    delayed: int


class _Record:
    """One limit's counts, and the live requests that are in them."""

    __slots__ = ("delayed", "num_delayed", "num_refused", "refused")

    def __init__(self) -> None:
        self.num_refused = self.num_delayed = 0
        self.refused: dict[SequenceId, int] = {}  # by handle: the outputs that each asked for
        self.delayed: set[SequenceId] = set()


class Trial:
    """One tenant's limits on trial."""

    def __init__(self) -> None:
        self._limits = ShadowLimits()
        self._hard_blocks = 0
        self._records: dict[str, _Record] = {}

    def adopt(self, limits: ShadowLimits, sizes: Limits) -> None:
        """Take limits over; those that stay on trial keep their counts."""
        self._limits = limits
        self._hard_blocks = (limits.kv_hard_bytes or 0) // sizes.block_bytes
        named = [name for name in ShadowLimits.__dataclass_fields__ if getattr(limits, name) is not None]
        self._records = {name: self._records.get(name) or _Record() for name in named}

    def counts(self) -> tuple[TrialCount, ...]:
        """Return what each limit has done so far."""
        return tuple(TrialCount(name, one.num_refused, one.num_delayed) for name, one in self._records.items())

    def arrived(self, sequence: "SequenceState", num_taken: int, sizes: Limits, roster: "Roster") -> None:
        """Judge a request that has just been taken, beside `num_taken` outputs of the tenant's other ones."""
        policy = sequence.tenant.policy
        assert policy is not None, "only a request whose tenant has a policy is taken"
        for name, record in self._records.items():
            if sequence.handle in record.refused:  # it was held again meanwhile
                continue
            record.refused = {one: num for one, num in record.refused.items() if _is_live(one, roster)}
            others = num_taken - sum(record.refused.values())
            if self._refuses(name, sequence, policy, others, sizes):
                record.num_refused += 1
                record.refused[sequence.handle] = sequence.num_asked

    def look(self, tenant: "Tenant") -> None:
        """Count those that run now, and would not under a limit on trial."""
        account, limits = tenant.account, self._limits
        if limits.kv_hard_bytes is not None and account is not None and account.used > self._hard_blocks:
            held = ((one, len(one.table.blocks)) for one in tenant.running if one.table is not None)
            self._delay(self._records["kv_hard_bytes"], held, account.used - self._hard_blocks)
        if limits.max_running is not None and len(tenant.running) > limits.max_running:
            places = ((one, 1) for one in tenant.running)
            self._delay(self._records["max_running"], places, len(tenant.running) - limits.max_running)

    def _refuses(self, name: str, sequence: "SequenceState", policy: TenantPolicy, others: int, sizes: Limits) -> bool:
        limits, request = self._limits, sequence.request
        match name:
            case "kv_hard_bytes":
                return _never_fits(sequence, policy, limits.kv_hard_bytes or 0, sizes)
            case "max_context_tokens":
                least = len(request.prompt) + max(1, request.sampling.max_tokens)
                return least > (limits.max_context_tokens or 0)
            case "max_output_tokens":
                return max(1, request.sampling.max_tokens) > (limits.max_output_tokens or 0)
            case "max_queued":
                return others + sequence.num_asked > policy.max_running + (limits.max_queued or 0)
            case _:
                return others + sequence.num_asked > (limits.max_running or 0) + policy.max_queued

    @staticmethod
    def _delay(record: _Record, running: "Iterable[tuple[SequenceState, int]]", excess: int) -> None:
        """Count the newest that take up so much too much; those that were refused are not there."""
        newest = sorted(running, key=lambda pair: -pair[0].number)
        excess -= sum(amount for one, amount in newest if one.handle in record.refused)
        running_now = {one.handle for one, _ in newest}
        if len(record.delayed) > 64 + 2 * len(running_now):
            record.delayed &= running_now
        for one, amount in newest:
            if excess <= 0:
                break
            if one.handle in record.refused:
                continue
            excess -= amount
            if one.handle not in record.delayed:
                record.delayed.add(one.handle)
                record.num_delayed += 1


def _never_fits(sequence: "SequenceState", policy: TenantPolicy, hard_bytes: int, sizes: Limits) -> bool:
    """Say whether a request could never run under a ceiling: of the fleet's, if this is a worker's part of it."""
    fleet = 0
    if policy.fleet_hard_bytes > policy.kv_hard_bytes > 0:
        fleet = hard_bytes * policy.fleet_hard_bytes // policy.kv_hard_bytes
    tried = replace(policy, kv_hard_bytes=hard_bytes, fleet_hard_bytes=fleet)
    granted = size(sequence.request, tried, sizes)
    return isinstance(granted, Refusal) and granted.code is RefusalCode.KV_LIMIT


def _is_live(handle: SequenceId, roster: "Roster") -> bool:
    return handle in roster.sequences or handle in roster.groups
