"""A server of any make: wait until it has answered, freeze it, thaw it, end it for sure.

`bench.peers.starts` starts them. Nothing here is asynchronous but the client: a bench does one thing at a time.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.peers.client import Endpoint, complete
from bench.peers.environment import PeerError
from bench.peers.freezer import Freezer
from gateway.embedded.tethered import tethered_here
from tests.product import RunningProduct, free_port, start_product

READY_SECONDS = 600  # vLLM compiles at its first start
STOP_SECONDS = 30
LAST_LINES = 25


class Server(Protocol):
    """A server that has answered once."""

    name: str
    endpoint: Endpoint
    start_seconds: float  # from the start of its first process to the end of its first answer, of one token

    def freeze(self) -> None:
        """Stop all of its processes in mid-air."""
        ...

    def thaw(self) -> None:
        """Let them go on, and wait until it answers."""
        ...

    def stop(self) -> None:
        """End it, frozen or not; return when nothing of it is left."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run: a command that takes `--host` and `--port`, and serves a model named bench."""

    command: Sequence[str]
    environment: Mapping[str, str]
    extra: Mapping[str, object] = field(default_factory=dict)  # fields that its requests need


class PeerServer:
    """A peer, in a process group of its own."""

    def __init__(self, name: str, program: Program, *, log: Path, freezer: Freezer) -> None:
        """Start it and return when it has answered.

        Raises:
            PeerError: it ended, or took too long; with its last lines.
        """
        self.name = name
        self._freezer = freezer
        port = free_port()
        self.endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="bench", extra=program.extra)
        began = time.perf_counter()
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                # Tied to this process's life: a killed run leaves no server behind.
                tethered_here(
                    [*program.command, "--host", "127.0.0.1", "--port", str(port)], options=["--signal", "TERM"]
                ),
                cwd=log.parent,
                env=os.environ | dict(program.environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:
            _wait_answer(self.endpoint, lambda: self._process.poll() is None, lambda: _last_lines(name, log))
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.perf_counter() - began

    def freeze(self) -> None:
        """See `Server.freeze`."""
        self._freezer.freeze([-self._process.pid])

    def thaw(self) -> None:
        """See `Server.thaw`."""
        self._freezer.thaw([-self._process.pid])
        _wait_answer(self.endpoint, lambda: self._process.poll() is None, lambda: f"{self.name} was thawed")

    def stop(self) -> None:
        """See `Server.stop`: in order, then by force."""
        self._freezer.thaw([-self._process.pid])
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + STOP_SECONDS
            alive = _signal_group(self._process.pid, number)
            while alive and time.monotonic() < deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.1)
                time.sleep(0.1)
                alive = _signal_group(self._process.pid, 0)
        self._process.wait()


class OurServer:
    """The whole product: web, controller, celery, engine, Postgres, Redis."""

    def __init__(self, name: str, var_dir: Path, environment: Mapping[str, str], *, freezer: Freezer) -> None:
        """Start `manage.py up` and return when it has answered.

        Raises:
            AssertionError: it did not come up; with what it said.
            PeerError: it does not answer.
        """
        self.name = name
        self._freezer = freezer
        self._frozen: list[int] = []
        began = time.perf_counter()
        self._product: RunningProduct = start_product(var_dir, environment)
        try:
            self._product.wait_ready()
            serve = self._product.serve
            key = serve["tenants"]["whale"]["api_key"]
            self.endpoint = Endpoint(base_url=serve["base_url"], model=serve["model"], key=key)
            _wait_answer(self.endpoint, lambda: self._product.process.poll() is None, self._product.told)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.perf_counter() - began

    @property
    def serve(self) -> Mapping[str, Any]:
        """What its var/serve.json says: addresses and credentials."""
        return self._product.serve

    @property
    def redis_url(self) -> str:
        """The address of its own Redis."""
        return self._product.redis_url()

    def processes(self) -> dict[int, str]:
        """Return pid and command line of each of its processes."""
        return self._product.processes()

    def freeze(self) -> None:
        """See `Server.freeze`."""
        self._frozen = list(self._product.processes())
        self._freezer.freeze(self._frozen)

    def thaw(self) -> None:
        """See `Server.thaw`."""
        self._freezer.thaw(self._frozen)
        _wait_answer(self.endpoint, lambda: self._product.process.poll() is None, self._product.told)

    def stop(self) -> None:
        """See `Server.stop`: the product ends its own processes in order, and they end with it by force."""
        self._freezer.thaw(self._frozen)
        try:
            self._product.stop()
        finally:
            self._product.process.kill()
            self._product.process.wait()


def _wait_answer(endpoint: Endpoint, alive: Callable[[], bool], explain: Callable[[], str]) -> None:
    """Ask for one token until it comes."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            asyncio.run(complete(endpoint, "The river", max_tokens=1))
            return
        except (OSError, EOFError, PeerError) as error:  # nobody listens yet, or not all of it is up
            if not alive():
                raise PeerError(f"the server has ended:\n{explain()}") from error
            if time.monotonic() > deadline:
                raise PeerError(f"no answer in {READY_SECONDS} s, last {error!r}:\n{explain()}") from error
        time.sleep(0.05)


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group; say whether there was anybody."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _last_lines(name: str, log: Path) -> str:
    return f"{name}: " + "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
