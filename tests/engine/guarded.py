"""A world that checks in every step what a guarantee promises, from the outside.

nothing is lost    a tenant within its soft limit loses neither a place nor a cached block to another (watched.py)
nothing is waited  what fits within the soft limit runs in the very next plan, a decode is in each
hard holds         whoever is above a ceiling had it lowered, and only falls (World)
sums are right     the accounts together hold exactly what the pool has given out
"""

from typing import Any

from engine.scheduler.fairness import first_waiting
from engine.scheduler.offer import most_blocks, waits_to_fork
from engine.scheduler.pressure import MAX_EVICTIONS, expected_blocks, growth_ahead, is_protected
from engine.scheduler.sequence import SequenceState, State
from engine.scheduler.tenant import Tenant
from tests.engine.watched import WatchedWorld


class GuardedWorld(WatchedWorld):
    """Of these worlds, requests are small beside what all guarantees together leave of the pool."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_strict = True
        self.num_entitled = 0  # starts that had to come at once, and did
        self.most_evictions = 0  # of any request
        self.num_decodes = 0  # of tenants within their guarantee

    def step(self, seconds: float = 0.001) -> bool:
        """Run one step, and check whoever could not be made to wait."""
        roster = self.scheduler.roster
        is_calm = not self.scheduler.enforcement.is_due
        entitled = [one for one in map(self._entitled, roster.waiting.values()) if one is not None] if is_calm else []
        decodes = [one for one in roster.running if one.remaining == 1 and self._is_within(one.tenant)]
        is_busy = super().step(seconds)
        planned = {part.sequence for part in self.plan.sequences} if self.plan is not None else set()
        for one in entitled:
            joins = one.join_until >= self.scheduler.step - 1  # it waits for blocks that are being computed, by choice
            assert one.state is not State.WAITING or joins, f"{one.tenant.name} waits within its guarantee"
            self.num_entitled += not joins
        for one in decodes:
            assert one.id in planned or not is_calm, f"{one.tenant.name} misses a step within its guarantee"
            self.num_decodes += 1
        self._check_sums()
        return is_busy

    def _entitled(self, tenant: Tenant) -> SequenceState | None:
        """Return the tenant's next sequence, if nothing but others could keep it from starting."""
        one, account, policy = first_waiting(tenant, self.now), tenant.account, tenant.policy
        if one is None or account is None or policy is None or waits_to_fork(one, self.shape.block_size):
            return None
        memory, roster = self.scheduler.memory, self.scheduler.roster
        needed = memory.blocks_for(len(one.tokens))
        if is_protected(one):
            needed = max(needed, most_blocks(one, memory))
        taken = account.used + account.reserved + needed
        growth = growth_ahead(tenant.running, self.shape.block_size)
        growth += max(0, expected_blocks(one, self.shape.block_size) - needed)
        if taken + len(tenant.running) > account.soft or taken + growth > account.hard:  # its own decodes go first
            return None
        return one if roster.num_places(tenant) + one.num_places <= policy.max_running else None

    def _is_within(self, tenant: Tenant) -> bool:
        """Say whether a tenant has its guarantee with a block to spare for each of its sequences."""
        account = tenant.account
        return account is not None and account.used + account.reserved + len(tenant.running) <= account.soft

    def _check_sums(self) -> None:
        memory = self.scheduler.memory
        assert sum(account.blocks for account in memory.accounts) == self.shape.num_blocks - memory.pool.num_free
        for one in self.scheduler.roster.sequences.values():
            self.most_evictions = max(self.most_evictions, one.evictions)
        assert self.most_evictions <= MAX_EVICTIONS, "a request is preempted too often"
