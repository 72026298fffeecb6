"""Requests larger than their share of the device: the tokens of a large pool, and nobody else is hurt."""

from typing import Any

import pytest

from engine.memory.tiers.claims import Streamed
from engine.request import BeamParams, FinishReason, RefusalCode, SequenceId
from engine.scheduler.sizing import window_blocks
from tests.engine.world import BLOCK_BYTES, World

WINDOW = window_blocks(4)


def make_world(num_blocks: int = 16, *, num_slabs: int = 128, streams: bool = True, **options: Any) -> World:
    """Return a world of small blocks, whose contexts are many times the pool."""
    options = {"budget": 24, "max_context": 512} | options
    return World(num_blocks=num_blocks, num_slabs=num_slabs, streams=streams, **options)


def allow(world: World, tenant: str = "whale", *, blocks: int = 16, slabs: int = 128, **changes: Any) -> None:
    """Give a tenant a ceiling on the device and one in host memory, and any context."""
    changes = {"max_context_tokens": 512, "max_output_tokens": 512} | changes
    world.policy(tenant, blocks=blocks, slabs=slabs, **changes)


def finish(world: World, *sequences: SequenceId) -> None:
    """Run to the end: each request has all its tokens, exact, and nothing is kept for anybody."""
    world.run(5000)
    for sequence in sequences:
        assert world.finished[sequence] is FinishReason.LENGTH
        assert len(world.tokens[sequence]) == world.granted[sequence]
        world.assert_exact(sequence)
    assert_nothing_kept(world)


def assert_nothing_kept(world: World) -> None:
    """Check that no request is left, and that no slab is claimed or held for one."""
    world.assert_empty()
    host = world.scheduler.memory.host
    assert all(account.num_claims == 0 for account in host.accounts())
    assert host.num_used == sum(account.num_idle for account in host.accounts())


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_a_context_of_four_times_the_pool(block_size: int, ahead: bool) -> None:
    """It gets the tokens of a large pool, chunk by chunk and then one by one; nobody is preempted for it."""
    num_blocks = 128 // block_size
    world = make_world(num_blocks, block_size=block_size, num_slabs=5 * num_blocks, ahead=ahead)
    allow(world, blocks=num_blocks, slabs=5 * num_blocks)
    sequence = world.submit("whale", 400, 110)
    finish(world, sequence)
    assert world.granted[sequence] == 110
    assert world.scheduler.roster.num_preemptions == 0
    streaming = world.scheduler.roster.streaming
    assert streaming.offloaded_blocks - streaming.recalled_blocks >= 3 * num_blocks - 1


def test_a_decode_grows_beyond_its_ceiling() -> None:
    """A prompt that fits goes on in host memory when its answer no longer does; the ceiling is never passed."""
    world = make_world(64)
    allow(world, blocks=12)
    sequence = world.submit("whale", 20, 150)
    most = 0
    while world.step():
        most = max(most, world.held("whale"))
    assert most == 12
    finish(world, sequence)


def test_blocks_move_in_pieces() -> None:
    """A decode does not copy a block in each step that needs one."""
    world = make_world(64, num_slabs=256)
    allow(world, blocks=64, slabs=256)
    sequence = world.submit("whale", 8, 500)
    finish(world, sequence)
    streaming = world.scheduler.roster.streaming
    assert streaming.offloaded_blocks > 60
    assert streaming.num_moved <= streaming.offloaded_blocks / 6


def test_without_a_runner_that_streams_it_is_refused() -> None:
    """What cannot fit the device is refused as ever where nobody reads host memory."""
    world = make_world(streams=False)
    allow(world)
    sequence = world.submit("whale", 100, 10)
    world.run()
    assert world.refused[sequence].code is RefusalCode.KV_LIMIT
    assert "host" not in world.refused[sequence].message


def test_what_fits_neither_is_refused_with_both_limits() -> None:
    """The refusal names what the request needs, both limits, and what to do."""
    world = make_world()
    allow(world, blocks=10, slabs=20)
    sequence = world.submit("whale", 116, 5)
    world.run()
    refusal = world.refused[sequence]
    assert refusal.code is RefusalCode.KV_LIMIT
    assert refusal.field == "max_tokens"
    for part in (f"{31 * BLOCK_BYTES} bytes", f"(kv_hard_bytes) is {10 * BLOCK_BYTES}", f"{20 * BLOCK_BYTES} bytes of"):
        assert part in refusal.message
    assert "host memory (host_bytes)" in refusal.message


def test_without_host_memory_the_refusal_says_what_it_could_do() -> None:
    """A tenant that has none on a worker that could stream is told of host_bytes."""
    world = make_world()
    allow(world, slabs=0)
    sequence = world.submit("whale", 100, 10)
    world.run()
    assert "host memory (host_bytes)" in world.refused[sequence].message


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    """Without a limit of its own a request gets all that both kinds of memory hold, to the token; it has it, too."""
    world = make_world()
    allow(world, blocks=10, slabs=20)
    sequence = world.submit("whale", 116, max_tokens)
    finish(world, sequence)
    assert world.granted[sequence] == 4


def test_least_window() -> None:
    """With fewer blocks than a window nothing can be streamed."""
    world = make_world()
    allow(world, blocks=WINDOW - 1)
    assert world.run() == 0
    sequence = world.submit("whale", 4 * WINDOW, 4)
    world.run()
    assert world.refused[sequence].code is RefusalCode.KV_LIMIT
    allow(world, blocks=WINDOW)
    finish(world, world.submit("whale", 300, 40))


@pytest.mark.parametrize("kind", ["outputs", "beams", "no namespace"])
def test_what_cannot_be_streamed(kind: str) -> None:
    """Several outputs, beams and requests without a namespace are refused, and told why."""
    world = make_world()
    allow(world)
    sequence = world.submit(
        "whale",
        100,
        10,
        n=2 if kind == "outputs" else 1,
        beams=BeamParams(width=2) if kind == "beams" else None,
        namespace=b"" if kind == "no namespace" else None,
    )
    world.run()
    assert world.refused[sequence].code is RefusalCode.KV_LIMIT
    assert "one output" in world.refused[sequence].message or kind == "no namespace"


@pytest.mark.parametrize("ahead", [False, True])
def test_several_at_once(ahead: bool) -> None:
    """Streamed sequences of several tenants, and small ones beside them, share a pool and end exact."""
    world = make_world(48, num_slabs=400, ahead=ahead)
    for tenant in ("whale", "orca", "minnow"):
        allow(world, tenant, blocks=48, soft=12, slabs=400)
    large = [world.submit(tenant, 200 + 50 * number, 40) for number in range(2) for tenant in ("whale", "orca")]
    small = [world.submit("minnow", 10 + number, 12) for number in range(6)]
    finish(world, *large, *small)
    assert all(len(world.tokens[one]) for one in small)


def test_those_of_one_tenant_share_its_ceiling() -> None:
    """Of two that are streamed, neither keeps the other at its window: each has a part of what the tenant has."""
    world = make_world(40, num_slabs=400)
    allow(world, blocks=40, slabs=400)
    one, other = world.submit("whale", 300, 150), world.submit("whale", 290, 150)
    sizes = []
    while world.step():
        tables = {each.id: each.table for each in world.scheduler.roster.running if each.remaining == 1}
        if len(tables) == 2:
            sizes.append(tuple(table.num_resident for table in tables.values() if table is not None))
    assert any(min(pair) > WINDOW and max(pair) <= 2 * min(pair) for pair in sizes)
    finish(world, one, other)


def test_a_small_request_starts_beside_it() -> None:
    """A streamed sequence gives its tenant's other requests room: they need not wait for its end."""
    world = make_world(32)
    allow(world, blocks=32)
    large = world.submit("whale", 200, 200)
    while not world.tokens[large]:
        world.step()
    small = world.submit("whale", 30, 5)
    while small not in world.finished:
        assert world.step()
    assert large not in world.finished
    finish(world, large, small)
    assert world.scheduler.roster.num_preemptions == 0


def test_a_guarantee_takes_pieces_not_its_place() -> None:
    """A tenant within its guarantee gets blocks in the next plan; the streamed borrower goes on with fewer."""
    world = make_world(32)
    allow(world, blocks=32)
    allow(world, "minnow", blocks=16, soft=16)
    large = world.submit("whale", 200, 100)
    while not world.tokens[large]:
        world.step()
    assert world.held("whale") > 16
    small = world.submit("minnow", 50, 8)
    world.step()
    assert small in world.running()
    finish(world, large, small)
    assert world.scheduler.roster.num_preemptions == 0


def test_blocks_come_back_when_there_is_room() -> None:
    """What was given to others is loaded back when they have gone, not read from host memory for ever."""
    world = make_world(32)
    allow(world, blocks=32)
    allow(world, "minnow", blocks=16, soft=16)
    large = world.submit("whale", 110, 150)
    while not world.tokens[large]:
        world.step()
    small = world.submit("minnow", 50, 2)
    while small not in world.finished:
        world.step()
    assert world.scheduler.roster.streaming.offloaded_blocks > 0
    allow(world, "minnow", blocks=16, soft=0)
    world.step()
    world.step()
    assert world.scheduler.roster.streaming.recalled_blocks > 0
    finish(world, large, small)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_lowered_ceiling_on_the_device(ahead: bool) -> None:
    """It goes on with a smaller window, and is never above what is in force."""
    world = make_world(48, ahead=ahead)
    allow(world, blocks=48)
    sequence = world.submit("whale", 250, 60)
    while len(world.tokens[sequence]) < 5:
        world.step()
    allow(world, blocks=12)
    finish(world, sequence)
    assert world.scheduler.roster.num_preemptions == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_lowered_ceiling_in_host_memory(ahead: bool) -> None:
    """Below what it needs it stops, says which limits are in its way, and ends; nothing is read that is gone."""
    world = make_world(16, ahead=ahead)
    allow(world)
    sequence = world.submit("whale", 250, 60)
    while len(world.tokens[sequence]) < 5:
        world.step()
    allow(world, slabs=10)
    world.run()
    assert not world.running()
    timer = world.scheduler.next_timer()
    assert timer is not None
    world.now = timer
    world.run()
    assert world.finished[sequence] is FinishReason.LENGTH
    message = world.outputs[sequence][-1].message
    assert "kv_hard_bytes" in message and f"(host_bytes) is {10 * BLOCK_BYTES} bytes" in message
    world.assert_exact(sequence)
    assert_nothing_kept(world)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_ceiling_in_host_memory_that_comes_back(ahead: bool) -> None:
    """What was parked for it goes on, from the tokens that it had."""
    world = make_world(16, ahead=ahead)
    allow(world)
    sequence = world.submit("whale", 250, 60)
    while len(world.tokens[sequence]) < 5:
        world.step()
    allow(world, slabs=10)
    world.run()
    allow(world)
    finish(world, sequence)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_policy_that_is_gone_for_a_moment(ahead: bool) -> None:
    """All that the tenant had is erased in host memory; its request begins again and has the same tokens."""
    world = make_world(16, ahead=ahead)
    allow(world)
    sequence = world.submit("whale", 250, 60)
    while len(world.tokens[sequence]) < 5:
        world.step()
    world.update(removed=("whale",))
    world.step()
    assert not world.running()
    allow(world)
    finish(world, sequence)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_cancelled_one_leaves_nothing_behind(ahead: bool) -> None:
    """Its claims end with it; its slabs stay as cache, until others need them."""
    world = make_world(16, ahead=ahead)
    allow(world)
    sequence = world.submit("whale", 300, 60)
    while len(world.tokens[sequence]) < 3:
        world.step()
    assert Streamed(sequence) in world.scheduler.memory.host.claims
    world.cancel(sequence)
    world.run()
    assert world.finished[sequence] is FinishReason.CANCELLED
    assert_nothing_kept(world)
    assert world.scheduler.memory.host.num_used > 50


def test_the_next_turn_finds_it_in_host_memory() -> None:
    """What a streamed sequence has computed need not be computed again, nor even be copied."""
    world = make_world(16, num_slabs=300)
    allow(world, slabs=300)
    first = world.submit("whale", 280, 20)
    finish(world, first)
    prompt = [*world.requests[first].prompt, *world.tokens[first]]
    second = world.submit("whale", [*prompt, 1, 2, 3], 20)
    finish(world, second)
    assert world.cached_tokens[second] > 200


@pytest.mark.parametrize("ahead", [False, True])
def test_host_memory_for_one_of_two(ahead: bool) -> None:
    """Where host memory holds one of them, the newer one waits; both end, and the older one is not disturbed."""
    world = make_world(16, num_slabs=60, ahead=ahead)
    for tenant in ("whale", "orca"):
        allow(world, tenant, slabs=60)
    one, other = world.submit("whale", 150, 90), world.submit("orca", 150, 90)
    while one not in world.finished:
        assert world.step()
    assert world.outputs[one][-1].num_preemptions == 0
    finish(world, one, other)


def test_a_registered_prefix_is_its_own() -> None:
    """A streamed sequence computes a share group's prefix on its own account: its first blocks are its own to move."""
    world = make_world(24)
    stem = list(range(40))
    world.share("bank", stem, blocks=12, soft=0)
    allow(world, blocks=24, share_groups=("bank",))
    small = world.submit("whale", [*stem, 1, 2, 3], 4)
    large = world.submit("whale", [*stem, *range(200)], 40)
    finish(world, small, large)


def test_blocks_that_others_use_stay_with_them() -> None:
    """A streamed sequence lets go of a shared beginning; whoever else runs on it keeps it on the device."""
    world = make_world(48, num_slabs=300)
    allow(world, blocks=48, slabs=300)
    stem = list(range(60))
    small = world.submit("whale", [*stem, 5], 120)
    while not world.tokens[small]:
        world.step()
    large = world.submit("whale", [*stem, *range(300, 500)], 120)
    finish(world, small, large)
    assert world.cached_tokens[large] == 60


def test_a_preempted_one_finds_its_blocks_again() -> None:
    """What it has in host memory is kept for it while it waits."""
    world = make_world(32, num_slabs=300)
    allow(world, blocks=32, slabs=300)
    sequence = world.submit("whale", 300, 40)
    while len(world.tokens[sequence]) < 5:
        world.step()
    roster = world.scheduler.roster
    (state,) = roster.running
    assert state.table is not None
    num_hosted = state.table.num_hosted
    roster.preempt(state, -1, world.now)
    assert len(world.scheduler.memory.host.claims.of(Streamed(sequence))) == num_hosted
    computed = world.scheduler.prompt_tokens
    world.step()
    assert world.scheduler.prompt_tokens - computed <= 305 - 4 * num_hosted
    finish(world, sequence)
