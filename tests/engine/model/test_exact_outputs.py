"""Outputs of one prompt on the real engine: each is what a request of its own would get, whatever else goes on.

The prefix cache, chunks, forks, batch mates and preemption are turned on in every combination. Expected tokens come
from an engine in which each output runs alone, from an empty cache, its prompt in one piece.
"""

from itertools import product
from typing import NamedTuple

import pytest

from engine.model.folder import ModelFolder
from engine.request import FinishReason
from engine.scheduler.roster import fork_key
from engine.step import TokenLogprobs
from tests.engine.model.checkpoints import assert_greedy, assert_logprobs, make_checkpoint, oracle, prompt_of
from tests.engine.model.serving import Serving

NUM_TOKENS = 14
STEM = prompt_of(53, seed=1)
PROMPTS = [STEM + prompt_of(length, seed=2) for length in (1, 3, 8, 11, 19, 24)]  # blocks of 8: some end in mid-block


class Case(NamedTuple):
    """What is turned on."""

    cache: bool
    chunks: bool
    forks: bool
    mates: bool
    preemption: bool


class Options(NamedTuple):
    """How a request samples."""

    temperature: float
    seed: int
    top_p: float = 1.0
    top_k: int = 0


OPTIONS = [
    Options(0.0, 1),
    Options(0.9, 2),
    Options(1.3, -3, top_p=0.9),
    Options(0.7, 2**63 + 11, top_k=12),
    Options(1.0, 5, top_p=0.8, top_k=40),
    Options(0.0, 6),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny Qwen."""
    return make_checkpoint(tmp_path_factory.mktemp("qwen"), "qwen3", seed=4)


@pytest.fixture(scope="module")
def alone(folder: ModelFolder) -> list[list[list[int]]]:
    """The tokens of three outputs of each prompt, each from a request of its own with the fork's key."""
    serving = Serving(folder)
    found = []
    for prompt, options in zip(PROMPTS, OPTIONS, strict=True):
        outputs = []
        for index in range(3):
            seed = fork_key(options.seed, index)
            handle = serving.submit(
                prompt, **(options._asdict() | {"seed": seed}), max_tokens=NUM_TOKENS, ignore_eos=True
            )
            serving.run()
            outputs.append(serving.tokens[handle, 0])
        found.append(outputs)
    return found


@pytest.mark.parametrize("case", [Case(*on) for on in product((False, True), repeat=5)], ids=str)
def test_outputs_are_those_of_requests_alone(folder: ModelFolder, alone: list[list[list[int]]], case: Case) -> None:
    """Greedy and seeded, with cache, chunks, forks, batch mates and preemption or without: the same tokens."""
    serving = Serving(folder, budget=24 if case.chunks else 512, num_blocks=64)
    n = 3 if case.forks else 1
    handles = []
    for number, (prompt, options) in enumerate(zip(PROMPTS, OPTIONS, strict=True)):
        sampling = options._asdict() | {"max_tokens": NUM_TOKENS, "ignore_eos": True}
        handles.append(serving.submit(prompt, n=n, shares=case.cache, **sampling))
        if not case.mates:
            drive(serving, case)
        elif number == 2:
            for _ in range(4):  # three are under way when the others come
                serving.step()
    drive(serving, case)
    for handle, outputs in zip(handles, alone, strict=True):
        for index in range(n):
            assert serving.tokens[handle, index] == outputs[index]
            assert serving.ends[handle, index].finish_reason is FinishReason.LENGTH
    assert (serving.num_preemptions > 0) == case.preemption
    assert (sum(serving.cached_tokens.values()) > 0) == case.cache


def drive(serving: Serving, case: Case) -> None:
    """Run everything to its end; under preemption a limit falls and rises again every few steps."""
    for count in range(2000):
        if case.preemption and count % 8 == 5:
            serving.limit(1)
            serving.step()
            serving.limit(64)
        if not serving.step():
            break
    assert not serving.scheduler.roster.sequences


def test_greedy_outputs_are_equal(folder: ModelFolder) -> None:
    """Greedy outputs of one prompt do not differ: they are transformers' own, each of them."""
    serving = Serving(folder, budget=20)
    handles = [serving.submit(prompt, n=4, temperature=0.0, max_tokens=10, ignore_eos=True) for prompt in PROMPTS]
    serving.run()
    model = oracle(folder)
    for handle, prompt in zip(handles, PROMPTS, strict=True):
        outputs = [serving.tokens[handle, index] for index in range(4)]
        assert outputs == [outputs[0]] * 4
        assert_greedy(model, prompt, outputs[0])


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
def test_forks_of_any_block(folder: ModelFolder, length: int) -> None:
    """Prompts that end before, at and behind the edge of a block fork into eight that never meet again."""
    serving = Serving(folder)
    prompt = prompt_of(length, seed=5)
    handle = serving.submit(prompt, n=8, temperature=1.5, seed=9, max_tokens=20, ignore_eos=True)
    serving.run()
    for index in range(8):
        single = serving.submit(prompt, temperature=1.5, seed=fork_key(9, index), max_tokens=20, ignore_eos=True)
        serving.run()
        assert serving.tokens[single, 0] == serving.tokens[handle, index]
    assert len({tuple(serving.tokens[handle, index]) for index in range(8)}) == 8


def test_a_full_pool_takes_turns(folder: ModelFolder) -> None:
    """Outputs that do not fit together, in a pool that lets them all begin, are preempted and still exact."""
    expected = Serving(folder)
    crowded = Serving(folder, num_blocks=30, budget=16, overcommits=True)
    sampling = {"temperature": 1.1, "max_tokens": 30, "ignore_eos": True}
    handles = [
        crowded.submit(prompt, n=3, seed=number, shares=True, **sampling) for number, prompt in enumerate(PROMPTS)
    ]
    crowded.run()
    assert crowded.num_preemptions > 3
    for number, (handle, prompt) in enumerate(zip(handles, PROMPTS, strict=True)):
        for index in range(3):
            single = expected.submit(prompt, seed=fork_key(number, index), **sampling)
            expected.run()
            assert crowded.tokens[handle, index] == expected.tokens[single, 0]


def test_logprobs_belong_to_their_tokens(folder: ModelFolder) -> None:
    """Forks, chunks, cache and preemption leave each token its own log-probability; who does not ask has none."""
    serving = Serving(folder, num_blocks=30, budget=16, overcommits=True)
    sampling = {"temperature": 1.1, "max_tokens": 30, "ignore_eos": True}
    counts = [number % 3 - 1 for number in range(len(PROMPTS))]
    handles = [
        serving.submit(prompt, n=2, seed=number, shares=True, num_logprobs=count, **sampling)
        for number, (prompt, count) in enumerate(zip(PROMPTS, counts, strict=True))
    ]
    serving.run()
    assert serving.num_preemptions > 3
    model = oracle(folder)
    for handle, prompt, count in zip(handles, PROMPTS, counts, strict=True):
        for index in range(2):
            tokens, logprobs = serving.tokens[handle, index], serving.logprobs[handle, index]
            if count < 0:
                assert logprobs == []
            else:
                assert_logprobs(model, prompt, tokens, [TokenLogprobs(one) for one in logprobs])
