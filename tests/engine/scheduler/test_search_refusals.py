"""Searches that can never run are refused, with the field; those that wait count as their beams."""

import pytest

from engine.request import BeamParams, RefusalCode
from tests.engine.scheduler.searches import assert_found
from tests.engine.world import World


@pytest.mark.parametrize(
    ("n", "beams", "field"),
    [
        (1, BeamParams(width=1), "beam_width"),
        (1, BeamParams(width=0), "beam_width"),
        (1, BeamParams(width=-3), "beam_width"),
        (1, BeamParams(width=17), "beam_width"),
        (4, BeamParams(width=3), "n"),
        (0, BeamParams(width=3), "n"),
        (1, BeamParams(width=3, length_penalty=float("nan")), "length_penalty"),
        (1, BeamParams(width=3, length_penalty=float("inf")), "length_penalty"),
        (1, BeamParams(width=3, length_penalty=-11.0), "length_penalty"),
    ],
)
def test_refuses_what_makes_no_search(n: int, beams: BeamParams, field: str) -> None:
    """The refusal names the field; a width beyond the rows of the table can never run."""
    world = World(max_rows=16)
    world.policy("minnow", max_running=100)
    request = world.submit("minnow", 5, 5, n=n, beams=beams)
    world.run()
    assert (world.refused[request].code, world.refused[request].field) == (RefusalCode.INVALID, field)


def test_refuses_more_beams_than_may_run() -> None:
    """Beams run together or not at all; with the message come the numbers and the way out."""
    world = World(max_rows=100, budget=100)
    world.policy("minnow", max_running=100)
    request = world.submit("minnow", 5, 5, beams=BeamParams(width=65))
    world.run()
    assert "from 2 to 64" in world.refused[request].message
    world.policy("minnow", max_running=3)
    request = world.submit("minnow", 5, 5, beams=BeamParams(width=4))
    world.run()
    assert (world.refused[request].code, world.refused[request].field) == (RefusalCode.INVALID, "beam_width")
    assert "max_running" in world.refused[request].message


def test_refuses_what_can_never_fit() -> None:
    """All beams' blocks count; without max_tokens each beam gets what fits."""
    world = World(block_size=4, budget=64)
    world.policy("minnow", blocks=20)
    too_long = world.submit("minnow", 10, 16, beams=BeamParams(width=4))
    fits = world.submit("minnow", 10, 8, beams=BeamParams(width=4))
    too_wide = world.submit("minnow", 70, 0, beams=BeamParams(width=5))
    open_end = world.submit("minnow", 10, 0, beams=BeamParams(width=4))
    world.run()
    for refused in (too_long, too_wide):
        assert (world.refused[refused].code, world.refused[refused].field) == (RefusalCode.KV_LIMIT, "beam_width")
    assert "22 blocks" in world.refused[too_long].message
    assert world.granted[open_end] == (2 + 18 // 4) * 4 - 10
    assert_found(world, fits, open_end)


def test_an_open_end_is_not_for_all_the_memory() -> None:
    """What a search may need is reserved from the start, so without max_tokens it is not given everything."""
    world = World(num_blocks=4096, max_context=8192, budget=64)
    world.policy("minnow", blocks=4096, max_context_tokens=8192, max_output_tokens=8192)
    search = world.submit("minnow", 10, 0, beams=BeamParams(width=2))
    sampler = world.submit("minnow", 10, 0)
    world.step()
    assert world.granted == {search: 1024, sampler: 8182}
    world.cancel(search, sampler)


def test_a_search_counts_as_its_beams_in_the_queue() -> None:
    """Where three requests run and wait, a search with four beams is one too many, and so is one more behind it."""
    world = World()
    world.policy("minnow", max_running=4, max_queued=1)
    first = world.submit("minnow", 5, 30)
    world.step()
    fits = world.submit("minnow", 5, 5, beams=BeamParams(width=4))
    second = world.submit("minnow", 5, 5, beams=BeamParams(width=4))
    world.run()
    assert second in world.refused
    assert_found(world, fits)
    world.assert_exact(first)
