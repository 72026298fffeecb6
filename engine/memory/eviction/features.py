"""What a predictor looks at: one row of numbers for each block of a prompt.

The same function makes the rows that `python -m engine.train` learns from and those that a core judges by: what was
trained on is what is seen. Rows are made of what sightings remember, of the prompt, and of the time of day.
"""

from typing import NamedTuple

import numpy as np

from engine.memory.eviction.sightings import Floats, Sight

VERSION = 1  # of the rows: a model of another version is not for these
DAY_SECONDS = 86_400.0
RATE_BLOCKS = 2048  # the rate of reuse is that of about so many
NAMES = (
    "hits",  # logarithm of one more
    "is_new",  # never asked for before
    "is_second",
    "is_more",
    "is_end",  # the last block of the prompt: what the next turn continues, or replaces if it is of another length
    "length",  # of the prompt, in blocks: logarithm
    "depth",  # blocks before this one: logarithm
    "turn",  # of the conversation: logarithm of one more
    "turn_share",  # of the first five
    "beginning_hits",  # of the last block of the known beginning: logarithm of one more
    "known_share",  # of the prompt's blocks, those of the known beginning
    "gap",  # since it was last asked for: logarithm of seconds; -0.2 where it was never
    "hour_sine",  # of the hour of day, UTC
    "hour_cosine",
    "reuse_rate",  # of the account's blocks lately, 0 to 1
)


class Moment(NamedTuple):
    """What is the same for all blocks of a prompt, beside the prompt itself."""

    day_seconds: float  # since midnight, UTC
    reuse_rate: float  # of the blocks that the account has asked for lately, the share that was known


def rows(sight: Sight, moment: Moment) -> Floats:
    """Return an array of [blocks, features], float32."""
    count = len(sight.hits)
    result = np.empty((count, len(NAMES)), np.float32)
    result[:, 0] = np.log1p(sight.hits, dtype=np.float32)
    result[:, 1] = sight.hits == 0
    result[:, 2] = sight.hits == 1
    result[:, 3] = sight.hits > 1
    result[:, 4] = 0
    result[-1:, 4] = 1
    result[:, 5] = np.log1p(count)
    result[:, 6] = np.log1p(np.arange(count, dtype=np.float32))
    result[:, 7] = np.log1p(sight.turn)
    result[:, 8] = min(sight.turn, 5) / 5
    result[:, 9] = np.log1p(float(sight.hits[sight.num_known - 1])) if sight.num_known else 0
    result[:, 10] = sight.num_known / count
    result[:, 11] = np.where(sight.gap < 0, np.float32(-0.2), np.log1p(np.maximum(sight.gap, 0)) / 5)
    angle = 2 * np.pi * moment.day_seconds / DAY_SECONDS
    result[:, 12:] = np.sin(angle), np.cos(angle), moment.reuse_rate
    return result
