"""Fixtures of the controller's tests: a real Postgres and Redis, a controller in this process or in one of its own."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg.conninfo import make_conninfo

from gateway.controller.main import ControllerSettings, control
from gateway.controller.threads import DatabaseThreads
from gateway.database import conninfo
from tenants.contracts import Actor
from tenants.services.policy import set_policy
from tenants.services.tenants import create_tenant
from tests.gateway.controller.scripted_worker import TOKEN

ROOT = Path(__file__).resolve().parent.parent.parent.parent
SYSTEM = Actor("system", "test", "test")


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until `condition` is true and return its value; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        await asyncio.sleep(0.005)
    return value


async def until_stored(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """As `until`, for a condition that asks the database."""
    deadline = time.monotonic() + seconds
    while not (value := await in_thread(condition)):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        await asyncio.sleep(0.02)
    return value


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run a blocking database function in a thread that closes its connection."""

    def run() -> Any:
        try:
            return function()
        finally:
            connection.close()

    return await asyncio.to_thread(run)


def controller_settings(**changes: str) -> ControllerSettings:
    """Return the settings of a controller on the test's database."""
    values = {
        "conninfo": conninfo(connection.settings_dict),
        "redis_url": settings.REDIS_URL,
        "token": TOKEN,
    } | changes
    return ControllerSettings(**values)


@asynccontextmanager
async def controller(**changes: str) -> AsyncIterator["asyncio.Task[None]"]:
    """Run a controller in this process."""
    threads = DatabaseThreads()
    task = asyncio.create_task(control(controller_settings(**changes), threads))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(threads.close)


@dataclass(frozen=True)
class Process:
    """A controller in a process of its own."""

    popen: "subprocess.Popen[bytes]"
    log_file: Path

    def log(self) -> str:
        """Return what it has logged."""
        return self.log_file.read_text()

    def kill(self) -> None:
        """Kill it with no chance to say goodbye."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(60)


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `manage.py controller`, or a script in its place, on the test's database."""
    started: list[Process] = []

    def start(*command: str) -> Process:
        database = connection.settings_dict
        url = f"postgres://{database['USER']}:{database['PASSWORD']}@/{database['NAME']}?host={database['HOST']}"
        if database["PORT"]:
            url += f"&port={database['PORT']}"
        log_file = tmp_path / f"controller-{len(started)}.log"
        with log_file.open("wb") as log:
            popen = subprocess.Popen(
                [sys.executable, *(command or ("manage.py", "controller"))],
                cwd=ROOT,
                env=os.environ | {"DATABASE_URL": url, "ENGINE_TOKEN": TOKEN},
                stdout=log,
                stderr=log,
            )
        started.append(Process(popen, log_file))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def without_postgres(transactional_db: None) -> Callable[[], AbstractContextManager[None]]:
    """Give a block in which the test's database lets nobody in, its controllers' open connections cut."""
    database = connection.settings_dict["NAME"]
    admin = make_conninfo(conninfo(connection.settings_dict), dbname="postgres")
    with connection.cursor() as cursor:  # the test's own connection stays
        cursor.execute("SELECT pg_backend_pid()")
        [own] = cursor.fetchone()

    @contextmanager
    def away() -> Iterator[None]:
        with psycopg.connect(admin, autocommit=True) as session:
            session.execute(f'ALTER DATABASE "{database}" WITH ALLOW_CONNECTIONS false')
            try:
                session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> %s",
                    [database, own],
                )
                yield
            finally:
                session.execute(f'ALTER DATABASE "{database}" WITH ALLOW_CONNECTIONS true')

    return away


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Give a folder whose path is short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        yield Path(folder)


@pytest.fixture
def tenant(transactional_db: None) -> str:
    """Create a tenant with a hard limit of 100 MiB and return its id."""
    view = create_tenant(
        slug="minnow", name="Minnow", actor=SYSTEM, policy={"kv_hard_bytes": 100 << 20, "max_running": 8}
    )
    return view.id


def set_hard(tenant_id: str, expected_version: int, hard: int, **more: int) -> int:
    """Write a tenant's hard limit, and more of its limits, and return the new version."""
    changes = {"kv_hard_bytes": hard, **more}
    return set_policy(tenant_id=tenant_id, expected_version=expected_version, changes=changes, actor=SYSTEM).version
