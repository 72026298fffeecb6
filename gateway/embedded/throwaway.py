"""Serve a throw-away Postgres and Redis in a folder until stdin closes: `python -m gateway.embedded.throwaway DIR`.

For test runs. Prints one line, `ready`, when both answer. Whatever ends the caller, kill -9 included, closes stdin: the
servers stop and the folder goes.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gateway.embedded.errors import EmbeddedError
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.redis import EmbeddedRedis

START_SECONDS = 60
STOP_SECONDS = 10


def servers(folder: Path) -> tuple[EmbeddedPostgres, EmbeddedRedis]:
    """Return the two servers of `folder`; their addresses are known before they run."""
    postgres = EmbeddedPostgres(data_dir=folder / "data", socket_dir=folder / "pg", durable=False)
    redis = EmbeddedRedis(data_dir=folder / "redis", socket_path=folder / "redis.sock", durable=False)
    return postgres, redis


def serve(folder: Path) -> None:
    """Start both servers, say so, wait for the end of stdin, stop them and remove the folder."""
    postgres, redis = servers(folder)
    running: list[subprocess.Popen[bytes]] = []
    try:
        redis.initialise()
        running.append(_start(redis.command(parent=os.getpid()), folder / "redis.log"))
        postgres.initialise()
        running.append(_start(postgres.command(parent=os.getpid()), folder / "postgres.log"))
        _await(running, folder, lambda: redis.is_ready() and postgres.is_ready())
        postgres.create_database()
        with contextlib.suppress(BrokenPipeError):  # the caller is gone: stdin says so too
            print("ready", flush=True)
        sys.stdin.buffer.read()
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _start(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as stream:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd="/")


def _await(running: "list[subprocess.Popen[bytes]]", folder: Path, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        dead = any(process.poll() is not None for process in running)
        if dead or time.monotonic() > deadline:
            logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(folder.glob("*.log")))
            raise EmbeddedError(f"The throw-away servers did not start:\n{logs}")
        time.sleep(0.02)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends pytest, which closes our stdin
    serve(Path(sys.argv[1]))
