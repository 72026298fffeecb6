"""A pool that is too small for all: who gives way, who never does, and that everybody finishes."""

import random

import pytest

from engine.request import FinishReason, SequenceId, TenantId
from engine.scheduler.pressure import MAX_EVICTIONS
from tests.engine.world import ShortOutputs, World


def expect_short_outputs(world: World, *tenants: str) -> None:
    """Let the scheduler believe that outputs end at once, so that it admits more than will fit."""
    for tenant in tenants:
        world.scheduler.roster.tenant(TenantId(tenant)).lengths = ShortOutputs()


def test_the_largest_borrower_gives_way_newest_first() -> None:
    """Short of blocks, the tenant furthest above its guarantee loses its newest sequence."""
    world = World(block_size=4, num_blocks=16, budget=64)
    world.policy("whale")
    world.policy("minnow", soft=2)
    expect_short_outputs(world, "whale", "minnow")
    whales = [world.submit("whale", 20, 30) for _ in range(2)]
    minnow = world.submit("minnow", 8, 30)
    preempted: list[SequenceId] = []
    while not preempted:
        world.step()
        preempted = [one.id for one in world.scheduler.roster.sequences.values() if one.num_preemptions]
    assert preempted == whales[1:]
    world.run()
    for request in (*whales, minnow):
        world.assert_exact(request)
        assert world.finished[request] is FinishReason.LENGTH


def test_a_guarantee_is_met_within_one_step() -> None:
    """With the pool full of borrowed blocks, a tenant within its soft limit runs in the very next step."""
    world = World(block_size=4, num_blocks=20, budget=128)
    world.policy("whale")
    world.policy("minnow", soft=8)
    expect_short_outputs(world, "whale")
    whales = [world.submit("whale", 38, 8) for _ in range(2)]
    world.step()
    assert world.scheduler.memory.pool.num_free == 0
    minnow = world.submit("minnow", 31, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    assert world.running() == whales[:1]
    world.run()
    for request in whales:
        world.assert_exact(request)


def test_a_guarantee_holds_when_rows_are_short() -> None:
    """With every row taken by borrowers, a tenant within its soft limit still runs in the next step."""
    world = World(block_size=4, num_blocks=64, max_rows=4)
    world.policy("whale")
    world.policy("minnow", soft=8)
    whales = [world.submit("whale", 4, 60) for _ in range(6)]
    for _ in range(4):
        world.step()
    assert world.running() == whales[:4]
    minnow = world.submit("minnow", 8, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    assert world.running() == whales[:3]
    world.run()
    for request in whales:
        world.assert_exact(request)


def test_a_need_above_the_guarantee_waits() -> None:
    """A tenant that would borrow itself takes nothing from another borrower; it runs when blocks are free."""
    world = World(block_size=4, num_blocks=20, budget=128)
    world.policy("whale")
    world.policy("minnow", soft=7)
    whale = world.submit("whale", 70, 8)
    world.step()
    minnow = world.submit("minnow", 31, 1)
    world.step()
    assert world.running() == [whale]
    world.run()
    assert list(world.finished) == [whale, minnow]
    assert world.scheduler.roster.num_preemptions == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_no_need_of_others_takes_a_tenant_below_its_guarantee(ahead: bool) -> None:
    """However hard others press, a tenant that stays within soft is never preempted and never waits for blocks."""
    chance = random.Random(5)
    world = World(block_size=4, num_blocks=40, max_rows=32, budget=1000, ahead=ahead)
    world.policy("guarded", soft=16, blocks=16)
    for tenant in ("a", "b", "c"):
        world.policy(tenant, soft=4)
    guarded: list[SequenceId] = []
    for _ in range(600):
        expect_short_outputs(world, "a", "b", "c")
        world.submit(chance.choice("abc"), chance.randint(1, 40), chance.randint(1, 60))
        if all(request in world.finished for request in guarded[-2:]):
            guarded.append(world.submit("guarded", chance.randint(1, 12), chance.randint(1, 16)))
        world.step()
        assert guarded[-1] in world.finished or guarded[-1] in world.running()
    world.run(limit=20_000)
    assert world.scheduler.roster.num_preemptions > 100
    for request in guarded:
        assert world.outputs[request][-1].num_preemptions == 0
        world.assert_exact(request)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_nobody_is_preempted_for_memory_more_than_three_times(seed: int, ahead: bool) -> None:
    """Constant limits, any load: after three preemptions a request runs to its end, and all requests end whole."""
    chance = random.Random(seed)
    world = World(block_size=2, num_blocks=24, max_rows=10, budget=24, max_context=48, ahead=ahead)
    for tenant in ("a", "b", "c"):
        world.policy(tenant, soft=chance.randint(0, 6), blocks=chance.randint(12, 24))
    most = 0
    for _ in range(400):
        expect_short_outputs(world, "a", "b", "c")
        if chance.random() < 0.5:
            world.submit(chance.choice("abc"), chance.randint(1, 12), chance.randint(1, 12))
        world.step()
        most = max([most, *(one.evictions for one in world.scheduler.roster.sequences.values())])
    world.run(limit=20_000)
    assert 0 < most <= MAX_EVICTIONS
    assert len(world.finished) + len(world.refused) == len(world.requests)
    for request in world.finished:
        world.assert_exact(request)
        assert len(world.tokens[request]) == world.granted[request]


def protect(world: World, *requests: SequenceId) -> None:
    """Preempt running requests as if for the third time."""
    for request in requests:
        state = world.scheduler.roster.sequences[request]
        state.evictions = MAX_EVICTIONS
        world.scheduler.roster.preempt(state, -1, world.now)


def test_a_protected_sequence_runs_on_reserved_blocks() -> None:
    """Preempted three times, a request comes back with all that it may need promised, and is left alone."""
    world = World(block_size=4, num_blocks=16, budget=64)
    world.policy("whale")
    world.policy("minnow")
    victim = world.submit("whale", 8, 40)
    world.step()
    protect(world, victim)
    world.step()
    state = world.scheduler.roster.sequences[victim]
    assert state.table is not None
    assert len(state.table.blocks) + state.table.reserved == 12
    for _ in range(10):
        world.submit("minnow", 4, 12)
    while victim not in world.finished:
        expect_short_outputs(world, "minnow")
        world.step()
    world.run()
    assert world.scheduler.roster.num_preemptions > 1
    assert world.outputs[victim][-1].num_preemptions == 1
    assert len(world.tokens[victim]) == 40
    world.assert_exact(victim)


def test_protected_sequences_leave_room_for_guarantees() -> None:
    """They start only as far as every guarantee can still be met without touching one of them."""
    world = World(block_size=4, num_blocks=24, budget=128)
    world.policy("guarded", soft=8)
    world.policy("a")
    world.policy("b")
    first, second = world.submit("a", 8, 24), world.submit("b", 8, 32)
    world.step()
    protect(world, first, second)
    world.step()
    assert world.running() == [first]
    guarded = world.submit("guarded", 31, 1)
    world.step()
    assert guarded in world.finished
    world.run()
    assert list(world.finished) == [guarded, first, second]
    assert world.scheduler.roster.num_preemptions == 2


def test_a_preempted_request_keeps_its_place() -> None:
    """It resumes before requests of its tenant that came later, and goes on from its tokens."""
    world = World(block_size=4, budget=64)
    world.policy("minnow", max_running=2)
    requests = [world.submit("minnow", 4, 12) for _ in range(4)]
    for _ in range(3):
        world.step()
    state = world.scheduler.roster.sequences[requests[1]]
    had = list(world.tokens[requests[1]])
    world.scheduler.roster.preempt(state, -1, world.now)
    world.step()
    assert world.running() == requests[:2]
    assert world.tokens[requests[1]][: len(had)] == had
    world.run()
    assert list(world.finished)[:2] == requests[:2]
    world.assert_exact(requests[1])


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """Small requests that would always fit in the gaps cannot keep a large one waiting for ever."""
    chance = random.Random(3)
    world = World(block_size=4, num_blocks=32, max_rows=16, budget=64)
    world.policy("whale")
    world.policy("minnow", max_running=16)
    for length in (4, 12, 20, 28, 36):
        world.submit("minnow", 4, length)
    world.step(0.05)
    whale = world.submit("whale", 100, 8)
    for _ in range(400):
        while world.scheduler.roster.tenant(TenantId("minnow")).num_waiting < 4:
            world.submit("minnow", 4, chance.randint(4, 40))
        world.step(0.05)
        if whale in world.finished:
            break
    assert world.finished[whale] is FinishReason.LENGTH
    world.assert_exact(whale)


def test_guarantees_that_do_not_fit_the_pool_scale_down_pro_rata() -> None:
    """Overcommitted, every tenant still gets its scaled part at once, and all of it again when the others give up."""
    world = World(block_size=4, num_blocks=24, budget=256)
    for tenant, soft in (("a", 24), ("b", 12), ("c", 12)):
        world.policy(tenant, soft=soft, blocks=24)
    accounts = {account.owner: account for account in world.scheduler.memory.accounts}
    assert [accounts[TenantId(name)].soft for name in "abc"] == [10, 5, 5]  # of 21, the pool up to its low watermark
    borrowers = [world.submit("a", 4, 12) for _ in range(8)]
    world.step()
    guarded = [world.submit("b", 19, 1), world.submit("c", 19, 1)]
    world.step()
    assert set(guarded) <= set(world.finished)
    world.run()
    for request in (*borrowers, *guarded):
        world.assert_exact(request)
    world.update(removed=("b", "c"))
    assert accounts[TenantId("a")].soft == 21
    world.policy("a", soft=20, blocks=24)
    assert accounts[TenantId("a")].soft == 20
