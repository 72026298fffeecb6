"""Transfers: blocks copied beside the steps, on the CPU by a thread, on a GPU by streams of their own.

    copier.copy(transfer)    # starts behind all that has been launched; the host goes on
    copier.copied()          # what has ended since; waits for nothing

Each way has a line of its own, and neither waits for the other: who fetches a sequence's blocks does not stand behind
blocks that are stored ahead of need. A transfer is cut into pieces, so that what a step waits for (`arrivals.py`) is
begun soon, and two pieces are under way at once: one each way, or on a GPU also two of one way, in two staging buffers.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition

import torch

from engine.errors import CoreError
from engine.model.slabs import Slabs
from engine.request import BlockId, SlabId
from engine.step import SlabMove, Transfer, TransferDone


class Copier(ABC):
    """Transfers of one runner."""

    @abstractmethod
    def copy(self, transfer: Transfer) -> None:
        """Start a transfer, behind all that has been launched.

        Raises:
            CoreError: the copier was closed.
        """

    @abstractmethod
    def copied(self) -> list[TransferDone]:
        """Return the transfers that have ended since the last call.

        Raises:
            CoreError: a copy failed.
        """

    @abstractmethod
    def settle(self, *, blocks: Iterable[BlockId] = (), slabs: Iterable[SlabId] = ()) -> None:
        """Block until no transfer reads or writes any of these."""

    @abstractmethod
    def close(self) -> None:
        """End: what has not begun is dropped. To be called again does nothing."""


def touches(transfer: Transfer, blocks: Collection[BlockId], slabs: Collection[SlabId]) -> bool:
    """Whether a transfer reads or writes any of these."""
    return any(move.block in blocks or move.slab in slabs for move in transfer.moves)


@dataclass(slots=True, eq=False)
class _Job:
    """A transfer on its way."""

    transfer: Transfer
    at: int = 0  # moves that have been begun
    seconds: float = 0.0  # of those that are done

    def take(self, most: int) -> tuple[SlabMove, ...]:
        """Return the next moves."""
        piece = self.transfer.moves[self.at : self.at + most]
        self.at += len(piece)
        return piece

    @property
    def begun(self) -> bool:
        """Whether nothing is left to take."""
        return self.at == len(self.transfer.moves)


class _Work:
    """What the thread has to do. It holds this, not the copier: a copier that nobody has any more ends its thread."""

    def __init__(self, slabs: Slabs) -> None:
        self._slabs = slabs
        self._urgent: deque[Callable[[], None]] = deque()
        self._lines: tuple[deque[_Job], deque[_Job]] = deque(), deque()  # loads, stores
        self._turn = 0
        self._done: list[TransferDone] = []
        self._error: Exception | None = None
        self.changed = Condition()

    def add(self, transfer: Transfer) -> int:
        """Take a transfer; return the number of turns that it needs."""
        with self.changed:
            self._lines[transfer.is_store].append(_Job(transfer))
        return max(1, -(-len(transfer.moves) // self._slabs.most))

    def add_urgent(self, work: Callable[[], None]) -> None:
        """Take work of one turn that goes before all transfers."""
        with self.changed:
            self._urgent.append(work)

    def turn(self) -> None:
        """Do one piece of what is there."""
        try:
            with torch.inference_mode():
                self._do()
        except Exception as error:  # noqa: BLE001  # it ends whoever asks for what was copied
            with self.changed:
                self._error = error
                self._clear()

    def _do(self) -> None:
        with self.changed:
            if self._urgent:
                urgent, job = self._urgent.popleft(), None
            elif (job := self._next()) is None:
                return  # dropped
            else:
                piece, last = job.take(self._slabs.most), job.begun
        if job is None:
            urgent()
            return
        began = time.perf_counter()
        copy = self._slabs.store if job.transfer.is_store else self._slabs.load
        copy(piece, torch.from_numpy)
        job.seconds += time.perf_counter() - began
        if last:
            with self.changed:
                line = self._lines[job.transfer.is_store]
                if line and line[0] is job:  # it was not dropped meanwhile
                    line.popleft()
                    self._done.append(TransferDone(job.transfer.number, job.seconds))
                self.changed.notify_all()

    def _next(self) -> _Job | None:
        """Return the job whose line's turn it is."""
        self._turn = 1 - self._turn
        line = self._lines[self._turn] or self._lines[1 - self._turn]
        return line[0] if line else None

    def busy(self, blocks: Collection[BlockId], slabs: Collection[SlabId]) -> bool:
        """Whether a transfer that is not over uses any of these; the lock is held."""
        return any(touches(job.transfer, blocks, slabs) for line in self._lines for job in line)

    def take_done(self) -> list[TransferDone]:
        """Return what has ended; raise what went wrong."""
        with self.changed:
            self.check()
            done, self._done = self._done, []
        return done

    def check(self) -> None:
        """Raise what went wrong; the lock is held."""
        if self._error is not None:
            raise CoreError(f"a copy between device and host memory failed: {self._error}") from self._error

    def drop(self) -> None:
        """Forget what has not begun."""
        with self.changed:
            self._clear()

    def _clear(self) -> None:
        for line in self._lines:
            line.clear()
        self._urgent.clear()
        self.changed.notify_all()


class ThreadCopier(Copier):
    """By one thread beside the one that computes. It makes no team: other cores go on computing."""

    def __init__(self, slabs: Slabs) -> None:
        """Take the arena, over ops that run beside others; the thread starts with the first transfer."""
        self._work = _Work(slabs)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copies")  # ends with this object, or the interpreter
        self._closed = False

    def copy(self, transfer: Transfer) -> None:
        """See `Copier.copy`. What has been launched on a CPU has been computed."""
        self._check_open()
        for _ in range(self._work.add(transfer)):
            self._thread.submit(self._work.turn)

    def first(self, work: Callable[[], None]) -> None:
        """Let the thread do something before all transfers that wait."""
        self._check_open()
        self._work.add_urgent(work)
        self._thread.submit(self._work.turn)

    def copied(self) -> list[TransferDone]:
        """See `Copier.copied`."""
        return self._work.take_done()

    def settle(self, *, blocks: Iterable[BlockId] = (), slabs: Iterable[SlabId] = ()) -> None:
        """See `Copier.settle`."""
        blocks, slabs = frozenset(blocks), frozenset(slabs)
        with self._work.changed:
            self._work.changed.wait_for(lambda: not self._work.busy(blocks, slabs))
            self._work.check()

    def close(self) -> None:
        """See `Copier.close`."""
        self._closed = True
        self._work.drop()
        self._thread.shutdown(wait=True)

    def _check_open(self) -> None:
        if self._closed:
            raise CoreError("a copy was asked for after the runner was closed")
