"""Sequences several times larger than the pool: the tokens that a large pool gives. Poison is on."""

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import CoreError
from engine.model import arrivals, streaming
from engine.model.folder import ModelFolder
from engine.model.lanes import HostLane, Lanes
from engine.model.link import Link
from engine.model.runner import ModelRunner
from engine.request import BlockId, SamplingParams, SequenceId, SlabId
from engine.step import SequenceStep, StepPlan, TableWrite
from tests.engine.model.checkpoints import FAMILIES, assert_greedy, make_checkpoint, make_other, oracle, prompt_of
from tests.engine.model.device_like import Rerun, device_like
from tests.engine.model.driver import GREEDY, Drive, generate
from tests.engine.model.hosting import Host, Hosting

LENGTHS = [200, 3, 130, 61]
SEEDED = SamplingParams(temperature=0.9, top_p=0.9)
SAMPLINGS = [GREEDY, SEEDED, SEEDED, GREEDY]
PROMPTS = [prompt_of(length) for length in LENGTHS]


def make_runner(folder: ModelFolder, link: Link | None = None, **options: object) -> ModelRunner:
    """Return a runner whose pool holds 48 blocks of a tiny model, and slabs for all."""
    block_bytes = 2 * 2 * 2 * 16 * 8 * 4
    defaults: dict[str, object] = {
        "dtype": "float32",
        "kv_bytes": 48 * block_bytes,
        "host_bytes": 96 * block_bytes,
        "block_size": 8,
        "poison": True,
        "max_running": 6,
        "threads": 1,
    }
    return ModelRunner(EngineConfig(**{**defaults, **options}), folder, link)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny Llama."""
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of three blocks, parts that are joined soon, loads that go beside steps however small they are."""
    monkeypatch.setattr(streaming, "STAGE_BYTES", 3 * 2 * 2 * 16 * 8 * 4)
    monkeypatch.setattr(streaming, "_JOIN_BYTES", 20_000)
    monkeypatch.setattr(arrivals, "WORTH_BYTES", 0)


def links(kind: str) -> Link | None:
    """Return the CPU as it is, one with a core left for loads, or a GPU's link."""
    if kind == "beside":
        return Link(Lanes(HostLane), side=None, capture=None, spare=True)
    return device_like(Rerun()) if kind == "device" else None


def check(folder: ModelFolder, runner: ModelRunner, *, exact: bool, **options: object) -> Host:
    """Compare what hosted sequences get with what a large pool gives."""
    large = make_runner(folder, kv_bytes=4 << 20, backend=runner.kernel_backend, dtype=runner.dtype)
    expected = generate(large, PROMPTS, Drive(num_tokens=8), SAMPLINGS)
    host = Host(runner, Hosting(**options))  # type: ignore[arg-type]
    found = host.run(PROMPTS, SAMPLINGS)
    runner.close()
    large.close()
    assert host.num_hosted > 100 and host.num_ahead > 0 and host.num_moved > 0
    for prompt, tokens, wanted, sampling in zip(PROMPTS, found, expected, SAMPLINGS, strict=True):
        if tokens != wanted:  # excused only at a tie of the two best
            assert not exact and sampling is GREEDY
            assert_greedy(oracle(folder), prompt, tokens)
    return host


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("kind", ["host", "beside", "device"])
@pytest.mark.parametrize(("chunk", "resident"), [(1, 2), (24, 4), (64, 9)])
def test_tokens_are_those_of_a_large_pool(
    folder: ModelFolder, backend: str, kind: str, chunk: int, resident: int
) -> None:
    """Decodes and chunks of sequences most of whose blocks are in slabs, beside others; blocks are stored in plans
    and ahead of them, loaded again and copied, while steps go on. Where slabs are read in place all is equal.
    """
    runner = make_runner(folder, links(kind), backend=backend)
    assert runner.shape.streams
    host = check(folder, runner, exact=kind != "device", chunk=chunk, resident=resident, seed=chunk)
    assert host.num_loaded > 3


@pytest.mark.parametrize("kind", ["host", "device"])
def test_context_of_four_pools(folder: ModelFolder, kind: str) -> None:
    """A context of 62 blocks in a pool of 14."""
    runner, large = make_runner(folder, links(kind), kv_bytes=14 * 4096), make_runner(folder, kv_bytes=1 << 20)
    prompt = prompt_of(480)
    (expected,) = generate(large, [prompt], Drive(num_tokens=12, chunk=64))
    host = Host(runner, Hosting(num_tokens=12, chunk=40, resident=8))
    (found,) = host.run([prompt], [GREEDY])
    assert runner.shape.num_blocks * 8 * 4 < len(prompt) + 12
    assert found == expected or kind == "device"
    assert_greedy(oracle(folder), prompt, found)


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3", "qwen3"])
def test_any_family(tmp_path: Path, family: str, kind: str) -> None:
    """Windows, soft caps and layers that differ in them: pieces before a layer's window are not brought."""
    folder = make_checkpoint(tmp_path, family)
    check(folder, make_runner(folder, links(kind)), exact=kind == "host", seed=1)


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("other", ["gpt_neox", "starcoder2", "deepseek_v3"])
def test_classes_of_transformers(tmp_path: Path, other: str, kind: str) -> None:
    """Models of transformers' own classes are served so too."""
    folder = make_other(tmp_path, other)
    check(folder, make_runner(folder, links(kind), kv_bytes=1 << 20, host_bytes=2 << 20), exact=kind == "host", seed=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_call_for_all_layers(folder: ModelFolder, dtype: str) -> None:
    """Layers that the library runs in one call read slabs and wait for loads as composed ones do."""
    runner = make_runner(folder, links("beside"), dtype=dtype, weight_dtype="int8")
    large = make_runner(folder, kv_bytes=4 << 20, dtype=dtype, weight_dtype="int8")
    expected = generate(large, PROMPTS, Drive(num_tokens=8), SAMPLINGS)
    host = Host(runner, Hosting(comes_back=0.6))
    assert host.run(PROMPTS, SAMPLINGS) == expected
    assert host.num_loaded > 3
    runner.close()


def part(hosted: tuple[int, ...], start: int) -> SequenceStep:
    """Return a decode at `start`."""
    return SequenceStep(SequenceId(0), 0, start, [5], GREEDY, hosted=tuple(map(SlabId, hosted)))


def test_what_cannot_be_is_refused(folder: ModelFolder) -> None:
    """More hosted blocks than tokens, and hosted blocks without host memory, end the step with a reason."""
    writes = (TableWrite(row=0, column=0, blocks=(BlockId(1), BlockId(2), BlockId(3))),)
    runner = make_runner(folder)
    with pytest.raises(CoreError, match="step 3: sequence 0 has 2 blocks in host memory, but computes from token 15"):
        runner.launch(StepPlan(number=3, sequences=(part((1, 2), 15),), table_writes=writes))
    bare = make_runner(folder, host_bytes=0)
    assert not bare.shape.streams
    with pytest.raises(CoreError, match="cannot read"):
        bare.launch(StepPlan(number=3, sequences=(part((1,), 15),), table_writes=writes))


def test_longest_context_has_columns(folder: ModelFolder) -> None:
    """The table has room for the model's longest context, however small the pool is."""
    shape = make_runner(folder, kv_bytes=4096 * 4).shape
    assert shape.num_blocks * shape.block_size * 4 <= folder.max_context_tokens
    assert shape.max_columns * shape.block_size >= folder.max_context_tokens


def test_poisoned_slab_shows(folder: ModelFolder) -> None:
    """A slab whose bytes are wrong is not hidden: under poison the step ends."""
    for kind in ("host", "device"):
        runner = make_runner(folder, links(kind))
        runner.slab_memory(SlabId(7))[:] = torch.full((2 * 2 * 2 * 16 * 8,), float("nan")).numpy().tobytes()
        writes = (TableWrite(row=0, column=1, blocks=(BlockId(2),)),)
        with pytest.raises(CoreError, match="step 3 read a stale"):
            runner.launch(StepPlan(number=3, sequences=(part((7,), 8),), table_writes=writes)).wait()


def test_every_family_is_known() -> None:
    """The families that are tried here exist."""
    assert {"mistral", "gemma2", "gemma3", "qwen3"} <= set(FAMILIES)
