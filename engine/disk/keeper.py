"""The thread that owns the index and says in which order things reach the disk.

One round:
    begin    gather what is queued ─▶ make extents ─▶ commit all changes, and that reused slots hold nothing
             ─▶ write slabs and zeros (several threads)
    end      sync the extents ─▶ commit the rows of the new slabs ─▶ answer

So at every instant a row names a slab that is whole on the disk, and what was to be erased is named no more before
anything else is said of it. A round ends while the slabs of the next one are being written, and while it runs that one
gathers: one wait for the disk serves many blocks.
"""

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from engine.disk.contents import Row, SpoiltIndex
from engine.disk.extents import erase_pieces
from engine.disk.files import FULL
from engine.disk.index import Index
from engine.disk.opening import Busy, OpenFolder
from engine.disk.orders import Answer, Change, Changed, Cleared, Failed, Order, Put, Stop, Wipe, Wiped, Wrote

_ROUND = 64  # slabs of one
_FOREVER = 3600.0
_DONE = object()

log = logging.getLogger("engine.disk")


class Keeper:
    """Carries out orders until it is told to stop, is abandoned, or cannot go on."""

    def __init__(
        self,
        open_folder: Callable[[], OpenFolder],
        orders: "queue.SimpleQueue[Order]",
        answer: Callable[[Answer], None],
        write: Callable[[Sequence[Put | Wipe]], None],
        written: Callable[[int], None],
    ) -> None:
        """Take what it needs.

        Args:
            open_folder: opens the store.
            orders: what to do.
            answer: called with what was done.
            write: begins to write puts and wipes to their slots.
            written: returns when so many have been written; their errors are set then.
        """
        self._open_folder, self._orders, self._answer = open_folder, orders, answer
        self._write, self._written = write, written
        self.abandoned = threading.Event()
        self._clearing: Iterator[None] | None = None
        self._open: list[Put | Wipe] = []  # of the last round, written, but perhaps not yet on the disk

    def run(self) -> OpenFolder | None:
        """Open, work, and return what is to be closed. Never raises: what fails is answered."""
        folder = None
        try:
            folder = self._open_folder()
            self._answer(folder.opened)
            while not self.abandoned.is_set() and self._round(folder):
                pass
        except Busy as error:
            self._answer(Failed("busy", str(error)))
        except (OSError, sqlite3.Error, SpoiltIndex) as error:
            self._answer(Failed(kind_of(error, "index"), f"{type(error).__name__}: {error}"))
        except Exception as error:
            log.exception("disk_keeper_failed")
            self._answer(Failed("index", f"{type(error).__name__}: {error}"))
        return folder

    def _round(self, folder: OpenFolder) -> bool:
        """Begin the next round, if there is one, and end the last; False: that was to stop."""
        orders = self._gather(None if folder.stale or self._open else _FOREVER)
        if self.abandoned.is_set():
            return False
        if folder.stale:
            self._clear(folder)
        puts = [order for order in orders if isinstance(order, Put)]
        self._prepare(folder, [order for order in orders if isinstance(order, Change)], puts)
        jobs: list[Put | Wipe] = [*puts, *(order for order in orders if isinstance(order, Wipe))]
        begun = [job for job in jobs if not job.error]
        self._write(begun)
        self._end(folder)
        self._written(len(begun))
        self._open = jobs
        if orders and isinstance(orders[-1], Stop):
            self._end(folder)
            self._stop(folder, orders[-1])
            return False
        return True

    def _end(self, folder: OpenFolder) -> None:
        """Make what the last round has written last, and say so."""
        jobs, self._open = self._open, []
        if jobs:
            self._sync(folder, jobs)
            self._name(folder.index, [job for job in jobs if isinstance(job, Put) and not job.error])
        for job in jobs:
            self._answer(Wrote(job, job.error) if isinstance(job, Put) else Wiped(job.slot, job.error))

    def _gather(self, seconds: float | None) -> list[Order]:
        """Wait for orders; return up to a round of slabs, or a stop as the last. None: do not wait at all."""
        orders: list[Order] = []
        num_slabs = 0
        try:
            while num_slabs < _ROUND and not (orders and isinstance(orders[-1], Stop)):
                orders.append(self._orders.get(bool(seconds) and not orders, seconds))
                num_slabs += not isinstance(orders[-1], Change)
        except queue.Empty:
            pass
        return orders

    def _prepare(self, folder: OpenFolder, changes: Sequence[Change], puts: Iterable[Put]) -> None:
        """Bring the index and the extents to where the slots may be written to."""
        index, extents = folder.index, folder.extents
        needed = {put.slot // extents.per_extent: put.extent_slots for put in puts}
        made, errors = {}, {}
        for extent, num_slots in needed.items():
            if extent not in extents:
                try:
                    extents.make(extent, num_slots)
                    made[extent] = num_slots
                except OSError as error:
                    errors[extent] = kind_of(error, "write")
        for put in puts:
            put.error = errors.get(put.slot // extents.per_extent, "")
        if not (changes or made or puts):
            return
        with index.transaction():
            for change in changes:
                change.run(index)
            for extent, num_slots in made.items():
                index.add_extent(extent, num_slots)
            index.remove(put.slot for put in puts)
        if any(change.erases for change in changes):
            index.erase_log()
        for change in changes:
            if change.number:
                self._answer(Changed(change.number))

    def _sync(self, folder: OpenFolder, jobs: Sequence[Put | Wipe]) -> None:
        written = [job for job in jobs if not job.error]
        try:
            folder.extents.sync(job.slot for job in written)
        except OSError as error:
            for job in written:
                job.error = kind_of(error, "write")

    def _name(self, index: Index, puts: Sequence[Put]) -> None:
        if puts:
            with index.transaction():
                index.add(Row(put.slot, put.key, put.owner, put.proof, put.last_use, put.value) for put in puts)

    def _clear(self, folder: OpenFolder) -> None:
        """Erase a piece of a file that is no part of the store."""
        path, num_bytes = folder.stale[-1]
        if self._clearing is None:
            self._clearing = erase_pieces(path, folder.files)
        if next(self._clearing, _DONE) is _DONE:
            self._clearing = None
            folder.stale.pop()
            self._answer(Cleared(num_bytes))

    def _stop(self, folder: OpenFolder, stop: Stop) -> None:
        with folder.index.transaction():
            folder.index.set_clean(True, stop.dirty)
        folder.index.erase_log()


def kind_of(error: Exception, otherwise: str) -> str:
    """Name what went wrong: `full` where it is merely that, else as told."""
    full = getattr(error, "errno", None) in FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
    return "full" if full else otherwise


def change(method: Callable[..., None], *arguments: object, number: int = 0, erases: bool = False) -> Change:
    """Return the order to call a method of the index."""
    return Change(lambda index: partial(method, index)(*arguments), number, erases)
