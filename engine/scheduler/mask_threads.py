"""Masks that may take long are made by threads, and only so much is waited for; a sequence without its mask sits out.

    quick   made while the loop waits for them, for some milliseconds at most
    slow    made by a thread that others go before; nobody waits for them

Of the tenants that wait for a thread the one goes next whose masks have taken least time. Compiled code makes them,
without the interpreter's lock.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.constraints.fair import LEAST_SECONDS, FairLines
from engine.errors import GrammarError
from engine.scheduler.sequence import SequenceState

_MOST_QUICK = 4  # threads
_SLOW_NICENESS = 10  # of the slow one: on a busy machine it gets a tenth of what the model's threads get


class Order(NamedTuple):
    """A sequence that is to be led on."""

    sequence: SequenceState
    tokens: list[int]
    most_forced: int  # see `Constraint.follow`
    made: threading.Semaphore | None  # who waits for it


class Made(NamedTuple):
    """A sequence whose mask is there now."""

    sequence: SequenceState
    forced: Sequence[int]
    problem: str  # why it cannot go on; empty: it can


class MaskThreads:
    """Sequences whose next mask is still to come. The loop gives and takes, the threads work."""

    def __init__(self) -> None:
        self.late: set[SequenceState] = set()  # they have no mask yet: no plan may have them sample
        self._quick = _Orders()
        self._slow = _Orders()
        self._made: deque[Made] = deque()
        self._awaited = threading.Semaphore(0)  # of the quick ones that were given since the last wait, those made
        self._num_awaited = 0
        self._threads: list[threading.Thread] = []

    def give(self, sequence: SequenceState, most_forced: int, *, slow: bool) -> None:
        """Have the mask for a sequence's tokens made. They stay as they are: it is in no plan until then."""
        if not self._threads:
            self._start()
        self.late.add(sequence)
        if slow:
            self._slow.put(Order(sequence, sequence.tokens, most_forced, None))
        else:
            self._num_awaited += 1
            self._quick.put(Order(sequence, sequence.tokens, most_forced, self._awaited))

    def wait(self, seconds: float) -> None:
        """Wait until the quick ones are made that were given since the last wait, or until so long is over."""
        count, self._num_awaited = self._num_awaited, 0
        end = time.monotonic() + seconds
        for _ in range(count):
            if not self._awaited.acquire(timeout=max(0.0, end - time.monotonic())):
                self._awaited = threading.Semaphore(0)  # those that come later are not mistaken for others
                return

    def take(self) -> list[Made]:
        """Return whose masks are there now."""
        taken = []
        while self._made:
            taken.append(self._made.popleft())
            self.late.discard(taken[-1].sequence)
        return taken

    def _start(self) -> None:
        num_quick = max(1, min(_MOST_QUICK, (os.cpu_count() or 1) // 2))
        for orders, count in ((self._quick, num_quick), (self._slow, 1)):
            for number in range(count):
                name = f"{'masks' if orders is self._quick else 'slow-masks'}-{number}"
                self._threads.append(threading.Thread(target=self._run, args=(orders,), name=name, daemon=True))
                self._threads[-1].start()

    def _run(self, orders: "_Orders") -> None:
        if orders is self._slow:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _SLOW_NICENESS)
        while True:
            sequence, tokens, most_forced, made = order = orders.take()
            began = time.thread_time()
            forced: Sequence[int] = ()
            problem = ""
            try:
                if sequence.constraint is not None and sequence.tokens is tokens:  # else it has ended
                    forced = sequence.constraint.follow(tokens, sequence.num_prompt, most_forced)
            except GrammarError as error:
                problem = str(error)
            orders.charge(order, time.thread_time() - began)
            self._made.append(Made(sequence, forced, problem))
            if made is not None:
                made.release()


class _Orders:
    """Orders that wait for a thread, by tenant."""

    def __init__(self) -> None:
        self._lines: FairLines[Order] = FairLines()
        self._has_come = threading.Condition()

    def put(self, order: Order) -> None:
        """Let an order wait."""
        with self._has_come:
            self._lines.put(order.sequence.tenant.name, order)
            self._has_come.notify()

    def take(self) -> Order:
        """Return the next order, once there is one."""
        with self._has_come:
            while (found := self._lines.take()) is None:
                self._has_come.wait()
            return found[1]

    def charge(self, order: Order, seconds: float) -> None:
        """Count what an order took."""
        with self._has_come:
            self._lines.charge(order.sequence.tenant.name, max(LEAST_SECONDS, seconds))
