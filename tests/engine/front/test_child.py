"""How the front starts, awaits and kills its child."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from engine.__main__ import loop_factory
from engine.front.child import Child

# In a process of its own: handlers of a fork cannot be taken back.
FORK_TRAP = """
import asyncio, os, sys
from engine.__main__ import loop_factory
from engine.front.child import Child

async def story():
    child = Child((sys.executable, "-S", "-c", "print('the program ran', flush=True)"), {})
    assert await child.wait() == 0

os.register_at_fork(before=lambda: print("handler before a fork"), after_in_child=lambda: os._exit(9))
with asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(story())
"""

LOOPS = [None, loop_factory()]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a story on an event loop of its own."""

    def on_a_loop(story: object) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(story)  # type: ignore[arg-type]

    return on_a_loop


def test_no_handler_of_a_fork_runs() -> None:
    """Nothing that other libraries have registered for a fork runs when a child is started, neither here nor in it.

    In such a handler gRPC waited, in the child, for a lock that no thread of the child held: the program never came to
    run, and the event loop, which waited for its exec, stood still with every stream.
    """
    ran = subprocess.run(
        [sys.executable, "-c", FORK_TRAP], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
    )
    assert (ran.stdout.decode(), ran.returncode) == ("the program ran\n", 0)


def test_end_and_status(run: Callable[..., None]) -> None:
    """Everybody who waits gets the exit status, also who comes after the end."""

    async def story() -> None:
        child = Child((sys.executable, "-S", "-c", "raise SystemExit(3)"), {})
        assert child.status is None
        assert await asyncio.gather(child.wait(), child.wait()) == [3, 3]
        assert (await child.wait(), child.status, child.was_killed) == (3, 3, False)

    run(story())


def test_kill(run: Callable[..., None]) -> None:
    """A kill ends it with signal 9, even if it is stopped; another one after its end is nobody's business."""

    async def story() -> None:
        child = Child(("/bin/sleep", "600"), {})
        os.kill(child.pid, signal.SIGSTOP)
        child.kill()
        assert await child.wait() == -signal.SIGKILL
        child.kill()

    run(story())


def test_process_id_is_kept_until_the_loop_knows(run: Callable[..., None]) -> None:
    """A child that has ended is reaped by the loop alone, so that a kill before that cannot meet another process."""

    async def story() -> None:
        child = Child(("/bin/true",), {})
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  # the loop shall stand still
        assert ended is not None
        assert child.status is None
        os.kill(child.pid, 0)  # it is still there, as a zombie
        assert await child.wait() == 0

    run(story())


def test_not_there(run: Callable[..., None]) -> None:
    """What cannot be started says so."""

    async def story() -> None:
        with pytest.raises(FileNotFoundError):
            Child(("/nowhere/to-be-found",), {})

    run(story())
