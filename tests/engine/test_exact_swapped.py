"""The real model, preempted again and again: swapped, computed again, or never preempted, the tokens are the same."""

import pytest

from engine.config import EngineConfig
from engine.core import make_scheduler
from engine.model.folder import ModelFolder, resolve_model
from engine.model.link import Link
from engine.model.runner import ModelRunner
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import TenantId
from engine.scheduler.plan import Scheduler
from engine.step import StepPlan, StepResult
from tests.engine.costs import Costs
from tests.engine.model.checkpoints import make_other
from tests.engine.model.device_like import device_like
from tests.engine.test_exact_ahead import Driver, submit
from tests.engine.test_exact_under_pressure import PROMPTS, TENANTS
from tests.engine.tiny_model import make_tiny_model
from tests.engine.world import ShortOutputs

NUM_BLOCKS, BLOCK_TOKENS = 26, 8


@pytest.fixture(scope="module", params=["tiny", "fallback"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny checkpoint of a family of ours, and one that a class of transformers computes."""
    path = tmp_path_factory.mktemp("model")
    if request.param == "fallback":
        return make_other(path, "gpt_neox")
    return resolve_model(EngineConfig(model=str(make_tiny_model(path / "tiny", seed=2))))


def make_engine(folder: ModelFolder, num_blocks: int, link: Link | None = None) -> tuple[Scheduler, ModelRunner]:
    """Return a float32 engine of so many blocks, with poison and room for as many in host memory."""
    shape = ModelRunner(EngineConfig(dtype="float32", block_size=BLOCK_TOKENS, threads=1), folder).shape
    config = EngineConfig(
        dtype="float32",
        kv_bytes=num_blocks * shape.block_bytes,
        host_bytes=NUM_BLOCKS * shape.block_bytes,
        block_size=BLOCK_TOKENS,
        max_batched_tokens=16,
        max_running=8,
        threads=1,
        poison=True,
    )
    runner = ModelRunner(config, folder, link)
    assert (runner.shape.num_blocks, runner.shape.num_slabs) == (num_blocks, NUM_BLOCKS)
    return make_scheduler(config, folder, runner), runner


def set_limit(scheduler: Scheduler, version: int, blocks: int) -> None:
    """Give both tenants a hard limit in blocks, and as much as there is in host memory."""
    block_bytes = scheduler.memory.shape.block_bytes
    policies = tuple(
        TenantPolicy(
            tenant=TenantId(name),
            kv_hard_bytes=blocks * block_bytes,
            host_bytes=NUM_BLOCKS * block_bytes,
            max_running=8,
            max_queued=100,
            max_context_tokens=2048,
            max_output_tokens=2048,
        )
        for name in TENANTS
    )
    scheduler.apply(PolicyUpdate(version=version, epoch=0, snapshot=True, tenants=policies))


def drive(
    folder: ModelFolder, share: float, *, num_blocks: int = NUM_BLOCKS, ahead: bool = False, link: Link | None = None
) -> tuple[Driver, Scheduler]:
    """Run all prompts with limits that move; swapping is the cheaper way with a chance of `share`."""
    scheduler, runner = make_engine(folder, num_blocks, link)
    scheduler.roster.swapping.cost = Costs(share)
    set_limit(scheduler, 1, num_blocks)
    for name in TENANTS:
        scheduler.roster.tenant(TenantId(name)).lengths = ShortOutputs()  # admit more than will fit
    driver = Driver(scheduler, runner, ahead=ahead)
    for number in range(len(PROMPTS)):
        submit(scheduler, number, frozenset(range(number, 300, 11)))
        driver.run(steps=3)
    for version, blocks in (
        ((2, 6), (3, 24), (4, 5), (5, 20), (6, 6), (7, num_blocks)) if num_blocks == NUM_BLOCKS else ()
    ):
        set_limit(scheduler, version, blocks)
        driver.run(steps=12)
    driver.run()
    assert not scheduler.roster.sequences
    return driver, scheduler


@pytest.fixture(scope="module")
def alone(folder: ModelFolder) -> Driver:
    """What all get where nobody has to go."""
    driver, scheduler = drive(folder, 0.0, num_blocks=96)
    assert scheduler.roster.num_preemptions == 0
    return driver


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_tokens_are_those_of_nobody_preempted(folder: ModelFolder, alone: Driver, share: float, ahead: bool) -> None:
    """Greedy, seeded, several outputs, beams: the same text and the same ends, whatever is chosen for whom."""
    driver, scheduler = drive(folder, share, ahead=ahead)
    counts = scheduler.roster.swapping.counts
    assert scheduler.roster.num_preemptions > 3
    assert (counts.num_swapped > 0) == (share > 0)
    assert counts.loaded_blocks > 5 or share < 1.0
    assert driver.tokens == alone.tokens
    assert driver.ends == alone.ends


def test_copies_as_on_a_gpu(folder: ModelFolder, alone: Driver) -> None:
    """By lanes with buffers of their own, planned ahead: the same text."""
    driver, scheduler = drive(folder, 1.0, ahead=True, link=device_like())
    assert scheduler.roster.swapping.counts.loaded_blocks > 5
    assert driver.tokens == alone.tokens


def test_copies_are_timed(folder: ModelFolder) -> None:
    """What stores and loads took is told beside the step's time, and is part of it."""
    results: list[StepResult] = []
    scheduler, runner = make_engine(folder, NUM_BLOCKS)

    class Noting(Costs):
        def observe(self, plan: StepPlan, result: StepResult) -> None:
            results.append(result)

    scheduler.roster.swapping.cost = Noting(1.0)
    set_limit(scheduler, 1, NUM_BLOCKS)
    driver = Driver(scheduler, runner, ahead=False)
    submit(scheduler, 5, frozenset())
    driver.run(steps=8)
    set_limit(scheduler, 2, 1)
    driver.run()
    set_limit(scheduler, 3, NUM_BLOCKS)
    driver.run()
    assert any(one.store_seconds > 0 for one in results)
    assert any(one.load_seconds > 0 for one in results)
    assert all(one.store_seconds + one.load_seconds < one.seconds for one in results)
    assert len(results) == 1, "a step without copies teaches nothing of them"
    assert scheduler.roster.swapping.counts.observed_seconds > 0
