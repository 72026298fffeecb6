"""The store, as the loop sees it: every method is called from one thread and returns at once.

    open_store ─▶ DiskStore ── write, read, drop, … ──▶ threads that do the I/O (engine/disk/volume.py)
                      ▲                                       │
                      └────────────── poll ◀──────────────────┘

    opening ─▶ healthy ─▶ bypassed ─▶ opening …        a disk that fails is left alone for a while, then opened anew

While it is not healthy nothing is found, read or written; limits and what is to be erased are kept for the next life.
"""

import logging
import queue
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.disk.breaker import Breaker
from engine.disk.erasures import Erasures
from engine.disk.events import DiskEvent, DiskStats, Erased
from engine.disk.extents import EXTENT_BYTES, stride_of
from engine.disk.figures import Figures
from engine.disk.files import Files
from engine.disk.index import Layout
from engine.disk.life import Life
from engine.disk.opening import Place
from engine.disk.orders import Answer, Claim, Failed, Fetched, Opened, Stop, Wiped, Wrote
from engine.disk.seal import SECRET_BYTES, Sealer, make_sealer
from engine.disk.volume import Volume
from engine.errors import ConfigError
from engine.memory.eviction.base import BlockKey

_OPEN_SECONDS = 10.0  # that a worker waits for its disk when it starts
_RANK_SECONDS = 5.0  # between notes of what was of use
_STUCK = 4  # times `read_seconds` without an answer, and the disk is stuck

log = logging.getLogger("engine.disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How much may be under way, and for how long."""

    read_seconds: float = 5.0  # a read that takes longer has failed
    queued_bytes: int = 64 << 20  # of writes under way
    retry_seconds: float = 1.0  # that a failing disk is left alone the first time
    again_seconds: float = 30.0  # between tries of what it had no room for, or refused to overwrite


@dataclass(frozen=True, slots=True)
class _Limit:
    num_bytes: int
    secret: bytes
    sealer: Sealer | None


class DiskStore:
    """Blocks on disk by key, with a ceiling for each owner. Not thread-safe; see `open_store`."""

    def __init__(self, place: Place, files: Files, patience: Patience) -> None:
        self._place, self._files, self._patience = place, files, patience
        self._stride = stride_of(place.layout.slot_bytes)
        self._limits: dict[str, _Limit] = {}
        self._erasures, self._breaker, self._figures = Erasures(), Breaker(patience.retry_seconds), Figures()
        self._life: Life | None = None
        self._problem = "the disk is being opened"
        self._ready: list[DiskEvent] = []
        self._held: list[tuple[Claim, DiskEvent]] = []  # their memory was being copied when their life ended
        self._ranked_at = self._tried_at = time.monotonic()
        self._closed = False
        self._volume: Volume | None = Volume(place, files)
        self._last: Volume | None = None  # the one before, until it has ended

    @property
    def problem(self) -> str:
        """Say what is wrong with the disk; empty: nothing.

        Whatever it is, nothing is found, read or written until it is over; only a disk that has no room for more goes
        on with what it has.
        """
        if not self._problem and self._life is not None and self._life.is_short_of_room:
            return "the disk is full: the store cannot grow to its ceiling"
        return self._problem

    @property
    def is_bypassed(self) -> bool:
        """Whether nothing is found, read or written now."""
        return self._life is None

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way, so that `poll` will have something to tell."""
        return self._life is not None and (self._life.is_waiting or self._life.num_reading > 0)

    @property
    def pending_erasures(self) -> int:
        """Count the calls of `drop`, `drop_session` and `forget` whose bytes may still be on the disk.

        It is not 0 either while anything else is to be overwritten, such as what a crash has left.
        """
        return len(self._erasures) or int(self._life is not None and self._life.is_dirty)

    def owners(self) -> list[str]:
        """Return all owners of whom anything is stored, those included who have no limit yet (see `limit`)."""
        accounts = () if self._life is None else self._life.accounts
        return [account.owner for account in accounts if account.used or account.sessions]

    def may_have(self, owner: str) -> bool:
        """Say whether anything of an owner may be stored; while the store is bypassed, of anybody."""
        account = None if self._life is None else self._life.accounts.get(owner)
        return self._life is None or (account is not None and bool(account.used or account.sessions))

    # ------------------------------------------------------------ limits

    def limit(self, owner: str, num_bytes: int, secret: bytes = b"") -> None:
        """Set an owner's ceiling; what is above it is given up at once, the least valuable first.

        Until the first such call after `open_store`, what is stored for an owner is kept but not found. With 0 all of
        an owner's is erased, its sessions too.

        Args:
            owner: a tenant's or a share group's name.
            num_bytes: of whole slabs; what fits the total is all that there is in any case.
            secret: 32 bytes to encrypt with, the same ones after a restart; empty: plain. What was stored under
                another secret, or under none, is erased. Without `cryptography`, nothing of such an owner is stored.

        Raises:
            ValueError: the secret has another length.
        """
        before = self._limits.get(owner)
        if before is not None and before.secret == secret:
            limit = _Limit(num_bytes, secret, before.sealer)
        else:
            limit = _Limit(num_bytes, secret, self._make_sealer(owner, secret))
        if limit != before:
            self._limits[owner] = limit
            self._apply(owner, limit)

    def used(self, owner: str) -> int:
        """Return the bytes of an owner's slabs, those that are being written included."""
        account = None if self._life is None else self._life.accounts.get(owner)
        return 0 if account is None else account.used * self._stride

    def _apply(self, owner: str, limit: _Limit) -> None:
        if self._life is not None:
            self._life.limit(owner, max(0, limit.num_bytes) // self._stride, limit.sealer)
            self._life.wipe()

    def _make_sealer(self, owner: str, secret: bytes) -> Sealer | None:
        if secret and len(secret) != SECRET_BYTES:
            raise ValueError(f"a disk secret has {SECRET_BYTES} bytes, not {len(secret)}")
        try:
            return make_sealer(owner, secret)
        except ImportError as error:
            self._figures.errors["no_cryptography"] += 1
            log.error("disk_cannot_encrypt", extra={"error": str(error), "fix": "install the package cryptography"})
            return None

    # ------------------------------------------------------------ blocks

    def __contains__(self, key: object) -> bool:
        """Whether a block can be read now; one that is still being written cannot."""
        return self._life is not None and self._life.readable(key)  # type: ignore[arg-type]  # a miss in any case

    def find(self, keys: Sequence[BlockKey], start: int, end: int) -> int:
        """Return how many of `keys[start:end]`, from the first on, can be read now."""
        if self._life is None:
            return 0
        place = start
        while place < end and self._life.readable(keys[place]):
            place += 1
        return place - start

    def write(self, key: BlockKey, owner: str, memory: memoryview, *, value: float = 0.0) -> bool:
        """Queue a block to be written, giving up less valuable ones if need be; a Written event ends it.

        Args:
            key: of what it holds.
            owner: whose it is, and whose ceiling it counts against.
            memory: exactly `slot_bytes` of them, which must not change until the event.
            value: what it is worth beyond its recency, in seconds of that.

        Returns:
            False, and no event comes: it is stored or being written already, there is no room for it, the queue is
            full, or the store is bypassed.
        """
        self._check_memory(memory)
        life, most = self._life, max(1, self._patience.queued_bytes // self._stride)
        taken = life is not None and life.num_writing < most and life.write(key, owner, memory.cast("B"), value)
        self._figures.num_refused += not taken
        return taken

    def read(self, key: BlockKey, into: memoryview) -> bool:
        """Start to read a block; a ReadDone event ends it.

        Args:
            key: of what is wanted.
            into: exactly `slot_bytes`, writable; it is the store's until the event.

        Returns:
            False, and no event comes: it cannot be read (see `__contains__`), or too much is being read.
        """
        self._check_memory(into)
        if into.readonly:
            raise ValueError("a block is read to memory that cannot be written")
        fetch = self._life.read(key, into.cast("B")) if self._life is not None else None
        if fetch is None or self._volume is None:
            return False
        self._volume.fetch(fetch)
        return True

    def touch(self, keys: Iterable[BlockKey], now: float) -> None:
        """Note that blocks were of use at a moment, in unix seconds; unknown ones are passed over."""
        if self._life is not None:
            self._life.touch(keys, now)

    def set_value(self, key: BlockKey, value: float) -> None:
        """Say what a block is worth beyond its recency, in seconds of that; an unknown one is passed over."""
        if self._life is not None:
            self._life.set_value(key, value)

    def keys(self) -> list[BlockKey]:
        """Return all blocks that are stored, those of owners without a limit included."""
        return [] if self._life is None else self._life.keys()

    def _check_memory(self, memory: memoryview) -> None:
        if memory.nbytes != self._place.layout.slot_bytes:
            raise ValueError(f"a slab has {self._place.layout.slot_bytes} bytes, not {memory.nbytes}")

    # ------------------------------------------------------------ erasing

    def drop(self, keys: Iterable[BlockKey]) -> int:
        """Erase blocks, wherever their bytes still lie; return the ticket of the Erased event, which always comes."""
        return self._erase(keys=keys)

    def forget(self, owner: str) -> int:
        """Erase all of an owner's blocks and sessions, and its limit; return the ticket of the Erased event."""
        self._limits.pop(owner, None)
        return self._erase(owner=owner)

    def _erase(
        self, *, keys: Iterable[BlockKey] = (), owner: str | None = None, session: tuple[str, str] | None = None
    ) -> int:
        erasure = self._erasures.begin(keys=keys, owner=owner, session=session)
        if self._life is not None:
            self._life.erase(erasure)
            self._life.wipe()
        return erasure.ticket

    # ------------------------------------------------------------ sessions

    def put_session(self, owner: str, session: str, record: bytes) -> bool:
        """Keep a small record over a restart, in place of the one before; False: the owner may keep nothing here."""
        return self._life is not None and self._life.put_session(owner, session, record)

    def drop_session(self, owner: str, session: str) -> int:
        """Erase a session's record; return the ticket of the Erased event."""
        return self._erase(session=(owner, session))

    def sessions(self, owner: str) -> list[tuple[str, bytes]]:
        """Return an owner's sessions and their records; none before its limit (and with it its secret) is known."""
        return [] if self._life is None else self._life.sessions(owner)

    # ------------------------------------------------------------ the loop

    def poll(self) -> list[DiskEvent]:
        """Return what has ended since the last call, and give up what a failing disk keeps too long.

        Call it at least once a second while anything is under way or the store is bypassed.
        """
        for answer in self._answers():
            self._handle(answer)
        now = time.monotonic()
        if self._life is not None:
            self._watch(self._life, now)
        elif not self._closed:
            self._try_to_open(now)
        if self._held:
            self._ready += [event for claim, event in self._held if claim.finished]
            self._held = [(claim, event) for claim, event in self._held if not claim.finished]
        events, self._ready = self._ready, []
        events += [Erased(ticket) for ticket in self._erasures.take_ended()]
        return events

    def stats(self) -> DiskStats:
        """Return figures."""
        accounts = () if self._life is None else self._life.accounts
        used = 0 if self._life is None else self._life.used
        return DiskStats(
            problem=self.problem,
            total_bytes=self._place.total_bytes,
            used_bytes=used * self._stride,
            owners={account.owner: account.used * self._stride for account in accounts if account.used},
            reads=self._figures.reads.read(),
            writes=self._figures.writes.read(),
            num_hits=self._figures.num_hits,
            num_evicted=self._figures.num_evicted,
            num_refused=self._figures.num_refused,
            errors=dict(self._figures.errors),
            pending_erasures=self.pending_erasures,
        )

    def audit(self) -> None:
        """Count everything anew. Raises InvariantError."""
        if self._life is not None:
            self._life.audit()

    def close(self, seconds: float) -> None:
        """End what is under way, write down what is queued and stop, within so many seconds whatever the disk does.

        Events that `poll` has not returned are lost; no memory is touched any more.
        """
        deadline = time.monotonic() + seconds
        volume, life = self._volume, self._life
        if life is not None and volume is not None:
            life.tell_ranks()
            while self._life is life and life.is_waiting and self._await(volume, deadline):
                pass
            if self._life is life and not life.is_waiting:
                volume.order(Stop(life.unclean()))
                if not volume.join(max(0.0, deadline - time.monotonic())):
                    log.warning("disk_close_late")
            self._end(life)
        self._abandon()
        while any(not claim.finished for claim, _ in self._held):
            time.sleep(0.001)  # a thread is copying, from memory to memory
        self._life, self._problem, self._closed = None, "the store is closed", True

    # ------------------------------------------------------------ lives

    def _answers(self) -> Iterator[Answer]:
        while self._volume is not None:
            try:
                yield self._volume.answers.get_nowait()
            except queue.Empty:
                return

    def _await(self, volume: Volume, deadline: float) -> bool:
        """Wait for an answer and take it; False: it is too late."""
        try:
            self._handle(volume.answers.get(timeout=max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            return False
        return True

    def _handle(self, answer: Answer) -> None:
        if isinstance(answer, Failed):
            self._bypass(answer.error, answer.reason)
        elif isinstance(answer, Opened):
            self._begin(answer)
        elif self._life is not None:
            self._ready += self._life.handle(answer)
            if isinstance(answer, Wrote | Wiped | Fetched) and answer.error != "cancelled":
                self._judge(answer.error)

    def _judge(self, error: str) -> None:
        """Count a success or a failure; leave a disk alone that fails too often."""
        if not error:
            self._breaker.succeeded()
        elif (
            not (error == "full" and self._life is not None and self._life.is_short_of_room) and self._breaker.failed()
        ):
            self._bypass("", f"too many operations failed, the last one with: {error}")

    def _begin(self, opened: Opened) -> None:
        assert self._volume is not None
        num_slots = max(0, self._place.total_bytes) // self._stride
        life = Life(opened, num_slots, self._stride, self._erasures, self._figures, self._volume.order)
        self._life, self._problem = life, ""
        self._breaker.recovered(time.monotonic())
        for erasure in self._erasures.owed():
            life.erase(erasure)
        for owner, limit in self._limits.items():
            self._apply(owner, limit)
        life.wipe()

    def _watch(self, life: Life, now: float) -> None:
        """Do what is due."""
        for event in life.late_reads(now - self._patience.read_seconds):
            self._ready.append(event)
            self._judge("slow")
        if life.is_waiting and now - life.heard_at > _STUCK * self._patience.read_seconds:
            self._bypass("stuck", f"the disk has not answered for {now - life.heard_at:.0f} s")
        if self._life is not life:
            return
        life.wipe()
        if now - self._ranked_at > _RANK_SECONDS:
            self._ranked_at = now
            life.tell_ranks()
        if now - self._tried_at > self._patience.again_seconds:
            self._tried_at = now
            life.try_again()

    def _bypass(self, error: str, reason: str) -> None:
        """Leave the disk alone for a while."""
        if error:
            self._figures.errors[error] += 1
        log.error("disk_bypassed", extra={"reason": reason})
        self._problem = reason
        self._breaker.trip(time.monotonic())
        self._abandon()
        if self._life is not None:
            self._end(self._life)
            self._life = None

    def _abandon(self) -> None:
        if self._volume is not None:
            self._volume.abandon()
            self._last, self._volume = self._volume, None

    def _end(self, life: Life) -> None:
        held, events = life.end()
        self._held += held
        self._ready += events
        self._erasures.owed()

    def _try_to_open(self, now: float) -> None:
        if self._last is not None and self._last.ended:
            self._last = None
        if self._volume is None and self._last is None and self._breaker.may_retry(now):
            self._volume = Volume(self._place, self._files)

    def _wait_until_open(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        volume = self._volume
        if volume is not None and not self._await(volume, deadline):
            log.warning("disk_opens_late", extra={"folder": str(self._place.folder)})


def open_store(
    folder: Path,
    slot_bytes: int,
    total_bytes: int,
    fingerprint: str,
    *,
    patience: Patience | None = None,
    files: Files | None = None,
    extent_bytes: int = EXTENT_BYTES,
) -> DiskStore:
    """Open the store in a folder, or make it; one that was made for something else is erased.

    A disk that fails now, or a folder that another process has open, gives a store that is bypassed and tries again.

    Args:
        folder: its own; made if it is not there. One process at a time.
        slot_bytes: bytes of a slab.
        total_bytes: ceiling of all slabs.
        fingerprint: of the model and the form of its blocks.
        patience: bounds on what is under way.
        files: how files are read and written.
        extent_bytes: of a file of slabs, in a new store.

    Raises:
        ConfigError: this is no folder.
    """
    if slot_bytes < 1:
        raise ValueError(f"a slab has at least one byte, not {slot_bytes}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"ENGINE_DISK_DIR: {folder} is no folder; name one that the worker may have for its own")
    place = Place(folder, Layout(fingerprint, slot_bytes), total_bytes, extent_bytes)
    store = DiskStore(place, files or Files(), patience or Patience())
    store._wait_until_open(_OPEN_SECONDS)
    return store
