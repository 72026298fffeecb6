"""Claiming an instance: every reason why it cannot start is one line that says what to do."""

import os
import socket
from pathlib import Path

import pytest

from gateway.config import GatewayConfig
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.instance import claim
from gateway.embedded.sockets import LONGEST_NAME, LONGEST_PATH_BYTES
from tests.product import free_port


def _config(var_dir: Path, port: int = 0) -> GatewayConfig:
    return GatewayConfig(var_dir=var_dir, port=port or free_port())


def test_a_second_claim_of_a_folder_is_refused_and_names_the_first(tmp_path: Path) -> None:
    """The lock holds while the first one runs, and is free afterwards."""
    refused = pytest.raises(EmbeddedError, match=rf"already runs .*process {os.getpid()}")
    with claim(_config(tmp_path)), refused, claim(_config(tmp_path)):
        pass
    with claim(_config(tmp_path)) as instance:
        assert instance.log_dir.is_dir()


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    """Nothing starts on a port that another program listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(EmbeddedError, match="is taken"), claim(_config(tmp_path, other.getsockname()[1])):
            pass


def test_a_port_left_in_time_wait_is_no_obstacle(tmp_path: Path) -> None:
    """A restart need not wait for the kernel to forget old connections."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # the closing side keeps the port
    with claim(_config(tmp_path, port)):
        pass


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The message names the folder and the setting."""
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(EmbeddedError, match=r"Cannot write to .*TOLLGATE_VAR"),
        claim(_config(tmp_path / "file" / "var")),
    ):
        pass


def test_a_dead_instance_leaves_nothing_that_a_new_one_trips_over(tmp_path: Path) -> None:
    """Stale sockets, Postgres' socket lock and serve.json of a killed instance go."""
    run = tmp_path / "run" / "postgres"
    run.mkdir(parents=True)
    (run / ".s.PGSQL.5432.lock").write_text("1")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "run" / "engine.sock"))
    (tmp_path / "serve.json").write_text("{}")
    with claim(_config(tmp_path)) as instance:
        assert not instance.serve_file.exists()
        assert [path for path in instance.socket_dir.rglob("*") if path.is_socket() or path.suffix == ".lock"] == []


def test_a_long_folder_gets_its_sockets_elsewhere(tmp_path: Path) -> None:
    """Where var's path is too long for a socket, a private folder below /tmp serves, and goes at the end."""
    deep = tmp_path / ("d" * 100)
    with claim(_config(deep)) as instance:
        assert len(os.fsencode(instance.socket_dir / LONGEST_NAME)) <= LONGEST_PATH_BYTES
        assert not instance.socket_dir.is_relative_to(deep)
        kept = instance.socket_dir
    assert not kept.exists()


def test_a_percent_sign_in_the_folder_is_refused(tmp_path: Path) -> None:
    """It would be expanded in supervisord's configuration."""
    with pytest.raises(EmbeddedError, match="without a %"), claim(_config(tmp_path / "100%")):
        pass
