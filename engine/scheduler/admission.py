"""May a waiting sequence start now? Limits of its tenant, then blocks to be had, looking ahead at what will be needed.

What the prefix tree holds of its tokens is looked up first: those blocks are shared and need not be found. What host
memory holds behind them is loaded into blocks that must be found.

For memory there are three ways in, tried by whom they fit:

    guaranteed   within the tenant's soft limit: borrowers are preempted until the prompt fits
    borrowing    above it: blocks to be had must cover the prompt and the expected growth of all that runs
    protected    preempted three times: blocks to be had must cover all that it may ever need, which is then reserved

Sequences are tried in the order of service. The first that has waited long for free blocks, or has let others have more
service than it will take itself, stakes a claim: what it needs is kept from the borrowers after it, or small requests
could fill every gap for ever. Those before it go on.
"""

from collections.abc import Iterable
from enum import Enum

from engine.memory.manager import KVMemory
from engine.request import FinishReason, RefusalCode
from engine.scheduler.constraining import Constraining
from engine.scheduler.fairness import AGEING_SECONDS, is_behind
from engine.scheduler.offer import Offer, Offers, most_blocks, waits_to_fork
from engine.scheduler.outputs import Refusal
from engine.scheduler.pressure import (
    MAX_EVICTIONS,
    expected_blocks,
    freed_by_groups,
    freed_until_soft,
    group_victim,
    growth,
    growth_ahead,
    is_protected,
    pool_victim,
)
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.scheduler.sharing import SharedPrefixes
from engine.scheduler.sizing import Limits, size
from engine.scheduler.tenant import Tenant

PARK_SECONDS = 60.0  # how long a request without a deadline stays parked before it ends
NEW_PARK_SECONDS = 5.0  # the same for one that has never run: its client still waits for a status, and can try again


class Verdict(Enum):
    """What became of an attempt to start a sequence."""

    STARTED = "started"
    BLOCKED = "blocked"  # its tenant waits, for its own limit or for free blocks; others go on
    PARKED = "parked"  # it cannot fit as limits are, or it fetches from the disk; its tenant's next one may


class Givers(Enum):
    """Who is preempted for a need within a guarantee, one after the other."""

    UNPROTECTED = "unprotected"  # borrowers' sequences that run on no reserve
    PROTECTED = "protected"  # all of theirs
    GROUPS_TOO = "groups too"  # and those that run on what a share group has borrowed


class Admission:
    """Starts waiting sequences. Remembers nothing from one plan to the next."""

    def __init__(self, roster: Roster, limits: Limits, shared: SharedPrefixes, constraining: Constraining) -> None:
        self.asked_tokens = 0  # of all prompts when they were first admitted
        self.found_tokens = 0  # of them, those that were cached
        self._roster = roster
        self._memory: KVMemory = roster.memory
        self._limits = limits
        self._constraining = constraining
        self._offers = Offers(roster, shared)
        self._claimed = 0  # blocks that a long waiting sequence has claimed in this plan
        self._claimed_rows = 0  # the same of rows: a search needs many at once
        self._plan_number = 0
        self._pool_growth: int | None = None  # expected of all that runs; worked out at most once in a plan

    def begin(self, plan_number: int, now: float) -> None:
        """Start a plan."""
        self._offers.begin(plan_number, now)
        self._plan_number = plan_number
        self._claimed = self._claimed_rows = 0
        self._pool_growth = None

    def contenders(self) -> list[Tenant]:
        """Return the tenants whose waiting sequences may start; when rows are short, those within a guarantee."""
        waiting = self._roster.waiting.values()
        if self._rows_short(1) <= 0:
            return list(waiting)
        return [
            tenant for tenant in waiting if tenant.account is not None and tenant.account.used < tenant.account.soft
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
        if self._roster.num_places(tenant) + sequence.num_places > policy.max_running:
            return Verdict.BLOCKED
        if sequence.preempted_in == self._plan_number or sequence in self._constraining.late:
            return Verdict.BLOCKED
        if waits_to_fork(sequence, self._limits.block_size):
            return Verdict.BLOCKED
        offer = self._offers.make(sequence, account)
        if self._roster.prefills.must_wait(sequence, offer.match, self._plan_number, now):
            return Verdict.BLOCKED
        if offer.parent is None and self._roster.fetching.begin(sequence, offer.match, now):
            return Verdict.PARKED
        below = self._below_ceilings(sequence, offer, now)
        if below is None:
            return Verdict.BLOCKED
        offer = below
        num_changes = self._num_changes()
        if not self._find_rows(sequence, offer, now):
            return Verdict.BLOCKED
        if num_changes != self._num_changes():  # what was in use may be idle now
            offer = self._offers.make(sequence, account)
        num_changes = self._num_changes()
        if not self._find_blocks(sequence, offer, now):
            self._roster.pressure.blocked(sequence, now)
            return Verdict.BLOCKED
        if num_changes != self._num_changes():
            offer = self._offers.make(sequence, account)
        self._start(sequence, offer, now)
        return Verdict.STARTED

    def _num_changes(self) -> int:
        """Return how often blocks were taken from sequences so far: what was looked up before is no longer right."""
        return self._roster.num_preemptions + self._roster.streaming.num_moved

    def _below_ceilings(self, sequence: SequenceState, offer: Offer, now: float) -> Offer | None:
        """Return what a sequence starts with below its tenant's ceilings, after others have given pieces; or None."""
        streaming, account, tenant = self._roster.streaming, offer.account, sequence.tenant
        if offer.is_streamed and not streaming.has_room(sequence, account, self._expected(sequence)):
            return None
        ahead = self._ahead(sequence, tenant.running)
        while (over := offer.used + account.reserved + ahead - account.hard) > 0:
            if not streaming.squeeze_for(account, tenant, over, now):
                return None
            offer = self._offers.make(sequence, account)  # what it was to share may have gone
        return offer

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
        if sequence.num_places > policy.max_running:
            message = (
                f"The search runs {sequence.num_places} beams at once, and the tenant's max_running on this worker was"
                f" lowered to {policy.max_running}."
            )
            return Refusal(RefusalCode.QUEUE_FULL, message)
        searched = sequence.beams is not None
        needed = most_blocks(sequence, self._memory) if searched else self._memory.blocks_for(len(sequence.tokens))
        if needed > account.hard and not self._roster.streaming.can_hold(sequence, account):
            host = f" and what it may have in host memory (host_bytes) is {policy.host_bytes} bytes"
            host = host if self._limits.num_slabs and not searched else ""
            message = (
                f"The tenant's hard limit (kv_hard_bytes) was lowered to {policy.kv_hard_bytes} bytes{host}, and the"
                f" {'beam search' if searched else 'next token'} needs {needed * self._limits.block_bytes} bytes of KV"
                " memory."
            )
            return Refusal(RefusalCode.KV_LIMIT, message)
        return None

    def _ahead(self, sequence: SequenceState, running: Iterable[SequenceState]) -> int:
        """Return the growth to expect of `running` and of this sequence; nothing when it would run alone."""
        block_size = self._limits.block_size
        others = list(running)
        if not others:
            return 0
        own = 0
        if not is_protected(sequence):
            own = self._expected(sequence) - self._memory.blocks_for(len(sequence.tokens))
            if self._roster.streaming.may_stream(sequence):  # beyond what it can have here it grows in host memory
                account = sequence.tenant.account
                assert account is not None, "a tenant without policy has nothing in line"
                own = min(own, self._roster.streaming.reach(account) - self._memory.blocks_for(len(sequence.tokens)))
        return growth_ahead(others, block_size) + max(0, own)

    def _expected(self, sequence: SequenceState) -> int:
        return expected_blocks(sequence, self._limits.block_size)

    def _rows_short(self, count: int) -> int:
        """Return how many rows are missing for `count` more sequences; those of beams to come are taken."""
        return self._roster.num_places() + count - self._roster.max_running

    def _find_rows(self, sequence: SequenceState, offer: Offer, now: float) -> bool:
        """Say whether it may run, with all its beams; for a need within a guarantee, borrowers make room."""
        count = sequence.num_places
        if offer.used > offer.account.soft:
            if self._rows_short(count) + self._claimed_rows <= 0:
                return True
            if count > 1 and self._waits_long(sequence, now) and not self._claimed_rows:
                self._claimed_rows = count
            return False
        while self._rows_short(count) > 0:
            others = self._others(sequence.tenant)
            victim = pool_victim(others) or pool_victim(others, protected=True)
            if victim is None:
                self._claimed_rows = max(self._claimed_rows, count)
                return False
            evict(self._roster, victim, self._plan_number, now, by=sequence.tenant)
            self._pool_growth = None
        return True

    def _find_blocks(self, sequence: SequenceState, offer: Offer, now: float) -> bool:
        """Say whether what the sequence needs can be had, after preemption where it has a right to it."""
        account = offer.account
        if offer.used <= account.soft and self._evict_for(sequence, offer, now):
            return True
        if not self._roster.running:  # nobody to be careful of: what fits must start, or all would wait for ever
            return offer.num_new <= self._memory.available(
                account, offer.match, last_resort=self._offers.is_misfit(offer)
            )
        wanted = self._wanted(sequence, offer) - offer.num_shared
        last_resort = is_protected(sequence) and self._offers.is_misfit(offer)
        if wanted <= self._memory.available(account, offer.match, last_resort=last_resort) - self._claimed:
            return True
        if not self._claimed and self._waits_long(sequence, now):
            self._claimed = max(0, wanted)
        return False

    def _waits_long(self, sequence: SequenceState, now: float) -> bool:
        """Say whether others have gone on for long enough while it waited, by the clock or by what they were served."""
        if sequence.admitted or now - sequence.request.arrived_at > AGEING_SECONDS:
            return True
        return is_behind(sequence, self._roster.busy.values())

    def _wanted(self, sequence: SequenceState, offer: Offer) -> int:
        """Return the blocks that a borrower should find, with those that it shares.

        A protected one must never be in the way of a guarantee, so it leaves what others may claim. Where limits are
        such that it must be in the way, it takes what can be had.
        """
        needed = offer.whole
        accounts = self._memory.accounts
        if is_protected(sequence):
            return needed if self._offers.is_misfit(offer) else needed + accounts.unused_guarantees(offer.account)
        if self._pool_growth is None:
            self._pool_growth = growth_ahead(self._roster.running, self._limits.block_size)
        own = 0 if offer.is_streamed else self._expected(sequence) - needed
        reachable = self._limits.num_blocks - accounts.guarantees(offer.account)  # with guarantees in full use
        return max(needed, min(needed + self._pool_growth + max(0, own), reachable))

    def _evict_for(self, sequence: SequenceState, offer: Offer, now: float) -> bool:
        """Preempt borrowers until what a sequence needs can be had; none if that would not be enough."""
        missing = offer.num_new - self._memory.available(offer.account, offer.match)
        if missing <= 0:
            return True
        for givers in Givers:
            if self._takeable(sequence.tenant, givers) >= missing:
                while missing > 0:
                    victim = self._victim(sequence.tenant, givers)
                    if victim is None:
                        return False
                    evict(self._roster, victim, self._plan_number, now, by=sequence.tenant)
                    self._pool_growth = None
                    fresh = self._offers.make(sequence, offer.account)  # what was in use may be idle now
                    missing = fresh.num_new - self._memory.available(fresh.account, fresh.match)
                return True
        return False

    def _takeable(self, besides: Tenant, givers: Givers) -> int:
        """Return the blocks that preempting borrowers could make available, each down to its guarantee."""
        pool, others = self._memory.pool, self._others(besides)
        protected = givers is not Givers.UNPROTECTED
        total = sum(freed_until_soft(tenant, pool, protected=protected) for tenant in others)
        if givers is Givers.GROUPS_TOO:
            total += freed_by_groups((one for tenant in others for one in tenant.running), pool)
        return total

    def _victim(self, besides: Tenant, givers: Givers) -> SequenceState | None:
        """Return who gives way next for a need within a guarantee."""
        others = self._others(besides)
        victim = pool_victim(others, protected=givers is not Givers.UNPROTECTED)
        if victim is None and givers is Givers.GROUPS_TOO:
            victim = group_victim(one for tenant in others for one in tenant.running)
        return victim

    def _others(self, besides: Tenant) -> list[Tenant]:
        return [tenant for tenant in self._roster.busy.values() if tenant is not besides]

    def _start(self, sequence: SequenceState, offer: Offer, now: float) -> None:
        """Start a sequence on what it shares and what was found for the rest."""
        memory = self._memory
        last_resort = self._offers.is_misfit(offer) and (is_protected(sequence) or not self._roster.running)
        parent = offer.parent
        if parent is not None and parent.table is not None:
            table = memory.fork(sequence.id, parent.table, sequence.num_prompt - 1, now)
            sequence.chain, sequence.chain_stamp = table.chain, parent.chain_stamp
            sequence.computed = sequence.num_prompt - 1
        else:
            table = memory.open(sequence.id, sequence.tenant.name, now, chain=sequence.chain, match=offer.match)
        shortage = memory.grow(table, offer.num_tokens or len(sequence.tokens), now, last_resort=last_resort)
        if is_protected(sequence):
            shortage = shortage or memory.reserve(table, offer.whole, last_resort=last_resort)
        if parent is not None:
            shortage = shortage or memory.write_at(table, sequence.computed, now)
        assert shortage is None, "the blocks were found before the start"
        if parent is None:
            num_from_disk = memory.host.num_from_disk
            num_loaded = memory.load(table, offer.match, sequence.tokens, now)
            lost = offer.match.num_hosted - num_loaded
            sequence.computed = offer.match.num_tokens - lost * self._limits.block_size
            if not sequence.admitted:
                num_hosted = num_loaded + offer.match.num_streamed
                memory.tiers.found(sequence.computed, num_hosted, memory.host.num_from_disk - num_from_disk)
        memory.copy_part(table, offer.match)
        if not sequence.admitted:
            sequence.cached_tokens = sequence.computed
            self.asked_tokens += sequence.num_prompt
            self.found_tokens += sequence.computed
        self._roster.start(sequence, table, now)
        if offer.is_streamed:
            self._roster.streaming.started(sequence)
        if not offer.match.num_streamed:
            self._roster.streaming.gone(sequence)
        self._roster.prefills.begin(sequence)
        if self._pool_growth is not None:
            self._pool_growth += growth(sequence, self._limits.block_size)


def evict(roster: Roster, sequence: SequenceState, plan_number: int, now: float, *, by: Tenant) -> None:
    """Preempt a sequence for memory that tenant `by` needs, if none of its tenant's that streams has any to give.

    A beam search, which starts again each time, ends after a few with the best that it has found: it is in the way of
    others' guarantees, and might never come to its end.
    """
    if by is not sequence.tenant and roster.streaming.squeeze(sequence.tenant, now):
        return
    leader = sequence if sequence.beams is None else sequence.beams.leader
    leader.evictions += 1
    roster.preempt(sequence, plan_number, now, by=by.name)
    if leader.beams is not None and leader.evictions > MAX_EVICTIONS:
        message = (
            f"The beam search had to start again {MAX_EVICTIONS} times: other tenants needed the memory that they are"
            " guaranteed. Lower beam_width or max_tokens, or ask for a guarantee (kv_soft_bytes)."
        )
        roster.finish(leader, FinishReason.LENGTH, now, message=message)
