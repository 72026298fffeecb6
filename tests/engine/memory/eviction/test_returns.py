"""Conversations that are likely to go on soon."""

from random import Random

from engine.memory.eviction import returns
from engine.memory.eviction.returns import EDGES, Returns


def named(waiting: Returns[int], until: float, limit: int = 10**6) -> list[int]:
    """Return all candidates up to a moment."""
    found: list[int] = []
    for second in range(int(until) + 1):
        while more := waiting.candidates(float(second), limit):
            found += more
    return found


def test_a_conversation_is_a_candidate_when_a_return_is_likely() -> None:
    """By what is known beforehand: half a minute after its turn, not at once."""
    waiting: Returns[str] = Returns()
    waiting.ended("chat", 1, 0.0)
    assert waiting.candidates(20.0, 10) == []
    assert waiting.candidates(31.0, 10) == ["chat"]
    assert waiting.candidates(32.0, 10) == []


def test_one_that_goes_on_or_is_gone_is_none() -> None:
    """A turn that has begun needs nobody's guess, and what was erased must not come back."""
    waiting: Returns[str] = Returns()
    for name in ("back", "gone", "there"):
        waiting.ended(name, 2, 0.0)
    waiting.began("back", 10.0)
    waiting.forget("gone")
    assert set(waiting.candidates(100.0, 10)) <= {"there"}
    assert len(waiting) == 1


def test_a_habit_is_learned() -> None:
    """Where everybody is back after five minutes, candidates are those of the minute before, and no others."""
    waiting: Returns[int] = Returns()
    for number in range(2000):
        waiting.ended(number, 3, number * 10.0)
        waiting.candidates(number * 10.0, 100)
        if number >= 30:
            waiting.began(number - 30, number * 10.0)
    for number in range(1970, 2000):
        waiting.forget(number)
    waiting.ended(5000, 3, 100_000.0)
    when = [second for second in range(3600) if waiting.candidates(100_000.0 + second, 1)]
    assert when == [240]


def test_who_never_comes_back_is_no_candidate_any_more() -> None:
    """When hundreds have ended for good, the next one is not brought up."""
    waiting: Returns[int] = Returns()
    for number in range(1500):
        waiting.ended(number, 1, float(number))
        waiting.candidates(float(number), 10**6)
    named(waiting, 1500 + EDGES[-1])
    assert len(waiting) == 0
    waiting.ended(1, 1, 50_000.0)
    assert not [second for second in range(4000) if waiting.candidates(50_000.0 + second, 1)]


def test_a_call_is_short_and_the_rest_follows() -> None:
    """However many are due, a call looks at some; all are named in the end, each once in an interval."""
    waiting: Returns[int] = Returns()
    for number in range(1000):
        waiting.ended(number, 1, 0.0)
    first = waiting.candidates(29.0, 10**6) + waiting.candidates(31.0, 7)
    assert len(first) <= 7
    found = list(first)
    for _ in range(100):
        found += waiting.candidates(31.0, 50)
    assert sorted(found) == list(range(1000))


def test_memory_is_bounded() -> None:
    """Conversations beyond the most are not waited for; turn after turn of one leaves one entry."""
    waiting: Returns[int] = Returns()
    random = Random()
    for number in range(5000):
        waiting.ended(random.randrange(20), number, float(number))
    assert len(waiting) == 20
    assert len(waiting._steps) <= 64 + 2 * 20 + 1
    for number in range(returns.MOST_WAITING + 10):
        waiting.ended(number, 1, 5000.0)
    assert len(waiting) == returns.MOST_WAITING
