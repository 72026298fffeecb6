"""The runner on tiny checkpoints: the same tokens, whatever the batch, chunk and block size. Poison is on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, CoreError, ModelError
from engine.model.decoder import Decoder
from engine.model.folder import ModelFolder, read_folder, resolve_model
from engine.model.runner import ModelRunner, independent
from engine.request import BlockId, SamplingParams, SequenceId
from engine.step import BlockCopy, SequenceStep, StepPlan, TableWrite
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
        runner.launch(plan).wait()


def test_unfilled_blocks_keep_nothing(folder: ModelFolder) -> None:
    """What others left in a block is overwritten before the step writes to it, and nothing else is."""
    runner = ModelRunner(EngineConfig(dtype="float32", kv_bytes=8 * 8192, poison=False, threads=1), folder)
    with torch.inference_mode():
        runner._pages.data.fill_(9.0)
    part = SequenceStep(sequence=SequenceId(0), row=0, start=0, token_ids=prompt_of(5), sampling=GREEDY)
    writes = (TableWrite(row=0, column=0, blocks=(BlockId(1), BlockId(2))),)
    touched = (BlockId(1), BlockId(2), BlockId(4))
    plan = StepPlan(number=7, sequences=(part,), table_writes=writes, poison=touched, unfilled=touched[:2])
    runner.launch(plan).wait()
    data = runner._pages.data
    assert data[:, 1].any()
    assert not (data[:, 1] == 9.0).any()
    assert not data[:, 2].any()
    assert bool((data[:, [0, 3, 4]] == 9.0).all())


def copies(*pairs: tuple[int, int]) -> list[BlockCopy]:
    """Return copies from block to block."""
    return [BlockCopy(BlockId(source), BlockId(target)) for source, target in pairs]


@pytest.mark.parametrize(
    ("pairs", "lengths"),
    [
        ([], []),
        ([(0, 1), (0, 2), (3, 4)], [3]),
        ([(0, 1), (1, 2)], [1, 1]),  # a target is a later source
        ([(0, 1), (2, 0)], [1, 1]),  # a source is a later target
        ([(0, 1), (2, 1), (3, 4)], [1, 2]),  # a target is written twice
    ],
)
def test_copies_in_one_call_are_independent(pairs: list[tuple[int, int]], lengths: list[int]) -> None:
    """Copies go together until one touches what another of them writes, or writes what another reads."""
    runs = list(independent(copies(*pairs)))
    assert [copy for run in runs for copy in run] == copies(*pairs)
    assert [len(run) for run in runs] == lengths


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_copies_run_one_after_the_other(folder: ModelFolder, backend: str) -> None:
    """A sequence whose block went through a chain of copies, each target the next source, reads what it wrote."""
    prompt = prompt_of(21)
    runner = make_runner(folder, backend=backend)
    first = SequenceStep(sequence=SequenceId(0), row=0, start=0, token_ids=prompt[:20], sampling=None)
    writes = (TableWrite(row=0, column=0, blocks=(BlockId(0), BlockId(1))),)
    runner.launch(StepPlan(number=0, sequences=(first,), table_writes=writes)).wait()
    last = SequenceStep(sequence=SequenceId(1), row=1, start=20, token_ids=prompt[20:], sampling=GREEDY)
    plan = StepPlan(
        number=1,
        sequences=(last,),
        table_writes=(TableWrite(row=1, column=0, blocks=(BlockId(5), BlockId(6))),),
        poison=tuple(map(BlockId, range(2, 8))),
        copies=tuple(copies((0, 2), (1, 3), (2, 5), (3, 4), (7, 2), (4, 6), (7, 3))),
    )
    (token,) = runner.launch(plan).wait().token_ids
    assert_greedy(oracle(folder), prompt, [token])


def test_leading_decodes_are_counted(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch says how many sequences of one token lead it, so that a backend may treat them apart."""
    seen = []
    forward = Decoder.forward
    monkeypatch.setattr(
        Decoder, "forward", lambda self, ids, batch, *rest: seen.append(batch) or forward(self, ids, batch, *rest)
    )
    runner = make_runner(folder)
    writes = tuple(TableWrite(row=row, column=0, blocks=(BlockId(row),)) for row in range(4))
    for number, lengths in enumerate(((1, 1, 3, 1), (3, 1), (1, 1))):
        parts = tuple(
            SequenceStep(sequence=SequenceId(row), row=row, start=0, token_ids=prompt_of(length), sampling=None)
            for row, length in enumerate(lengths)
        )
        runner.launch(StepPlan(number=number, sequences=parts, table_writes=writes)).wait()
    assert [batch.num_decodes for batch in seen] == [2, 0, 2]


def test_dummy_weights_serve_shapes(folder: ModelFolder, tmp_path: Path) -> None:
    """ENGINE_LOAD_FORMAT=dummy needs no weights file, computes finite logits, and is the same in each process."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder.path / name, tmp_path / name)
    with pytest.raises(ModelError, match="expected safetensors weights"):
        read_folder(tmp_path, name="bare")
    bare = resolve_model(EngineConfig(model=str(tmp_path), load_format="dummy"))
    assert bare.digest != folder.digest
    prompts = [prompt_of(length) for length in (3, 40)]
    results = [generate(make_runner(bare, load_format="dummy"), prompts, Drive(num_tokens=6)) for _ in range(2)]
    assert results[0] == results[1]
    assert all(len(generated) == 6 for generated in results[0])


def test_our_decoder_starts_without_transformers(folder: ModelFolder) -> None:
    """A family of our own never imports transformers, whose import takes longer than loading a small model."""
    script = (
        "import sys; from pathlib import Path; from engine.config import EngineConfig\n"
        "from engine.model.folder import read_folder; from engine.model.runner import ModelRunner\n"
        "ModelRunner(EngineConfig(kv_bytes=1 << 20, threads=1), read_folder(Path(sys.argv[1]), name='tiny'))\n"
        "sys.exit('transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(folder.path)], check=True, cwd=Path(__file__).parents[3])


def test_names_what_runs(folder: ModelFolder) -> None:
    """The runner says its dtype, device and kernels."""
    runner = make_runner(folder, backend="reference", dtype="bfloat16")
    assert (runner.dtype, runner.device, runner.kernel_backend) == ("bfloat16", "cpu", "reference")


def test_int8_weights_serve(folder: ModelFolder) -> None:
    """ENGINE_WEIGHT_DTYPE=int8 gives the reference's tokens on the C++ kernels, in other chunks and batches too."""
    prompts = [prompt_of(length) for length in (1, 3, 40, 100)]
    slow, fast = (make_runner(folder, backend=backend, weight_dtype="int8") for backend in ("reference", "cpu"))
    expected = generate(slow, prompts, Drive(num_tokens=6))
    assert generate(fast, prompts, Drive(num_tokens=6)) == expected
    assert generate(fast, prompts, Drive(num_tokens=6, chunk=13, max_running=1)) == expected


def test_int8_weights_elsewhere_are_refused(folder: ModelFolder) -> None:
    """The setting names itself where it cannot be had."""
    with pytest.raises(ConfigError, match="ENGINE_WEIGHT_DTYPE=int8: int8 weights are computed on the CPU alone"):
        make_runner(folder, backend="triton", weight_dtype="int8")
