"""Start the whole product, watch it, stop it: what `manage.py up` does between its lock and its end."""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config import ROOT, GatewayConfig
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.instance import Instance
from gateway.embedded.programs import plan
from gateway.embedded.readiness import Readiness
from gateway.embedded.restarts import Restarts
from gateway.embedded.secret_store import load_secrets
from gateway.embedded.serve_file import serve_json
from gateway.embedded.stopping import StopSignals
from gateway.embedded.supervise import ProcessState, Supervisor
from gateway.embedded.tethered import tethered_here

START_SECONDS = 300  # a large model takes its time; a program that fails ends the wait at once
HASTE_SECONDS = 5  # a stop waits so long for streams, then ends them
STAGE_SECONDS = 12  # then SIGKILL
LOG_LINES = 12


class Product:
    """The processes of one instance."""

    def __init__(self, config: GatewayConfig, instance: Instance, signals: StopSignals) -> None:
        self._instance = instance
        self._signals = signals
        self._plan = plan(config, instance, load_secrets(instance.secrets_file).environment(os.environ))
        self._public_url = config.base_url if config.public_url else instance.local_url
        self._supervisor: Supervisor | None = None

    def start(self) -> dict[str, Any]:
        """Start everything and return the content of `serve.json` once a request can be served.

        Raises:
            EmbeddedError: a program failed; the message has its name and its last lines.
            StopRequested: a signal came meanwhile.
        """
        for server in (self._plan.redis, self._plan.postgres):
            if server is not None:
                server.initialise()
        supervisor = self._supervisor = Supervisor(self._instance, self._plan)
        self._wait(supervisor.answers, lambda: "supervisord")
        self._prepare()
        demo = load_secrets(self._instance.secrets_file).demo  # read again: keys that were revoked have successors
        supervisor.start(self._names(stage=1))
        readiness = Readiness(self._instance.local_url, self._plan.environment["REDIS_URL"], demo)
        self._wait(lambda: not readiness.missing(), readiness.missing)
        supervisor.start(self._names(stage=2))
        return serve_json(self._public_url, readiness.models()[0], demo)

    def watch(self) -> None:
        """Stay until a signal asks for the end; start again what supervisord has given up.

        Raises:
            StopRequested: the usual end.
            EmbeddedError: supervisord itself died.
        """
        assert self._supervisor is not None
        restarts = Restarts()
        while True:
            self._signals.pause()
            given_up = [state.program for state in self._supervisor.states() if state.state == "FATAL"]
            self._supervisor.start(restarts.due(given_up, time.monotonic()))

    def stop(self) -> None:
        """Stop all in order, streams first; whatever is slow is killed. No process is left when this returns."""
        supervisor = self._supervisor
        if supervisor is None:
            return
        try:
            for stage in sorted({program.stop_stage for program in self._plan.programs}, reverse=True):
                self._stop_stage(supervisor, stage)
            supervisor.process.terminate()
            supervisor.process.wait(STAGE_SECONDS)
        except (EmbeddedError, OSError, http.client.HTTPException, subprocess.TimeoutExpired):
            self._give_up(supervisor)

    def _give_up(self, supervisor: Supervisor) -> None:
        """End a supervisord that does not answer: it may be starting still, and then stops its children in order."""
        supervisor.process.terminate()
        try:
            supervisor.process.wait(STAGE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            supervisor.kill()  # it hangs: the kernel takes its children along

    def _stop_stage(self, supervisor: Supervisor, stage: int) -> None:
        names = [program.name for program in self._plan.programs if program.stop_stage == stage]
        supervisor.stop(names)
        begun, hurried, requests = time.monotonic(), False, self._signals.requests
        while left := [state for state in supervisor.states() if state.program in names and not state.stopped]:
            waited = time.monotonic() - begun
            if waited > STAGE_SECONDS or self._signals.requests > max(requests, 1):
                supervisor.signal([state.program for state in left], "KILL")
                begun, requests = time.monotonic(), self._signals.requests
            elif waited > HASTE_SECONDS and not hurried:
                supervisor.signal([state.program for state in left if state.program == "web"], "INT")
                hurried = True
            time.sleep(0.05)

    def _prepare(self) -> None:
        """Migrate and make the demo tenants, in a process that has the children's environment."""
        flags = ["--private-server"] if self._plan.postgres is not None else []
        log = self._instance.log_dir / "prepare.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                tethered_here([sys.executable, "manage.py", "prepare", *flags]),
                cwd=ROOT,
                env=dict(self._plan.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._wait(lambda: process.poll() is not None, lambda: "the database to be prepared")
        if process.returncode:
            raise EmbeddedError(f"The database could not be prepared.\n{_tail(log)}")

    def _names(self, *, stage: int) -> list[str]:
        return [program.name for program in self._plan.programs if program.stage == stage]

    def _wait(self, done: Callable[[], bool], what: Callable[[], str]) -> None:
        """Wait for `done`, as long as no program fails and nobody asks us to stop."""
        deadline = time.monotonic() + START_SECONDS
        while not done():
            self._signals.pause()
            assert self._supervisor is not None
            self._supervisor.check_alive()
            if self._supervisor.answers():
                self._check_programs(self._supervisor.states())
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"Gave up after {START_SECONDS} s of waiting for {what()}: see {self._instance.log_dir}"
                )

    def _check_programs(self, states: list[ProcessState]) -> None:
        for state in states:
            if state.state == "FATAL":
                raise EmbeddedError(f"{state.program} could not start.\n{_tail(state.log)}")


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = text.strip().splitlines()[-LOG_LINES:] or ["(it said nothing)"]
    return "\n".join(f"    {line}" for line in lines) + f"\n  All of it: {log}"
