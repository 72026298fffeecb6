"""A worker's events as the steps of a response. Pure."""

from collections.abc import Iterable
from itertools import chain, groupby

from engine.protocol import pb
from gateway.api.logprobs import chat_logprobs
from gateway.api.reading import Reading, Told
from gateway.api.responses.document import Ending, Step
from gateway.api.responses.objects import usage_of
from gateway.api.tools.pieces import Arguments, CallBegun, Content
from gateway.workers.generation import Admitted, Delta, Event, Finished
from gateway.workers.vocabulary import Vocabulary


class Scribe:
    """Writes down one output.

    Args:
        reading: of the output.
        vocabulary: of the model, for log-probabilities.
    """

    def __init__(self, reading: Reading, vocabulary: Vocabulary) -> None:
        self._reading = reading
        self._vocabulary = vocabulary
        self._in_text = True  # else in a call

    def take(self, event: Event | None) -> list[Step]:
        """Return the steps of one event; None, a silence, has none."""
        if isinstance(event, Admitted):
            return [Step("admitted")]
        if isinstance(event, Delta):
            return self._steps(self._reading.push(event))
        if isinstance(event, Finished):
            return self._steps(self._reading.finish(event.text, event.reason))
        return []

    def _steps(self, told: Told) -> list[Step]:
        """Return the steps of what can be told. Scores are those of texts: a call has no place for its tokens'."""
        steps: list[Step] = []
        scores = tuple(chat_logprobs(told.scored, self._vocabulary)["content"]) if told.scored else ()
        for piece in told.pieces:
            if isinstance(piece, Content):
                steps.append(Step("text", piece.text, "", scores))
                scores, self._in_text = (), True
            elif isinstance(piece, CallBegun):
                steps.append(Step("call", piece.name, piece.id))
                self._in_text = False
            elif isinstance(piece, Arguments):
                steps.append(Step("arguments", piece.text))
        if scores and self._in_text:
            steps.append(Step("text", "", "", scores))
        return steps


def joined(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the same steps with what follows one another of one kind in one: for what nobody streams again."""
    found: list[Step] = []
    for kind, group in groupby(steps, key=lambda step: step.kind):
        alike = list(group)
        if kind in ("text", "arguments"):
            scores = chain.from_iterable(step.scores for step in alike)
            alike = [Step(kind, "".join(step.text for step in alike), "", tuple(scores))]
        found += alike
    return tuple(found)


def ending_of(end: Finished, at: float) -> Ending:
    """Return a good end. `at` is unix seconds."""
    if end.reason == pb.FINISH_REASON_LENGTH:
        return Ending(status="incomplete", at=int(at), usage=usage_of(end), reason="max_output_tokens")
    return Ending(status="completed", at=int(at), usage=usage_of(end))
