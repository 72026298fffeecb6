"""Beam search over one prompt: which continuations go on, which have ended, and when nothing is left to gain.

The rules are those of `transformers` (`generate` with `num_beams` and `do_sample=False`), for one prompt:

    a step    every beam may go on with any token; candidates are ranked by their summed log-probability. Among the best
              `width` of all, those that end with a stop token are finished. The best `width` of those that do not end
              with one are the next beams.
    a score   sum ÷ length ** length_penalty, prompt not counted, stop token counted; the `width` best finished are kept
    the end   `width` are finished, and no beam would beat the worst of them if it ended as it is (with early stopping:
              whether or not). At `max_tokens`: the best `width` candidates are finished, whatever they end with.

Candidates that tie are taken in the order of their beams and of the model's list. Plain data: no sequences, no blocks.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.request import BeamParams
from engine.scheduler.outputs import Ranking

Candidates = Sequence[tuple[int, float]]  # token id and log-probability of a beam's continuations, best first
_Ranked = tuple[float, int, int, int, float]  # negative sum, beam, rank in it, token id, log-probability


class Path(NamedTuple):
    """A continuation of the prompt: its last token, and the path before it."""

    total: float  # of all log-probabilities
    length: int  # tokens
    token: int = -1
    logprob: float = 0.0
    before: "Path | None" = None  # None: this is the prompt itself
    top: Candidates = ()  # the likeliest tokens in its place, as many as are reported


class Branch(NamedTuple):
    """One of the next beams: which present one it continues, and with which token."""

    parent: int
    token: int


class Hypothesis(NamedTuple):
    """A continuation as it is returned; `stopped` says that it ended with a stop token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    stopped: bool
    tops: tuple[Ranking, ...] = ()  # of each token, the likeliest in its place


class _Finished(NamedTuple):
    score: float
    path: Path
    stopped: bool


class BeamSearch:
    """The hypotheses of one request."""

    def __init__(self, params: BeamParams, *, stop_ids: frozenset[int], max_tokens: int, num_top: int = 0) -> None:
        """Start from a prompt, with at most `max_tokens` (≥ 1) to come; `num_top`: likeliest tokens to report."""
        self.num_steps = 0  # tokens of each beam
        self._params = params
        self._stop_ids = stop_ids
        self._max_tokens = max_tokens
        self._num_top = max(0, num_top)
        self._beams = [Path(total=0.0, length=0)]
        self._finished: list[_Finished] = []  # best first, at most `width`

    def advance(self, candidates: Sequence[Candidates]) -> list[Branch]:
        """Take every beam's best continuations, `num_candidates` of each; return the next beams, none at the end."""
        self.num_steps += 1
        width = self._params.width
        is_last = self.num_steps >= self._max_tokens
        tops = [best[: self._num_top] for best in candidates]
        paths: list[Path] = []
        branches: list[Branch] = []
        for place, (negative, beam, _, token, logprob) in enumerate(self._ranked(candidates)):
            if place >= width and (is_last or len(paths) == width):
                break
            stops = token in self._stop_ids
            path = Path(-negative, self.num_steps, token, logprob, self._beams[beam], tops[beam])
            if not (stops or is_last):
                paths.append(path)
                branches.append(Branch(beam, token))
            elif place < width:
                self._finish(path, stops)
        if self._is_over(paths):
            self._beams = []
            return []
        self._beams = paths
        return branches

    def best(self, count: int) -> list[Hypothesis]:
        """Return up to `count` hypotheses, best first; while the search goes on, the beams as they are compete too."""
        running = [_Finished(self._score(path), path, False) for path in self._beams if path.length]
        ranked = sorted([*self._finished, *running], key=lambda one: -one.score)
        return [_hypothesis(one) for one in ranked[:count]]

    def _ranked(self, candidates: Sequence[Candidates]) -> Iterator[_Ranked]:
        """Return the candidates of all beams, best first, as far as they are asked for."""
        if len(candidates) != len(self._beams):
            raise ValueError(f"{len(self._beams)} beams go on, and there are candidates of {len(candidates)}")
        return heapq.merge(*(_of_beam(index, self._beams[index], best) for index, best in enumerate(candidates)))

    def _finish(self, path: Path, stopped: bool) -> None:
        finished = _Finished(self._score(path), path, stopped)
        place = bisect_right(self._finished, -finished.score, key=lambda one: -one.score)
        self._finished.insert(place, finished)
        del self._finished[self._params.width :]

    def _is_over(self, paths: list[Path]) -> bool:
        if not paths:
            return True
        if len(self._finished) < self._params.width:
            return False
        return self._params.early_stopping or self._score(paths[0]) <= self._finished[-1].score

    def _score(self, path: Path) -> float:
        score: float = path.total / float(path.length) ** self._params.length_penalty
        return score


def num_candidates(params: BeamParams, stop_ids: frozenset[int]) -> int:
    """Return how many continuations of each beam a step must see: `width` of them do not end with a stop token."""
    return params.width + len(stop_ids)


def _of_beam(index: int, path: Path, best: Candidates) -> Iterator[_Ranked]:
    return ((-(path.total + logprob), index, rank, token, logprob) for rank, (token, logprob) in enumerate(best))


def _hypothesis(finished: _Finished) -> Hypothesis:
    tokens: list[int] = []
    logprobs: list[float] = []
    tops: list[Ranking] = []
    path: Path | None = finished.path
    while path is not None and path.length:
        tokens.append(path.token)
        logprobs.append(path.logprob)
        tops.append(tuple(path.top))
        path = path.before
    ordered = (tuple(reversed(tokens)), tuple(reversed(logprobs)))
    return Hypothesis(*ordered, finished.score, finished.stopped, tuple(reversed(tops)))
