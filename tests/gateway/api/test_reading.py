"""One output read: its scores go with the pieces that they belong to."""

from collections.abc import Sequence

from engine.protocol import pb
from gateway.api.logprobs import Aligned
from gateway.api.reading import Reading
from gateway.api.responses.scribe import Scribe
from gateway.api.tools.pieces import Arguments, CallBegun, CallEnded, Content, Piece
from gateway.workers.generation import Delta, Finished, TokenScore
from gateway.workers.vocabulary import Vocabulary
from tests.engine.tiny_model import make_tokenizer

TOKENIZER = make_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)


class HoldingBack:
    """A parser that knows what the first texts are when the next one comes, and calls a function for `!`."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> Sequence[Piece]:
        """Hold `<` back, and what follows it, until there is something else."""
        self._held += text
        if self._held.endswith("<"):
            return ()
        told, self._held = self._held, ""
        if told.endswith("!"):
            return [CallBegun(0, "call_1", "f"), Arguments(0, "{}"), CallEnded(0)]
        return [Content(told)]

    def flush(self) -> Sequence[Piece]:
        """Return what was held back."""
        return [Content(self._held)] if self._held else []


def reading() -> Reading:
    """Return one whose scores are asked for."""
    return Reading(HoldingBack(), Aligned(VOCABULARY, ends=frozenset(), stops=False))


def delta(text: str) -> Delta:
    """Return a delta with a score for each of its tokens."""
    tokens = tuple(TOKENIZER.encode(text).ids)
    return Delta(text, tokens=tokens, scores=tuple(TokenScore(-1.0) for _ in tokens))


def test_scores_wait_for_held_text() -> None:
    """While a parser holds text back, its scores wait with it; at the end all have been told."""
    one = reading()
    assert one.push(delta("<")) == ((), ())
    told = one.push(delta("a"))
    assert [VOCABULARY[token].text for token, *_ in told.scored] == ["<", "a"]
    assert one.push(delta("<")) == ((), ())
    told = one.finish("", pb.FINISH_REASON_STOP)
    assert told.pieces == [Content("<")]
    assert [VOCABULARY[token].text for token, *_ in told.scored] == ["<"]


def test_a_response_keeps_the_scores_of_held_text() -> None:
    """Each token of a response's text has its score, also where the text waited; a call's tokens have none."""
    scribe = Scribe(reading(), VOCABULARY)
    end = Finished(pb.FINISH_REASON_STOP, "", 1, 0, 4)
    steps = [step for text in ("<", "a", "<", "b") for step in scribe.take(delta(text))] + scribe.take(end)
    assert "".join(step.text for step in steps) == "<a<b"
    assert [score["token"] for step in steps for score in step.scores] == ["<", "a", "<", "b"]
    caller = Scribe(reading(), VOCABULARY)
    steps = [step for text in ("<", "!") for step in caller.take(delta(text))] + caller.take(end)
    assert [step.kind for step in steps] == ["call", "arguments"]
    assert not any(step.scores for step in steps)
