"""SmolLM2 in float32 under the real scheduler: nothing that the engine does to a request changes its tokens.

Every combination of four of: prefix cache, chunks, forks, batch mates, preemption (the fifth is given by them, so that
sixteen of the thirty-two cases cover any four together; tiny checkpoints run all of them).
"""

from itertools import product
from typing import NamedTuple

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from engine.model.folder import ModelFolder
from engine.model.runner import ModelRunner
from engine.request import BeamParams
from engine.scheduler.roster import fork_key
from engine.step import TokenLogprobs
from tests.engine.model.checkpoints import assert_greedy, assert_logprobs
from tests.engine.model.searches import assert_found, expected, search
from tests.engine.model.serving import Serving

pytestmark = pytest.mark.xdist_group("exact")  # one worker holds the two copies of the weights

NUM_BLOCKS = 64
NUM_TOKENS = 7
TEXT = (
    "The harbour was quiet that morning. Boats lay at their moorings, and on the quay a woman counted crates, writing "
    "each number twice. 'If the last one is short again,' she said, 'we shall have to ask the"
)
TAILS = (" captain.'", " captain, or his wife, who keeps the books", " people of")
SAMPLING: list[dict[str, float]] = [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9}, {"temperature": 1.0}]


class Case(NamedTuple):
    """What is turned on."""

    cache: bool
    chunks: bool
    forks: bool
    mates: bool
    preemption: bool


CASES = [Case(*four, preemption=sum(four) % 2 == 1) for four in product((False, True), repeat=4)]


@pytest.fixture(scope="module")
def prompts(smollm2: ModelFolder) -> list[list[int]]:
    """Three prompts of one beginning, of some fifty tokens."""
    tokenizer = Tokenizer.from_str(smollm2.tokenizer_json.decode())
    return [tokenizer.encode(TEXT + tail).ids for tail in TAILS]


@pytest.fixture(scope="module")
def runner(smollm2: ModelFolder) -> ModelRunner:
    """The runner of one engine after the other."""
    return Serving(smollm2, num_blocks=NUM_BLOCKS).runner


@pytest.fixture(scope="module")
def alone(smollm2: ModelFolder, runner: ModelRunner, prompts: list[list[int]]) -> list[list[list[int]]]:
    """The tokens of two outputs of each prompt, each from a request of its own with the fork's key."""
    serving = Serving(smollm2, num_blocks=NUM_BLOCKS, runner=runner)
    found = []
    for number, (prompt, sampling) in enumerate(zip(prompts, SAMPLING, strict=True)):
        handles = []
        for index in range(2):
            seed = fork_key(number, index)
            handles.append(serving.submit(prompt, **sampling, seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True))
            serving.run()
        found.append([serving.tokens[handle, 0] for handle in handles])
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_are_those_of_requests_alone(
    smollm2: ModelFolder,
    smollm2_oracle: PreTrainedModel,
    runner: ModelRunner,
    prompts: list[list[int]],
    alone: list[list[list[int]]],
    case: Case,
) -> None:
    """Greedy and seeded requests get the tokens that they get alone, in one piece and without a cache."""
    serving = Serving(smollm2, num_blocks=NUM_BLOCKS, budget=16 if case.chunks else 512, runner=runner)
    n = 2 if case.forks else 1
    handles = []
    for number, (prompt, sampling) in enumerate(zip(prompts, SAMPLING, strict=True)):
        options = {**sampling, "seed": number, "max_tokens": NUM_TOKENS, "ignore_eos": True, "num_logprobs": number - 1}
        handles.append(serving.submit(prompt, n=n, shares=case.cache, **options))
        if not case.mates:
            drive(serving, preemption=case.preemption)
        elif number == 0:
            for _ in range(5):  # it is under way when the others come
                serving.step()
    drive(serving, preemption=case.preemption)
    assert (serving.num_preemptions > 0) == case.preemption
    assert (sum(serving.cached_tokens.values()) > 0) == case.cache
    for handle, prompt, outputs, sampling in zip(handles, prompts, alone, SAMPLING, strict=True):
        for index in range(n):
            if serving.tokens[handle, index] != outputs[index]:  # excused only at a tie of the two best
                assert not sampling["temperature"]
                assert_greedy(smollm2_oracle, prompt, serving.tokens[handle, index])
            measured = [TokenLogprobs(one) for one in serving.logprobs[handle, index]]
            if measured:
                assert_logprobs(smollm2_oracle, prompt, serving.tokens[handle, index], measured)
        assert bool(serving.logprobs[handle, 0]) == (handle != handles[0])


def drive(serving: Serving, *, preemption: bool) -> None:
    """Run everything to its end; under preemption a limit falls and rises again."""
    for count in range(1000):
        if preemption and count in (3, 9):
            serving.limit(1)
            serving.step()
            serving.limit(NUM_BLOCKS)
        if not serving.step():
            break
    assert not serving.scheduler.roster.sequences


@pytest.mark.parametrize(
    ("n", "beams"),
    [(2, BeamParams(width=3)), (4, BeamParams(width=4, length_penalty=0.5, early_stopping=True))],
    ids=str,
)
def test_beam_search_is_transformers_own(
    smollm2: ModelFolder,
    smollm2_oracle: PreTrainedModel,
    runner: ModelRunner,
    prompts: list[list[int]],
    n: int,
    beams: BeamParams,
) -> None:
    """Three searches side by side, a comma and a full stop ending two of them, find what `generate` finds."""
    tokenizer = Tokenizer.from_str(smollm2.tokenizer_json.decode())
    stops = [tokenizer.token_to_id(mark) for mark in (",", ".")]
    serving = Serving(smollm2, num_blocks=NUM_BLOCKS, budget=32, runner=runner)
    wanted = [stops, [], stops]
    handles = [
        search(serving, prompt, n, beams, ends, max_tokens=8, shares=True)
        for prompt, ends in zip(prompts, wanted, strict=True)
    ]
    serving.run()
    for handle, prompt, ends in zip(handles, prompts, wanted, strict=True):
        assert_found(serving, handle, expected(smollm2_oracle, prompt, n, beams, ends, 8), ends)
