"""A world that watches from outside who loses what to whom, and compares it with the scheduler's own record."""

from collections import Counter, defaultdict
from typing import Any

import pytest

from engine.memory.accounts import Account, AccountOwner
from engine.memory.supply import Taking
from engine.request import SequenceId
from engine.scheduler.interference import FORGOTTEN, Cost
from engine.scheduler.sequence import SequenceState
from engine.step import StepPlan
from tests.engine.traffic import Traffic
from tests.engine.world import World


class WatchedWorld(World):
    """Counts each loss as it happens. `collect` takes the scheduler's news as a controller would."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_strict = False  # no limits are such that somebody can need what is guaranteed to others
        self.lost_blocks: Counter[Taking] = Counter()
        self.lost_places: Counter[Taking] = Counter()
        self.recomputed = 0
        self.told: dict[Taking, Cost] = defaultdict(Cost)
        self._last: dict[Taking, Cost] = {}
        self._computed: dict[SequenceId, int] = defaultdict(int)  # the most that a sequence had when it had to go
        self._above: dict[Account, float] = defaultdict(float)
        roster, supply = self.scheduler.roster, self.scheduler.memory.supply
        self._preempt, self._note_taken = roster.preempt, supply.note_taken
        roster.preempt = self._watch_preempt  # type: ignore[method-assign]  # watched, and passed on
        supply.note_taken = self._watch_taken  # type: ignore[method-assign]

    def step(self, seconds: float = 0.01) -> bool:
        """Step, and compare the seconds above the guarantee."""
        is_busy = super().step(seconds)
        for account in self.scheduler.memory.accounts:
            assert account.seconds_above(self.now) == pytest.approx(self._above[account], abs=1e-6)
        return is_busy

    def collect(self) -> None:
        """Take what has changed and add up the differences."""
        supply = self.scheduler.memory.supply
        for taking, cost in self.scheduler.roster.interference.take_changed(supply.take_taken()):
            last = self._last.pop(taking, FORGOTTEN)
            if cost == FORGOTTEN:
                continue
            for name in Cost.__slots__:
                gained = getattr(cost, name) - getattr(last, name)
                assert gained >= 0, "a counter falls"
                setattr(self.told[taking], name, getattr(self.told[taking], name) + gained)
            self._last[taking] = Cost(*(getattr(cost, name) for name in Cost.__slots__))

    def check_told(self) -> None:
        """Compare all that was told with all that was seen."""
        self.collect()
        seen = {taking: Cost(count) for taking, count in self.lost_blocks.items()}
        for taking, count in self.lost_places.items():
            seen.setdefault(taking, Cost()).num_preemptions = count
        told = {taking: Cost(cost.cached_blocks, cost.num_preemptions) for taking, cost in self.told.items()}
        assert told == seen
        assert sum(cost.recomputed_tokens for cost in self.told.values()) == self.recomputed
        assert sum(self.lost_places.values()) == self.scheduler.roster.num_preemptions

    def lost(self, owner: AccountOwner) -> Cost:
        """Return what an account was told to have lost, to whomever."""
        costs = [cost for taking, cost in self.told.items() if taking.of == owner]
        return Cost(*(sum(getattr(cost, name) for cost in costs) for name in Cost.__slots__))

    def _watch_preempt(
        self, sequence: SequenceState, plan_number: int, now: float, *, by: AccountOwner | None = None
    ) -> None:
        tenant, table = sequence.tenant, sequence.table
        account = tenant.account
        assert account is not None and table is not None
        of: AccountOwner = tenant.name
        if by not in (None, tenant.name):
            is_of_group = table.num_head and by == table.head_account.owner
            if is_of_group or account.used + account.reserved <= account.soft:
                assert table.num_head, f"{tenant.name} is within its guarantee and loses a place to {by}"
                assert is_of_group or table.head_account.used > table.head_account.soft
                of = table.head_account.owner
        computed = min(sequence.computed, len(sequence.tokens) - 1)
        self._computed[sequence.id] = max(self._computed[sequence.id], computed)
        self.lost_places[Taking(by or tenant.name, of)] += 1
        self._preempt(sequence, plan_number, now, by=by)

    def _watch_taken(self, by: Account, of: Account) -> None:
        is_last_resort = self.scheduler.memory.accounts.largest_borrower(by) is None
        assert of.blocks > of.soft or (is_last_resort and not self.is_strict), f"{of.owner} loses what is guaranteed"
        self.lost_blocks[Taking(by.owner, of.owner)] += 1
        self._note_taken(by, of)

    def _check_writes(self, plan: StepPlan) -> None:
        super()._check_writes(plan)
        for part in plan.sequences:
            end = part.start + len(part.token_ids)
            self.recomputed += max(0, min(end, self._computed[part.sequence]) - part.start)

    def _meter(self, seconds: float) -> None:
        super()._meter(seconds)
        for account in self.scheduler.memory.accounts:
            if account.blocks > account.soft:
                self._above[account] += seconds


class WatchedTraffic(Traffic):
    """Traffic without beams, which compute several tokens at once again; what was lost is collected now and then."""

    world: WatchedWorld

    def _beams(self) -> None:  # type: ignore[override]  # none
        return None

    def _step(self, seconds: float) -> bool:
        if self.chance.random() < 0.2:
            self.world.collect()
        return super()._step(seconds)
