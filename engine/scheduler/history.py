"""The tokens that a sequence's bias and penalties speak of, kept from step to step: a step adds the one that is new."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.request import SamplingParams
from engine.step import LogitChanges

_ROOM = 64  # tokens that the arrays can take in at first
_BIAS, _REPETITION, _PENALTY = range(3)


class History:
    """What the tokens of one sequence change about its next choice.

    Its size is that of the distinct tokens, its work in a step that of the tokens since the last one: neither a prompt
    nor an output is ever read twice.
    """

    def __init__(self, sampling: SamplingParams, prompt: Sequence[int]) -> None:
        self._sampling = sampling
        self._counts: dict[int, int] = {}  # of each token in the output
        bias = dict(sampling.logit_bias)
        seen = dict.fromkeys(prompt) if sampling.repetition_penalty != 1.0 else {}
        self._places = {token: place for place, token in enumerate(bias | seen)}  # of each token in the arrays
        self._ids = np.array([*self._places, *[0] * _ROOM], dtype=np.int64)
        self._values = _unchanged(len(self._ids))
        self._values[_BIAS, : len(bias)] = list(bias.values())
        self._values[_REPETITION, len(bias) : len(self._places)] = sampling.repetition_penalty
        for token in bias.keys() & seen.keys():
            self._values[_REPETITION, self._places[token]] = sampling.repetition_penalty
        self._num_read = len(prompt)

    def changes(self, tokens: Sequence[int]) -> LogitChanges | None:
        """Return what the next choice changes; None: nothing. It is overwritten by the next call.

        Args:
            tokens: prompt and output so far, those of all calls before included.
        """
        if self._sampling.penalises:
            for token in tokens[self._num_read :]:
                self._add(token)
            self._num_read = len(tokens)
        size = len(self._places)
        return LogitChanges(self._ids[:size], self._values[:, :size]) if size else None

    def _add(self, token: int) -> None:
        """Take in one more token of the output."""
        sampling = self._sampling
        count = self._counts[token] = self._counts.get(token, 0) + 1
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._values = np.concatenate([self._values, _unchanged(place)], axis=1)
        self._ids[place] = token
        self._values[_REPETITION, place] = sampling.repetition_penalty
        self._values[_PENALTY, place] = sampling.frequency_penalty * count + sampling.presence_penalty


def _unchanged(count: int) -> npt.NDArray[np.float32]:
    values = np.zeros((3, count), dtype=np.float32)
    values[_REPETITION] = 1.0
    return values
