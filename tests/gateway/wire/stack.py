"""A deployment in a test: a database of its own, a web process, a controller and engine workers, all real.

stack.tenant("a").key()                -> a raw key of a new tenant
stack.workers["tiny"].core_pid()       -> something to kill
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import psycopg
from openai import OpenAI

from gateway.embedded.tethered import tethered_here
from tests.product import free_port

ROOT = Path(__file__).resolve().parent.parent.parent.parent
START_SECONDS = 150


def wait_for(
    done: Callable[[], Any], seconds: float = 60.0, what: str = "a condition", explain: Callable[[], str] = str
) -> Any:
    """Wait until `done` is true and return its value; fail with `what` and `explain()`."""
    deadline = time.monotonic() + seconds
    while not (value := done()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}\n{explain()}"
        time.sleep(0.01)
    return value


class Process:
    """A child process with a log, tied to the life of the test run."""

    def __init__(
        self, name: str, command: list[str], env: Mapping[str, str], folder: Path, stdin: Any = subprocess.DEVNULL
    ) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("ab") as log:
            self.popen = subprocess.Popen(
                tethered_here(command), cwd=ROOT, env=dict(env), stdin=stdin, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    def log(self) -> str:
        """Return what it wrote."""
        return self.log_path.read_text(errors="replace")

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Send a signal and wait for the end; kill what stays."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f"{self.name} did not end within {seconds} s:\n{self.log()[-3000:]}") from None


@dataclass
class EngineWorker:
    """One `python -m engine`."""

    process: Process
    address: str

    def core_pid(self) -> int:
        """Return the pid of its core process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        cores = [int(pid) for pid in children if b"engine.core" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(cores) == 1, children
        return cores[0]


@dataclass
class TenantInTest:
    """A tenant made for one test."""

    stack: "Stack"
    id: str
    slug: str

    def key(self, **options: Any) -> str:
        """Create a key and return its secret."""
        return str(self.stack.seed(do="key", tenant_id=self.id, options=options)["secret"])

    def policy(self, **changes: Any) -> int:
        """Change the policy; return the version."""
        return int(self.stack.seed(do="policy", tenant_id=self.id, changes=changes)["version"])

    def usage(self) -> list[dict[str, Any]]:
        """Return the usage records in the ledger."""
        return list(self.stack.seed(do="usage", tenant_id=self.id)["records"])


@dataclass
class Stack:
    """The processes, and how to reach them."""

    folder: Path
    env: dict[str, str]
    port: int
    web: Process
    controller: Process
    workers: dict[str, EngineWorker]
    database: str
    _seed: "subprocess.Popen[str]" = field(repr=False)
    _clients: list[OpenAI] = field(default_factory=list, repr=False)

    @property
    def url(self) -> str:
        """Address of the web process."""
        return f"http://127.0.0.1:{self.port}"

    def seed(self, **request: Any) -> dict[str, Any]:
        """Change the database, see `seed.py`."""
        assert self._seed.stdin is not None and self._seed.stdout is not None
        self._seed.stdin.write(json.dumps(request) + "\n")
        self._seed.stdin.flush()
        line = self._seed.stdout.readline()
        assert line, "the seeding process died, see its stderr above"
        return dict(json.loads(line))

    def tenant(self, **policy: Any) -> TenantInTest:
        """Create a tenant; `policy`: fields that differ from the default."""
        slug = f"t-{uuid.uuid4().hex[:12]}"
        return TenantInTest(self, str(self.seed(do="tenant", slug=slug, fields=policy)["id"]), slug)

    def openai(self, key: str, **options: Any) -> OpenAI:
        """Return the real SDK pointed here."""
        options = {"max_retries": 0, "timeout": 60, "base_url": f"{self.url}/v1"} | options
        self._clients.append(OpenAI(api_key=key, **options))
        return self._clients[-1]

    def close_clients(self) -> None:
        """Close the clients of one test."""
        while self._clients:
            self._clients.pop().close()

    def http(self, key: str = "") -> httpx.Client:
        """Return a plain HTTP client."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def start_web(self, port: int | None = None, **env: str) -> tuple[Process, int]:
        """Start one more web process and wait until it has every worker."""
        process, port = self.start_web_unwaited(port, **env)
        wait_for(lambda: _connected(port, process) == len(self.workers), START_SECONDS, f"web on {port}")
        return process, port

    def start_web_unwaited(self, port: int | None = None, **env: str) -> tuple[Process, int]:
        """Start one more web process."""
        port = port or free_port()
        return Process(f"web-{port}", web_command(port), self.env | env, self.folder), port

    @contextlib.contextmanager
    def without_postgres(self) -> Iterator[None]:
        """Take the database away: every connection is cut and no new one is let in."""
        with psycopg.connect(self.env["ADMIN_URL"], autocommit=True) as admin:
            admin.execute(f'ALTER DATABASE "{self.database}" WITH ALLOW_CONNECTIONS false')
            try:
                self._cut(admin)
                yield
            finally:
                admin.execute(f'ALTER DATABASE "{self.database}" WITH ALLOW_CONNECTIONS true')

    def _cut(self, admin: "psycopg.Connection[Any]") -> None:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        wait_for(lambda: not admin.execute(query, [self.database]).fetchall(), what="the end of all connections")


def web_command(port: int) -> list[str]:
    """Return the command of a web process."""
    http = ["--http", "gateway.http_protocol:HttpProtocol"]
    options = ["--host", "127.0.0.1", "--port", str(port), "--lifespan", "on", "--no-access-log"]
    return [sys.executable, "-m", "uvicorn", "gateway.asgi:application", *http, *options]


def is_ready(port: int, process: Process) -> bool:
    """Ask `/readyz`; fail when the process has died."""
    assert process.popen.poll() is None, process.log()
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 200
    return False


@contextlib.contextmanager
def running_stack(folder: Path, models: Mapping[str, Path], engine: str = "engine") -> Iterator[Stack]:
    """Start a deployment that serves `models` (public name to folder), one worker each; stop it at the end.

    `engine`: the module that is a worker's process.
    """
    admin_url = os.environ["DATABASE_URL"]
    database = f"wire_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{database}"')
    port = free_port()
    env = _environment(admin_url, database, port, folder)
    subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=ROOT, env=env, check=True)
    started: list[Process] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_drop, admin_url, database)
        stack.callback(_stop_all, started)
        web = Process("web", web_command(port), env, folder)
        started.append(web)
        command = [sys.executable, "-m", engine]
        workers = {name: _worker(name, command, model, env, folder, started) for name, model in models.items()}
        controller = Process("controller", [sys.executable, "manage.py", "controller"], env, folder)
        started.append(controller)
        seed = _seeding(env)
        stack.callback(_end, seed)
        wait_for(lambda: _connected(port, web) == len(models), START_SECONDS, "all workers", lambda: _logs(started))
        yield Stack(folder, env, port, web, controller, workers, database, seed)


def _environment(admin_url: str, database: str, port: int, folder: Path) -> dict[str, str]:
    parts = urlsplit(admin_url)
    redis_url = os.environ["REDIS_URL"]
    return dict(os.environ) | {
        "ADMIN_URL": admin_url,
        "DATABASE_URL": urlunsplit(parts._replace(path=f"/{database}")),
        "REDIS_URL": f"{redis_url}?db=1" if redis_url.startswith("unix") else redis_url,
        "PORT": str(port),
        "TOLLGATE_VAR": str(folder / "var"),
        "DRAIN_SECONDS": "3",
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


def _worker(
    name: str, command: list[str], model: Path, env: Mapping[str, str], folder: Path, started: list[Process]
) -> EngineWorker:
    address = f"unix:{folder / name}.sock"
    own = {
        "ENGINE_MODEL": str(model),
        "ENGINE_MODEL_NAME": name,
        "ENGINE_ADDRESS": address,
        "ENGINE_ANNOUNCE_URL": f"http://127.0.0.1:{env['PORT']}",
        "ENGINE_WORKER_ID": f"worker-{name}",
        "ENGINE_STATE_DIR": str(folder / f"state-{name}"),
        "ENGINE_KV_BYTES": "32MiB",
        "ENGINE_DTYPE": "float32",
        "ENGINE_THREADS": "1",
        "ENGINE_POISON": "0",
    }
    process = Process(f"engine-{name}", command, dict(env) | own, folder)
    started.append(process)
    return EngineWorker(process, address)


def _seeding(env: Mapping[str, str]) -> "subprocess.Popen[str]":
    command = tethered_here([sys.executable, "-m", "tests.gateway.wire.seed"])
    return subprocess.Popen(command, cwd=ROOT, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _end(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait(60)


def _connected(port: int, web: Process) -> int:
    assert web.popen.poll() is None, web.log()
    with contextlib.suppress(httpx.TransportError):
        return int(httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).json().get("workers", 0))
    return 0


def _stop_all(processes: list[Process]) -> None:
    with contextlib.ExitStack() as stack:  # one that hangs must not keep the others
        for process in processes:
            stack.callback(process.stop)


def _logs(processes: list[Process]) -> str:
    return "\n".join(f"--- {process.name}\n{process.log()[-3000:]}" for process in processes)


def _drop(admin_url: str, database: str) -> None:
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f'DROP DATABASE "{database}" WITH (FORCE)')
