"""When a given-up program is tried again."""

from gateway.embedded.restarts import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Restarts


def _start_time(restarts: Restarts, since: float) -> float:
    """Return when a program that is down since `since` is started, to a tenth of a second."""
    ticks = (since + tick / 10 for tick in range(10_000))
    return next(now for now in ticks if restarts.due(["web"], now) == ["web"])


def test_the_pause_doubles_up_to_its_limit() -> None:
    """A program that dies at once after each start is tried ever more rarely, but for ever."""
    restarts = Restarts()
    now, pauses = 0.0, []
    for _ in range(8):
        started = _start_time(restarts, now)
        pauses.append(round(started - now, 1))
        now = started + 0.1
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert pauses[0] == FIRST_PAUSE_SECONDS


def test_a_long_good_run_is_forgiven() -> None:
    """After it the first pause applies again."""
    restarts = Restarts()
    first = _start_time(restarts, 0.0)
    second = _start_time(restarts, first + 0.1)
    later = second + 3 * LONGEST_PAUSE_SECONDS
    assert round(_start_time(restarts, later) - later, 1) == FIRST_PAUSE_SECONDS


def test_programs_do_not_share_a_pause() -> None:
    """One that fails often does not hold up another."""
    restarts = Restarts()
    _start_time(restarts, 0.0)
    assert restarts.due(["web", "beat"], 3.0) == []
    assert restarts.due(["web", "beat"], 3.0 + FIRST_PAUSE_SECONDS) == ["beat"]
