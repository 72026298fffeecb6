"""How much of a story is replayed, and how finely, so that the answer comes in time.

What a replay costs goes with its blocks and its coarse output tokens. As fine a grain is taken as there is time for;
where there is not time for the coarsest, the oldest requests are left out.
"""

from collections.abc import Sequence

from engine.replay.story import Call


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
        if block_size % grain == 0 and prompts + outputs / grain <= most_work:
            return 0, grain
    work, first = 0.0, len(calls)
    while first > 1:  # one request at least
        call = calls[first - 1]
        work += -(-call.num_prompt // block_size) + call.num_output / block_size
        if work > most_work and first < len(calls):
            break
        first -= 1
    return (0 if work <= most_work else first), block_size
