"""Random stories of a store against a model of what it may say: it forgets when it likes, but is never wrong."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.disk.events import DiskEvent, Erased, ReadDone, Written
from tests.engine.disk.stores import (
    DEADLINE,
    SLOT_BYTES,
    STRIDE,
    FailingFiles,
    content,
    holding,
    key,
    make_store,
    rows,
    wait_until,
)

OWNERS = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(0, 29)
SECRETS = st.sampled_from([b"", b"s" * 32, b"t" * 32])


class Story(RuleBasedStateMachine):
    """One store and its restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / "disk"
        self.files = FailingFiles()
        self.num_slots = 10
        self.store = make_store(self.folder, self.num_slots, files=self.files)
        self.limits: dict[str, tuple[int, bytes]] = {}
        self.owner_of: dict[int, str] = {}  # who wrote it last
        self.writing: set[bytes] = set()
        self.reading: list[tuple[int, bytearray]] = []
        self.gone: set[int] = set()  # erased, and not written again
        self.tickets: set[int] = set()
        self.last_use: dict[str, dict[str, bytes]] = {}

    # ------------------------------------------------------------ what is done

    @rule(owner=OWNERS, slots=st.integers(0, 12), secret=SECRETS)
    def limit(self, owner: str, slots: int, secret: bytes) -> None:
        """Set a limit; with another secret, or none at all, all is gone."""
        before = self.limits.get(owner)
        if slots == 0 or (before is not None and before[1] != secret):
            self._lost(owner)
        self.limits[owner] = (slots, secret)
        self.store.limit(owner, slots * STRIDE, secret)

    @rule(owner=OWNERS, numbers=st.lists(NUMBERS, max_size=6), value=st.sampled_from([0.0, 50.0]))
    def write(self, owner: str, numbers: list[int], value: float) -> None:
        """Write blocks, as many as are taken."""
        for number in numbers:
            was_there = key(number) in self.store
            if self.store.write(key(number), owner, memoryview(content(key(number))), value=value):
                assert self.limits[owner][0] > 0
                assert not was_there
                self.owner_of[number] = owner
                self.writing.add(key(number))
                self.gone.discard(number)

    @rule(number=NUMBERS)
    def read(self, number: int) -> None:
        """Begin to read."""
        memory = bytearray(SLOT_BYTES)
        taken = self.store.read(key(number), memoryview(memory))
        assert taken == (key(number) in self.store)
        if taken:
            self.reading.append((number, memory))

    @rule(numbers=st.lists(NUMBERS, max_size=4))
    def drop(self, numbers: list[int]) -> None:
        """Erase blocks."""
        self.tickets.add(self.store.drop([key(number) for number in numbers]))
        for number in numbers:
            self.gone.add(number)
            self.owner_of.pop(number, None)

    @rule(owner=OWNERS)
    def forget(self, owner: str) -> None:
        """Erase an owner."""
        self.tickets.add(self.store.forget(owner))
        self.limits.pop(owner, None)
        self._lost(owner)

    @rule(owner=OWNERS, session=st.sampled_from("xy"), record=st.binary(max_size=20))
    def put_session(self, owner: str, session: str, record: bytes) -> None:
        """Keep a record."""
        taken = self.store.put_session(owner, session, record)
        assert taken == (not self.store.is_bypassed and self.limits.get(owner, (0, b""))[0] > 0)
        if taken:
            self.last_use.setdefault(owner, {})[session] = record

    @rule(owner=OWNERS, session=st.sampled_from("xy"))
    @precondition(lambda self: not self.store.is_bypassed)
    def drop_session(self, owner: str, session: str) -> None:
        """Erase a record."""
        self.tickets.add(self.store.drop_session(owner, session))
        if owner in self.limits:
            self.last_use.get(owner, {}).pop(session, None)

    @rule(number=NUMBERS, now=st.floats(1e9, 3e9))
    def touch(self, number: int, now: float) -> None:
        """Use a block."""
        self.store.touch([key(number)], now)
        self.store.set_value(key(number), now % 100)

    @rule()
    def poll(self) -> None:
        """Take what has come."""
        self._take(self.store.poll())

    @rule()
    def settle(self) -> None:
        """Wait for all, and look at the disk itself."""
        events: list[DiskEvent] = []
        wait_until(self.store, lambda: not self.store.is_bypassed and not self.store.is_busy, events)
        self._take(events)
        assert not self.writing
        assert not self.reading
        if not self.store.pending_erasures:
            self._take(self.store.poll())
            assert not self.tickets
            patterns = [content(key(number))[:48] for number in self.gone]
            assert holding(self.folder, *patterns) == []

    @rule(num_slots=st.integers(3, 12), loses=st.booleans())
    def reopen(self, num_slots: int, loses: bool) -> None:
        """Restart, perhaps with another ceiling, perhaps as after a crash."""
        stored = set(self.store.keys())
        kept = 0.0 if loses else DEADLINE
        self.store.close(kept)
        if not loses and not self.store.is_bypassed:
            assert stored <= set(rows(self.folder))
        self.writing.clear()
        self.reading.clear()
        self.tickets.clear()
        shrinks, self.num_slots = num_slots < self.num_slots, num_slots
        self.store = make_store(self.folder, num_slots, files=self.files)
        wait_until(self.store, lambda: not self.store.is_bypassed)
        assert set(self.store.owners()) <= {"a", "b", "c"}
        if loses or shrinks:  # what was asked for last may not have got there
            self.gone.clear()
            self.last_use.clear()
        limits, self.limits = self.limits, {}
        for owner, (slots, secret) in limits.items():
            self.store.limit(owner, slots * STRIDE, secret)
            self.limits[owner] = (slots, secret)
        for owner in set(self.store.owners()) - set(limits):
            self.store.forget(owner)
            self._lost(owner)

    @rule(call=st.sampled_from(["read", "write", "sync"]))
    def fail(self, call: str) -> None:
        """Let the disk fail for a while."""
        self.files.fail(call)
        for number in range(30):
            if key(number) in self.store:
                self.read(number)
        self._take(self.store.poll())
        self.files.failing.clear()

    # ------------------------------------------------------------ what must be so

    @invariant()
    def nobody_has_too_much(self) -> None:
        """Ceilings, counted anew, and by the files."""
        self.store.audit()
        for owner in ("a", "b", "c"):
            assert self.store.used(owner) <= self.limits.get(owner, (99, b""))[0] * STRIDE
        stats = self.store.stats()
        assert stats.used_bytes <= stats.total_bytes
        files = list(self.folder.glob("slabs-*")) if not self.store.is_bypassed else []
        assert sum(path.stat().st_size for path in files) <= self.num_slots * STRIDE

    @invariant()
    def what_is_gone_is_not_found(self) -> None:
        """As soon as it was said."""
        for number in self.gone:
            assert key(number) not in self.store
        for number, owner in self.owner_of.items():
            if owner not in self.limits:
                assert key(number) not in self.store

    @invariant()
    def sessions_are_those_that_were_put(self) -> None:
        """The last records, or none at all."""
        for owner, (slots, _) in self.limits.items():
            for session, record in self.store.sessions(owner):
                assert slots > 0
                kept = self.last_use.get(owner)
                assert kept is None or kept.get(session, record) == record

    def teardown(self) -> None:
        """Close and tidy up."""
        self.store.close(DEADLINE)
        shutil.rmtree(self.folder.parent)

    def _lost(self, owner: str) -> None:
        self.last_use.pop(owner, None)
        for number, of in list(self.owner_of.items()):
            if of == owner:
                self.gone.add(number)
                del self.owner_of[number]

    def _take(self, events: list[DiskEvent]) -> None:
        for event in events:
            if isinstance(event, Written):
                self.writing.discard(event.key)
            elif isinstance(event, Erased):
                self.tickets.discard(event.ticket)
            elif isinstance(event, ReadDone):
                place = next(n for n, (number, _) in enumerate(self.reading) if key(number) == event.key)
                number, memory = self.reading.pop(place)
                assert not event.ok or memory == content(key(number))


Story.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestStory = Story.TestCase
