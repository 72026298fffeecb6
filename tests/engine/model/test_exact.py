"""The real model in float32: SmolLM2's greedy output is transformers' own, alone and batched. Poison is on."""

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from engine.config import EngineConfig
from engine.model.folder import ModelFolder
from engine.model.runner import ModelRunner
from engine.request import SamplingParams
from tests.engine.model.checkpoints import assert_greedy, assert_logprobs
from tests.engine.model.driver import Drive, Logprobs, generate

pytestmark = pytest.mark.xdist_group("exact")  # one worker holds the two copies of the weights

LENGTHS = [1, 2, 3, 5, 9, 15, 16, 17, 24, 31, 48, 64, 65, 100, 128, 150, 201, 300, 513, 1500]
NUM_TOKENS = 64
_TEXT = (
    "The harbour was quiet that morning. {n} boats lay at their moorings, and on the quay a woman counted crates of "
    "oranges, writing each number twice. 'If the {n}th is short again,' she said, 'we shall have to ask the captain.' "
    "def total(values):\n    return sum(value * {n} for value in values)\n\nQuestion {n}: what does it return?\n"
)


@pytest.fixture(scope="module")
def prompts(smollm2: ModelFolder) -> list[list[int]]:
    """Twenty prompts of 1 to 1,500 tokens of text that never repeats exactly."""
    tokenizer = Tokenizer.from_str(smollm2.tokenizer_json.decode())
    ids = [tokenizer.encode("".join(_TEXT.format(n=31 * k + 7 * j) for j in range(20))).ids for k in range(20)]
    return [text[:length] for text, length in zip(ids, LENGTHS, strict=True)]


@pytest.fixture(scope="module")
def proven() -> set[tuple[int, ...]]:
    """Generations that the oracle has confirmed, so that each is computed once."""
    return set()


def make_runner(folder: ModelFolder, block_size: int) -> ModelRunner:
    """Return a float32 runner with the default backend."""
    config = EngineConfig(dtype="float32", poison=True, block_size=block_size, kv_bytes=600 << 20, threads=1)
    return ModelRunner(config, folder)


@pytest.mark.parametrize(("block_size", "chunk"), [(16, 512), (8, 200)])
def test_batched_prompts_are_transformers_own(
    smollm2: ModelFolder,
    prompts: list[list[int]],
    smollm2_oracle: PreTrainedModel,
    proven: set[tuple[int, ...]],
    block_size: int,
    chunk: int,
) -> None:
    """Twenty prompts together, in a shuffled order, each give 64 tokens that transformers would choose one by one."""
    drive = Drive(num_tokens=NUM_TOKENS, chunk=chunk, seed=chunk)
    results = generate(make_runner(smollm2, block_size), prompts, drive)
    for prompt, generated in zip(prompts, results, strict=True):
        assert len(generated) == NUM_TOKENS
        if (*prompt, *generated) not in proven:
            assert_greedy(smollm2_oracle, prompt, generated)
            proven.add((*prompt, *generated))


def test_alone_equals_generate(smollm2: ModelFolder, prompts: list[list[int]], smollm2_oracle: PreTrainedModel) -> None:
    """Prompts served one at a time give what `generate` itself returns."""
    runner = make_runner(smollm2, 32)
    for prompt in (prompts[0], prompts[7], prompts[13]):
        (generated,) = generate(runner, [prompt], Drive(num_tokens=NUM_TOKENS, chunk=64))
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NUM_TOKENS, "do_sample": False}
        out = smollm2_oracle.generate(ids, **options, eos_token_id=None, pad_token_id=2)[0, len(prompt) :].tolist()
        if out != generated:  # excused only at a tie
            assert_greedy(smollm2_oracle, prompt, generated)


def test_logprobs_are_those_of_a_plain_forward(
    smollm2: ModelFolder, prompts: list[list[int]], smollm2_oracle: PreTrainedModel
) -> None:
    """Ten prompts together: chosen and best tokens have the log-probabilities of one forward of transformers each."""
    few = prompts[4:14]
    samplings = [
        SamplingParams(temperature=0.9 * (index % 2), top_p=0.9, num_logprobs=5 * index) for index in range(10)
    ]
    measured = Logprobs(list)
    results = generate(make_runner(smollm2, 16), few, Drive(num_tokens=12, chunk=100), samplings, measured)
    for index, (prompt, generated) in enumerate(zip(few, results, strict=True)):
        assert_logprobs(smollm2_oracle, prompt, generated, measured[index])
