"""May a waiting sequence start now? Limits of its tenant, then free blocks, looking ahead at what will be needed.

For memory there are three ways in, tried by whom they fit:

    guaranteed   within the tenant's soft limit: borrowers are preempted until the prompt fits
    borrowing    above it: free blocks must cover the prompt and the expected growth of all that runs
    protected    preempted three times: free blocks must cover all that it may ever need, which is then reserved

Sequences are tried in the order of service. The first that has waited long for free blocks stakes a claim: what it
needs is kept from the borrowers after it, or small requests could fill every gap for ever. Those before it go on.
"""

from collections.abc import Iterable
from enum import Enum

from engine.memory.manager import KVMemory
from engine.request import RefusalCode
from engine.scheduler.fairness import AGEING_SECONDS
from engine.scheduler.outputs import Refusal
from engine.scheduler.pressure import expected_blocks, growth, growth_ahead, is_protected, pool_victim
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.scheduler.sizing import Limits, size
from engine.scheduler.tenant import Tenant

PARK_SECONDS = 60.0  # how long a request without a deadline stays parked before it ends
NEW_PARK_SECONDS = 5.0  # the same for one that has never run: its client still waits for a status, and can try again


class Verdict(Enum):
    """What became of an attempt to start a sequence."""

    STARTED = "started"
    BLOCKED = "blocked"  # its tenant waits, for its own limit or for free blocks; others go on
    PARKED = "parked"  # it cannot fit as limits are; its tenant's next one may


class Admission:
    """Starts waiting sequences. Remembers nothing from one plan to the next."""

    def __init__(self, roster: Roster, limits: Limits, max_running: int) -> None:
        self._roster = roster
        self._memory: KVMemory = roster.memory
        self._limits = limits
        self._max_running = max_running
        self._claimed = 0  # blocks that a long waiting sequence has claimed in this plan
        self._plan_number = 0
        self._pool_growth: int | None = None  # expected of all that runs; worked out at most once in a plan

    def begin(self, plan_number: int) -> None:
        """Start a plan."""
        self._plan_number = plan_number
        self._claimed = 0
        self._pool_growth = None

    def contenders(self) -> list[Tenant]:
        """Return the tenants whose waiting sequences may start; when rows are short, those within a guarantee."""
        waiting = self._roster.waiting.values()
        if self._has_room():
            return list(waiting)
        return [
            tenant for tenant in waiting if tenant.account is not None and tenant.account.blocks < tenant.account.soft
        ]

    def try_start(self, sequence: SequenceState, now: float) -> Verdict:
        """Start a waiting sequence with blocks for all its tokens, if limits and memory allow."""
        refusal = self._resize(sequence)
        if refusal is not None:
            self._roster.park(sequence, refusal, now + (PARK_SECONDS if sequence.admitted else NEW_PARK_SECONDS))
            return Verdict.PARKED
        tenant = sequence.tenant
        policy, account = tenant.policy, tenant.account
        assert policy is not None and account is not None, "a tenant without policy has nothing in line"
        if len(tenant.running) >= policy.max_running or sequence.preempted_in == self._plan_number:
            return Verdict.BLOCKED
        needed = self._memory.blocks_for(len(sequence.tokens))
        whole = self._whole_need(sequence) if is_protected(sequence) else needed
        if account.blocks + account.reserved + whole + self._ahead(sequence, tenant.running) > account.hard:
            return Verdict.BLOCKED
        if not self._find_row(sequence, whole, now) or not self._find_blocks(sequence, whole, now):
            return Verdict.BLOCKED
        self._roster.start(sequence, now)
        self._take(sequence, whole, now)
        return Verdict.STARTED

    def _resize(self, sequence: SequenceState) -> Refusal | None:
        """Return why a sequence can never run under its tenant's policy as it is now, or None."""
        tenant = sequence.tenant
        policy, account = tenant.policy, tenant.account
        assert policy is not None and account is not None, "a tenant without policy has nothing in line"
        if policy.max_running < 1:
            message = "No request of the tenant may run on this worker: of its max_running, 0 are granted here."
            return Refusal(RefusalCode.QUEUE_FULL, message + " Try again, or ask for a higher limit.")
        if not sequence.admitted and sequence.policy_stamp != tenant.policy_stamp:
            granted = size(sequence.request, policy, self._limits)
            if isinstance(granted, Refusal):
                return granted
            sequence.max_tokens, sequence.policy_stamp = granted, tenant.policy_stamp
        needed = self._memory.blocks_for(len(sequence.tokens))
        if needed > account.hard:
            message = (
                f"The tenant's hard limit (kv_hard_bytes) was lowered to {policy.kv_hard_bytes} bytes, and the next"
                f" token needs {needed * self._limits.block_bytes} bytes of KV memory."
            )
            return Refusal(RefusalCode.KV_LIMIT, message)
        return None

    def _whole_need(self, sequence: SequenceState) -> int:
        assert sequence.tenant.account is not None, "checked by the caller"
        whole = self._memory.blocks_for(sequence.num_prompt + sequence.max_tokens)
        return min(whole, sequence.tenant.account.hard)

    def _ahead(self, sequence: SequenceState, running: Iterable[SequenceState]) -> int:
        """Return the growth to expect of `running` and of this sequence; nothing when it would run alone."""
        block_size = self._limits.block_size
        others = list(running)
        if not others:
            return 0
        own = 0
        if not is_protected(sequence):
            own = expected_blocks(sequence, block_size) - self._memory.blocks_for(len(sequence.tokens))
        return growth_ahead(others, block_size) + max(0, own)

    def _has_room(self) -> bool:
        return len(self._roster.running) < self._max_running and self._memory.num_free_rows > 0

    def _find_row(self, sequence: SequenceState, needed: int, now: float) -> bool:
        """Say whether one more sequence may run; for a need within a guarantee, a borrower makes room."""
        if self._has_room():
            return True
        account = sequence.tenant.account
        assert account is not None, "checked by the caller"
        if account.blocks + needed > account.soft:
            return False
        victim = pool_victim(self._roster.busy.values())
        if victim is None:
            return False
        evict(self._roster, victim, self._plan_number, now)
        self._pool_growth = None
        return True

    def _find_blocks(self, sequence: SequenceState, needed: int, now: float) -> bool:
        """Say whether `needed` blocks are free for this sequence, after preemption where it has a right to it."""
        account = sequence.tenant.account
        assert account is not None, "checked by the caller"
        if account.blocks + needed <= account.soft and self._evict_for(needed, now):
            return True
        if not self._roster.running:  # nobody to be careful of: what fits must start, or all would wait for ever
            return needed <= self._memory.num_available
        wanted = self._wanted(sequence, needed)
        if wanted <= self._memory.num_available - self._claimed:
            return True
        waits_long = sequence.admitted or now - sequence.request.arrived_at > AGEING_SECONDS
        if waits_long and not self._claimed:
            self._claimed = wanted
        return False

    def _wanted(self, sequence: SequenceState, needed: int) -> int:
        """Return the free blocks that a borrower should find.

        A protected one must never be in the way of a guarantee, so it leaves free what others may claim. Where limits
        are such that it must be in the way (its need and the guarantees exceed the pool), it takes what is free.
        """
        account = sequence.tenant.account
        assert account is not None, "checked by the caller"
        accounts = self._memory.accounts
        reachable = self._limits.num_blocks - accounts.guarantees(account)  # with guarantees in full use
        if is_protected(sequence):
            return needed if needed > reachable else needed + accounts.unused_guarantees(account)
        if self._pool_growth is None:
            self._pool_growth = growth_ahead(self._roster.running, self._limits.block_size)
        own = expected_blocks(sequence, self._limits.block_size) - needed
        return max(needed, min(needed + self._pool_growth + max(0, own), reachable))

    def _evict_for(self, needed: int, now: float) -> bool:
        """Preempt borrowers until `needed` blocks are free; none if that would not be enough."""
        missing = needed - self._memory.num_available
        if missing <= 0:
            return True
        for protected in (False, True):
            if self._takeable(protected=protected) >= missing:
                while self._memory.num_available < needed:
                    victim = pool_victim(self._roster.busy.values(), protected=protected)
                    if victim is None:
                        return False
                    evict(self._roster, victim, self._plan_number, now)
                    self._pool_growth = None
                return True
        return False

    def _takeable(self, *, protected: bool) -> int:
        """Return the blocks that preempting borrowers could set free, each down to its guarantee."""
        total = 0
        for tenant in self._roster.busy.values():
            account = tenant.account
            if account is not None and account.overage:
                total += _freed_until_soft(tenant, protected=protected)
        return total

    def _take(self, sequence: SequenceState, whole: int, now: float) -> None:
        table = sequence.table
        assert table is not None, "just started"
        shortage = self._memory.reserve(table, whole) if is_protected(sequence) else None
        shortage = shortage or self._memory.grow(table, len(sequence.tokens), now)
        assert shortage is None, "the blocks were found before the start"
        if self._pool_growth is not None:
            self._pool_growth += growth(sequence, self._limits.block_size)


def evict(roster: Roster, sequence: SequenceState, plan_number: int, now: float) -> None:
    """Preempt a sequence for want of memory."""
    sequence.evictions += 1
    roster.preempt(sequence, plan_number, now)


def _freed_until_soft(tenant: Tenant, *, protected: bool) -> int:
    """Return what falls free when the tenant's newest sequences are preempted until it is within its guarantee."""
    assert tenant.account is not None, "checked by the caller"
    freed, overage = 0, tenant.account.overage
    for sequence in sorted(tenant.running, key=lambda one: -one.number):
        if overage <= 0:
            break
        if sequence.table is not None and (protected or not is_protected(sequence)):
            freed += len(sequence.table.blocks) + sequence.table.reserved
            overage -= len(sequence.table.blocks)
    return freed
