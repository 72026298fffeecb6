"""Who took what from whom: cached blocks, running places, and the tokens that had to be computed again for it.

    by      by whose need: another tenant's, or the account itself, whose own ceiling or lowered limit it was
    of      of whose memory: what was taken lay above this account's guarantee, or under its own limits

Where a sequence has to go because its share group has borrowed, the memory is the group's and so is the loss. A token
is charged when it is computed again, to whom took the memory that it was in; what the prefix cache still has on the way
back costs nothing. Counters only rise, from the core's start on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from engine.memory.accounts import AccountOwner, ShareGroupId
from engine.memory.supply import Taking
from engine.request import SequenceId
from engine.scheduler.sequence import SequenceState
from engine.scheduler.step_time import chunk_pairs

MAX_PAIRS = 4096  # kept; beyond them, those that have been quiet for longest are forgotten
LOOK_OVER = 40  # pairs of accounts that are gone are looked for once in so many reports: every ten seconds


@dataclass(slots=True)
class Cost:
    """What one account's need has cost another."""

    cached_blocks: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_bytes: int = 0


class Again(NamedTuple):
    """Chunks that were computed again, as the model of step times counts them."""

    tokens: int = 0
    pairs: int = 0


FORGOTTEN = Cost()  # as the last report of a pair: should it come back, it counts from zero


@dataclass(slots=True)
class _Losses:
    """What a preempted sequence has to compute again: up to each position, for whom. Positions rise."""

    done: int  # tokens that are there again, or were never lost
    parts: list[tuple[int, Taking]]


class Interference:
    """The record. Each event costs a look into a table; a decode costs nothing.

    Args:
        is_here: tells whether an account is still open; pairs of others are forgotten once they were reported.
    """

    def __init__(self, is_here: Callable[[AccountOwner], bool]) -> None:
        self._is_here = is_here
        self._pairs: dict[Taking, Cost] = {}  # in the order of their last change before the last report
        self._changed: set[Taking] = set()
        self._losses: dict[SequenceId, _Losses] = {}
        self._num_reports = 0
        self._again = Again()

    @property
    def has_losses(self) -> bool:
        """Whether any sequence has tokens to compute again."""
        return bool(self._losses)

    @property
    def num_pairs(self) -> int:
        """Pairs that are kept."""
        return len(self._pairs)

    def preempted(self, sequence: SequenceState, by: AccountOwner | None) -> None:
        """Note that a running sequence is about to lose its blocks; `by` None: for its own tenant's limits or need."""
        taking = _taking(sequence, by)
        self._cost(taking).num_preemptions += 1
        sequence.tenant.num_preemptions += 1
        before = self._losses.get(sequence.id)
        computed = min(sequence.computed, len(sequence.tokens) - 1)  # the last token's step is not committed
        # What was lost before and is not there again was not lost to this one.
        parts = [part for part in before.parts if part[0] > computed] if before is not None else []
        if computed and not (parts and parts[0][1] == taking):
            parts.insert(0, (computed, taking))
        if parts:
            self._losses[sequence.id] = _Losses(0, parts)

    def computed(self, sequence: SequenceState, start: int, end: int, width: int = 1) -> None:
        """Charge what of the tokens `start` to `end` had been computed before; `width`: at so many beams at once."""
        losses = self._losses.get(sequence.id)
        if losses is None:
            return
        start = max(start, losses.done)
        while losses.parts and start < end:
            until, taking = losses.parts[0]
            count = (min(end, until) - start) * width
            if count > 0:
                self._again = Again(self._again.tokens + count, self._again.pairs + chunk_pairs(start, count))
                self._cost(taking).recomputed_tokens += count
                sequence.tenant.recomputed_tokens += count
                start = min(end, until)
            if until <= end:
                losses.parts.pop(0)
        losses.done = max(losses.done, end)
        if not losses.parts:
            del self._losses[sequence.id]

    def take_again(self) -> Again:
        """Return what was computed again since the last call."""
        again, self._again = self._again, Again()
        return again

    def swapped(self, taking: Taking, num_bytes: int) -> None:
        """Note bytes that were moved out of the device pool."""
        self._cost(taking).swapped_bytes += num_bytes

    def ended(self, sequence: SequenceId) -> None:
        """Forget a sequence: what it had lost is not computed again."""
        self._losses.pop(sequence, None)

    def take_changed(self, taken: Mapping[Taking, int]) -> list[tuple[Taking, Cost]]:
        """Return the pairs that have changed since the last call, and FORGOTTEN ones.

        Args:
            taken: cached blocks that were given up since then (`Supply.take_taken`).
        """
        for taking, count in taken.items():
            self._cost(taking).cached_blocks += count
        changed, self._changed = self._changed, set()
        news: list[tuple[Taking, Cost]] = []
        for taking in changed:
            cost = self._pairs[taking] = self._pairs.pop(taking)  # the newest stand last
            news.append((taking, cost))
        self._num_reports += 1
        stale = [] if self._num_reports % LOOK_OVER else [pair for pair in self._pairs if self._is_gone(pair)]
        if len(self._pairs) > MAX_PAIRS:
            stale = list(self._pairs)[: len(self._pairs) - MAX_PAIRS]
        for taking in stale:
            if taking not in changed:
                del self._pairs[taking]
                news.append((taking, FORGOTTEN))
        return news

    def _cost(self, taking: Taking) -> Cost:
        self._changed.add(taking)
        cost = self._pairs.get(taking)
        if cost is None:
            cost = self._pairs[taking] = Cost()
        return cost

    def _is_gone(self, taking: Taking) -> bool:
        return not (self._is_here(taking.by) and self._is_here(taking.of))


def account_name(owner: AccountOwner) -> str:
    """Return an account's name as the protocol has it: the tenant's id, or "group:" and the share group's name."""
    return f"group:{owner.group}" if isinstance(owner, ShareGroupId) else owner


def _taking(sequence: SequenceState, by: AccountOwner | None) -> Taking:
    """Return for whom a sequence has to go, and whose loss that is."""
    tenant, table = sequence.tenant, sequence.table
    if by is None or by == tenant.name:
        return Taking(tenant.name, tenant.name)
    head = table.head_account.owner if table is not None and table.num_head else None
    is_within = tenant.account is not None and not tenant.account.overdrawn
    if head is not None and (by == head or is_within):
        return Taking(by, head)
    return Taking(by, tenant.name)
