"""One running instance: its folders, its lock and its port, checked before anything starts."""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gateway.config import ROOT, GatewayConfig
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.sockets import clear_sockets, remove_socket_folder, socket_folder

SECRETS_NAME = "secrets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The folders of one instance. `socket_dir` is `var/run` unless its path is too long for a socket."""

    var_dir: Path
    socket_dir: Path
    host: str
    port: int

    @property
    def log_dir(self) -> Path:
        """One file a process."""
        return self.var_dir / "log"

    @property
    def run_dir(self) -> Path:
        """Generated files of the running instance."""
        return self.var_dir / "run"

    @property
    def serve_file(self) -> Path:
        """What a client needs to know (DESIGN 3.5); exists while the product is ready."""
        return self.var_dir / "serve.json"

    @property
    def metrics_dir(self) -> Path:
        """What each web process has counted, in a file of its own."""
        return self.run_dir / "metrics"

    @property
    def secrets_file(self) -> Path:
        """Generated secrets, kept across restarts."""
        return self.var_dir / SECRETS_NAME

    @property
    def local_url(self) -> str:
        """The address on this machine, without a trailing slash."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0") else self.host  # noqa: S104  # compared, not bound
        return f"http://{host}:{self.port}"


@contextlib.contextmanager
def claim(config: GatewayConfig) -> Iterator[Instance]:
    """Make the folders, take the instance's lock and see that the port is free; give all up at the end.

    Raises:
        EmbeddedError: a folder cannot be written, another instance runs here, or the port is taken.
    """
    for folder in (config.var_dir, ROOT):
        if "%" in str(folder):  # supervisord expands it, twice in the names of logs
            raise EmbeddedError(f"{folder}: choose a path without a % sign")
    with _lock(config.var_dir):
        check_port(config.host, config.port)
        socket_dir = socket_folder(config.var_dir)
        instance = Instance(var_dir=config.var_dir, socket_dir=socket_dir, host=config.host, port=config.port)
        instance.run_dir.mkdir(mode=0o755, exist_ok=True)
        instance.log_dir.mkdir(mode=0o750, exist_ok=True)
        instance.serve_file.unlink(missing_ok=True)  # of an instance that was killed
        shutil.rmtree(instance.metrics_dir, ignore_errors=True)  # counters start with the product
        clear_sockets(socket_dir)
        try:
            yield instance
        finally:
            instance.serve_file.unlink(missing_ok=True)
            clear_sockets(socket_dir)
            remove_socket_folder(socket_dir, config.var_dir)


def check_port(host: str, port: int) -> None:
    """See that we may listen on `host:port`.

    Raises:
        EmbeddedError: says why not, and what to do.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EmbeddedError(
                    f"Port {port} is taken: stop what listens there, or choose another with PORT=…"
                ) from error
            if error.errno == errno.EACCES:
                raise EmbeddedError(f"Port {port} is for root alone: choose one above 1023 with PORT=…") from error
            raise EmbeddedError(
                f"Cannot listen on HOST={host}: {error}; use an IPv4 address of this machine"
            ) from error


@contextlib.contextmanager
def _lock(var_dir: Path) -> Iterator[None]:
    path = var_dir / "up.lock"
    try:
        var_dir.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+")
    except OSError as error:
        raise EmbeddedError(
            f"Cannot write to {var_dir} ({error.strerror}): give it to this user, or set TOLLGATE_VAR to another folder"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EmbeddedError(_already_running(var_dir, stream)) from error
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def _already_running(var_dir: Path, stream: TextIO) -> str:
    stream.seek(0)
    holder = stream.read().strip() or "unknown"
    return (
        f"Tollgate already runs from {var_dir} (process {holder}): stop it, "
        "or start a second one with TOLLGATE_VAR=… and PORT=…"
    )
