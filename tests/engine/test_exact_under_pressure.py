"""The real model under the real scheduler: batching, chunks, limits and preemption change no token."""

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core import make_scheduler
from engine.model.folder import ModelFolder, resolve_model
from engine.model.runner import ModelRunner
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import GenerationRequest, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.plan import Scheduler
from tests.engine.tiny_model import make_tiny_model
from tests.engine.world import ShortOutputs

Output = int | tuple[int, int]
TENANTS = ("minnow", "whale")
BLOCK_TOKENS = 8
PROMPTS = [[1 + (7 * number + 13 * place) % 300 for place in range(3 + 11 * number % 60)] for number in range(12)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", seed=2)


def make_engine(model: Path, num_blocks: int, budget: int) -> tuple[Scheduler, ModelRunner]:
    """Return a float32 engine with so many blocks and tokens in a step."""
    block_bytes = 2 * 2 * BLOCK_TOKENS * 2 * 16 * 4  # layers, K and V, slots, KV heads, head size, float32
    config = EngineConfig(
        model=str(model),
        dtype="float32",
        kv_bytes=num_blocks * block_bytes,
        block_size=BLOCK_TOKENS,
        max_batched_tokens=budget,
        max_running=8,
        threads=1,
        poison=True,
    )
    folder: ModelFolder = resolve_model(config)
    runner = ModelRunner(config, folder)
    assert runner.shape.num_blocks == num_blocks
    return make_scheduler(config, folder, runner), runner


def set_limit(scheduler: Scheduler, version: int, blocks: int) -> None:
    """Give both tenants a hard limit in blocks."""
    policies = tuple(
        TenantPolicy(
            tenant=TenantId(name),
            kv_hard_bytes=blocks * scheduler.memory.shape.block_bytes,
            max_running=8,
            max_queued=100,
            max_context_tokens=2048,
            max_output_tokens=2048,
        )
        for name in TENANTS
    )
    scheduler.apply(PolicyUpdate(version=version, epoch=0, snapshot=True, tenants=policies))


def submit(
    scheduler: Scheduler,
    number: int,
    *,
    prompts: list[list[int]] = PROMPTS,
    shares: bool = False,
    n: int = 1,
    handle: int | None = None,
) -> None:
    """Submit a prompt: even ones greedy, odd ones seeded."""
    tenant = TENANTS[number % 3 % 2]
    sampling = SamplingParams(
        max_tokens=24, temperature=0.8 * (number % 2), top_p=0.9, top_k=20, seed=number, ignore_eos=True
    )
    request = GenerationRequest(
        request_id=RequestId(str(number)),
        tenant=TenantId(tenant),
        namespace=tenant.encode() if shares else b"",
        prompt=prompts[number],
        sampling=sampling,
        n=n,
    )
    scheduler.submit(SequenceId(number if handle is None else handle), request)


def run(scheduler: Scheduler, runner: ModelRunner, tokens: dict[Output, list[int]], steps: int = 1000) -> int:
    """Step until nothing can run, or for so many steps; gather tokens, return how many of the prompts' were cached."""
    cached = 0
    for _ in range(steps):
        plan = scheduler.plan()
        scheduler.audit()
        if plan is None:
            break
        for output in scheduler.commit(plan, runner.launch(plan).wait()):
            index = output.output_index
            tokens.setdefault((output.sequence, index) if index else output.sequence, []).extend(output.token_ids)
            cached += output.cached_tokens
    return cached


def test_tokens_are_those_of_a_request_alone(model: Path) -> None:
    """Twelve requests through a pool that is too small for them, with limits moving, get what each gets alone."""
    alone: dict[Output, list[int]] = {}
    scheduler, runner = make_engine(model, num_blocks=64, budget=512)
    set_limit(scheduler, 1, 64)
    for number in range(len(PROMPTS)):
        submit(scheduler, number)
        run(scheduler, runner, alone)
    assert all(len(found) == 24 for found in alone.values())

    crowded: dict[Output, list[int]] = {}
    scheduler, runner = make_engine(model, num_blocks=24, budget=16)
    set_limit(scheduler, 1, 24)
    for name in TENANTS:
        scheduler.roster.tenant(TenantId(name)).lengths = ShortOutputs()  # admit more than will fit
    for number in range(len(PROMPTS)):
        submit(scheduler, number)
    run(scheduler, runner, crowded, steps=30)
    set_limit(scheduler, 2, 11)
    run(scheduler, runner, crowded, steps=30)
    set_limit(scheduler, 3, 24)
    run(scheduler, runner, crowded)
    assert scheduler.roster.num_preemptions > 3
    assert crowded == alone
    assert scheduler.memory.pool.num_free == 24


def test_shared_blocks_change_no_token(model: Path) -> None:
    """Prompts with a common beginning, each twice and with two outputs, in a pool too small for all: cache, copies,
    forks and preemption give what each gets alone in a pool of its own, without a cache.
    """
    stem = [1 + 17 * place % 300 for place in range(45)]
    prompts = [[*stem[: 45 - 4 * number], *PROMPTS[number]] for number in range(8)]
    alone: dict[Output, list[int]] = {}
    scheduler, runner = make_engine(model, num_blocks=64, budget=512)
    set_limit(scheduler, 1, 64)
    for number in range(8):
        submit(scheduler, number, prompts=prompts, n=2)
        assert run(scheduler, runner, alone) == 0

    crowded: dict[Output, list[int]] = {}
    scheduler, runner = make_engine(model, num_blocks=26, budget=24)
    set_limit(scheduler, 1, 26)
    for name in TENANTS:
        scheduler.roster.tenant(TenantId(name)).lengths = ShortOutputs()
    cached = 0
    for handle in range(16):
        submit(scheduler, handle % 8, prompts=prompts, n=2, shares=True, handle=handle)
        cached += run(scheduler, runner, crowded, steps=6)
    cached += run(scheduler, runner, crowded)
    assert cached > 300
    assert scheduler.roster.num_preemptions > 3
    assert scheduler.memory.supply.num_evicted > 10
    for number in range(8):
        for handle in (number, number + 8):
            assert crowded[handle] == alone[number]
            assert crowded[handle, 1] == alone[number, 1]
