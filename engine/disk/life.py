"""One life of a store as the loop sees it: what is where, what is under way, and the orders that follow from that.

It begins when a volume has opened and ends when that fails or is closed. All that a life knows can be read again from
the disk; what must not be lost (limits, erasures that are not over, figures) is the store's.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from engine.disk.accounts import Account, Accounts, Slab
from engine.disk.contents import SessionRow
from engine.disk.erasures import Erasure, Erasures, Wait
from engine.disk.events import DiskEvent, ReadDone, Written
from engine.disk.figures import Figures
from engine.disk.index import Index
from engine.disk.orders import (
    Answer,
    Change,
    Changed,
    Claim,
    Cleared,
    Fetch,
    Fetched,
    Opened,
    Order,
    Put,
    Wipe,
    Wiped,
    Wrote,
)
from engine.disk.seal import Sealer
from engine.disk.slots import Slots, Trace, Traces, match
from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey

NUM_WIPES = 16  # under way at once: the rest may be overwritten by writes meanwhile
MOST_READS = 1024


@dataclass(slots=True, eq=False)
class _Writing:
    put: Put
    slab: Slab
    traces: Traces  # of what the slot held before
    asked_at: float
    doomed: bool = False  # given up, or erased, before it was there


@dataclass(slots=True, eq=False)
class _Reading:
    slab: Slab
    asked_at: float


class Life:
    """What is on the disk, and what is being done to it."""

    def __init__(
        self,
        opened: Opened,
        num_slots: int,
        stride: int,
        erasures: Erasures,
        figures: Figures,
        order: Callable[[Order], None],
    ) -> None:
        self.accounts = Accounts()
        self.heard_at = time.monotonic()  # when the keeper last answered, or had nothing to do
        self._stride, self._erasures, self._figures, self._order_now = stride, erasures, figures, order
        self._slots = Slots(num_slots, opened.per_extent, opened.contents.extents, -(-opened.stale_bytes // stride))
        self._blocks: dict[BlockKey, Slab] = {}
        self._writing: dict[int, _Writing] = {}  # by slot; the oldest first
        self._reading: dict[Fetch, _Reading] = {}  # the oldest first
        self._changes: set[int] = set()  # numbers of those that are to be answered
        self._num_changes = 0
        self._ranked: set[Slab] = set()  # to be told to the index
        self._take_over(opened)

    def _take_over(self, opened: Opened) -> None:
        for owner, check in opened.contents.owners.items():
            self.accounts.open(owner).check = check
        now = time.time()
        for row in opened.contents.rows:
            account = self.accounts.open(row.owner)
            slab = Slab(row.key, account, row.slot, min(row.last_use, now), row.value, row.proof, stored=True)
            self._blocks[row.key] = slab
            account.add(slab)
        for account in self.accounts:
            self.accounts.note(account)
        for owner, name, record in opened.contents.sessions:
            self.accounts.open(owner).sessions[name] = record
        taken, dirty = {slab.slot for slab in self._blocks.values()}, set(opened.dirty)
        for slot in opened.dirty:
            self._slots.give_dirty(slot, None)
        for extent, num_slots in opened.contents.extents.items():
            first = extent * opened.per_extent
            for slot in set(range(first, first + num_slots)) - taken - dirty:
                self._slots.give_clean(slot)

    # ------------------------------------------------------------ figures

    @property
    def used(self) -> int:
        """Slots that have a block, or are being written to for one."""
        return len(self._blocks)

    @property
    def num_writing(self) -> int:
        """Writes under way."""
        return len(self._writing)

    @property
    def num_reading(self) -> int:
        """Reads under way."""
        return len(self._reading)

    @property
    def is_waiting(self) -> bool:
        """Whether the keeper has something to answer."""
        return bool(self._writing or self._changes or self._slots.wiping)

    @property
    def is_dirty(self) -> bool:
        """Whether slots are to be wiped."""
        return self._slots.is_dirty

    @property
    def is_short_of_room(self) -> bool:
        """Whether the disk had no room for an extent."""
        return self._slots.is_short

    def keys(self) -> list[BlockKey]:
        """Return all blocks that can be read, those of owners without a limit included."""
        return [key for key, slab in self._blocks.items() if slab.stored]

    def unclean(self) -> list[int]:
        """Return the slots that may hold something of a block that is gone."""
        return self._slots.unclean()

    # ------------------------------------------------------------ limits

    def limit(self, owner: str, num_slots: int, sealer: Sealer | None) -> None:
        """Set an owner's ceiling and sealer; without one, nothing of the owner is kept."""
        num_slots = num_slots if sealer is not None else 0
        account = self.accounts.get(owner)
        if account is None:
            if not num_slots:
                return
            account = self.accounts.open(owner)
        account.ceiling, account.sealer = num_slots, sealer
        if not num_slots or (sealer is not None and account.check not in (None, sealer.check)):
            self._erase_account(account)
        while account.used > num_slots:
            self._give_up(account.least() or next(iter(account.slabs.values())))
            self._figures.num_evicted += 1
        self.accounts.note(account)

    def _give_up(self, slab: Slab) -> None:
        """Let a block go; its bytes stay until its slot is needed."""
        self._take_out(slab)
        if slab.stored:
            self._change(partial(Index.remove, slots=[slab.slot]))
            self._slots.give_left(slab.slot, Trace(slab.key, slab.account.owner))
        else:
            self._writing[slab.slot].doomed = True

    def _take_out(self, slab: Slab) -> None:
        del self._blocks[slab.key], slab.account.slabs[slab.key]
        self._ranked.discard(slab)

    # ------------------------------------------------------------ blocks

    def readable(self, key: BlockKey) -> bool:
        """Whether a block can be read now."""
        slab = self._blocks.get(key)
        return slab is not None and slab.stored and bool(slab.account.ceiling)

    def write(self, key: BlockKey, owner: str, memory: memoryview, value: float) -> bool:
        """Queue a block to be written; False: it is there, or there is no room for it."""
        account = self.accounts.get(owner)
        if account is None or not account.ceiling or account.sealer is None or key in self._blocks:
            return False
        now = time.time()
        place = self._place(account, now + value)
        if place is None:
            return False
        self._note_owner(account, account.sealer)
        slot, traces = place
        slab = Slab(key, account, slot, now, value)
        put = Put(slot, self._slots.extent_slots(slot), key, owner, account.sealer, memory, now, value)
        self._order(put)
        self._writing[slot] = _Writing(put, slab, traces, time.monotonic())
        self._blocks[key] = slab
        account.add(slab)
        self.accounts.note(account)
        return True

    def _place(self, account: Account, score: float) -> tuple[int, Traces] | None:
        """Find a slot for a block of a score, in place of a lesser one if there is no other."""
        if account.ceiling is not None and account.used >= account.ceiling:
            return self._replace(account.least(), account, score)
        return self._slots.take() or self._replace(self.accounts.victim(account), account, score)

    def _replace(self, victim: Slab | None, account: Account, score: float) -> tuple[int, Traces] | None:
        if victim is None or (victim.account is account and victim.score > score):
            return None
        self._take_out(victim)
        self._figures.num_evicted += 1
        return victim.slot, frozenset({Trace(victim.key, victim.account.owner)})

    def read(self, key: BlockKey, into: memoryview) -> Fetch | None:
        """Return what the readers are to do; None: the block cannot be read, or too much is being read."""
        slab = self._blocks.get(key)
        if slab is None or not self.readable(key) or len(self._reading) >= MOST_READS:
            return None
        assert slab.account.sealer is not None
        slab.readers += 1
        fetch = Fetch(key, slab.slot, slab.proof, slab.account.sealer, into)
        self._reading[fetch] = _Reading(slab, time.monotonic())
        return fetch

    def touch(self, keys: Iterable[BlockKey], now: float) -> None:
        """Note that blocks were of use."""
        for key in keys:
            slab = self._blocks.get(key)
            if slab is not None and now > slab.last_use:
                slab.last_use = now
                self._ranked.add(slab)

    def set_value(self, key: BlockKey, value: float) -> None:
        """Say what a block is worth."""
        slab = self._blocks.get(key)
        if slab is not None and value != slab.value:
            slab.value = value
            self._ranked.add(slab)
            if slab.stored:
                slab.account.rank(slab)

    def tell_ranks(self) -> None:
        """Have the index note what was of use since the last call."""
        uses = [(slab.slot, slab.last_use, slab.value) for slab in self._ranked if slab.stored]
        self._ranked = {slab for slab in self._ranked if not slab.stored}
        if uses:
            self._change(partial(Index.rank, uses=uses))

    # ------------------------------------------------------------ erasing

    def erase(self, erasure: Erasure) -> None:
        """Take away what a call asks for; the erasure is over when nothing of it is on the disk."""
        waits: set[Wait] = set()
        if erasure.session is not None:
            waits |= self._erase_session(*erasure.session)
        if erasure.owner is not None:
            waits |= self._erase_owner(erasure.owner)
        if erasure.keys:
            waits |= self._erase_blocks([self._blocks[key] for key in erasure.keys if key in self._blocks])
            waits |= self._traces_of(set(erasure.keys), None)
        self._erasures.wait(erasure, waits)

    def _erase_session(self, owner: str, session: str) -> set[Wait]:
        account = self.accounts.get(owner)
        if account is None or account.sealer is None:
            return set()
        name = account.sealer.name(session)
        account.sessions.pop(name, None)
        return {self._change(partial(Index.remove_session, owner=owner, name=name), erases=True)}

    def _erase_owner(self, owner: str) -> set[Wait]:
        account = self.accounts.get(owner)
        if account is None:
            return self._traces_of(set(), owner)
        self.accounts.remove(owner)
        return self._erase_account(account)

    def _erase_account(self, account: Account) -> set[Wait]:
        """Erase all that an owner has and had, not the owner itself."""
        waits = self._erase_blocks(list(account.slabs.values())) | self._traces_of(set(), account.owner)
        if account.check is not None:
            account.check = None
            account.sessions.clear()
            waits.add(self._change(partial(Index.remove_owner, name=account.owner), erases=True))
        return waits

    def _erase_blocks(self, slabs: list[Slab]) -> set[Wait]:
        stored = [slab for slab in slabs if slab.stored]
        for slab in slabs:
            self._take_out(slab)
            if slab.stored:
                self._slots.give_dirty(slab.slot, frozenset({Trace(slab.key, slab.account.owner)}))
            else:
                self._writing[slab.slot].doomed = True
        waits: set[Wait] = {("slot", slab.slot) for slab in slabs}
        if stored:
            waits.add(self._change(partial(Index.remove, slots=[slab.slot for slab in stored]), erases=True))
        return waits

    def _traces_of(self, keys: set[BlockKey], owner: str | None) -> set[Wait]:
        """Have wiped what may lie in slots without a block, and wait for writes that overwrite it."""
        waits: set[Wait] = {("slot", slot) for slot in self._slots.spoil(keys, owner)}
        for slot, writing in self._writing.items():
            own = frozenset({Trace(writing.put.key, writing.put.owner)}) if writing.doomed else frozenset()
            if match(writing.traces, keys, owner) or match(own, keys, owner):
                waits.add(("slot", slot))
        return waits

    # ------------------------------------------------------------ sessions

    def put_session(self, owner: str, session: str, record: bytes) -> bool:
        """Keep a session's record; False: the owner may keep nothing here."""
        account = self.accounts.get(owner)
        if account is None or not account.ceiling or account.sealer is None:
            return False
        self._note_owner(account, account.sealer)
        name = account.sealer.name(session)
        account.sessions[name] = stored = account.sealer.seal_record(session, record)
        self._change(partial(Index.put_session, row=SessionRow(owner, name, stored)))
        return True

    def sessions(self, owner: str) -> list[tuple[str, bytes]]:
        """Return the sessions of an owner that can be opened, and their records."""
        account = self.accounts.get(owner)
        if account is None or account.sealer is None:
            return []
        opened = [account.sealer.open_record(name, record) for name, record in account.sessions.items()]
        return [found for found in opened if found is not None]

    def _note_owner(self, account: Account, sealer: Sealer) -> None:
        """Have the index know an owner before anything of it."""
        if account.check is None:
            account.check = sealer.check
            self._change(partial(Index.set_owner, name=account.owner, check=sealer.check))

    # ------------------------------------------------------------ answers

    def handle(self, answer: Answer) -> Iterator[DiskEvent]:
        """Take an answer; yield what the loop is to know."""
        if isinstance(answer, Fetched):
            yield from self._fetched(answer)
            return
        self.heard_at = time.monotonic()
        if isinstance(answer, Wrote):
            yield from self._wrote(answer)
        elif isinstance(answer, Wiped):
            self._slots.wiped(answer.slot, ok=not answer.error)
            if answer.error:
                self._figures.errors[answer.error] += 1
            else:
                self._erasures.over(("slot", answer.slot))
        elif isinstance(answer, Changed):
            self._changes.remove(answer.number)
            self._erasures.over(("change", answer.number))
        elif isinstance(answer, Cleared):
            self._slots.reserved = max(0, self._slots.reserved - -(-answer.num_bytes // self._stride))

    def _wrote(self, answer: Wrote) -> Iterator[DiskEvent]:
        put = answer.put
        writing = self._writing.pop(put.slot)
        own = Trace(put.key, put.owner)
        if answer.error:
            self._not_written(writing, own, answer.error)
            yield Written(put.key, False)
            return
        self._slots.has_made(put.slot // self._slots.per_extent)
        self._figures.writes.add(len(put.memory), time.monotonic() - writing.asked_at)
        if writing.doomed:
            self._change(partial(Index.remove, slots=[put.slot]), erases=True)
            self._slots.give_dirty(put.slot, frozenset({own}))
            yield Written(put.key, False)
            return
        slab = writing.slab
        slab.proof, slab.stored = put.proof, True
        slab.account.rank(slab)
        self._erasures.over(("slot", put.slot))
        yield Written(put.key, True)

    def _not_written(self, writing: _Writing, own: Trace, error: str) -> None:
        slot = writing.put.slot
        if not writing.doomed:
            self._take_out(writing.slab)
        if error != "cancelled":
            self._figures.errors[error] += 1
        if error == "full" and slot // self._slots.per_extent not in self._slots.made:
            self._slots.park(slot)
            self._erasures.over(("slot", slot))
        else:
            self._slots.give_dirty(slot, None if writing.traces is None else writing.traces | {own})

    def _fetched(self, answer: Fetched) -> Iterator[DiskEvent]:
        reading = self._reading.pop(answer.fetch, None)
        if reading is None:  # it took too long
            return
        slab, seconds = reading.slab, time.monotonic() - reading.asked_at
        slab.readers -= 1
        is_there = self._blocks.get(slab.key) is slab
        if answer.error:
            self._figures.errors[answer.error] += 1
            if is_there:
                self._erase_blocks([slab])
        else:
            self._figures.reads.add(len(answer.fetch.into), seconds)
        ok = not answer.error and is_there
        self._figures.num_hits += ok
        yield ReadDone(slab.key, ok, seconds)

    # ------------------------------------------------------------ time

    def late_reads(self, before: float) -> Iterator[DiskEvent]:
        """Yield the end of reads that were asked for before a moment and have not come."""
        for fetch, reading in list(self._reading.items()):
            if reading.asked_at >= before:
                return
            if fetch.claim.cancel():
                del self._reading[fetch]
                reading.slab.readers -= 1
                self._figures.errors["slow"] += 1
                yield ReadDone(fetch.key, False, time.monotonic() - reading.asked_at)

    def wipe(self) -> None:
        """Have some of the dirty slots wiped."""
        idle = not self.is_waiting
        while len(self._slots.wiping) < NUM_WIPES and (slot := self._slots.next_wipe()) is not None:
            self._order_now(Wipe(slot))
        if idle:
            self.heard_at = time.monotonic()

    def try_again(self) -> None:
        """Give slots that could not be written to another chance."""
        self._slots.try_again()

    def end(self) -> tuple[list[tuple[Claim, DiskEvent]], list[DiskEvent]]:
        """Give up all that is under way; return the events, first those whose memory a thread is at this moment."""
        now = time.monotonic()
        under_way: list[tuple[Claim, DiskEvent]] = [
            *((writing.put.claim, Written(writing.put.key, False)) for writing in self._writing.values()),
            *((fetch.claim, ReadDone(fetch.key, False, now - r.asked_at)) for fetch, r in self._reading.items()),
        ]
        self._writing.clear()
        self._reading.clear()
        held: list[tuple[Claim, DiskEvent]] = []
        events: list[DiskEvent] = []
        for claim, event in under_way:
            if claim.cancel():
                events.append(event)
            else:
                held.append((claim, event))
        return held, events

    def audit(self) -> None:
        """Count everything anew. Raises InvariantError."""
        doomed = [slot for slot, writing in self._writing.items() if writing.doomed]
        slots = [*(slab.slot for slab in self._blocks.values()), *doomed, *self._slots.without_block()]
        if sorted(slots) != sorted(self._slots.all()):
            raise InvariantError("a slot is taken twice, or lost")
        if sum(self._slots.extents.values()) > self._slots.num_slots:
            raise InvariantError("there are more slots than the ceiling allows")
        owned = {key: slab for account in self.accounts for key, slab in account.slabs.items()}
        if owned != self._blocks or any(key != slab.key for key, slab in owned.items()):
            raise InvariantError("the blocks of the accounts are not those that are there")
        for account in self.accounts:
            if account.ceiling is not None and account.used > account.ceiling:
                raise InvariantError(f"{account.owner} has {account.used} slots, more than {account.ceiling}")
        under_way = {writing.slab for writing in self._writing.values() if not writing.doomed}
        if under_way != {slab for slab in self._blocks.values() if not slab.stored}:
            raise InvariantError("a block is being written that is stored, or none is for one that is not")
        readers = Counter(reading.slab for reading in self._reading.values())
        if any(slab.readers != readers[slab] for slab in self._blocks.values()):
            raise InvariantError("a block counts readers that it does not have")

    # ------------------------------------------------------------ orders

    def _order(self, order: Order) -> None:
        if not self.is_waiting:
            self.heard_at = time.monotonic()
        self._order_now(order)

    def _change(self, run: Callable[[Index], None], *, erases: bool = False) -> Wait:
        """Order a change of the index; return what to wait for."""
        self._num_changes += 1
        self._order(Change(run, self._num_changes, erases))
        self._changes.add(self._num_changes)
        return ("change", self._num_changes)
