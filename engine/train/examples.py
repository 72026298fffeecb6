"""Examples to learn from: for each block of each prompt what was seen of it, and when it was next asked for."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.memory.eviction.base import View
from engine.memory.eviction.features import DAY_SECONDS, NAMES, RATE_BLOCKS, Moment, rows
from engine.memory.eviction.hazard import HazardTable, classes_of
from engine.memory.eviction.sightings import Bytes, Floats, Sightings
from engine.train.asked import Ask, key_of, names_of

MOST_ROWS = 250_000
_ROWS_OF_A_PROMPT = 48  # spread over it; each stands for as many as there are
_FORGETS = 1 << 16  # cells: as many as an account of a worker has at least


class Examples(NamedTuple):
    """What is known at some moment. Arrays of [examples, …], by time."""

    rows: Floats  # features
    seconds: NDArray[np.float64]  # until the block was next asked for; or until the moment
    came_back: NDArray[np.bool_]
    weights: Floats  # blocks that it stands for
    table: Floats  # what the hazard table said of it, as a byte


class Sample(NamedTuple):
    """What was seen, and what came. Arrays of [examples, …], by time."""

    rows: Floats
    at: NDArray[np.float64]  # unix seconds
    following: NDArray[np.float64]  # when the block was next asked for; infinity: not in this trace
    weights: Floats
    table: Floats

    def known(self, end: float, *, since: float = -np.inf) -> Examples:
        """Return the examples of a stretch of time as they stand at its end."""
        chosen = (self.at >= since) & (self.at < end)
        at, following = self.at[chosen], self.following[chosen]
        came_back = following < end
        seconds = np.where(came_back, following, end) - at
        return Examples(self.rows[chosen], seconds, came_back, self.weights[chosen], self.table[chosen])


class _Account:
    def __init__(self) -> None:
        self.sightings = Sightings()
        self.sightings.fit(_FORGETS // 2)
        self.table = HazardTable()
        self.reuse_rate = 0.0


def sample(asks: list[Ask]) -> Sample:
    """Replay what was asked, by time, and look at it as a worker does."""
    upcoming = _next_asks(asks)
    accounts: dict[str, _Account] = {}
    parts: list[tuple[Floats, Bytes, NDArray[np.float64], Floats]] = []
    stride = max(1.0, sum(min(len(ask.blocks), _ROWS_OF_A_PROMPT) for ask in asks) / MOST_ROWS)
    for number, ask in enumerate(asks):
        made, table = _look(accounts.setdefault(ask.account, _Account()), ask)
        count = len(ask.blocks)
        chosen = np.unique(np.linspace(0, count - 1, max(1, int(min(count, _ROWS_OF_A_PROMPT) / stride))).astype(int))
        weights = np.full(len(chosen), count / len(chosen), np.float32)
        parts.append((made[chosen], table[chosen], upcoming[number][chosen], weights))
    return Sample(
        rows=np.concatenate([part[0] for part in parts]),
        at=np.repeat([ask.at for ask in asks], [len(part[1]) for part in parts]),
        following=np.concatenate([part[2] for part in parts]),
        weights=np.concatenate([part[3] for part in parts]),
        table=np.concatenate([part[1] for part in parts]).astype(np.float32),
    )


def useless(asks: list[Ask]) -> tuple[str, ...]:
    """Return the features that nothing can be learned of from so little: of hours within a day or two, say."""
    names = set()
    if asks[-1].at - asks[0].at < 3 * DAY_SECONDS:
        names |= {"hour_sine", "hour_cosine"}
    if len({ask.account for ask in asks}) < 5:
        names |= {"reuse_rate"}
    return tuple(name for name in NAMES if name in names)


def _look(account: _Account, ask: Ask) -> tuple[Floats, Bytes]:
    names = names_of(ask.blocks)
    sight = account.sightings.look(names, ask.at)
    view = View(sight, Moment(ask.at % DAY_SECONDS, account.reuse_rate))
    made, table = rows(*view), account.table.judge(view)
    share = min(1.0, len(names) / RATE_BLOCKS)
    account.reuse_rate += (sight.num_known / len(names) - account.reuse_rate) * share
    classes = classes_of(sight)
    account.table.learn(sight, classes, ask.at)
    account.sightings.note(names, sight, ask.at, classes, ())
    before = key_of(int(names[-1]))
    for name in names_of(ask.answers).tolist():
        key = key_of(name)
        if account.sightings.recall(key) is None:
            account.sightings.follow(key, before, ask.at)
        before = key
    return made, table


def _next_asks(asks: list[Ask]) -> list[NDArray[np.float64]]:
    """Return for each block of each prompt when it is asked for next; infinity for never."""
    upcoming: dict[tuple[str, int], float] = {}
    result: list[NDArray[np.float64]] = []
    for ask in reversed(asks):
        keys = [(ask.account, block) for block in ask.blocks]
        result.append(np.array([upcoming.get(key, np.inf) for key in keys]))
        upcoming.update(dict.fromkeys(keys, ask.at))
    return result[::-1]
