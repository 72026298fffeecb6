"""Blocks between device, host memory and disk beside the steps: ahead of eviction and ahead of the request."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.request import TenantId
from engine.scheduler.tier_counts import tier_counts
from tests.engine.costs import set_costs
from tests.engine.disk.stores import DEADLINE, holding
from tests.engine.scheduler.stages import PROMPT, WHALE, Stage, chain_of, until
from tests.engine.tiered import TieredWorld
from tests.engine.world import BLOCK_BYTES


def test_a_parked_turn_is_copied_out_while_nothing_runs() -> None:
    """Two transfers at a time, until host memory has all of it; then there is nothing to come back for."""
    stage = Stage()
    stage.world.submit("whale", PROMPT, 4)
    stage.run()
    tiers, keys = stage.world.scheduler.memory.tiers, stage.keys(PROMPT)
    tiers.park(keys)
    most = 0
    while stage.world.step():
        most = max(most, len({one.number for one in stage.world.runner.begun}) - len(done(stage)))
    assert stage.in_host(keys) == len(keys)
    assert most <= 2
    assert tiers.next_look(stage.world.now) is None


def done(stage: Stage) -> set[int]:
    """Return the numbers of transfers that have ended."""
    return {one.number for one in stage.world.runner.begun} - {one.number for one, _ in stage.world.runner._transfers}


def test_what_was_copied_out_is_given_up_for_nothing() -> None:
    """No plan stores a block that host memory has; the next turn loads them all."""
    stage = Stage()
    stage.world.submit("whale", PROMPT, 4)
    stage.run()
    stage.world.scheduler.memory.tiers.park(stage.keys(PROMPT))
    stage.run()
    stage.push_out()
    again = stage.world.submit("whale", [*PROMPT, 1, 2, 3], 4)
    stores = loads = 0
    while stage.world.step():
        plan = stage.world.plan
        stores += len(plan.stores) if plan is not None else 0
        loads += len(plan.loads) if plan is not None else 0
    assert (stores, loads) == (0, len(PROMPT) // 4)
    assert stage.world.cached_tokens[again] == len(PROMPT)
    assert stage.world.scheduler.memory.tiers.hit_tokens["host"] == len(PROMPT)


def test_a_nearly_full_pool_is_copied_out_ahead() -> None:
    """When blocks are given up for others' prompts, most of them are in host memory already."""
    stage = Stage(num_blocks=64, num_slabs=200)
    memory = stage.world.scheduler.memory
    for number in range(8):
        stage.world.submit("whale", [number * 50 + place % 50 for place in range(40)], 2)
        stage.run()
    assert memory.supply.num_evicted > 0
    assert memory.mover.stored_blocks > 0
    assert memory.pool.num_cached >= 50
    assert memory.host.num_lost == 0


def test_a_block_that_is_given_up_while_it_is_copied_is_free_later() -> None:
    """Nobody finds it, nobody has its room, and nobody is held up for good."""
    stage = Stage(num_blocks=16)
    memory = stage.world.scheduler.memory
    stage.world.submit("whale", PROMPT, 4)
    stage.run()
    stage.late.are = True
    memory.tiers.park(stage.keys(PROMPT))
    stage.world.step()
    assert memory.supply.copied
    stage.give("whale", 0)
    for _ in range(3):
        stage.world.step()
    assert memory.pool.num_leaving == len(memory.supply.copied) > 0
    assert stage.world.cached("whale") == 0
    minnow = stage.world.submit("minnow", 60, 3)
    for _ in range(5):
        stage.world.step()
    assert minnow not in stage.world.running(), "it needs all 16 blocks"
    stage.late.are = False
    stage.run()
    assert minnow in stage.world.finished
    assert memory.pool.num_leaving == 0


def test_a_prefetched_chain_is_on_the_device_when_the_request_comes() -> None:
    """It is found in the tree, nothing is loaded for it, and the guess counts as a good one."""
    stage = Stage(num_blocks=64, soft=32)
    memory = stage.world.scheduler.memory
    stage.world.submit("whale", PROMPT, 4)
    stage.run()
    memory.tiers.park(stage.keys(PROMPT))
    stage.run()
    stage.push_out()
    memory.tiers.prefetch(WHALE, stage.keys(PROMPT))
    stage.run()
    assert stage.on_device(stage.keys(PROMPT)) == 10
    again = stage.world.submit("whale", [*PROMPT, 1, 2, 3], 4)
    stage.run()
    assert stage.world.cached_tokens[again] == len(PROMPT)
    counts = tier_counts(memory, stage.world.scheduler.roster)
    assert counts.hit_tokens["device"] == len(PROMPT)
    assert (counts.prefetched_blocks, counts.prefetched_used_blocks) == (10, 10)
    into = {(one.source, one.target): one for one in counts.traffic}["host", "device"]
    assert into.blocks == 10
    assert into.bytes == 10 * BLOCK_BYTES
    assert sum(into.latencies) >= 1


def test_a_guess_costs_nobody_anything() -> None:
    """Without free blocks beyond the reserve nothing is brought in, and nothing is given up."""
    stage = Stage(num_blocks=32)
    memory = stage.world.scheduler.memory
    stage.world.submit("whale", PROMPT, 4)
    stage.run()
    memory.tiers.park(stage.keys(PROMPT))
    stage.run()
    stage.push_out()
    stage.world.submit("minnow", [place % 700 for place in range(120)], 2)
    stage.run()
    evicted = memory.supply.num_evicted
    memory.tiers.prefetch(WHALE, stage.keys(PROMPT))
    stage.run()
    assert memory.supply.num_evicted == evicted
    assert stage.on_device(stage.keys(PROMPT)) == 0


def test_what_comes_in_for_a_tenant_that_has_gone_is_given_back() -> None:
    """Its blocks are free when they have been filled, and nobody finds them."""
    stage = Stage(num_blocks=64, soft=32)
    memory = stage.world.scheduler.memory
    stage.world.submit("whale", PROMPT, 4)
    stage.run()
    memory.tiers.park(stage.keys(PROMPT))
    stage.run()
    stage.push_out()
    stage.late.are = True
    memory.tiers.prefetch(WHALE, stage.keys(PROMPT))
    stage.world.step()
    assert memory.mover.is_moving
    stage.world.update(removed=("whale",))
    for _ in range(3):
        stage.world.step()
    stage.late.are = False
    stage.run()
    assert memory.accounts.get(WHALE) is None
    stage.world.assert_empty()
    assert not stage.world.runner.slab_owners()
    assert not stage.world.runner.block_owners()


def test_a_sealed_block_may_be_in_use_while_it_is_copied() -> None:
    """A turn is parked while the next one runs on its blocks."""
    stage = Stage()
    running = stage.world.submit("whale", PROMPT, 20)
    while len(stage.world.tokens[running]) < 3:
        stage.world.step()
    keys = stage.keys(PROMPT)
    stage.world.scheduler.memory.tiers.park(keys)
    while stage.in_host(keys) < len(keys):
        assert stage.world.step()
    stage.run()


@pytest.fixture
def sunk(tmp_path: Path) -> Iterator[TieredWorld]:
    """A world whose tenants' parked prompt has reached the disk."""
    world = TieredWorld(tmp_path, num_blocks=32, budget=64, num_slabs=20, max_context=128)
    set_costs(world, 1.0)
    for tenant in ("minnow", "whale"):
        world.policy(tenant, blocks=32, slabs=20, disk_bytes=world.disk_bytes)
    request = world.submit("whale", PROMPT, 1)
    keys = chain_of(world, "whale", PROMPT)
    until(world, lambda: request in world.finished)
    world.scheduler.memory.tiers.park(keys)
    until(world, lambda: all(key in world.store for key in keys))
    yield world
    until(world, lambda: not world.step())
    world.assert_empty()
    world.close()


def test_a_slab_that_the_disk_has_is_given_up_for_nothing(sunk: TieredWorld) -> None:
    """Host memory has no room for both; what was there is read again."""
    keys = chain_of(sunk, "whale", PROMPT)
    memory = sunk.scheduler.memory
    memory.host.limit(WHALE, 0)
    sunk.policy("whale", blocks=0, slabs=20, disk_bytes=sunk.disk_bytes)
    until(sunk, lambda: not sunk.cached("whale"))
    memory.host.limit(WHALE, 0)
    sunk.policy("whale", blocks=32, slabs=20, disk_bytes=sunk.disk_bytes)
    assert not any(memory.tiers.where(key)[1] for key in keys)
    again = sunk.submit("whale", [*PROMPT, 1], 2)
    until(sunk, lambda: again in sunk.finished)
    assert sunk.cached_tokens[again] == len(PROMPT)
    assert memory.tiers.hit_tokens["disk"] == len(PROMPT)


def test_a_prefetch_reads_from_the_disk(sunk: TieredWorld) -> None:
    """Up to host memory, and further where what the blocks hold is known."""
    keys = chain_of(sunk, "whale", PROMPT)
    tiers = sunk.scheduler.memory.tiers
    sunk.policy("whale", blocks=0, slabs=0, disk_bytes=sunk.disk_bytes)
    until(sunk, lambda: not sunk.cached("whale"))
    sunk.policy("whale", blocks=32, slabs=20, disk_bytes=sunk.disk_bytes)
    tiers.prefetch(WHALE, keys)
    until(sunk, lambda: sunk.scheduler.memory.host.find(keys, 0, len(keys)) == len(keys))
    again = sunk.submit("whale", [*PROMPT, 1], 2)
    until(sunk, lambda: again in sunk.finished)
    assert sunk.cached_tokens[again] == len(PROMPT)
    assert sunk.scheduler.roster.fetching.num_chosen == 0
    counts = tier_counts(sunk.scheduler.memory, sunk.scheduler.roster)
    assert (counts.prefetched_blocks, counts.prefetched_used_blocks) == (10, 10)


def test_a_full_arena_is_written_ahead(sunk: TieredWorld) -> None:
    """Blocks that nobody parked reach the disk before their slabs are needed."""
    others = [[number * 60 + place % 60 for place in range(48)] for number in range(1, 6)]
    for prompt in others:
        request = sunk.submit("minnow", prompt, 1)
        until(sunk, lambda request=request: request in sunk.finished)
    until(sunk, lambda: not sunk.step())
    assert sum(key in sunk.store for prompt in others for key in chain_of(sunk, "minnow", prompt)) > 0


def test_what_could_not_be_written_is_written_when_the_disk_is_well_again(sunk: TieredWorld) -> None:
    """A block counts as saved only while its write may still succeed."""
    prompt = [number % 7 + 60 for number in range(40)]
    keys = chain_of(sunk, "minnow", prompt)
    sunk.files.fail("write")
    request = sunk.submit("minnow", prompt, 1)
    until(sunk, lambda: request in sunk.finished)
    sunk.scheduler.memory.tiers.park(keys)
    until(sunk, lambda: sunk.store.stats().errors.get("write"))
    assert not any(key in sunk.store for key in keys)
    sunk.files.failing.clear()
    until(sunk, lambda: all(key in sunk.store for key in keys))


def test_an_erased_session_is_not_on_the_disk(sunk: TieredWorld, tmp_path: Path) -> None:
    """None of its bytes are in any file when the erasure is done, nor in pages or slabs."""
    pattern = bytes(sunk.runner.slab_memory(next(iter(dict(sunk.scheduler.memory.host.blocks()).values()))))[:64]
    assert holding(tmp_path, pattern)
    tiers = sunk.scheduler.memory.tiers
    tiers.erase(WHALE, chain_of(sunk, "whale", PROMPT))
    until(sunk, lambda: not tiers.is_erasing)
    assert not holding(tmp_path, pattern)
    assert not sunk.runner.slab_owners()
    assert not sunk.runner.block_owners()


def test_a_core_that_stops_lets_parked_turns_reach_the_disk(tmp_path: Path) -> None:
    """What has just ended is on its way down; it gets there, within a while."""
    world = TieredWorld(tmp_path, num_blocks=32, budget=64, num_slabs=20, max_context=128)
    world.policy("whale", blocks=32, slabs=20, disk_bytes=world.disk_bytes)
    request = world.submit("whale", PROMPT, 1)
    until(world, lambda: request in world.finished)
    keys = chain_of(world, "whale", PROMPT)
    tiers = world.scheduler.memory.tiers
    tiers.park(keys)
    tiers.finish(world.runner, DEADLINE)
    assert all(key in world.store for key in keys)
    world.close()


def test_a_lowered_disk_limit_holds(sunk: TieredWorld) -> None:
    """A policy's ceilings below the device are in force with it."""
    sunk.policy("whale", blocks=32, slabs=20, disk_bytes=0)
    assert sunk.store.used("whale") == 0


def test_a_snapshot_without_a_tenant_erases_its_disk(sunk: TieredWorld) -> None:
    """It was taken away while no worker was there to be told."""
    assert sunk.store.used("whale") > 0
    sunk.scheduler.memory.tiers.keep_only([TenantId("minnow")])
    until(sunk, lambda: sunk.store.used("whale") == 0)
