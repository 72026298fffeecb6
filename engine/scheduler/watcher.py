"""Who else wants to know what becomes of requests: the trace (engine/trace/recorder.py)."""

from typing import Protocol

from engine.request import FinishReason
from engine.scheduler.sequence import SequenceState


class RequestWatcher(Protocol):
    """Told at each turn of a request's life, in the step's thread: calls must be short. Nothing is told of tokens."""

    def submitted(self, sequence: SequenceState) -> None:
        """A request was taken in; it may be refused in a moment."""
        ...

    def started(self, sequence: SequenceState, now: float) -> None:
        """A request runs for the first time, on the blocks that were found."""
        ...

    def ended(self, sequence: SequenceState, reason: FinishReason | None, now: float) -> None:
        """A request ends, or one output of it, and its tokens are still there; no reason: it was refused."""
        ...
