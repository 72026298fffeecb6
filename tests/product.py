"""The whole product in a test: a real `manage.py up` on a free port, with data of its own.

    with running_product(tmp_path / "var", {"ENGINE_MODEL": str(make_tiny_model(tmp_path / "tiny"))}) as product:
        OpenAI(base_url=product.serve["base_url"], api_key=product.serve["tenants"]["minnow"]["api_key"])

Most tests take the session's `product` fixture (tests/conftest.py), which serves a tiny random checkpoint.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.embedded.tethered import tethered_here

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 150
STOP_SECONDS = 90
# The run's own servers and secrets are not the product's: it brings its own.
NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "KEY_PEPPER", "ENGINE_TOKEN", "TOLLGATE_PARENT_PID")


@dataclass
class RunningProduct:
    """One `manage.py up`."""

    process: "subprocess.Popen[bytes]"
    var_dir: Path
    port: int
    output: Path  # what `up` said
    started_at: float = field(default_factory=time.time)
    serve: dict[str, Any] = field(default_factory=dict)  # the content of serve.json

    def log(self, program: str) -> str:
        """Return a process's log."""
        return (self.var_dir / "log" / f"{program}.log").read_text(errors="replace")

    def said(self) -> str:
        """Return what `up` wrote on its terminal."""
        return self.output.read_text(errors="replace")

    def processes(self) -> dict[int, str]:
        """Return pid and command line of every process of this instance, `up` included."""
        mark = f"TOLLGATE_VAR={self.var_dir}".encode()
        return {pid: command for pid, command in _all_processes() if _belongs(pid, mark, str(self.var_dir), command)}

    def wait_ready(self) -> None:
        """Wait for serve.json and read it."""
        path = self.var_dir / "serve.json"

        def written() -> bool:  # by this instance: a killed one leaves its own
            return path.exists() and path.stat().st_mtime >= self.started_at

        wait_for(lambda: written() or self.process.poll() is not None, READY_SECONDS, "serve.json", self.told)
        assert written(), f"`manage.py up` ended with {self.process.returncode}:\n{self.said()}"
        self.serve = json.loads(path.read_text())

    def told(self) -> str:
        """Return what `up` printed and the last lines of every process."""
        logs = sorted((self.var_dir / "log").glob("*.log"))
        return "\n".join([self.said(), *(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)])

    def redis_url(self) -> str:
        """Return the address of the product's own Redis, as its controller knows it."""
        [controller] = [pid for pid, command in self.processes().items() if "manage.py controller" in command]
        for variable in Path(f"/proc/{controller}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"REDIS_URL="):
                return variable.removeprefix(b"REDIS_URL=").decode()
        raise AssertionError("the controller has no REDIS_URL")

    def stop(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


def start_product(
    var_dir: Path, env: Mapping[str, str], *, port: int = 0, output: Path | None = None
) -> RunningProduct:
    """Start `manage.py up` without waiting for it. `port` 0: a free one; `output`: beside `var_dir` by default."""
    port = port or free_port()
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    settings = {"TOLLGATE_VAR": str(var_dir), "PORT": str(port), "ENGINE_KV_BYTES": "64MiB"}
    output = output or var_dir.with_name(f"{var_dir.name}.{port}.out")
    started_at = time.time()
    with output.open("wb") as stream:
        process = subprocess.Popen(
            # Tied to the run's life: a killed pytest leaves no product behind.
            tethered_here([sys.executable, "manage.py", "up"], options=["--signal", "TERM"]),
            cwd=ROOT,
            env=inherited | settings | dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    return RunningProduct(process=process, var_dir=var_dir, port=port, output=output, started_at=started_at)


@contextlib.contextmanager
def running_product(var_dir: Path, env: Mapping[str, str]) -> Iterator[RunningProduct]:
    """Start the product, wait until it is ready, stop it at the end."""
    product = start_product(var_dir, env)
    try:
        product.wait_ready()
        yield product
    finally:
        try:
            product.stop()
        finally:
            product.process.kill()
            product.process.wait()


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(done: Callable[[], object], seconds: float, what: str, explain: Callable[[], str] = str) -> None:
    """Wait until `done` is true; fail with `what` and `explain()` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}\n{explain()}"
        time.sleep(0.05)


def _all_processes() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state != "Z":
                    yield (
                        int(entry.name),
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                    )


def _belongs(pid: int, mark: bytes, var_dir: str, command: str) -> bool:
    # Postgres and Redis run without our environment, but name their folder; Postgres' children are in its group.
    if var_dir in command:
        return True
    with contextlib.suppress(OSError):
        entry = Path("/proc") / str(pid)
        if mark in (entry / "environ").read_bytes().split(b"\0"):
            return True
        return (entry / "cwd").readlink().is_relative_to(var_dir)
    return False
