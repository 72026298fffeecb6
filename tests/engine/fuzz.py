"""Random traffic against scheduler and memory, every second time over all tiers, until time is over: `make fuzz`.

python -m tests.engine.fuzz [--seconds 60] [--seed N]      one seed: only that one, to see a failure again
"""

import argparse
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engine.tiered import TieredTraffic
from tests.engine.traffic import Traffic

_EVENTS = 150


def main() -> int:
    """Run seeds one after the other; print the one that fails."""
    parser = argparse.ArgumentParser(description="Random traffic against scheduler and memory.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    num_steps = num_worlds = num_preemptions = num_evicted = num_loaded = 0
    first = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seeds from {first}", flush=True)
    seed = first
    while True:
        with TemporaryDirectory() as folder:
            traffic = TieredTraffic(seed, Path(folder) / "disk", ahead=seed % 4 == 1) if seed % 2 else Traffic(seed)
            try:
                traffic.run(_EVENTS)
            except BaseException:
                print(f"failed after {traffic.num_steps} steps: python -m tests.engine.fuzz --seed {seed}", flush=True)
                raise
            finally:
                if isinstance(traffic, TieredTraffic):
                    traffic.world.files.release()
        num_steps += traffic.num_steps
        num_worlds += 1
        num_preemptions += traffic.world.scheduler.roster.num_preemptions
        num_evicted += traffic.world.scheduler.memory.supply.num_evicted
        num_loaded += traffic.world.scheduler.roster.swapping.counts.loaded_blocks
        seed += 1
        if options.seed is not None or time.monotonic() > end:
            break
    print(
        f"seeds {first} to {seed - 1}: {num_worlds} worlds, {num_steps} steps, {num_preemptions} preemptions,"
        f" {num_evicted} cached blocks evicted, {num_loaded} loaded from host memory, all exact and audited"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
