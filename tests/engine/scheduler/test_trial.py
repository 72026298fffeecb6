"""Limits on trial: what they would have done is counted, and they do nothing."""

from typing import Any

import pytest

from engine.policy import ShadowLimits
from engine.request import BeamParams, TenantId
from engine.scheduler.trial import TrialCount
from engine.stats import collect
from tests.engine.world import BLOCK_BYTES, World


def on_trial(world: World, **limits: Any) -> None:
    """Put limits of the minnow on trial, the ceiling in blocks."""
    if "blocks" in limits:
        limits["kv_hard_bytes"] = limits.pop("blocks") * BLOCK_BYTES
    world.policy("minnow", blocks=64, max_running=4, max_queued=6, shadow=ShadowLimits(**limits))


def counts(world: World) -> dict[str, tuple[int, int]]:
    """Return what each limit would have refused and delayed."""
    trial = world.scheduler.roster.tenant(TenantId("minnow")).trial
    return {} if trial is None else {one.limit: (one.refused, one.delayed) for one in trial.counts()}


@pytest.mark.parametrize(
    ("limits", "limit", "refused"),
    [
        ({"blocks": 4}, "kv_hard_bytes", True),
        ({"blocks": 5}, "kv_hard_bytes", False),
        ({"max_context_tokens": 17}, "max_context_tokens", True),
        ({"max_context_tokens": 18}, "max_context_tokens", False),
        ({"max_output_tokens": 7}, "max_output_tokens", True),
        ({"max_output_tokens": 8}, "max_output_tokens", False),
    ],
)
def test_a_request_that_it_would_have_refused_is_counted_once(
    limits: dict[str, int], limit: str, refused: bool
) -> None:
    """Ten prompt tokens and eight of output: refused below what that needs, and served all the same."""
    world = World(block_size=4)
    on_trial(world, **limits)
    request = world.submit("minnow", 10, 8)
    world.run()
    assert counts(world) == {limit: (int(refused), 0)}
    assert len(world.tokens[request]) == 8


def test_what_the_limits_in_force_refuse_is_not_counted() -> None:
    """The trial is of what the limit would do beyond them."""
    world = World(block_size=4)
    on_trial(world, blocks=4, max_queued=0)
    world.submit("minnow", 300, 8)
    assert counts(world) == {"kv_hard_bytes": (0, 0), "max_queued": (0, 0)}
    assert len(world.scheduler.roster.sequences) == 0


def test_a_queue_on_trial_holds_only_what_it_would_have_taken() -> None:
    """Four run and one may wait: of eight, three are refused; who was refused does not fill the queue."""
    world = World()
    on_trial(world, max_queued=1)
    first = [world.submit("minnow", 4, 4) for _ in range(8)]
    assert counts(world) == {"max_queued": (3, 0)}
    world.cancel(first[0])
    world.submit("minnow", 4, 4)
    assert counts(world) == {"max_queued": (3, 0)}
    world.submit("minnow", 4, 4)
    assert counts(world) == {"max_queued": (4, 0)}


def test_a_request_is_counted_as_delayed_once_for_a_place() -> None:
    """Three run, and one place is on trial: two would have waited, in however many steps; what it refused does not."""
    world = World()
    on_trial(world, max_running=1)
    requests = [world.submit("minnow", 4, 10) for _ in range(3)]
    for _ in range(5):
        world.step()
    assert counts(world) == {"max_running": (0, 2)}
    assert world.running() == requests
    world.run()
    assert counts(world) == {"max_running": (0, 2)}


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_that_outgrows_the_ceiling_is_delayed(ahead: bool) -> None:
    """Both fit at first; when they have grown, the newer one would have had to wait for memory."""
    world = World(block_size=4, ahead=ahead)
    on_trial(world, blocks=8)
    for _ in range(2):
        world.submit("minnow", 12, 20)
    for _ in range(3):
        world.step()
    assert counts(world) == {"kv_hard_bytes": (0, 0)}
    world.run()
    assert counts(world) == {"kv_hard_bytes": (0, 1)}
    assert world.scheduler.roster.num_preemptions == 0


def test_outputs_and_beams_of_a_request_count_as_one() -> None:
    """A request that asks for several is one request, whatever the limit."""
    world = World(block_size=4)
    on_trial(world, max_running=1, blocks=1)
    world.submit("minnow", 8, 8, n=3)
    world.submit("minnow", 8, 8, beams=BeamParams(width=2))
    world.run()
    refused, delayed = counts(world)["max_running"]
    assert (refused, delayed) == (0, 2)
    assert counts(world)["kv_hard_bytes"] == (2, 0)


def test_counts_last_while_the_limit_is_on_trial() -> None:
    """A value that moves goes on counting; a limit that was taken off and put back starts again."""
    world = World()
    on_trial(world, max_output_tokens=1)
    world.submit("minnow", 4, 4)
    on_trial(world, max_output_tokens=2, max_queued=0)
    world.submit("minnow", 4, 4)
    assert counts(world) == {"max_output_tokens": (2, 0), "max_queued": (0, 0)}
    use = next(one for one in collect(world.scheduler).tenants if one.tenant == "minnow")
    assert use.trial == (TrialCount("max_queued", 0, 0), TrialCount("max_output_tokens", 2, 0))
    on_trial(world)
    assert counts(world) == {}
    on_trial(world, max_output_tokens=2)
    assert counts(world) == {"max_output_tokens": (0, 0)}
    world.update(removed=("minnow",))
    assert counts(world) == {}


def test_a_workers_part_of_a_ceiling_is_judged_as_the_fleets() -> None:
    """A request that fits what all workers together would have is not refused for this one's part of it."""
    world = World(block_size=4)
    limits = ShadowLimits(kv_hard_bytes=4 * BLOCK_BYTES)
    world.policy("minnow", blocks=16, shadow=limits, fleet_hard_bytes=32 * BLOCK_BYTES)
    world.submit("minnow", 24, 8)
    assert counts(world) == {"kv_hard_bytes": (0, 0)}
    world.submit("minnow", 24, 9)
    assert counts(world) == {"kv_hard_bytes": (1, 0)}
