"""Where the worker listens: `host:port` or `unix:/path`."""

import os
import socket
import stat
from pathlib import Path

from engine.errors import ConfigError
from engine.front.link import PATH_MAX_BYTES

_UNIX = "unix:"


def unix_path(address: str) -> Path | None:
    """Return the path of a `unix:` address, None for any other."""
    if not address.startswith(_UNIX):
        return None
    return Path(address.removeprefix("unix://" if address.startswith("unix://") else _UNIX))


def check_address(address: str) -> None:
    """Refuse what nobody can listen on.

    Raises:
        ConfigError: names the setting and the accepted forms.
    """
    path = unix_path(address)
    if path is None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"ENGINE_ADDRESS={address!r}: write host:port or unix:/path")
    elif not path.name or len(os.fsencode(path)) > PATH_MAX_BYTES:
        raise ConfigError(f"ENGINE_ADDRESS={address!r}: a socket path has 1 to {PATH_MAX_BYTES} bytes")


def claim_socket(path: Path) -> None:
    """Make room for a socket: create its folder, remove a stale socket.

    Raises:
        ConfigError: another process listens there, or the path is something else.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"ENGINE_ADDRESS=unix:{path}: a file that is no socket is there; remove it or choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except TimeoutError:
            pass
    raise ConfigError(f"ENGINE_ADDRESS=unix:{path}: another worker is listening there; stop it or choose another path")


def dialable(address: str, port: int) -> str:
    """Return the address as others dial it: an absolute path, or the port that was bound where 0 asked for any."""
    path = unix_path(address)
    if path is not None:
        return f"{_UNIX}{path.absolute()}"
    return f"{address.rpartition(':')[0]}:{port}"


def is_wildcard(address: str) -> bool:
    """Return whether the address stands for all of the machine's, so that nobody can dial it as it is."""
    return address.rpartition(":")[0] in ("0.0.0.0", "[::]", "*")  # noqa: S104  # asked, not bound


def leaves_machine(address: str) -> bool:
    """Return whether other machines can reach the address."""
    host = address.rpartition(":")[0]
    return not address.startswith(_UNIX) and host not in ("127.0.0.1", "localhost", "[::1]")
