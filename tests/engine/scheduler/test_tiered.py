"""Any history over all tiers: the same tokens, right bookkeeping in each, and nothing left in use."""

from pathlib import Path

import pytest

from tests.engine.tiered import TieredTraffic

_SIZES = (64, 24, 40)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(9))
def test_random_traffic(tmp_path: Path, seed: int, ahead: bool) -> None:
    """Ten thousand steps in all: late transfers, a disk that fails, erasures, cores that start again.

    What a request reads is what it would have computed, in whichever tier that lay.
    """
    traffic = TieredTraffic(seed, tmp_path / "disk", num_blocks=_SIZES[seed % len(_SIZES)], ahead=ahead)
    try:
        traffic.run_steps(600)
    finally:
        traffic.world.files.release()
    assert traffic.counts["stored"] > 0
