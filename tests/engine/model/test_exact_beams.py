"""Beam search on the real engine: what `transformers` finds, whatever else goes on."""

import pytest
import torch
from transformers import PreTrainedModel

from engine.model.folder import ModelFolder
from engine.request import BeamParams
from tests.engine.model.checkpoints import make_checkpoint, oracle, prompt_of
from tests.engine.model.searches import assert_found, expected, search, stops_of
from tests.engine.model.serving import Serving

MAX_TOKENS = 12
LENGTHS = (1, 2, 5, 7, 8, 9, 15, 16, 17, 30, 41, 64)
PROMPTS = [prompt_of(length, seed=seed) for seed in (3, 4) for length in LENGTHS]

SEARCHES = [
    (2, BeamParams(width=2)),
    (1, BeamParams(width=3, early_stopping=True)),
    (3, BeamParams(width=3, length_penalty=0.0)),
    (2, BeamParams(width=4, length_penalty=2.0)),
    (4, BeamParams(width=4, length_penalty=-0.7, early_stopping=True)),
    (5, BeamParams(width=5, length_penalty=0.4)),
]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Tiny checkpoints of two families."""
    return make_checkpoint(tmp_path_factory.mktemp("beams"), request.param, seed=11)


@pytest.fixture(scope="module")
def model(folder: ModelFolder) -> PreTrainedModel:
    """The same weights in transformers."""
    return oracle(folder)


@pytest.mark.parametrize(("n", "beams"), SEARCHES, ids=str)
def test_finds_what_transformers_finds(folder: ModelFolder, model: PreTrainedModel, n: int, beams: BeamParams) -> None:
    """Many prompts together, most with stop tokens on their way: tokens, order and scores are the same."""
    serving = Serving(folder, budget=64)
    wanted, handles, ended = [], [], 0
    for number, prompt in enumerate(PROMPTS):
        stops = stops_of(model, prompt) if number % 4 else []
        wanted.append((expected(model, prompt, n, beams, stops, MAX_TOKENS), stops))
        handles.append(search(serving, prompt, n, beams, stops, max_tokens=MAX_TOKENS))
        ended += any(one.tokens[-1] in stops for one in wanted[-1][0])
    serving.run()
    same = [assert_found(serving, handle, *one) for handle, one in zip(handles, wanted, strict=True)]
    assert sum(same) >= n * len(PROMPTS) - 1  # a tie is rare
    assert ended >= 3 or beams.length_penalty > 1  # stop tokens were in play; such a penalty favours what goes on


def test_scores_are_sums_of_logprobs(folder: ModelFolder, model: PreTrainedModel) -> None:
    """A hypothesis' score is the sum of what a plain forward says of its tokens, over its length to the penalty."""
    serving = Serving(folder)
    beams = BeamParams(width=4, length_penalty=0.6)
    handles = [search(serving, prompt, 4, beams, stops_of(model, prompt), max_tokens=MAX_TOKENS) for prompt in PROMPTS]
    serving.run()
    for handle, prompt in zip(handles, PROMPTS, strict=True):
        scores = [serving.ends[handle, index].score for index in range(4)]
        assert scores == sorted(scores, reverse=True)
        for index in range(4):
            tokens = serving.tokens[handle, index]
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + tokens[:-1]]), logits_to_keep=len(tokens)).logits[0]
            truth = logits.double().log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
            assert serving.logprobs[handle, index] == pytest.approx(truth.tolist(), abs=1e-4)
            assert scores[index] == pytest.approx(float(truth.sum()) / len(tokens) ** 0.6, abs=1e-4)


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("budget", [12, 512])
@pytest.mark.parametrize("preemption", [False, True])
def test_company_changes_nothing(
    folder: ModelFolder, model: PreTrainedModel, cache: bool, budget: int, preemption: bool
) -> None:
    """Among sampled requests and other searches, chunked, on cached blocks, started again after a preemption: the same
    hypotheses with the same scores.
    """
    beams = BeamParams(width=3, length_penalty=0.5)
    stem = prompt_of(45, seed=7)
    prompts = [stem + prompt[:20] for prompt in PROMPTS[2:9]]
    single = Serving(folder)
    serving = Serving(folder, budget=budget, num_blocks=128)
    pairs = []
    for number, prompt in enumerate(prompts):
        stops = stops_of(model, prompt) if number % 2 else []
        alone = search(single, prompt, 3, beams, stops, max_tokens=MAX_TOKENS)
        single.run()
        pairs.append((alone, search(serving, prompt, 3, beams, stops, max_tokens=MAX_TOKENS, shares=cache)))
        serving.submit(prompt, n=2, temperature=1.0, seed=number, max_tokens=9, shares=cache)
        for _ in range(6):
            serving.step()
    for count in range(3000):
        if preemption and count in (2, 9, 20):
            serving.limit(1)
            serving.step()
            serving.limit(128)
        if not serving.step():
            break
    assert not serving.scheduler.roster.sequences
    assert (serving.num_preemptions > 0) == preemption
    assert (max(serving.cached_tokens.values()) > 0) == cache
    for alone, handle in pairs:
        for index in range(3):
            assert serving.tokens[handle, index] == single.tokens[alone, index]
            assert serving.ends[handle, index].score == pytest.approx(single.ends[alone, index].score, abs=1e-4)


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_short_searches(folder: ModelFolder, model: PreTrainedModel, max_tokens: int) -> None:
    """A search of one or two tokens is cut off where transformers cuts it."""
    serving = Serving(folder)
    beams = BeamParams(width=4)
    handles = [search(serving, prompt, 4, beams, [], max_tokens=max_tokens) for prompt in PROMPTS]
    serving.run()
    for handle, prompt in zip(handles, PROMPTS, strict=True):
        assert assert_found(serving, handle, expected(model, prompt, 4, beams, [], max_tokens), []) == 4
