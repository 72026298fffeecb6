"""The contest: who is in force after what."""

from engine.memory.eviction.contest import LRU, Contest
from engine.memory.eviction.simulate import block_key

CAPACITY = 10
WINDOW = 1024


class Play:
    """Lets a contestant hit in a window, and the others not."""

    def __init__(self, num_predictors: int) -> None:
        self.contest = Contest(num_predictors)
        self.number = 0
        self.places = num_predictors + 1

    def window(self, *winners: int) -> int:
        """Play a window in which each of these keeps a block that is asked for again; return who is in force."""
        hot = block_key(1_000_000)
        for _ in range(WINDOW // 32):
            keys = [block_key(self.number + place) for place in range(31)] + [hot]
            self.number += 31
            now = float(self.number)
            values = [[now] * 31 + [now + 1e9 if one in winners else now - 1e9] for one in range(self.places)]
            self.contest.seen(keys, values, CAPACITY)
        return self.contest.in_force


def test_the_first_predictor_begins() -> None:
    """Without any judgement; with no predictor there is only LRU."""
    assert Contest(1).in_force == 1
    assert Contest(0).in_force == LRU


def test_who_hits_less_than_lru_has_to_go_and_may_come_back() -> None:
    """One lost window is enough, and one that is won after it."""
    play = Play(1)
    assert play.window(LRU) == LRU
    assert play.window(1) == 1


def test_trust_that_was_lost_often_takes_longer() -> None:
    """After the second loss it takes three good windows, after the third seven, then fifteen, never more."""
    play = Play(1)
    needed = []
    for _ in range(6):
        assert play.window(LRU) == LRU
        for count in range(1, 40):
            if play.window(1) == 1:
                needed.append(count)
                break
    assert needed == [1, 3, 7, 15, 15, 15]


def test_long_good_service_makes_good_for_a_loss() -> None:
    """After two losses and a long time in force, the next loss costs what the second one did."""
    play = Play(1)
    play.window(LRU)
    play.window(1)
    play.window(LRU)
    for _ in range(3 + 15):
        play.window(1)
    assert play.window(LRU) == LRU
    assert [play.window(1) for _ in range(3)] == [LRU, LRU, 1]


def test_the_better_predictor_is_in_force() -> None:
    """Of two that beat LRU the one with the better record, and only when it is better for certain."""
    play = Play(2)
    assert play.window(1, 2) == 1
    assert play.window(2) == 2
    assert play.window(1, 2) == 2


def test_a_new_model_has_to_win_first() -> None:
    """One that replaces another is not in force before it has hit more; the table goes on meanwhile."""
    play = Play(1)
    play.contest.replace(2)
    play.places = 3
    assert play.window(1) == 1
    assert play.window(2) == 2
    play.contest.replace(2)
    assert play.contest.in_force == 1
    assert play.window(2) == 2
    play.contest.drop(2)
    play.places = 2
    assert play.contest.in_force == 1
    assert play.window(1) == 1
