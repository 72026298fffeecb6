"""The runner on tiny checkpoints: the same tokens, whatever the batch, chunk and block size. Poison is on."""

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, CoreError
from engine.model.folder import ModelFolder
from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId
from engine.step import SequenceStep, StepPlan, TableWrite
from tests.engine.model.checkpoints import assert_greedy, assert_logprobs, make_checkpoint, oracle, prompt_of
from tests.engine.model.driver import GREEDY, Drive, Logprobs, generate

LENGTHS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 170, 257]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny Llama."""
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


def make_runner(folder: ModelFolder, **options: object) -> ModelRunner:
    """Return a small runner in float32 with poison."""
    defaults: dict[str, object] = {
        "dtype": "float32",
        "kv_bytes": 1 << 20,
        "poison": True,
        "max_running": 32,
        "threads": 1,
    }
    return ModelRunner(EngineConfig(**{**defaults, **options}), folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("chunk", [1, 13, 64, 512])
def test_greedy_is_transformers_own(folder: ModelFolder, backend: str, block_size: int, chunk: int) -> None:
    """Prompts of many lengths, shuffled together, give transformers' greedy tokens for each chunk and block size."""
    prompts = [prompt_of(length) for length in (LENGTHS if chunk > 1 else LENGTHS[:8])]
    runner = make_runner(folder, backend=backend, block_size=block_size)
    results = generate(runner, prompts, Drive(num_tokens=12, chunk=chunk, max_running=9, seed=block_size + chunk))
    model = oracle(folder)
    for prompt, generated in zip(prompts, results, strict=True):
        assert_greedy(model, prompt, generated)


def test_alone_and_batched_agree(folder: ModelFolder) -> None:
    """Each prompt alone, all together, and all together in other orders give the same tokens, greedy and seeded."""
    prompts = [prompt_of(length) for length in LENGTHS]
    samplings = [
        GREEDY if index % 2 else SamplingParams(temperature=0.9, top_p=0.9 if index % 4 else 1.0, top_k=index)
        for index in range(len(prompts))
    ]
    runner = make_runner(folder)
    expected = generate(runner, prompts, Drive(num_tokens=10), samplings)
    for seed, chunk, running in ((1, 40, 3), (2, 500, 32), (3, 17, 1)):
        assert generate(runner, prompts, Drive(10, chunk, running, seed), samplings) == expected


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_logprobs_are_those_of_a_plain_forward(folder: ModelFolder, backend: str) -> None:
    """Prompts in chunks together: the chosen and the best tokens have transformers' log-probabilities, and asking for
    them, some for more than others, changes no token, whatever temperature they are sampled at.
    """
    prompts = [prompt_of(length) for length in LENGTHS]
    counts = [(-1, 0, 3, 20, 64)[index % 5] for index in range(len(prompts))]
    options = [{"temperature": 0.0} if index % 2 else {"temperature": 1.4, "top_k": 9} for index in range(len(prompts))]
    runner, drive = make_runner(folder, backend=backend), Drive(num_tokens=8, chunk=40, max_running=7)
    measured = Logprobs(list)
    samplings = [SamplingParams(**one, num_logprobs=count) for one, count in zip(options, counts, strict=True)]  # type: ignore[arg-type]
    results = generate(runner, prompts, drive, samplings, measured)
    assert results == generate(runner, prompts, drive, [SamplingParams(**one) for one in options])  # type: ignore[arg-type]
    model = oracle(folder)
    for index, (prompt, generated) in enumerate(zip(prompts, results, strict=True)):
        if counts[index] < 0:
            assert measured[index] == [None] * 8
        else:
            assert_logprobs(model, prompt, generated, measured[index])
            assert {len(one.top) for one in measured[index] if one is not None} == {counts[index]}


def test_nobody_asks_for_logprobs(folder: ModelFolder) -> None:
    """A step in which no sequence asks has none to tell, and still its tokens."""
    runner = make_runner(folder)
    part = SequenceStep(sequence=SequenceId(0), row=0, start=0, token_ids=prompt_of(5), sampling=GREEDY)
    writes = (TableWrite(row=0, column=0, blocks=(BlockId(0),)),)
    result = runner.launch(StepPlan(number=0, sequences=(part,), table_writes=writes)).wait()
    assert (len(result.token_ids), result.logprobs) == (1, ())


def test_shape_divides_the_pool(folder: ModelFolder) -> None:
    """The pool holds as many blocks as fit its bytes, a block being all layers' K and V."""
    shape = make_runner(folder, kv_bytes=100_000, block_size=8).shape
    assert shape.block_bytes == 2 * 2 * 2 * 16 * 8 * 4
    assert shape.num_blocks == 100_000 // shape.block_bytes
    assert (shape.max_rows, shape.max_columns) == (32, 512 // 8)


def test_pool_too_small_is_refused(folder: ModelFolder) -> None:
    """A pool under one block is refused with the setting's name and the block's size."""
    with pytest.raises(ConfigError, match=r"ENGINE_KV_BYTES=100.*8192"):
        make_runner(folder, kv_bytes=100)


def test_unfinished_prefill_samples_nothing(folder: ModelFolder) -> None:
    """A step of which no sequence is sampled returns no token."""
    runner = make_runner(folder)
    part = SequenceStep(sequence=SequenceId(0), row=3, start=0, token_ids=prompt_of(5), sampling=None)
    writes = (TableWrite(row=3, column=0, blocks=(BlockId(4),)),)
    result = runner.launch(StepPlan(number=0, sequences=(part,), table_writes=writes)).wait()
    assert result.token_ids == ()
    assert result.seconds > 0


def test_stale_read_is_an_error(folder: ModelFolder) -> None:
    """Reading a poisoned block ends the step with an error that names it, rather than with a token."""
    runner = make_runner(folder)
    part = SequenceStep(sequence=SequenceId(0), row=0, start=16, token_ids=[5], sampling=GREEDY)
    writes = (TableWrite(row=0, column=0, blocks=(BlockId(1), BlockId(2))),)
    plan = StepPlan(number=7, sequences=(part,), table_writes=writes, poison=(BlockId(1), BlockId(2)))
    with pytest.raises(CoreError, match="step 7"):
        runner.launch(plan)


def test_names_what_runs(folder: ModelFolder) -> None:
    """The runner says its dtype, device and kernels."""
    runner = make_runner(folder, backend="reference", dtype="bfloat16")
    assert (runner.dtype, runner.device, runner.kernel_backend) == ("bfloat16", "cpu", "reference")
