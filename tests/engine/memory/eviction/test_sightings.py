"""What is remembered of blocks that were asked for."""

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.memory.eviction.hazard import classes_of
from engine.memory.eviction.sightings import (
    FLOOR_CELLS,
    MOST_HITS,
    MOST_SCORE,
    NO_SCORE,
    BlockKey,
    Sightings,
    names_of,
    to_bytes,
)


def fresh(count: int) -> list[BlockKey]:
    """Return keys as SHA-256 makes them."""
    return [BlockKey(os.urandom(32)) for _ in range(count)]


def ask(sightings: Sightings, keys: list[BlockKey], now: float, score: int = NO_SCORE) -> tuple[list[int], list[float]]:
    """Look a prompt up and note it; return hits and gaps."""
    names = names_of(keys)
    sight = sightings.look(names, now)
    sightings.note(names, sight, now, classes_of(sight), [np.full(len(keys), score, np.uint8)])
    return sight.hits.tolist(), sight.gap.tolist()


def test_hits_gaps_and_turns_of_a_conversation() -> None:
    """Each turn finds what the ones before have asked for, when that was, and in which turn it first came."""
    sightings, keys = Sightings(), fresh(6)
    assert ask(sightings, keys[:2], 100.0) == ([0, 0], [-1.0, -1.0])
    assert ask(sightings, keys[:4], 160.0) == ([1, 1, 0, 0], [60.0, 60.0, -1.0, -1.0])
    sight = sightings.look(names_of(keys), 200.0)
    assert (sight.turn, sight.num_known) == (2, 4)
    assert sight.turns.tolist() == [0, 0, 1, 1, 2, 2]
    assert sight.gap.tolist() == [40.0] * 4 + [-1.0] * 2


def test_looking_changes_nothing() -> None:
    """Only what is noted is remembered."""
    sightings, keys = Sightings(), fresh(3)
    sightings.look(names_of(keys), 5.0)
    assert [sightings.recall(key) for key in keys] == [None] * 3


def test_hits_end_somewhere() -> None:
    """A block that is asked for again and again has the most hits that a cell can say."""
    sightings, keys = Sightings(), fresh(1)
    for number in range(40):
        ask(sightings, keys, float(number))
    assert sightings.recall(keys[0]) == MOST_HITS


def test_scores_are_kept_for_each_predictor() -> None:
    """What was foretold last is what is told; nothing is foretold of an unknown key, nor by a missing predictor."""
    sightings, keys = Sightings(), fresh(2)
    ask(sightings, keys[:1], 1.0, score=200)
    assert [sightings.score(keys[0], number) for number in (0, 1)] == [200, NO_SCORE]
    assert sightings.score(keys[1], 0) == NO_SCORE


def test_time_goes_round_without_harm() -> None:
    """After twelve days the seconds begin anew: a gap across that moment is still right."""
    sightings, keys = Sightings(), fresh(1)
    ask(sightings, keys, float((1 << 20) - 10))
    assert ask(sightings, keys, float((1 << 20) + 20)) == ([1], [30.0])


def test_a_small_account_takes_little_and_a_busy_one_remembers_much() -> None:
    """The table grows with what was asked for, up to the floor; a large cache has a cell for each block."""
    sightings = Sightings()
    assert sightings.num_cells * 8 <= 2048
    first = fresh(2000)
    ask(sightings, first, 1.0)
    for _ in range(25):
        ask(sightings, fresh(2000), 2.0)
    assert sightings.num_cells == FLOOR_CELLS
    assert sum(sightings.recall(key) == 0 for key in first) > 200
    sightings.fit(300_000)
    assert sightings.num_cells >= 300_000
    assert sum(sightings.recall(key) == 0 for key in first) > 200


def test_unknown_keys_are_not_taken_for_known_ones() -> None:
    """With the table full, some in a thousand at most."""
    sightings = Sightings()
    for _ in range(30):
        ask(sightings, fresh(1000), 1.0)
    assert sum(sightings.recall(key) is not None for key in fresh(20_000)) < 25  # 5 expected


def test_part_of_an_answer_is_like_what_it_continues() -> None:
    """Its score, class and turn; its own hits and time. Where that is not known, like nothing."""
    sightings, keys = Sightings(), fresh(4)
    ask(sightings, keys[:1], 10.0, score=150)
    ask(sightings, keys[:1], 20.0, score=150)
    sightings.follow(keys[1], keys[0], 30.0)
    sightings.follow(keys[2], keys[3], 30.0)
    sightings.follow(keys[3], None, 30.0)
    assert [sightings.recall(key) for key in keys] == [1, 0, 0, 0]
    assert [sightings.score(key, 0) for key in keys] == [150, 150, NO_SCORE, NO_SCORE]
    assert ask(sightings, keys[:2], 50.0) == ([2, 1], [30.0, 20.0])


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_scores_as_bytes_keep_their_order(scores: list[float]) -> None:
    """Whatever the scores: bytes rise with them, and 0 is the byte of no score."""
    made = to_bytes(np.array(sorted(scores)))
    assert np.all(np.diff(made.astype(int)) >= 0)
    assert to_bytes(np.array([0.0]))[0] == NO_SCORE
    assert abs(int(to_bytes(np.array([MOST_SCORE / 2]))[0]) - NO_SCORE - 10 * MOST_SCORE) <= 0.51


def test_two_names_in_one_cell() -> None:
    """Of a prompt's blocks that want the same cell the first one is remembered, and the other is taken for unknown."""
    sightings = Sightings()
    names = np.array([7 | 5 << 52, 7 | 9 << 52], np.uint64)
    sight = sightings.look(names, 1.0)
    sightings.note(names, sight, 1.0, classes_of(sight), ())
    assert sightings.look(names, 2.0).hits.tolist() == [1, 0]
