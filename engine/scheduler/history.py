"""The tokens that a sequence's bias and penalties speak of, kept from step to step: a step adds the one that is new."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.request import SamplingParams
from engine.step import LogitChanges

_ROOM = 64  # tokens that arrays can take in when they are made
_BIAS, _REPETITION, _PENALTY = range(3)


class Start(NamedTuple):
    """What bias and prompt change. All outputs of a request begin with the same, and none writes to it."""

    num_prompt: int  # tokens
    places: Mapping[int, int]  # of each token in the arrays
    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]  # as in `LogitChanges`

    @classmethod
    def of(cls, sampling: SamplingParams, prompt: Sequence[int]) -> "Start":
        """Work it out: once a request, for a prompt may be long."""
        bias = dict(sampling.logit_bias)
        seen = dict.fromkeys(prompt) if sampling.repetition_penalty != 1.0 else {}
        places = {token: place for place, token in enumerate(bias | seen)}
        values = _unchanged(len(places))
        values[_BIAS, : len(bias)] = list(bias.values())
        values[_REPETITION, len(bias) :] = sampling.repetition_penalty
        for token in bias.keys() & seen.keys():
            values[_REPETITION, places[token]] = sampling.repetition_penalty
        return cls(len(prompt), places, np.array(list(places), dtype=np.int64), values)


class History:
    """What the tokens of one output change about its next choice.

    Its size is that of the distinct tokens, its work in a step that of the tokens since the last one: no token is ever
    read twice.
    """

    def __init__(self, sampling: SamplingParams, start: Start) -> None:
        """Begin with no output."""
        self.start = start
        self._sampling = sampling
        self._counts: dict[int, int] = {}  # of each token in the output
        self._added: dict[int, int] = {}  # places of tokens that are not among the first
        self._ids, self._values = start.ids, start.values
        self._num_read = start.num_prompt

    def changes(self, tokens: Sequence[int]) -> LogitChanges | None:
        """Return what the next choice changes; None: nothing. It is overwritten by the next call.

        Args:
            tokens: prompt and output so far, those of all calls before included.
        """
        if self._sampling.penalises:
            for token in tokens[self._num_read :]:
                self._add(token)
            self._num_read = len(tokens)
        size = len(self.start.places) + len(self._added)
        return LogitChanges(self._ids[:size], self._values[:, :size]) if size else None

    def _add(self, token: int) -> None:
        """Take in one more token of the output."""
        sampling, place = self._sampling, self._place(token)
        count = self._counts[token] = self._counts.get(token, 0) + 1
        self._ids[place] = token
        self._values[_REPETITION, place] = sampling.repetition_penalty
        self._values[_PENALTY, place] = sampling.frequency_penalty * count + sampling.presence_penalty

    def _place(self, token: int) -> int:
        """Return where a token is in the arrays, which may be written there."""
        if not self._counts:
            self._grow(_ROOM)  # until now they are those of all outputs
        place = self.start.places.get(token)
        if place is None:
            place = self._added.setdefault(token, len(self.start.places) + len(self._added))
            if place == len(self._ids):
                self._grow(place)
        return place

    def _grow(self, count: int) -> None:
        self._ids = np.concatenate([self._ids, np.zeros(count, dtype=np.int64)])
        self._values = np.concatenate([self._values, _unchanged(count)], axis=1)


def _unchanged(count: int) -> npt.NDArray[np.float32]:
    values = np.zeros((3, count), dtype=np.float32)
    values[_REPETITION] = 1.0
    return values
