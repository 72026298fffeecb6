"""Blocks that are erased: nothing is left of them anywhere, and others are left alone."""

import struct

import pytest

from engine.request import TenantId
from tests.engine.scheduler.stages import PROMPT, WHALE, Stage, until


def test_an_erased_chain_is_nowhere() -> None:
    """Its pages and slabs are overwritten before the erasure is done, what was free before it as well."""
    stage = Stage()
    tiers, runner = stage.world.scheduler.memory.tiers, stage.world.runner
    stage.world.submit("whale", PROMPT, 4)
    stage.run()
    tiers.park(stage.keys(PROMPT))
    stage.run()
    owners = runner.block_owners()
    assert owners
    assert owners == runner.slab_owners()
    ticket = tiers.erase(WHALE, stage.keys([*PROMPT, *stage.world.expected(next(iter(stage.world.requests)), 4)]))
    assert stage.on_device(stage.keys(PROMPT)) == stage.in_host(stage.keys(PROMPT)) == 0
    told: list[int] = []
    tiers_take = tiers.take_erased
    while not told:
        stage.world.step()
        told += tiers_take() or ([ticket] if not tiers.is_erasing else [])
    assert told == [ticket]
    assert not runner.block_owners()
    assert not runner.slab_owners()


@pytest.mark.parametrize("num_tokens", [16, 39, 100])
def test_nothing_is_left_in_blocks_that_others_have_since(num_tokens: int) -> None:
    """Neither behind what a sequence has written to its last block, nor in those that its prompt has yet to fill."""
    stage = Stage(budget=8)
    tiers, world = stage.world.scheduler.memory.tiers, stage.world
    request = world.submit("whale", PROMPT, 4)
    stage.run()
    before = {*PROMPT, *world.tokens[request]}
    stage.push_out()
    other = world.submit("minnow", [7] * num_tokens, 20)
    for _ in range(3):
        world.step()
    tiers.erase(WHALE, stage.keys([*PROMPT, *world.tokens[request]]))
    until(world, lambda: not tiers.is_erasing or other in world.finished)
    assert other not in world.finished
    left = set(struct.unpack(f"<{len(world.runner.contents()) // 8}q", world.runner.contents()))
    assert not left & (before - {7, *world.tokens[other]}), "something of the erased chain is left"
    stage.run()


def test_an_erasure_waits_for_copies_under_way() -> None:
    """A transfer that writes what is being erased ends first; then that is overwritten too."""
    stage = Stage()
    tiers, runner = stage.world.scheduler.memory.tiers, stage.world.runner
    stage.world.submit("whale", PROMPT, 1)
    stage.run()
    stage.late.are = True
    tiers.park(stage.keys(PROMPT))
    stage.world.step()
    tiers.erase(WHALE, stage.keys(PROMPT))
    for _ in range(5):
        stage.world.step()
    assert tiers.is_erasing
    stage.late.are = False
    stage.run()
    assert not tiers.is_erasing
    assert not runner.block_owners()
    assert not runner.slab_owners()


def kept(stage: Stage) -> set[int]:
    """Return all numbers that lie in the pages, somebody's or not."""
    contents = stage.world.runner.contents()
    return set(struct.unpack(f"<{len(contents) // 8}q", contents))


def test_an_erasure_waits_for_copies_to_blocks_that_held_what_is_erased() -> None:
    """What others fill meanwhile, beside the steps, holds it until they have: it is said to be gone only then."""
    stage = Stage(num_blocks=64, soft=32)
    tiers, world = stage.world.scheduler.memory.tiers, stage.world
    other = [7] * 32
    for tenant, tokens in (("minnow", other), ("whale", PROMPT)):
        world.submit(tenant, tokens, 1)
        stage.run()
        tiers.park(stage.keys(tokens, tenant))
        stage.run()
        stage.give(tenant, 0)
        stage.run()
        stage.give(tenant, 64)
    assert set(PROMPT) <= kept(stage), "freed, and not overwritten"
    stage.late.are = True
    tiers.prefetch(TenantId("minnow"), stage.keys(other, "minnow"))
    until(world, lambda: any(not one.is_store for one in world.runner.begun))
    filling = {block for block, _ in tiers.mover.arriving()}
    assert filling
    tiers.erase(WHALE, stage.keys(PROMPT))
    for _ in range(20):
        world.step()
    assert tiers.is_erasing
    stage.late.are = False
    until(world, lambda: not tiers.is_erasing)
    assert not set(PROMPT) & kept(stage)
    stage.run()


def test_an_erasure_ends_however_many_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step brings another one, of blocks that lie in host memory."""
    stage = Stage()
    tiers, runner = stage.world.scheduler.memory.tiers, stage.world.runner
    chains = [[number * 7 + place for place in range(20)] for number in range(9)]  # host memory has room for all
    for chain in chains:
        stage.world.submit("whale", chain, 1)
        stage.run()
        tiers.park(stage.keys(chain))
        stage.run()
    told: list[int] = []
    take = tiers.take_erased

    def hear() -> list[int]:
        told.extend(take())
        return []

    monkeypatch.setattr(tiers, "take_erased", hear)
    first = tiers.erase(WHALE, stage.keys(chains[0]))
    for chain in chains[1:]:
        stage.world.step()
        tiers.erase(WHALE, stage.keys(chain))
    assert first in told
    stage.run()
    assert not tiers.is_erasing
    assert not runner.slab_owners()


def test_what_a_live_request_uses_is_not_erased() -> None:
    """It goes on, and its tokens are what they would have been."""
    stage = Stage()
    running = stage.world.submit("whale", PROMPT, 20)
    while len(stage.world.tokens[running]) < 3:
        stage.world.step()
    stage.world.scheduler.memory.tiers.erase(WHALE, stage.keys(PROMPT))
    stage.run()
    assert len(stage.world.tokens[running]) == 20


def test_an_erasure_leaves_others_alone() -> None:
    """What another tenant has in any tier is found as before."""
    stage = Stage()
    tiers = stage.world.scheduler.memory.tiers
    for tenant in ("minnow", "whale"):
        stage.world.submit(tenant, PROMPT, 1)
        stage.run()
        tiers.park(stage.keys(PROMPT, tenant))
        stage.run()
    tiers.erase(WHALE, stage.keys(PROMPT))
    stage.run()
    keys = stage.keys(PROMPT, "minnow")
    assert stage.on_device(keys) == stage.in_host(keys) == len(keys)
    again = stage.world.submit("minnow", [*PROMPT, 1], 3)
    stage.run()
    assert stage.world.cached_tokens[again] == len(PROMPT)
