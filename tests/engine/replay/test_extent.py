"""How much is replayed, and how finely."""

from engine.replay.extent import choose
from engine.replay.story import Call, Output


def calls(count: int, num_prompt: int = 160, num_output: int = 160) -> list[Call]:
    """Return requests of ten blocks of prompt and ten of output."""
    return [
        Call(
            at=float(number),
            tenant="minnow",
            priority="standard",
            num_prompt=num_prompt,
            max_tokens=0,
            num_outputs=1,
            deadline_seconds=0.0,
            own_symbol=number,
            outputs={0: Output(num_output)},
        )
        for number in range(count)
    ]


def test_as_fine_as_there_is_time_for() -> None:
    """Token by token where it can be, coarser tokens where it must be, all requests as long as it can be."""
    some = calls(100)
    assert choose(some, 16, 1.5 * 100 * (10 + 160)) == (0, 1)
    assert choose(some, 16, 1.5 * 100 * (10 + 160) - 1) == (0, 2)
    assert choose(some, 16, 1.5 * 100 * (10 + 40)) == (0, 4)
    assert choose(some, 16, 100 * (10 + 10)) == (0, 16)


def test_the_oldest_are_left_out() -> None:
    """In the coarsest grain, as many of the newest as there is time for, one at least."""
    some = calls(100)
    assert choose(some, 16, 30 * 20) == (70, 16)
    assert choose(some, 16, 30 * 20 + 19) == (70, 16)
    assert choose(some, 16, 0) == (99, 16)
    assert choose(some[:1], 16, 0) == (0, 16)


def test_the_grain_divides_the_block() -> None:
    """Whatever a block's size is."""
    assert choose(calls(10), 24, 1.5 * 10 * (7 + 160 / 5)) == (0, 6)
    assert choose(calls(10), 1, 10 * 320) == (0, 1)
