"""Steps of decodes by graphs, run again on the CPU instead of replayed: the same tokens by any bucket. Poison is on."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import CoreError
from engine.model.folder import ModelFolder, read_folder
from engine.model.graphs import Bucket, DecodeGraphs, batch_buckets, context_buckets
from engine.model.lanes import HostLane
from engine.model.layout import lay_out
from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId
from engine.step import BlockCopy, SequenceStep, StepPlan, TableWrite
from kernels.batch import AttentionBatch
from kernels.triton_ops.tuning import SPLIT
from tests.engine.model.checkpoints import make_checkpoint, make_other, prompt_of
from tests.engine.model.device_like import CPU, Rerun, device_like
from tests.engine.model.driver import GREEDY, Drive, generate
from tests.engine.tiny_model import make_tiny_model

BACKENDS = ["reference", "auto"]
LOG = "tollgate.model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny Llama of four splits of context."""
    path = make_tiny_model(tmp_path_factory.mktemp("llama") / "tiny")
    return read_folder(path, name="tiny")


def config(**options: object) -> EngineConfig:
    """Return settings of a small engine."""
    defaults: dict[str, object] = {
        "dtype": "float32",
        "kv_bytes": 4 << 20,
        "poison": True,
        "max_running": 13,
        "max_batched_tokens": 64,
        "threads": 1,
    }
    return EngineConfig(**{**defaults, **options})  # type: ignore[arg-type]


def test_buckets_end_with_the_limit() -> None:
    """Batches grow by half at most beyond eight, contexts fourfold in splits; the last of each holds the most."""
    assert batch_buckets(1) == [1]
    assert batch_buckets(8) == [1, 2, 4, 8]
    assert batch_buckets(13) == [1, 2, 4, 8, 13]
    assert batch_buckets(256) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert batch_buckets(300)[-3:] == [192, 256, 300]
    assert context_buckets(1) == context_buckets(SPLIT) == [SPLIT]
    assert context_buckets(SPLIT + 1) == [SPLIT, 2 * SPLIT]
    assert context_buckets(131_072) == [SPLIT * count for count in (1, 4, 16, 64, 256)]


class Forward:
    """Notes what a graph computes; its logits are the tokens and rows."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, AttentionBatch]] = []

    def __call__(self, token_ids: torch.Tensor, batch: AttentionBatch, sampled: torch.Tensor) -> torch.Tensor:
        """Take a batch."""
        assert token_ids.shape == sampled.shape == batch.rows.shape == batch.contexts.shape == batch.slots.shape
        self.batches.append((len(token_ids), batch))
        return torch.stack((token_ids, batch.rows, batch.positions, batch.contexts), 1).float()


def decodes(*contexts: int) -> tuple[SequenceStep, ...]:
    """Return decodes in rows 0, 1, …, the token of row r being 100 + r."""
    return tuple(
        SequenceStep(SequenceId(row), row, context - 1, [100 + row], GREEDY) for row, context in enumerate(contexts)
    )


def test_smallest_graph_that_fits() -> None:
    """A step takes the next batch and the next context that hold it; its own rows come first, padding is harmless."""
    table = torch.arange(10 * 300, dtype=torch.int32).view(10, 300)
    forward = Forward()
    graphs = DecodeGraphs(forward, table, 300 * 16)
    graphs.record(Rerun())
    assert len(graphs.buckets) == 5 * 3
    cases = {
        (1,): Bucket(1, SPLIT),
        (5, 9): Bucket(2, SPLIT),
        (5, 9, SPLIT): Bucket(4, SPLIT),
        (SPLIT + 1, 1, 1): Bucket(4, 4 * SPLIT),
        (4 * SPLIT,): Bucket(1, 4 * SPLIT),
        (4 * SPLIT + 1, *[3] * 8): Bucket(9, 10 * SPLIT),
    }
    for contexts, bucket in cases.items():
        logits = graphs.run(lay_out(decodes(*contexts), table.numpy(), 16), HostLane())
        assert logits is not None
        count = len(contexts)
        assert logits.tolist() == [[100 + row, row, one - 1, one] for row, one in enumerate(contexts)]
        size, batch = forward.batches[-1]
        assert (size, batch.max_context, batch.max_query, batch.num_decodes) == (*bucket, 1, bucket.batch)
        assert batch.query_starts.tolist() == list(range(size + 1))
        assert batch.slots[count:].tolist() == [-1] * (size - count)
        assert batch.rows[count:].tolist() == [9] * (size - count)
        assert batch.contexts[count:].tolist() == [1] * (size - count)


def test_other_steps_have_no_graph() -> None:
    """Chunks, sequences that are not sampled, too many or too long ones are computed without."""
    table = torch.zeros((4, 40), dtype=torch.int32)
    graphs = DecodeGraphs(Forward(), table, 40 * 16)
    assert graphs.run(lay_out(decodes(3), table.numpy(), 16), HostLane()) is None  # nothing is recorded yet
    graphs.record(Rerun())
    (one,) = decodes(3)
    longer = SequenceStep(SequenceId(0), 0, 0, [1, 2], GREEDY)
    silent = SequenceStep(SequenceId(0), 0, 0, [1], None)
    for parts in ((one, longer), (longer,), (one, silent), (one,) * 4):
        assert graphs.run(lay_out(parts, table.numpy(), 16), HostLane()) is None
    assert graphs.run(lay_out((one,) * 3, table.numpy(), 16), HostLane()) is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_are_those_of_the_kernels_one_by_one(folder: ModelFolder, backend: str) -> None:
    """Batches of every size up to the limit, whose contexts cross from bucket to bucket, greedy and seeded, with
    log-probabilities, give the tokens of the same steps without graphs.
    """
    lengths = [1, 2, 15, 17, 40, 100, 255, SPLIT - 5, SPLIT, SPLIT + 3, 3 * SPLIT, 4 * SPLIT - 14, 4 * SPLIT - 13]
    prompts = [prompt_of(length) for length in lengths]
    samplings = [
        SamplingParams(temperature=index % 2 * 0.9, top_k=index, num_logprobs=index % 3 - 1)
        for index in range(len(prompts))
    ]
    plain = ModelRunner(config(backend=backend, graphs="off"), folder, device_like(Rerun()))
    assert plain.num_graphs == 0
    rerun = Rerun()
    graphed = ModelRunner(config(backend=backend), folder, device_like(rerun))
    assert graphed.num_graphs == rerun.recorded == 5 * 2
    for seed, running in ((1, 13), (2, 3), (3, 1)):
        drive = Drive(num_tokens=12, chunk=300, max_running=running, seed=seed)
        assert generate(graphed, prompts, drive, samplings) == generate(plain, prompts, drive, samplings)
    assert len(set(rerun.replays)) >= 6


def table_writes(columns: int, rows: int) -> tuple[TableWrite, ...]:
    """Return blocks 0, 1, … for every row."""
    return tuple(
        TableWrite(row, 0, tuple(BlockId(row * columns + column) for column in range(columns))) for row in range(rows)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_writes_nothing(folder: ModelFolder, backend: str) -> None:
    """After steps by graphs the pages are, to the bit, those of steps without, in every block of a NaN-filled pool."""
    found = []
    for graphs in ("auto", "off"):
        runner = ModelRunner(config(backend=backend, graphs=graphs), folder, device_like(Rerun()))
        with torch.inference_mode():
            runner._pages.data[:, :-1] = float("nan")
        writes = table_writes(2, 5)
        for number in range(3):
            parts = tuple(SequenceStep(SequenceId(row), row, number, [7 + row], GREEDY) for row in range(5))
            runner.launch(StepPlan(number=number, sequences=parts, table_writes=writes)).wait()
            writes = ()
        found.append(runner._pages.data.view(torch.int32))
    assert torch.equal(*found)
    assert (found[0][:, -1] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_edits_come_before_the_graph(folder: ModelFolder, backend: str) -> None:
    """Table writes and copies of a step are in force in its graph; a row may move to other blocks."""
    runner = ModelRunner(config(backend=backend), folder, device_like(Rerun()))
    prompt = prompt_of(21)
    expected = generate(ModelRunner(config(backend=backend, graphs="off"), folder), [prompt], Drive(num_tokens=1))
    first = SequenceStep(SequenceId(0), 0, 0, prompt[:20], None)
    runner.launch(StepPlan(number=0, sequences=(first,), table_writes=(TableWrite(0, 0, blocks(0, 1)),))).wait()
    last = SequenceStep(SequenceId(0), 0, 20, prompt[20:], GREEDY)
    plan = StepPlan(
        number=1,
        sequences=(last,),
        table_writes=(TableWrite(0, 0, blocks(5, 6)),),
        poison=blocks(2, 3, 4, 5, 6),
        copies=(BlockCopy(*blocks(0, 2)), BlockCopy(*blocks(2, 5)), BlockCopy(*blocks(1, 6))),
    )
    assert runner.launch(plan).wait().token_ids == tuple(expected[0])


def blocks(*numbers: int) -> tuple[BlockId, ...]:
    """Return block ids."""
    return tuple(map(BlockId, numbers))


def test_stale_read_is_an_error(folder: ModelFolder) -> None:
    """A poisoned block that a graph reads ends the step with an error; the next step runs."""
    runner = ModelRunner(config(), folder, device_like(Rerun()))
    parts = (SequenceStep(SequenceId(0), 0, 16, [5], GREEDY), SequenceStep(SequenceId(1), 1, 0, [5], GREEDY))
    plan = StepPlan(number=7, sequences=parts, table_writes=table_writes(2, 2), poison=blocks(0, 1, 2, 3))
    handle = runner.launch(plan)
    with pytest.raises(CoreError, match="step 7"):
        handle.wait()
    assert runner.launch(StepPlan(number=8, sequences=parts[1:], table_writes=())).wait().token_ids


class Failing(Rerun):
    """Fails for some records."""

    def __init__(self, error: Exception, fails: Callable[[int], bool]) -> None:
        super().__init__()
        self._error, self._fails, self._asked = error, fails, 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record or fail."""
        self._asked += 1
        if self._fails(self._asked - 1):
            raise self._error
        return super().__call__(run)


def test_no_memory_for_the_largest(folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    """Graphs that find no memory are left out with a warning, the smaller ones serve; tokens are the same."""
    prompts = [prompt_of(length) for length in (3, 20, 40)]
    drive = Drive(num_tokens=8)
    expected = generate(ModelRunner(config(), folder), prompts, drive)
    capture = Failing(torch.OutOfMemoryError("too much"), lambda number: number < 4)
    with caplog.at_level(logging.INFO, logger=LOG):
        runner = ModelRunner(config(), folder, device_like(capture))
    assert caplog.text.count("graphs: no memory for some") == 1
    assert "the smallest: batch 13, context 512: too much" in caplog.text
    assert "graphs: 6 of 10 recorded" in caplog.text
    assert generate(runner, prompts, drive) == expected
    assert capture.replays


def test_recording_fails(folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    """Where something cannot be recorded the log says so, with the reason, and steps run without graphs."""
    prompts = [prompt_of(length) for length in (3, 20, 40)]
    drive = Drive(num_tokens=8)
    expected = generate(ModelRunner(config(), folder), prompts, drive)
    capture = Failing(RuntimeError("operation not permitted when stream is capturing"), lambda number: number == 2)
    runner = ModelRunner(config(), folder, device_like(capture))
    assert "graphs: recording failed" in caplog.text
    assert "operation not permitted" in caplog.text
    assert runner.num_graphs == 0
    assert generate(runner, prompts, drive) == expected
    assert not capture.replays


def test_classes_of_transformers_have_no_graphs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that is not our own decoder runs without graphs, as the log says, and gives its tokens."""
    folder = make_other(tmp_path, "gpt_neox")
    rerun, prompts = Rerun(), [prompt_of(length) for length in (3, 20, 40)]
    with caplog.at_level(logging.WARNING, logger=LOG):
        runner = ModelRunner(config(), folder, device_like(rerun))
    assert "graphs: none, since what the class of transformers launches" in caplog.text
    expected = generate(ModelRunner(config(), folder), prompts, Drive(num_tokens=5))
    assert generate(runner, prompts, Drive(num_tokens=5)) == expected
    assert rerun.recorded == 0


@pytest.mark.parametrize("family", ["mistral-window", "gemma2", "qwen3", "smollm3-window"])
def test_other_families_have_graphs(tmp_path: Path, family: str) -> None:
    """Windows, soft caps, norms of queries and layers without positions give the same tokens by graphs."""
    folder, rerun = make_checkpoint(tmp_path, family), Rerun()
    prompts = [prompt_of(length) for length in (1, 20, 60, 130)]
    expected = generate(ModelRunner(config(), folder), prompts, Drive(num_tokens=8))
    assert generate(ModelRunner(config(), folder, device_like(rerun)), prompts, Drive(num_tokens=8)) == expected
    assert rerun.replays


@pytest.mark.parametrize("block_size", [1, 32])
def test_warm_up_leaves_nothing_behind(folder: ModelFolder, block_size: int) -> None:
    """Steps made at start leave the padding's block as it was and every other one unwritten."""
    options = config(block_size=block_size, kv_bytes=64 << 10, max_batched_tokens=300)
    runner = ModelRunner(options, folder, device_like(Rerun()))
    assert (runner._pages.data[:, -1] == 0).all()
    assert runner._table.tensor[:-1].eq(0).all()
    assert runner._table.tensor[-1].eq(runner.shape.num_blocks).all()
    assert runner._pages.data.device == CPU
