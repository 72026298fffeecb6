"""Requests whose beginning is on the disk wait for it, where that is sooner than computing it again.

    first in line ── the disk has what follows ─▶ FETCHING ── all there, failed, or late ─▶ back at its place in line
                                                   disk ─▶ slabs, claimed                     slabs ─▶ device in a plan

A sequence that fetches holds slabs and nothing else: no row, no block of the device, no place before anybody. It waits
no longer than computing what it waits for would take (that is then twice what it would have cost at the very most, and
what is there by then is not lost), and starts with what has come. It fetches once each time that it waits in line.

    fetch     bytes that are being read, and its own, ÷ measured rate of the disk, then bytes ÷ rate back to the device
    compute   what its tokens add to the steps that compute them (step_time.py)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey
from engine.memory.tiers.disk import DiskTier
from engine.memory.tiers.hosted import Presence
from engine.scheduler.sequence import SequenceState, State

if TYPE_CHECKING:
    from engine.memory.lookup import Match
    from engine.scheduler.roster import Roster
    from engine.scheduler.tenant import Tenant

TRY_AGAIN_SECONDS = 30.0  # after which a disk that was slow is given another chance


@dataclass(slots=True)
class _Fetch:
    """What a sequence waits for."""

    sequence: SequenceState
    keys: Sequence[BlockKey]  # to be in host memory, in order
    began: float
    deadline: float
    num_asked: int = 0  # of them, the first ones: there, or on their way
    num_there: int = 0  # of these, the first ones that are there


class Fetching:
    """All sequences that wait for the disk."""

    def __init__(self, roster: "Roster") -> None:
        self.num_chosen = 0  # sequences that waited
        self.num_late = 0  # of them, those that started without all that they waited for
        self.stall_seconds = 0.0  # that they waited, in all
        self._roster = roster
        self._memory = roster.memory
        self._fetches: dict[SequenceState, _Fetch] = {}
        self._tried: set[SequenceState] = set()  # they have waited, and are in line again
        self._tried_at = 0.0

    @property
    def num_fetching(self) -> int:
        """Sequences that wait now."""
        return len(self._fetches)

    def begin(self, sequence: SequenceState, match: "Match", now: float) -> bool:
        """Have a sequence that is first in line wait for the disk, if that is worth it; say whether it does."""
        disk, chain = self._memory.tiers.disk, sequence.chain
        if disk is None or chain is None or sequence in self._tried or match.num_streamed:
            return False
        size = self._memory.shape.block_size
        first = len(match.blocks) + match.num_hosted
        end = min(sequence.reusable // size, len(chain.keys))
        count = disk.find(chain.keys, first, end)
        count = min(count, self._room(sequence, chain.keys, len(match.blocks), first + count) - match.num_hosted)
        if count <= 0 or len(match.blocks) < chain.num_head:
            return False
        seconds = self._roster.swapping.cost.compute_seconds(first * size, (first + count) * size)
        if not self._is_worth_it(disk, chain.keys[first : first + count], seconds, now):
            self._tried.add(sequence)
            return False
        keys = chain.keys[len(match.blocks) : first + count]
        self._claim(sequence, keys)
        self._fetches[sequence] = _Fetch(sequence, keys, now, now + seconds)
        self.num_chosen += 1
        self._tried_at = now
        self._roster.fetch(sequence)
        self._advance(self._fetches[sequence], now)
        return True

    def turn(self, now: float) -> None:
        """Ask for more of what is waited for, and end the waits that are over."""
        for fetch in list(self._fetches.values()):
            self._advance(fetch, now)

    def stop(self, tenant: "Tenant", now: float) -> None:
        """Have a tenant's sequences wait no longer."""
        for fetch in list(self._fetches.values()):
            if fetch.sequence.tenant is tenant:
                self._end(fetch, now)

    def left(self, sequence: SequenceState) -> None:
        """Note that a sequence waits no longer, for whatever reason. What is being read for it goes on."""
        del self._fetches[sequence]

    def gone(self, sequence: SequenceState) -> None:
        """Note that a sequence runs, or has ended: when it waits in line again it may fetch again."""
        self._tried.discard(sequence)

    # ------------------------------------------------------------ parts

    def _room(self, sequence: SequenceState, keys: Sequence[BlockKey], start: int, end: int) -> int:
        """Return how many of these blocks the sequence may claim."""
        host, own = self._memory.host, set(self._memory.host.claims.of(sequence.id))
        room, count = host.claims.room(sequence.tenant.name), 0
        for key in keys[start:end]:
            room -= key not in own and not host.claims.wants(key)
            if room < 0:
                break
            count += 1
        return count

    def _is_worth_it(self, disk: DiskTier, keys: Sequence[BlockKey], compute_seconds: float, now: float) -> bool:
        cost, block_bytes = self._roster.swapping.cost, self._memory.shape.block_bytes
        num_read = disk.num_reading + sum(self._memory.host.get(key) is None for key in keys)
        seconds = disk.rate.predict(num_read * block_bytes)
        if now - self._tried_at > TRY_AGAIN_SECONDS:
            seconds = 0.0
        return seconds + cost.load_seconds(len(keys)) < compute_seconds

    def _claim(self, sequence: SequenceState, keys: Sequence[BlockKey]) -> None:
        host = self._memory.host
        own = host.claims.of(sequence.id)
        every = [*dict.fromkeys((*own, *keys))]
        host.claims.release(sequence.id)
        host.claims.claim(sequence.id, sequence.tenant.name, every)

    def _advance(self, fetch: _Fetch, now: float) -> None:
        host, disk = self._memory.host, self._memory.tiers.disk
        failed = disk is None
        while disk is not None and fetch.num_asked < len(fetch.keys):
            key = fetch.keys[fetch.num_asked]
            if host.get(key) is None and not disk.read(key, fetch.sequence.tenant.name):
                failed = not disk.is_full
                break
            fetch.num_asked += 1
        num_there = self._num_there(fetch)
        waits = num_there < len(fetch.keys) if not failed else num_there < fetch.num_asked
        if waits and num_there < fetch.num_asked and host.get(fetch.keys[num_there]) is None:
            waits = False  # its read has failed: what is behind it is no use
        if not waits or now >= fetch.deadline:
            self.num_late += num_there < len(fetch.keys)
            self._end(fetch, now)

    def _num_there(self, fetch: _Fetch) -> int:
        """Return how many of the blocks, from the first on, are in host memory: they are claimed, and stay."""
        while fetch.num_there < len(fetch.keys):
            entry = self._memory.host.get(fetch.keys[fetch.num_there])
            if entry is None or entry.presence is Presence.COMING:
                break
            fetch.num_there += 1
        return fetch.num_there

    def _end(self, fetch: _Fetch, now: float) -> None:
        """Put a sequence back in line; what has come stays claimed until it runs or ends."""
        sequence = fetch.sequence
        host = self._memory.host
        awaited = set(fetch.keys)
        kept = [key for key in host.claims.of(sequence.id) if key not in awaited or host.get(key) is not None]
        host.claims.release(sequence.id)
        if kept and host.keeps(sequence.tenant.name):
            host.claims.claim(sequence.id, sequence.tenant.name, kept)
        self.stall_seconds += max(0.0, now - fetch.began)
        self._tried.add(sequence)
        self._roster.queue(sequence)

    def audit(self) -> None:
        """Check that those wait that are said to. Raises InvariantError."""
        if any(one.state is not State.FETCHING for one in self._fetches):
            raise InvariantError("a sequence waits for the disk, and stands elsewhere too")
        if any(one.state in (State.FETCHING, State.RUNNING, State.ENDED) for one in self._tried):
            raise InvariantError("a sequence has waited for the disk, and is not in line")
