"""The hazard table learns which classes of blocks come back."""

from random import Random

import numpy as np

from engine.memory.eviction.base import View
from engine.memory.eviction.features import Moment
from engine.memory.eviction.hazard import HORIZON_SECONDS, NUM_CLASSES, HazardTable, classes_of
from engine.memory.eviction.sightings import NO_SCORE, Sightings


def sight_of(sightings: Sightings, names: list[int], now: float, table: HazardTable | None = None) -> View:
    """Look a prompt up, and let a table learn from it."""
    words = np.array(names, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    sight = sightings.look(words, now)
    classes = classes_of(sight)
    if table is not None:
        table.learn(sight, classes, now)
    sightings.note(words, sight, now, classes, ())
    return View(sight, Moment(0.0, 0.0))


def test_classes_are_few_and_tell_apart_what_matters() -> None:
    """Hits, turn, length and the end of the prompt each make another class; all fit the table."""
    sightings, seen = Sightings(), set()
    for length in (1, 3, 5, 20, 100, 300):
        names = list(range(length * 1000, length * 1000 + length))
        for turn in range(6):
            classes = classes_of(sight_of(sightings, names, float(turn)).sight)
            assert classes.max() < NUM_CLASSES
            seen.update(classes.tolist())
    assert len(seen) > 20


def test_to_begin_with_hits_count() -> None:
    """Without experience a block with hits scores higher, one without as usual."""
    table, sightings = HazardTable(), Sightings()
    scores = [int(table.judge(sight_of(sightings, [1, 2, 3], float(turn)))[0]) for turn in range(4)]
    assert scores[0] == NO_SCORE
    assert scores == sorted(scores)
    assert scores[3] > scores[0]


def test_experience_is_learned() -> None:
    """Where short prompts return and long ones never do, short ones come to score higher by far."""
    table, sightings, random = HazardTable(), Sightings(), Random()
    fresh, now = 1, 0.0
    for _ in range(600):
        now += 20.0
        length = random.choice((2, 40))
        names = list(range(fresh, fresh + length))
        fresh += length
        sight_of(sightings, names, now, table)
        if length == 2:
            sight_of(sightings, names, now + 10.0, table)
    short = table.judge(sight_of(sightings, [10**9, 10**9 + 1], now + HORIZON_SECONDS))
    long = table.judge(sight_of(sightings, list(range(2 * 10**9, 2 * 10**9 + 40)), now + HORIZON_SECONDS))
    assert int(short[0]) - int(long[0]) > 20  # e times as likely


def test_what_was_learned_fades() -> None:
    """After a day without a request nearly all of it is forgotten."""
    table, sightings = HazardTable(), Sightings()
    for number in range(200):
        sight_of(sightings, [number], number * 10.0, table)
    before = table.judge(sight_of(Sightings(), [1], 0.0))
    sight_of(sightings, [10**6], 200_000.0, table)
    for number in range(8):
        sight_of(sightings, [10**6 + number], 200_000.0 + 1000 * number, table)
    assert table._totals.max() < 200
    assert before[0] <= NO_SCORE


def test_an_idle_time_of_weeks_is_passed_at_once() -> None:
    """The next request after it finds a table that works."""
    table, sightings = HazardTable(), Sightings()
    sight_of(sightings, [1], 0.0, table)
    sight_of(sightings, [1], 5e6, table)
    assert table.judge(sight_of(sightings, [2], 5e6)).dtype == np.uint8
