"""The private Redis: a socket and no port, data that outlives an orderly stop."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from gateway.embedded.redis import EmbeddedRedis
from tests.product import wait_for


@pytest.fixture
def server(tmp_path: Path) -> EmbeddedRedis:
    """A server that does not run."""
    made = EmbeddedRedis(data_dir=tmp_path / "data", socket_path=tmp_path / "r.sock")
    made.initialise()
    return made


@pytest.fixture
def run(server: EmbeddedRedis) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Processes to end with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.terminate()
        process.wait(60)


def _start(server: EmbeddedRedis) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(server.command(parent=os.getpid()), stdout=subprocess.DEVNULL)
    wait_for(server.is_ready, 90, "Redis")
    return process


def test_it_keeps_data_over_a_restart_and_has_no_port(
    server: EmbeddedRedis, run: "list[subprocess.Popen[bytes]]"
) -> None:
    """An orderly stop saves; the next start reads."""
    first = _start(server)
    run.append(first)
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "7")
        assert client.config_get("port") == {"port": "0"}
    first.terminate()
    first.wait(60)
    run.append(_start(server))
    with redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"7"


def test_it_is_not_ready_before_it_runs(server: EmbeddedRedis) -> None:
    """A missing socket is an answer, no error."""
    assert not server.is_ready()
