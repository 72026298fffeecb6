"""Masks that take long are made by a thread, while other sequences go on; theirs sits out until it is there.

The thread takes first what took least the last time, so that a grammar that is much work waits for those that are
little, and not they for it.
"""

import threading
from collections import deque
from queue import PriorityQueue

from engine.errors import GrammarError
from engine.scheduler.sequence import SequenceState


class SlowMasks:
    """Sequences whose next mask is still to come. The loop gives and takes, the thread works."""

    def __init__(self) -> None:
        self.late: set[SequenceState] = set()  # they have no mask yet: no plan may have them sample
        self._queue: PriorityQueue[tuple[float, int, SequenceState, list[int]]] = PriorityQueue()
        self._done: deque[tuple[SequenceState, str]] = deque()
        self._number = 0
        self._thread: threading.Thread | None = None

    def put(self, sequence: SequenceState) -> None:
        """Have the mask for a sequence's tokens made. It is not in a plan until then, so they stay as they are."""
        assert sequence.constraint is not None, "only what follows a grammar has a mask"
        self.late.add(sequence)
        self._number += 1
        self._queue.put((sequence.constraint.seconds, self._number, sequence, sequence.tokens))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="masks", daemon=True)
            self._thread.start()

    def take(self) -> list[tuple[SequenceState, str]]:
        """Return whose masks are there now, each with why it cannot go on; empty: it can."""
        taken = []
        while self._done:
            taken.append(self._done.popleft())
            self.late.discard(taken[-1][0])
        return taken

    def _run(self) -> None:
        while True:
            _, _, sequence, tokens = self._queue.get()
            problem = ""
            try:
                if sequence.constraint is not None and sequence.tokens is tokens:  # else it has ended
                    sequence.constraint.mask(tokens, sequence.num_prompt)
            except GrammarError as error:
                problem = str(error)
            self._done.append((sequence, problem))
