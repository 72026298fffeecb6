"""Beam search over the fake runner's distribution in plain arrays: no blocks, no batch, all hypotheses in full.

It follows `transformers.generation.utils._beam_search` for one prompt, line by line, with its placeholders of -1e9.
"""

from typing import NamedTuple

import numpy as np

from engine.request import BeamParams
from tests.engine.fake_runner import distribution

_NOTHING = -1.0e9


class Found(NamedTuple):
    """One returned hypothesis."""

    tokens: list[int]
    score: float


def reference(
    prompt: list[int], params: BeamParams, *, n: int, stop_ids: frozenset[int], max_tokens: int, vocab_size: int = 1000
) -> tuple[list[Found], int]:
    """Return the `n` best hypotheses, best first, and how many steps the search took."""
    width = params.width
    running: list[tuple[float, list[int]]] = [(0.0, [])] + [(_NOTHING, [])] * (width - 1)
    finished: list[tuple[float, list[int], bool]] = [(_NOTHING, [], False)] * width
    for length in range(1, max_tokens + 1):
        totals = np.stack(
            [score + distribution([*prompt, *tokens], vocab_size=vocab_size) for score, tokens in running]
        )
        order = np.argsort(-totals.reshape(-1), kind="stable")[: (1 + max(1, len(stop_ids))) * width]
        ranked = [
            (float(totals.reshape(-1)[at]), [*running[at // vocab_size][1], int(at % vocab_size)])
            for at in order.tolist()
        ]
        ends = [tokens[-1] in stop_ids or length == max_tokens for _, tokens in ranked]
        ended = [
            (total / length**params.length_penalty, tokens, True)
            for (total, tokens), end in list(zip(ranked, ends, strict=True))[:width]
            if end
        ]
        finished = sorted([*finished, *ended], key=lambda one: -one[0])[:width]
        running = [one for one, end in zip(ranked, ends, strict=True) if not end][:width]
        if not running or _is_over(running[0][0] / length**params.length_penalty, finished, params):
            return [Found(tokens, score) for score, tokens, _ in finished[:n]], length
    raise AssertionError("all candidates of the last step end")


def _is_over(best_running: float, finished: list[tuple[float, list[int], bool]], params: BeamParams) -> bool:
    if not all(done for _, _, done in finished):
        return False
    return params.early_stopping or best_running <= min(score for score, _, _ in finished)
