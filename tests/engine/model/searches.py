"""Beam searches on the real engine, and the same ones by `transformers`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from engine.request import BeamParams, FinishReason
from tests.engine.model.serving import Serving

TIE = 1e-3  # two candidates whose scores are closer may change places


class Found(NamedTuple):
    """One hypothesis."""

    tokens: list[int]
    score: float


def expected(
    model: PreTrainedModel, prompt: Sequence[int], n: int, beams: BeamParams, stops: Sequence[int], max_tokens: int
) -> list[Found]:
    """Return transformers' hypotheses, best first."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        num_beams=beams.width,
        num_return_sequences=n,
        do_sample=False,
        length_penalty=beams.length_penalty,
        early_stopping=beams.early_stopping,
        eos_token_id=list(stops) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = out.sequences[:, len(prompt) :].tolist()
    return [Found(cut(row, stops), score) for row, score in zip(rows, out.sequences_scores.tolist(), strict=True)]


def cut(tokens: list[int], stops: Sequence[int]) -> list[int]:
    """Return tokens up to the first that stops, without padding."""
    ends = [place + 1 for place, token in enumerate(tokens) if token in stops]
    return tokens[: min(ends, default=len(tokens))]


def stops_of(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    """Return three tokens that end the prompt's likely continuations: greedy generation comes by all."""
    ids = torch.tensor([list(prompt)])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    tokens = model.generate(ids, **options, eos_token_id=None)[0, len(prompt) :].tolist()
    return sorted({tokens[1], tokens[3], tokens[6]})


def search(
    serving: Serving,
    prompt: Sequence[int],
    n: int,
    beams: BeamParams,
    stops: Sequence[int],
    *,
    max_tokens: int,
    shares: bool = False,
) -> int:
    """Submit a search."""
    return serving.submit(
        prompt,
        n=n,
        beams=beams,
        shares=shares,
        max_tokens=max_tokens,
        stop_token_ids=frozenset(stops),
        ignore_eos=True,
        num_logprobs=0,
    )


def assert_found(serving: Serving, handle: int, wanted: Sequence[Found], stops: Sequence[int]) -> int:
    """Fail unless the outputs are the wanted ones, best first, or tie with them; return how many are the very same."""
    num_same = 0
    for index, one in enumerate(wanted):
        tokens, end = serving.tokens[handle, index], serving.ends[handle, index]
        assert abs(end.score - one.score) <= TIE
        num_same += tokens == one.tokens
        assert end.finish_reason is (FinishReason.STOP if tokens[-1] in stops else FinishReason.LENGTH)
        assert len(serving.logprobs[handle, index]) == len(tokens)
    return num_same
