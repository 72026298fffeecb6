"""Who took what from whom: told as it was, to the token; nobody loses within a guarantee to another's need."""

import random
from typing import Any

import pytest

from engine.memory.accounts import ShareGroupId
from engine.memory.supply import Taking
from engine.request import BeamParams, FinishReason, TenantId
from engine.scheduler.interference import LOOK_OVER, Cost, account_name
from tests.engine.scheduler.test_pressure import expect_short_outputs
from tests.engine.traffic import STOPS, TENANTS
from tests.engine.watched import WatchedTraffic, WatchedWorld
from tests.engine.world import ShortOutputs

MINNOW, WHALE = TenantId("minnow"), TenantId("whale")
BANK = ShareGroupId("bank")
PREFIX = [(7 * place) % 900 for place in range(16)]


def test_cached_blocks_that_make_room_are_told() -> None:
    """The minnow's prompt takes the place of five blocks that the whale had cached; what it takes of its own is not."""
    world = WatchedWorld(block_size=4, num_blocks=16, budget=64)
    world.policy("whale", blocks=16)
    world.policy("minnow", soft=8)
    world.submit("whale", 52, 1)
    world.run()
    world.submit("minnow", 31, 1)
    world.run()
    world.submit("minnow", 30, 1)
    world.run()
    world.check_told()
    assert world.told == {Taking(MINNOW, WHALE): Cost(cached_blocks=5)}


def test_a_preemption_costs_the_tokens_that_are_computed_again() -> None:
    """What the prefix cache still has when the victim comes back costs nothing; nothing is told before it comes."""
    world = WatchedWorld(block_size=4, num_blocks=20, budget=128)
    world.policy("whale")
    world.policy("minnow", soft=8)
    expect_short_outputs(world, "whale")
    whales = [world.submit("whale", 38, 8) for _ in range(2)]
    world.step()
    world.submit("minnow", 31, 1)
    world.step()
    world.collect()
    taken = world.told[Taking(MINNOW, WHALE)]
    assert (taken.num_preemptions, taken.recomputed_tokens) == (1, 0)
    assert taken.cached_blocks == 7
    world.run()
    world.check_told()
    assert 0 < taken.recomputed_tokens < 39
    assert world.lost(WHALE).recomputed_tokens == world.scheduler.roster.tenants[WHALE].recomputed_tokens
    for whale in whales:
        world.assert_exact(whale)


def test_an_operators_lowered_limit_is_the_tenants_own() -> None:
    """Whoever goes for a lower ceiling went for its own limit."""
    world = WatchedWorld(block_size=4, num_blocks=32, budget=64)
    world.policy("whale", blocks=32)
    for _ in range(2):
        world.submit("whale", 20, 30)
    for _ in range(3):
        world.step()
    world.policy("whale", blocks=8)
    world.step()
    world.collect()
    assert world.told[Taking(WHALE, WHALE)].num_preemptions == 1
    assert set(world.told) == {Taking(WHALE, WHALE)}
    world.policy("whale", blocks=32)
    world.run()
    world.check_told()


def test_what_a_share_group_borrowed_is_its_own_loss() -> None:
    """A member within its guarantee has to go for a need of another's: the memory was the group's."""
    world = WatchedWorld(block_size=4, num_blocks=11, budget=64)
    world.policy("member", soft=2, share_groups=("bank",))
    world.policy("minnow", soft=7)
    world.share("bank", PREFIX, blocks=8, soft=0)
    world.submit("member", [*PREFIX, 1, 2, 3], 8)
    world.step()
    world.submit("minnow", 27, 1)
    world.step()
    world.collect()
    assert world.told[Taking(MINNOW, BANK)].num_preemptions == 1
    assert account_name(BANK) == "group:bank"
    world.run()
    world.check_told()


def test_two_preemptions_are_charged_to_who_took_which_tokens() -> None:
    """The second one takes what was there again; what was not is still the first one's."""
    world = WatchedWorld(block_size=4, num_blocks=64, budget=8)
    world.policy("whale")
    whale = world.submit("whale", 40, 4, namespace=b"")
    for _ in range(5):
        world.step()
    roster = world.scheduler.roster
    roster.preempt(roster.sequences[whale], -1, world.now, by=MINNOW)
    for _ in range(2):
        world.step()
    roster.preempt(roster.sequences[whale], -1, world.now, by=TenantId("carp"))
    world.run()
    world.collect()
    costs = {taking.by: cost.recomputed_tokens for taking, cost in world.told.items()}
    assert costs == {MINNOW: 16 + 24, TenantId("carp"): 16}
    assert roster.tenants[WHALE].recomputed_tokens == world.recomputed == 56


def test_a_search_that_starts_again_counts_every_beam() -> None:
    """Its prompt is computed again once, and of each step that it had made all beams."""
    world = WatchedWorld(block_size=4, num_blocks=64, budget=64)
    world.policy("whale")
    search = world.submit("whale", 10, 8, beams=BeamParams(width=3), namespace=b"")
    for _ in range(4):
        world.step()
    roster = world.scheduler.roster
    assert roster.searches
    roster.preempt(roster.sequences[search], -1, world.now, by=MINNOW)
    world.run()
    world.collect()
    assert world.told[Taking(MINNOW, WHALE)].recomputed_tokens == 10 + 3 * 3
    world.assert_exact(search)


def test_a_request_that_leaves_takes_its_losses_along() -> None:
    """What is never computed again costs nothing, and nothing of it is kept."""
    world = WatchedWorld(block_size=4, num_blocks=64, budget=64)
    world.policy("whale")
    whale = world.submit("whale", 40, 40)
    for _ in range(3):
        world.step()
    roster = world.scheduler.roster
    roster.preempt(roster.sequences[whale], -1, world.now, by=MINNOW)
    seen = [roster.interference.has_losses]
    world.cancel(whale)
    world.run()
    seen.append(roster.interference.has_losses)
    assert seen == [True, False]
    world.check_told()
    assert world.recomputed == 0


def test_pairs_of_tenants_that_left_are_forgotten_once_told() -> None:
    """The last news of such a pair is zeros; if the tenant comes back, it counts from there."""
    world = WatchedWorld(block_size=4, num_blocks=16, budget=64)
    world.policy("minnow", soft=8)
    for _ in range(2):
        world.policy("whale", blocks=16)
        world.submit("whale", 52, 1)
        world.run()
        world.submit("minnow", 31, 1)
        world.run()
        world.update(removed=("whale",))
        world.step()
        for _ in range(LOOK_OVER + 1):
            world.collect()
        assert world.scheduler.roster.interference.num_pairs == 0
    world.check_told()
    assert world.told[Taking(MINNOW, WHALE)].cached_blocks > 5


def test_the_oldest_pairs_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has a bound, and forgetting loses no count that was told."""
    monkeypatch.setattr("engine.scheduler.interference.MAX_PAIRS", 3)
    world = WatchedWorld()
    interference = world.scheduler.roster.interference
    for name in "abcdef":
        interference.swapped(Taking(TenantId(name), WHALE), 10)
        world.collect()
    assert interference.num_pairs == 3
    interference.swapped(Taking(TenantId("a"), WHALE), 5)
    world.collect()
    assert {taking.by: cost.swapped_bytes for taking, cost in world.told.items()} == dict.fromkeys("abcdef", 10) | {
        "a": 15
    }


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_any_traffic_is_told_as_it_was(seed: int, ahead: bool) -> None:
    """Random tenants, groups, limits and cancels: each loss was seen, by whom and of whom; seconds above are exact."""
    world = WatchedWorld(
        num_blocks=40, block_size=4, max_rows=10, budget=24, max_context=128, eos=STOPS, audit=False, ahead=ahead
    )
    WatchedTraffic(seed, world).run_steps(800)
    world.check_told()
    assert world.lost_places and world.lost_blocks and world.recomputed


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_within_a_guarantee_loses_to_another(seed: int, ahead: bool) -> None:
    """Where every ceiling leaves the others their guarantees, no block and no place of theirs is ever taken."""
    chance = random.Random(seed)
    world = WatchedWorld(num_blocks=40, block_size=4, max_rows=10, budget=24, max_context=120, audit=False, ahead=ahead)
    world.is_strict = True

    def set_policies() -> None:
        soft = {tenant: chance.randint(0, 9) for tenant in TENANTS}
        for tenant in TENANTS:
            most = 40 - sum(soft.values()) + soft[tenant]
            world.policy(tenant, soft=soft[tenant], blocks=chance.randint(max(soft[tenant], most // 2), most))
            world.scheduler.roster.tenant(TenantId(tenant)).lengths = ShortOutputs()

    set_policies()
    for _ in range(600):
        event = chance.random()
        if event < 0.4:
            stem: list[Any] = [chance.randrange(3)] * chance.randint(1, 40)
            world.submit(chance.choice(TENANTS), [*stem, *(chance.randrange(900) for _ in range(8))], 12)
        elif event < 0.42:
            set_policies()
        elif event < 0.45 and world.scheduler.roster.sequences:
            one = chance.choice(list(world.scheduler.roster.sequences.values()))
            world.scheduler.cancel([one.handle], FinishReason.CANCELLED, None)
        world.step(chance.choice((0.001, 0.1)))
        if chance.random() < 0.1:
            world.collect()
    world.run(4000)
    world.check_told()
    assert any(taking.by != taking.of for taking in world.lost_places)
    assert world.lost_blocks
