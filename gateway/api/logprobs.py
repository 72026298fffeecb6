"""Log-probabilities as OpenAI's two completion surfaces write them, and which of them are told when.

Delta(text, tokens, scores) ──▶ Aligned (with the text that they make) ──▶ chat_logprobs, TextLogprobs
"""

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from engine.protocol import pb
from gateway.api.covering import Cover
from gateway.workers.generation import TokenScore
from gateway.workers.vocabulary import Token, Vocabulary

LEAST_LOGPROB = -9999.0  # OpenAI's word for "as good as impossible"; JSON has no infinity


class Scored(NamedTuple):
    """A token and its score; none for a prompt's first token, which nothing precedes."""

    token: int
    score: TokenScore | None
    offset: int = 0  # of an output's token: characters of its text before the one that the token begins in


class Aligned:
    """The scores of one output, told with the text of their tokens: as soon as the first byte of a token is.

    The bytes of what has been told are those of the text, but for the rest of a character or token that the text ends
    in; U+FFFD stands there for bytes that are no character. A token that ends the output has no place in it, and what
    a stop string cuts off has no scores.

    Args:
        vocabulary: of the model.
        ends: tokens that end the output.
        stops: whether stop strings may end it.
        shown: special tokens that the text has.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, ends: frozenset[int], stops: bool, shown: frozenset[int] = frozenset()
    ) -> None:
        self._vocabulary = vocabulary
        self._ends = ends
        self._stops = stops
        self._shown = shown
        self._cover = Cover()
        self._waiting: deque[tuple[int, int, TokenScore]] = deque()  # bytes before it, token, score
        self._num_characters = 0  # of text
        self._ended = False  # by the model's own will

    def push(self, text: str, tokens: Sequence[int], scores: Sequence[TokenScore]) -> list[Scored]:
        """Take what has come; return what belongs to the text so far, nothing where `text` is empty."""
        for token, score in zip(tokens, scores, strict=True):
            if token in self._ends:
                self._ended = True
            else:
                self._waiting.append((self._cover.add(self._bytes(token)), token, score))
        return self._within(text)

    def finish(self, text: str, reason: int) -> list[Scored]:
        """Return what is left, given the last of the text and why the output ended."""
        told = self._within(text)
        if self._stops and reason == pb.FINISH_REASON_STOP and not self._ended:
            return told
        while self._waiting:
            told.append(self._next())
        return told

    def _within(self, text: str) -> list[Scored]:
        told = []
        for end in self._cover.push(text):
            while self._waiting and self._waiting[0][0] < end:
                told.append(self._next())
            self._num_characters += 1
        return told

    def _next(self) -> Scored:
        _, token, score = self._waiting.popleft()
        return Scored(token, score, self._num_characters)

    def _bytes(self, number: int) -> bytes:
        """Return what the text has of a token."""
        token = self._vocabulary[number]
        return token.data if number in self._shown else token.shown


def chat_logprobs(scored: Iterable[Scored], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return `choices[].logprobs` of chat: one entry a token."""
    content = []
    for token, score, _ in scored:
        assert score is not None
        top = [_entry(vocabulary[other], logprob) for other, logprob in score.top]
        content.append(_entry(vocabulary[token], score.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(token: Token, logprob: float) -> dict[str, Any]:
    return {"token": token.text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(token.data)}


class TextLogprobs:
    """`choices[].logprobs` of completions for one choice, piece by piece: lists with one entry a token.

    `text_offset` counts characters from the prompt's first on, whether it is echoed or not.

    Args:
        vocabulary: of the model.
        prompt: the prompt's text.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: str) -> None:
        self._vocabulary = vocabulary
        self._prompt = prompt

    def prompt(self, scored: Iterable[Scored]) -> dict[str, Any]:
        """Return those of the prompt's tokens, all of them."""
        offsets, at = [], 0
        tokens = list(scored)
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        for token, *_ in tokens:
            offsets.append(min(at, len(self._prompt)))
            at += self._length_at(at, self._vocabulary[token], characters)
        return self._lists(tokens, offsets)

    def output(self, scored: Iterable[Scored]) -> dict[str, Any]:
        """Return those of the output's next tokens."""
        tokens = list(scored)
        return self._lists(tokens, [len(self._prompt) + one.offset for one in tokens])

    def _length_at(self, at: int, token: Token, characters: codecs.IncrementalDecoder) -> int:
        """Return how many characters of the prompt a token of it is, which begins at `at`.

        A special token is there where the client wrote it, and not where the tokenizer added it; so is a first space.
        """
        if not token.shown:
            return len(token.text) if self._prompt.startswith(token.text, at) else 0
        text = characters.decode(token.shown)
        if not at and not self._prompt.startswith(text):
            text = text.removeprefix(" ")
        return len(text)

    def _lists(self, scored: Sequence[Scored], offsets: list[int]) -> dict[str, Any]:
        names = [_name(self._vocabulary[token]) for token, *_ in scored]
        return {
            "tokens": names,
            "token_logprobs": [None if score is None else max(score.logprob, LEAST_LOGPROB) for _, score, _ in scored],
            "top_logprobs": [
                None if score is None else self._top(name, score)
                for name, (_, score, _) in zip(names, scored, strict=True)
            ],
            "text_offset": offsets,
        }

    def _top(self, name: str, score: TokenScore) -> dict[str, float]:
        """Return the likeliest tokens by name, and the one that is there; of two with one name, the likelier."""
        top: dict[str, float] = {}
        for token, logprob in score.top:
            top.setdefault(_name(self._vocabulary[token]), max(logprob, LEAST_LOGPROB))
        top.setdefault(name, max(score.logprob, LEAST_LOGPROB))
        return top


def _name(token: Token) -> str:
    """Return a token as a key: this surface has no bytes, so that those of half a character stand in the name."""
    if token.is_whole:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
