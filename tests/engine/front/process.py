"""A worker process under test: started with its own state folder, watched through its log, never left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKEN = "worker-token-of-the-test"
REPOSITORY = Path(__file__).parents[3]
DEADLINE_SECONDS = 60.0


def wait_for(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """Return the first true value of `condition`; fail when none comes in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {seconds} s for {what}")


class WorkerProcess:
    """One `python -m engine`, or the same front over a scripted core."""

    def __init__(self, folder: Path, model: Path, *, scripted: bool, **settings: str) -> None:
        self.folder = folder
        self.address = f"unix:{folder}/engine.sock"
        self._log = Path(tempfile.mkstemp(prefix="log-", dir=folder)[1])
        self._module = "tests.engine.front.scripted_worker" if scripted else "engine"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ENGINE_")},
            "ENGINE_MODEL": str(model),
            "ENGINE_MODEL_NAME": "tiny",
            "ENGINE_ADDRESS": self.address,
            "ENGINE_TOKEN": TOKEN,
            "ENGINE_STATE_DIR": str(folder / "state"),
            "ENGINE_KV_BYTES": "32MiB",
            "ENGINE_THREADS": "1",
            "ENGINE_DTYPE": "float32",
            "ENGINE_PREVIEW_NICE": "0",  # nothing on a machine under tests is idle
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The front's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def core_pid(self) -> int:
        """The process id of the newest core."""
        return int(self.events("core_started")[-1]["pid"])

    def start(self) -> "WorkerProcess":
        """Start the process without waiting for anything."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module], cwd=REPOSITORY, env=self._environment, stderr=log, stdout=log
            )
        return self

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the front's log events of one name."""
        lines = self._log.read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in events if event["event"] == name and event["process"] == "engine"]

    def wait_ready(self, cores: int = 1) -> "WorkerProcess":
        """Wait until `cores` cores in all have become ready, and the model is read."""
        wait_for(lambda: self._alive() and len(self.events("core_ready")) >= cores, f"core {cores} to be ready")
        wait_for(lambda: self._alive() and self.events("model_read"), "the model")
        return self

    def kill(self) -> None:
        """Kill the front with SIGKILL and wait for its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """Ask the front to stop and return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=DEADLINE_SECONDS)

    def wait(self) -> int:
        """Return the exit status of a front that ends by itself."""
        assert self._process is not None
        return self._process.wait(timeout=DEADLINE_SECONDS)

    def text(self) -> str:
        """Return everything that the process wrote."""
        return self._log.read_text()

    def close(self) -> None:
        """Leave nothing running."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _alive(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the worker ended:\n{self.text()}"
        return True


def process_runs(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
