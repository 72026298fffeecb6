"""How much of a story is replayed, and how finely, so that the answer comes in time.

What a replay costs goes with its blocks and its coarse output tokens. As fine a grain is taken as there is time for;
where there is not time for the coarsest, the oldest requests are left out.
"""

from collections.abc import Sequence

from engine.replay.story import Call

_FINER = 1.5  # a finer replay has the shadow that judges the eviction policy (eviction.py), and more steps


def choose(calls: Sequence[Call], block_size: int, most_work: float) -> tuple[int, int]:
    """Return the index of the first request to replay and the grain, a divisor of the block size.

    Args:
        calls: by arrival.
        block_size: tokens.
        most_work: blocks and coarse output tokens that there is time for.
    """
    prompts = sum(-(-call.num_prompt // block_size) for call in calls)
    outputs = sum(call.num_output for call in calls)
    for grain in range(1, block_size + 1):
        cost = 1.0 if grain == block_size else _FINER
        if block_size % grain == 0 and cost * (prompts + outputs / grain) <= most_work:
            return 0, grain
    work, first = 0.0, len(calls) - 1  # one request at least
    for index in range(len(calls) - 1, -1, -1):
        work += -(-calls[index].num_prompt // block_size) + calls[index].num_output / block_size
        if work > most_work:
            break
        first = index
    return first, block_size
