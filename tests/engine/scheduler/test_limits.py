"""A tenant's own limits: never passed, moved live, and nobody else's business."""

import pytest

from engine.request import FinishReason, RefusalCode, TenantId
from tests.engine.world import ShortOutputs, World


def test_a_tenant_at_its_ceiling_gives_way_to_itself() -> None:
    """Two sequences that outgrow the limit together: the newer one steps back and finishes later, both exact."""
    world = World(block_size=4)
    world.policy("minnow", blocks=10)
    world.policy("whale")
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()  # admits both, which is one too many
    older, newer = world.submit("minnow", 8, 32), world.submit("minnow", 8, 32)
    other = world.submit("whale", 8, 60)
    world.run()
    assert world.outputs[older][-1].num_preemptions == world.outputs[other][-1].num_preemptions == 0
    assert world.outputs[newer][-1].num_preemptions >= 1
    for request in (older, newer, other):
        assert world.finished[request] is FinishReason.LENGTH
        world.assert_exact(request)
    assert len(world.tokens[newer]) == 32


def test_waiting_for_the_own_limit_holds_up_nobody_else() -> None:
    """A whale's queue that waits for the whale's own blocks leaves the step, the pool and the rows to others."""
    world = World(block_size=4, num_blocks=64, max_rows=16, budget=64)
    world.policy("whale", blocks=10)
    world.policy("minnow")
    whales = [world.submit("whale", 36, 4) for _ in range(20)]
    world.step()
    assert world.running() == [whales[0]]
    for _ in range(8):
        minnow = world.submit("minnow", 4, 1)
        world.step()
        assert world.finished[minnow] is FinishReason.LENGTH
    world.run()
    assert set(world.finished) >= set(whales)


def test_a_lowered_limit_holds_from_the_next_plan() -> None:
    """The newest sequences are parked until use is within the limit; none ends, and all get their tokens."""
    world = World(block_size=4, budget=64)
    world.policy("whale", blocks=64)
    requests = [world.submit("whale", 12, 20) for _ in range(5)]
    for _ in range(3):
        world.step()
    assert world.held("whale") == 20
    world.policy("whale", blocks=9)
    world.step()
    assert world.held("whale") <= 9
    assert world.running() == requests[:2]
    assert not world.finished
    world.run()
    for request in requests:
        assert len(world.tokens[request]) == 20
        world.assert_exact(request)
    world.assert_empty()


def test_a_lowered_max_running_parks_the_newest() -> None:
    """Concurrency above a lowered limit steps back at the next plan, and comes back in order."""
    world = World()
    world.policy("minnow", max_running=4)
    requests = [world.submit("minnow", 4, 30) for _ in range(4)]
    world.step()
    world.policy("minnow", max_running=1)
    world.step()
    assert world.running() == requests[:1]
    world.run()
    assert list(world.finished) == requests
    for request in requests:
        world.assert_exact(request)


def test_a_request_that_no_longer_fits_parks_and_goes_on_when_it_may() -> None:
    """Under a limit below its size a running request keeps its tokens; a raised limit wakes it."""
    world = World(block_size=4)
    world.policy("whale")
    world.policy("minnow")
    whale = world.submit("whale", 40, 40)
    for _ in range(10):
        world.step()
    world.policy("whale", blocks=5)
    minnow = world.submit("minnow", 4, 4)
    world.run()
    assert world.held("whale") == 0
    assert list(world.finished) == [minnow]
    world.policy("whale", blocks=64)
    world.run()
    assert len(world.tokens[whale]) == 40
    world.assert_exact(whale)


@pytest.mark.parametrize(("patience", "parked_for"), [(0.0, 60.0), (20.0, 20.0)])
def test_a_parked_request_ends_with_length_and_the_reason(patience: float, parked_for: float) -> None:
    """At its deadline, or after a minute, a request that cannot fit ends with the tokens that it has."""
    world = World(block_size=4)
    world.policy("whale")
    start = world.now
    whale = world.submit("whale", 40, 40, deadline=start + patience if patience else 0.0)
    for _ in range(10):
        world.step(0.0)
    world.policy("whale", blocks=5)
    world.step()
    world.now = start + parked_for - 0.1
    world.step()
    assert not world.finished
    world.now = start + parked_for + 0.1
    world.step()
    assert world.finished[whale] is FinishReason.LENGTH
    assert "500 bytes" in world.outputs[whale][-1].message
    assert world.tokens[whale]
    world.assert_exact(whale)
    world.assert_empty()


def test_a_queued_request_that_no_longer_fits_is_refused_in_the_end() -> None:
    """Never run, it gets the refusal that it would have got on arrival; the requests behind it do not wait for it."""
    world = World(block_size=4)
    world.policy("minnow", max_running=1)
    first = world.submit("minnow", 4, 10)
    large, small = world.submit("minnow", 40, 10), world.submit("minnow", 4, 10)
    world.step()
    world.policy("minnow", max_running=1, blocks=5)
    world.run()
    assert list(world.finished) == [first, small]
    assert not world.outputs[large]
    world.now += 60.1
    world.step()
    assert world.refused[large].code is RefusalCode.KV_LIMIT
    world.assert_empty()


def test_a_request_goes_on_under_a_limit_below_what_it_was_granted() -> None:
    """A lowered limit does not cut short what still fits: a request may end by itself before it is reached."""
    world = World(block_size=4)
    world.policy("minnow")
    request = world.submit("minnow", 4, 40)
    for _ in range(4):
        world.step()
    world.policy("minnow", blocks=6)
    world.run()
    assert not world.finished
    assert len(world.tokens[request]) == 6 * 4 - 4 + 1
    world.policy("minnow", blocks=64)
    world.run()
    assert len(world.tokens[request]) == 40
    world.assert_exact(request)


def test_a_request_that_never_ran_is_refused_soon_when_its_limit_went() -> None:
    """Lowered while it waited: its client gets the refusal with the reason, not a minute of silence."""
    world = World(block_size=4)
    world.policy("minnow", max_running=1)
    world.submit("minnow", 4, 200)
    waiting, too_large = world.submit("minnow", 4, 4), world.submit("minnow", 30, 4)
    world.step()
    world.policy("minnow", max_running=0, blocks=4)
    world.step()
    world.now += 5.1
    world.step()
    assert world.refused[waiting].code is RefusalCode.QUEUE_FULL
    assert "max_running" in world.refused[waiting].message
    assert too_large in world.refused
    assert len(world.finished) == 0  # what has run is still parked
