"""Penalties, bias, min_p and min_tokens on the real engine: the same alone and in a crowd, and as in transformers."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from engine.model.folder import ModelFolder
from engine.model.sampler import uniform
from engine.request import FinishReason, SamplingParams
from engine.scheduler.roster import fork_key
from tests.engine.model.checkpoints import make_checkpoint, oracle, prompt_of
from tests.engine.model.serving import Serving
from tests.engine.shaping_reference import drawn, shape

NUM_TOKENS = 24
EOS = 2
STEM = prompt_of(40, seed=1)
PROMPTS = [STEM + prompt_of(length, seed=2) for length in (1, 5, 8, 13, 17, 24)]


class Case(NamedTuple):
    """How a request samples."""

    temperature: float
    seed: int
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_p: float = 0.0
    top_p: float = 1.0
    min_tokens: int = 0


CASES = [
    Case(0.0, 1, repetition_penalty=1.3),
    Case(0.9, 2, frequency_penalty=0.8, presence_penalty=0.3),
    Case(1.3, 3, frequency_penalty=-1.5, top_p=0.9),
    Case(1.0, 4, logit_bias=((7, 4.0), (100, -100.0), (300, 2.5)), min_p=0.1),
    Case(1.2, 5, repetition_penalty=0.8, min_tokens=9, logit_bias=((EOS, 9.0),)),
    Case(1.0, 6, min_p=0.2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny Qwen."""
    return make_checkpoint(tmp_path_factory.mktemp("qwen"), "qwen3", seed=4)


@pytest.fixture(scope="module")
def alone(folder: ModelFolder) -> list[list[list[int]]]:
    """The tokens of three outputs of each prompt, each from a request of its own that runs alone."""
    serving = Serving(folder)
    found = []
    for prompt, case in zip(PROMPTS, CASES, strict=True):
        handles = []
        for index in range(3):
            sampling = case._asdict() | {"seed": fork_key(case.seed, index), "max_tokens": NUM_TOKENS}
            handles.append(serving.submit(prompt, **sampling))
            serving.run()
        found.append([serving.tokens[handle, 0] for handle in handles])
    return found


def test_in_a_crowd_as_alone(folder: ModelFolder, alone: list[list[list[int]]]) -> None:
    """Three outputs of every prompt at once, in chunks, over shared blocks, preempted again and again."""
    serving = Serving(folder, num_blocks=30, budget=16, overcommits=True)
    sampling = {"max_tokens": NUM_TOKENS}
    handles = [
        serving.submit(prompt, n=3, shares=True, **(case._asdict() | sampling))
        for prompt, case in zip(PROMPTS, CASES, strict=True)
    ]
    serving.run()
    assert serving.num_preemptions > 3
    for handle, outputs in zip(handles, alone, strict=True):
        assert [serving.tokens[handle, index] for index in range(3)] == outputs


def test_tokens_are_those_of_plain_arrays(folder: ModelFolder, alone: list[list[list[int]]]) -> None:
    """Over the logits of transformers' own model, worked out token by token from the whole history."""
    model = oracle(folder)
    for prompt, case, outputs in zip(PROMPTS, CASES, alone, strict=True):
        sampling = SamplingParams(**(case._asdict()))
        for index, output in enumerate(outputs):
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + output[:-1]]), logits_to_keep=len(output)).logits[0].numpy()
            expected = [
                drawn(
                    shape(row, sampling, prompt, output[:place], stop_ids=(EOS,)),
                    sampling,
                    uniform(fork_key(case.seed, index), place),
                )
                for place, row in enumerate(logits)
            ]
            assert output == expected


def test_an_end_token_comes_as_soon_as_it_may(folder: ModelFolder, alone: list[list[list[int]]]) -> None:
    """Where a bias makes it likely, and `min_tokens` holds it back."""
    lengths = [len(output) for output in alone[4]]
    assert min(lengths) > 9
    assert max(lengths) < NUM_TOKENS
    assert all(output.index(EOS) == len(output) - 1 for output in alone[4])


@pytest.mark.parametrize("repetition_penalty", [1.0, 1.15, 1.7])
def test_greedy_is_what_generate_returns(folder: ModelFolder, repetition_penalty: float) -> None:
    """With its repetition penalty, sequence bias and least number of new tokens."""
    serving = Serving(folder)
    bias = {9: 2.0, 50: -4.0, EOS: 6.0}
    model = oracle(folder)
    handles = [
        serving.submit(
            prompt,
            temperature=0.0,
            max_tokens=20,
            min_tokens=5,
            repetition_penalty=repetition_penalty,
            logit_bias=tuple(bias.items()),
        )
        for prompt in PROMPTS
    ]
    serving.run()
    for handle, prompt in zip(handles, PROMPTS, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=20,
            min_new_tokens=5,
            repetition_penalty=repetition_penalty,
            sequence_bias={(token,): value for token, value in bias.items()},
            eos_token_id=EOS,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        assert serving.tokens[handle, 0] == out
        expected = FinishReason.STOP if out[-1] == EOS else FinishReason.LENGTH
        assert serving.ends[handle, 0].finish_reason is expected


def test_penalties_change_what_is_generated(folder: ModelFolder, alone: list[list[list[int]]]) -> None:
    """A positive one lets fewer tokens come twice, a negative one more."""
    serving = Serving(folder)
    counts = {}
    for penalty in (-2.0, 0.0, 2.0):
        handles = [
            serving.submit(prompt, temperature=1.0, seed=7, max_tokens=60, frequency_penalty=penalty, ignore_eos=True)
            for prompt in PROMPTS
        ]
        serving.run()
        counts[penalty] = np.mean([len(set(serving.tokens[handle, 0])) for handle in handles])
    assert counts[-2.0] < counts[0.0] < counts[2.0]
