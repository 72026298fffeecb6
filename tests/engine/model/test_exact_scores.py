"""Scores and embeddings on the real engine against `transformers` in float32: one plain forward over the whole text.

Chunks, batch mates, the prefix cache, preemption, several outputs and beams change nothing of them.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedModel

from engine.config import EngineConfig
from engine.model.folder import ModelFolder
from engine.model.runner import ModelRunner
from engine.request import BeamParams, BlockId, FinishReason, SamplingParams, SequenceId
from engine.step import SequenceStep, StepOptions, StepPlan, StepResult, TableWrite, TokenLogprobs
from tests.engine.model.checkpoints import (
    FAMILIES,
    OTHERS,
    assert_logprobs,
    make_checkpoint,
    make_other,
    oracle,
    prompt_of,
)
from tests.engine.model.device_like import Rerun, device_like
from tests.engine.model.serving import Serving

STEM = prompt_of(40, seed=1)
PROMPTS = [STEM + prompt_of(length, seed=2) for length in (1, 2, 9, 24, 60)] + [prompt_of(1, seed=3)]
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny Qwen."""
    return make_checkpoint(tmp_path_factory.mktemp("qwen"), "qwen3", seed=4)


@pytest.fixture(scope="module")
def model(folder: ModelFolder) -> PreTrainedModel:
    """The same in transformers."""
    return oracle(folder)


def assert_prompt(model: PreTrainedModel, prompt: Sequence[int], measured: Sequence[TokenLogprobs], count: int) -> None:
    """Fail unless each token of the prompt but the first has its log-probability, beside the `count` best."""
    assert len(measured) == len(prompt) - 1
    assert all(len(one.top) == count for one in measured)

    def whole(token_ids: torch.Tensor, *, logits_to_keep: int) -> SimpleNamespace:
        return SimpleNamespace(logits=model(token_ids).logits[:, -logits_to_keep:])

    if measured:
        assert_logprobs(whole, list(prompt[:1]), list(prompt[1:]), measured, tolerance=TOLERANCE)


def mean_of(model: PreTrainedModel, prompt: Sequence[int]) -> torch.Tensor:
    """Return the mean of the last hidden states."""
    with torch.inference_mode():
        states: torch.Tensor = model.get_decoder()(torch.tensor([list(prompt)])).last_hidden_state[0]
    return states.mean(0)


def assert_embedding(model: PreTrainedModel, prompt: Sequence[int], found: Sequence[float]) -> None:
    """Fail unless an embedding is the mean of the last hidden states."""
    torch.testing.assert_close(torch.tensor(found), mean_of(model, prompt), atol=TOLERANCE, rtol=TOLERANCE)


def prefill(runner: ModelRunner, prompt: list[int], cuts: Sequence[int]) -> list[StepResult]:
    """Compute a prompt in chunks of these lengths, asked for everything, without a token behind it."""
    size, start, results = runner.shape.block_size, 0, []
    blocks = tuple(BlockId(block) for block in range(-(-len(prompt) // size)))
    for number, count in enumerate(cuts):
        end = start + count
        options = StepOptions(
            num_prompt=len(prompt),
            prompt_logprobs=3 if start < len(prompt) - 1 else -1,
            prompt_next=prompt[end] if end < len(prompt) else -1,
            pool=True,
        )
        part = SequenceStep(SequenceId(5), 2, start, prompt[start:end], None, options=options)
        writes = (TableWrite(row=2, column=0, blocks=blocks),) if not number else ()
        plan = StepPlan(number=number, sequences=(part,), table_writes=writes, poison=blocks if not number else ())
        results.append(runner.launch(plan).wait())
        start = end
    return results


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_every_model_tells_what_transformers_says(tmp_path: Path, family: str, backend: str) -> None:
    """Every family of our decoder, and every class of transformers that runs over pages, in chunks past the window."""
    folder = make_checkpoint(tmp_path, family) if family in FAMILIES else make_other(tmp_path, family)
    config = EngineConfig(backend=backend, dtype="float32", kv_bytes=1 << 21, poison=True, max_running=4, threads=1)
    runner, model, prompt = ModelRunner(config, folder), oracle(folder), prompt_of(75)
    assert runner.embedding_size == 64
    results = prefill(runner, prompt, (30, 1, 42, 1, 1))
    told = [one for result in results for one in result.prompt_logprobs.get(SequenceId(5), ())]
    assert_prompt(model, prompt, told, 3)
    assert [len(result.pooled) for result in results] == [0, 0, 0, 0, 1]
    assert_embedding(model, prompt, results[-1].pooled[SequenceId(5)])


@pytest.mark.parametrize("budget", [7, 24, 512])
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_requests_side_by_side(
    folder: ModelFolder, model: PreTrainedModel, *, budget: int, shares: bool, ahead: bool
) -> None:
    """Generated tokens, prompts and embeddings at once, of prompts that begin alike, with the cache or without.

    Step by step as on a CPU, and planned ahead as on a GPU.
    """
    serving = Serving(folder, budget=budget, link=device_like(Rerun()) if ahead else None)
    for _ in range(2):  # the second time all of it could be cached
        scored = [
            serving.submit(one, shares=shares, prompt_logprobs=2, num_logprobs=4, max_tokens=5, temperature=0.0)
            for one in PROMPTS
        ]
        embedded = [serving.submit(one, shares=shares, embed=True) for one in PROMPTS]
        plain = [serving.submit(one, shares=shares, max_tokens=6, temperature=0.9) for one in PROMPTS]
        serving.run()
        for handle, prompt in zip(scored, PROMPTS, strict=True):
            assert_prompt(model, prompt, serving.prompts[handle], 2)
            assert serving.cached_tokens[handle] == 0
            measured = serving.measured[handle, 0]
            assert all(len(one.top) == 4 for one in measured)
            assert_logprobs(model, prompt, serving.tokens[handle, 0], measured, tolerance=TOLERANCE)
        for handle, prompt in zip(embedded, PROMPTS, strict=True):
            assert_embedding(model, prompt, serving.embeddings[handle])
            assert serving.ends[handle, 0].finish_reason is FinishReason.STOP
            assert serving.tokens[handle, 0] == [] and serving.cached_tokens[handle] == 0
        assert all(serving.tokens[handle, 0] for handle in plain)


@pytest.mark.parametrize("ahead", [False, True])
def test_preemption_changes_nothing(folder: ModelFolder, model: PreTrainedModel, *, ahead: bool) -> None:
    """Requests that lose their blocks tell each token of their prompt once, and embed all of theirs."""
    link = device_like(Rerun()) if ahead else None
    serving = Serving(folder, budget=16, num_blocks=26, overcommits=True, link=link)
    prompts = [STEM + prompt_of(10 + length, seed=5) for length in range(4)]
    scored = [
        serving.submit(one, prompt_logprobs=1, num_logprobs=1, max_tokens=30, temperature=0.0, ignore_eos=True)
        for one in prompts
    ]
    embedded = [serving.submit(one, embed=True) for one in prompts]
    for count in (18, 12, 26):
        for _ in range(4):
            serving.step()
        serving.limit(count)
    serving.run()
    assert serving.num_preemptions > 0
    for handle, prompt in zip(scored, prompts, strict=True):
        assert_prompt(model, prompt, serving.prompts[handle], 1)
        assert_logprobs(model, prompt, serving.tokens[handle, 0], serving.measured[handle, 0], tolerance=TOLERANCE)
    for handle, prompt in zip(embedded, prompts, strict=True):
        assert_embedding(model, prompt, serving.embeddings[handle])


def test_each_output_and_each_beam_has_its_own(folder: ModelFolder, model: PreTrainedModel) -> None:
    """The prompt's are told once; each output's tokens have theirs, and those of a beam search with the end."""
    serving = Serving(folder, budget=24)
    prompt = PROMPTS[2]
    several = serving.submit(prompt, n=3, temperature=1.0, seed=3, prompt_logprobs=1, num_logprobs=3, max_tokens=6)
    search = serving.submit(prompt, n=2, beams=BeamParams(width=3), prompt_logprobs=0, num_logprobs=20, max_tokens=6)
    quiet = serving.submit(prompt, n=2, beams=BeamParams(width=3), max_tokens=6)
    serving.run()
    assert_prompt(model, prompt, serving.prompts[several], 1)
    assert_prompt(model, prompt, serving.prompts[search], 0)
    for key, count in (((several, 0), 3), ((several, 2), 3), ((search, 0), 20), ((search, 1), 20)):
        assert serving.tokens[key] and all(len(one.top) == count for one in serving.measured[key])
        assert_logprobs(model, prompt, serving.tokens[key], serving.measured[key], tolerance=TOLERANCE)
    assert [serving.tokens[quiet, index] for index in range(2)] == [serving.tokens[search, index] for index in range(2)]
    assert not serving.measured[quiet, 0]


def test_as_on_a_gpu(folder: ModelFolder, model: PreTrainedModel) -> None:
    """With the buffers, records and warm-up of a GPU the same comes back, beside decodes that are replayed."""
    config = EngineConfig(
        dtype="float32", kv_bytes=1 << 20, poison=True, max_running=4, max_batched_tokens=64, threads=1
    )
    rerun = Rerun()
    runner = ModelRunner(config, folder, device_like(rerun))
    assert runner.num_graphs
    prompt = prompt_of(50)
    results = prefill(runner, prompt, (20, 29, 1))
    assert_prompt(
        model, prompt, [one for result in results for one in result.prompt_logprobs.get(SequenceId(5), ())], 3
    )
    assert_embedding(model, prompt, results[-1].pooled[SequenceId(5)])
    decode = SequenceStep(SequenceId(5), 2, 49, [prompt[-1]], SamplingParams(temperature=0.0, num_logprobs=2))
    result = runner.launch(StepPlan(number=9, sequences=(decode,), table_writes=())).wait()
    assert rerun.replays
    assert_logprobs(model, prompt, list(result.token_ids), result.logprobs, tolerance=TOLERANCE)
