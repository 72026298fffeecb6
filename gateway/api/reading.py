"""One output on its way from a worker to a shape, where its text is more than text, or has scores.

    Delta ──▶ Reading ──▶ Told(pieces, scored) ──▶ ChatShape, CompletionShape

A plain output needs none: its deltas are its text.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gateway.api.logprobs import Aligned, Scored
from gateway.api.sampling import Generating
from gateway.api.tools.pieces import CallBegun, Content, Piece
from gateway.api.tools.plan import ToolPlan
from gateway.workers.generation import Delta
from gateway.workers.model import Model


class Parser(Protocol):
    """Cuts one output into pieces. What they join to is the same however its text came."""

    def push(self, text: str) -> Sequence[Piece]:
        """Take more of the text, perhaps none; return what is certain by now."""
        ...

    def flush(self) -> Sequence[Piece]:
        """Return the rest at the output's end, be it whole or cut off."""
        ...


class Told(NamedTuple):
    """What can be told next of an output."""

    pieces: Sequence[Piece]
    scored: Sequence[Scored]


class Reading:
    """Reads one output.

    Args:
        parser: cuts its text into pieces; None: it is content.
        aligned: tells which scores go with which text; None: none are asked for.
    """

    def __init__(self, parser: Parser | None, aligned: Aligned | None) -> None:
        self._parser = parser
        self._aligned = aligned
        self._held: list[Scored] = []  # of text that the parser holds back
        self.calls = False  # whether a function has been called
        self.has_scores = aligned is not None

    def push(self, delta: Delta) -> Told:
        """Take more of the output."""
        scored = () if self._aligned is None else self._aligned.push(delta.text, delta.tokens, delta.scores)
        pieces = self._pieces(delta.text)
        return Told(pieces, scored if self._parser is None else self._due(scored, pieces))

    def finish(self, text: str, reason: int) -> Told:
        """Take the last of its text, and why it ended."""
        scored = () if self._aligned is None else self._aligned.finish(text, reason)
        pieces = self._pieces(text)
        if self._parser is not None:
            pieces = [*pieces, *self._noted(self._parser.flush())]
        return Told(pieces, [*self._held, *scored])

    def _due(self, scored: Sequence[Scored], pieces: Sequence[Piece]) -> Sequence[Scored]:
        """Return the scores that go with pieces; as long as there are none, nothing is told of them."""
        self._held += scored
        if not pieces:
            return ()
        due, self._held = self._held, []
        return due

    def _pieces(self, text: str) -> Sequence[Piece]:
        if not text:
            return ()
        return (Content(text),) if self._parser is None else self._noted(self._parser.push(text))

    def _noted(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        self.calls = self.calls or any(isinstance(piece, CallBegun) for piece in pieces)
        return pieces


def readings(request: Generating, model: Model, plan: ToolPlan | None = None) -> Callable[[], Reading] | None:
    """Return what makes the reading of each of a request's outputs; None: they are plain.

    Args:
        request: says whether scores are asked for, and what ends an output.
        model: the one that generates.
        plan: how functions may be called; None: all of an output is content.
    """
    parser = None if plan is None else plan.parser
    if request.top_scores is None:
        return None if parser is None else lambda: Reading(parser(), None)
    ends = frozenset(request.stop_token_ids or ())
    if not request.ignore_eos:
        ends |= model.eos_token_ids
    stops = bool(request.stops)
    shown = frozenset(() if plan is None else plan.shown_tokens)

    def reading() -> Reading:
        return Reading(parser and parser(), Aligned(model.vocabulary, ends=ends, stops=stops, shown=shown))

    return reading
