"""Any history of requests larger than the pool: the same tokens, every count right in each step, nothing left over."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.request import FinishReason
from engine.scheduler.sizing import window_blocks
from tests.engine.streamed import StreamedTraffic
from tests.engine.world import World

TENANTS = ("whale", "orca", "minnow")


@pytest.mark.parametrize("seed", range(8))
def test_random_traffic(tmp_path: Path, seed: int) -> None:
    """Over all tiers: late transfers, a disk that fails, erasures, moving limits, cores that start again."""
    traffic = StreamedTraffic(seed, tmp_path / "disk")
    try:
        traffic.run_steps(300)
    finally:
        traffic.world.files.release()
        traffic.world.close()
    assert traffic.num_streamed > 0


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    block_size=st.sampled_from((1, 2, 4)),
    spare=st.integers(0, 40),
    budget=st.sampled_from((5, 16, 100)),
    ahead=st.booleans(),
    soft=st.integers(0, 12),
    requests=st.lists(
        st.tuples(st.sampled_from(TENANTS), st.integers(1, 220), st.integers(1, 60), st.integers(0, 30)),
        min_size=1,
        max_size=8,
    ),
    ceilings=st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 3)), max_size=3),
)
def test_any_mix(
    block_size: int,
    spare: int,
    budget: int,
    ahead: bool,
    soft: int,
    requests: list[tuple[str, int, int, int]],
    ceilings: list[tuple[str, int]],
) -> None:
    """A small pool, host memory for all, and limits on the device that move: each request ends, with all its tokens."""
    window = window_blocks(block_size)
    num_blocks = window + spare
    world = World(
        num_blocks=num_blocks,
        block_size=block_size,
        budget=budget,
        ahead=ahead,
        max_context=300,
        num_slabs=3000,
        streams=True,
    )
    for tenant in TENANTS:
        world.policy(tenant, blocks=num_blocks, soft=min(soft, spare // 3), slabs=3000, max_context_tokens=300)
    moves = iter(ceilings)
    for tenant, length, count, steps in requests:
        sequence = world.submit(tenant, [(place * 7 + length) % 900 for place in range(length)], count)
        for _ in range(steps):
            world.step()
        moved = next(moves, None)
        if moved is not None:
            world.policy(moved[0], blocks=num_blocks - moved[1] * spare // 4, slabs=3000, max_context_tokens=300)
        assert sequence not in world.refused
    world.run(20_000)
    for sequence in world.requests:
        assert world.finished[sequence] is FinishReason.LENGTH
        assert len(world.tokens[sequence]) == world.granted[sequence]
        world.assert_exact(sequence)
    world.assert_empty()
    assert not world.scheduler.memory.host.claims.sequences()
