"""Programs under supervisord: restarts, one listening socket that never closes, and no orphan after any kill."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import GatewayConfig
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.instance import claim
from gateway.embedded.programs import Plan, Program
from gateway.embedded.supervise import ProcessState, Supervisor
from gateway.embedded.tethered import tethered
from tests.product import free_port, wait_for

# Waits as an event loop does: a connection wakes all that poll, where a blocking accept() may wake a frozen one alone.
ANSWER_PID = """
import os, select, socket
listener = socket.socket(fileno=0)
listener.setblocking(False)
poll = select.poll()
poll.register(listener, select.POLLIN)
while True:
    poll.poll()
    try:
        connection = listener.accept()[0]
    except BlockingIOError:
        continue
    connection.sendall(str(os.getpid()).encode())
    connection.close()
"""


@pytest.fixture
def web(tmp_path: Path) -> str:
    """Code of a web process: it answers each connection with its pid."""
    script = tmp_path / "web.py"
    script.write_text(ANSWER_PID)
    return f"exec(open({str(script)!r}).read())"


def _program(name: str, code: str, **changes: object) -> Program:
    command = tuple(tethered([sys.executable, "-c", code]))
    return Program(name=name, command=command, stage=0, stop_stage=0, **changes)  # type: ignore[arg-type]


@contextlib.contextmanager
def _running(var_dir: Path, *programs: Program) -> Iterator[Supervisor]:
    config = GatewayConfig(var_dir=var_dir, port=free_port())
    with claim(config) as instance:
        plan = Plan(programs=programs, environment=dict(os.environ), postgres=None, redis=None)
        supervisor = Supervisor(instance, plan)
        try:
            wait_for(supervisor.answers, 90, "supervisord")
            yield supervisor
        finally:
            supervisor.kill()


def _state(supervisor: Supervisor, program: str) -> ProcessState:
    return next(state for state in supervisor.states() if state.program == program)


def _ask(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        return int(connection.recv(20))


def _port(supervisor: Supervisor) -> int:
    return supervisor.instance.port


def test_connections_wait_while_the_only_web_process_restarts(tmp_path: Path, web: str) -> None:
    """Between the kill and the new process a connection is queued by the kernel, never refused."""
    with _running(tmp_path / "var", _program("web", web, listens=True)) as supervisor:
        first = _ask(_port(supervisor))
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{first}/exe").exists(), 90, "the process to end")
        answers = {_ask(_port(supervisor)) for _ in range(20)}
        assert first not in answers


def test_web_processes_share_the_socket(tmp_path: Path, web: str) -> None:
    """With one of two web processes killed the other one answers at once."""
    with _running(tmp_path / "var", _program("web", web, listens=True, processes=2)) as supervisor:
        wait_for(lambda: all(state.pid for state in supervisor.states()), 90, "both processes")
        pids = {state.pid for state in supervisor.states()}
        assert len(pids) == 2
        killed = _ask(_port(supervisor))
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{killed}/exe").exists(), 90, "the process to end")
        wait_for(lambda: _ask(_port(supervisor)) in pids - {killed}, 90, "an answer of the other process")


def test_a_program_that_cannot_start_is_given_up(tmp_path: Path) -> None:
    """After a few tries it is FATAL, and its log says why."""
    with _running(tmp_path / "var", _program("bad", "raise SystemExit('no such model')")) as supervisor:
        wait_for(lambda: _state(supervisor, "bad").state == "FATAL", 90, "supervisord to give up")
        assert "no such model" in _state(supervisor, "bad").log.read_text()


def test_killed_supervisord_leaves_no_child(tmp_path: Path) -> None:
    """`kill -9` of supervisord ends what it started, and the next question says that it is gone."""
    sleeper = _program("sleeper", "import time; time.sleep(600)")
    with _running(tmp_path / "var", sleeper) as supervisor:
        wait_for(lambda: _state(supervisor, "sleeper").pid, 90, "the program")
        child = _state(supervisor, "sleeper").pid
        os.kill(supervisor.process.pid, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{child}").exists(), 90, "the child to end")
        supervisor.process.wait(60)
        with pytest.raises(EmbeddedError, match="supervisord stopped"):
            supervisor.states()


def test_asking_a_dying_supervisord_says_that_it_stopped(tmp_path: Path) -> None:
    """Whenever between its connections' end and its own it is asked: one reason, never a broken connection."""
    with _running(tmp_path / "var", _program("one", "import time; time.sleep(600)")) as supervisor:
        os.kill(supervisor.process.pid, signal.SIGKILL)
        with pytest.raises(EmbeddedError, match="supervisord stopped"):
            list(iter(supervisor.states, None))  # for as long as it answers


def test_secrets_are_not_in_the_configuration(tmp_path: Path) -> None:
    """The children inherit the environment; the file on disk has none of it."""
    with _running(tmp_path / "var", _program("one", "import time; time.sleep(600)")) as supervisor:
        text = (supervisor.instance.run_dir / "supervisor.conf").read_text()
        assert os.environ["KEY_PEPPER"] not in text
