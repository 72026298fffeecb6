"""The front's end of the link to one core: a PAIR socket on an ipc path of its own.

A path per core means that no frame of an old core is ever taken for one of its successor.
"""

import asyncio
import hashlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from engine import ipc
from engine.errors import ConfigError, CoreError, ProtocolError

PATH_MAX_BYTES = 107  # of a unix socket address
_PREFIX = "core-"


class Link:
    """Frames to and from one core. Sends never wait: the socket queues without a limit of its own."""

    def __init__(self, context: zmq.asyncio.Context, path: Path) -> None:
        self._path = path
        self._socket = context.socket(zmq.PAIR)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, 0)
        try:
            self._socket.bind(self.endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise CoreError(f"no link to the core: {self.endpoint} cannot be bound ({error})") from error

    @property
    def endpoint(self) -> str:
        """What the core connects to."""
        return f"ipc://{self._path}"

    def send(self, frame: ipc.ToCore) -> None:
        """Queue a frame; frames arrive in the order of these calls."""
        self._socket.send(ipc.encode(frame))

    async def frames(self) -> AsyncIterator[ipc.ToFront]:
        """Yield what the core sends, for ever.

        Raises:
            ProtocolError: a frame cannot be decoded.
        """
        while True:
            yield _decode(await self._socket.recv())
            # A receive that finds a frame does not yield: a busy core would starve the connections.
            await asyncio.sleep(0)

    async def rest(self, quiet_ms: int = 20) -> AsyncIterator[ipc.ToFront]:
        """Yield what a dead core had sent before its end."""
        while await self._socket.poll(quiet_ms):
            yield _decode(await self._socket.recv())

    def close(self) -> None:
        """Close the socket and remove its path."""
        self._socket.close()
        self._path.unlink(missing_ok=True)


def _decode(data: bytes) -> ipc.ToFront:
    try:
        return ipc.decode_to_front(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a frame of the core cannot be read: {error}") from error


def link_folder(state_dir: Path) -> Path:
    """Return the folder of ipc sockets, emptied of old ones: the state folder, or one under /tmp if that is too deep.

    Raises:
        ConfigError: the folder under /tmp belongs to somebody else.
    """
    folder = state_dir.resolve()
    if len(os.fsencode(folder / f"{_PREFIX}{2**32}-{2**20}")) > PATH_MAX_BYTES:
        folder = _private_tmp(folder)
    for stale in folder.glob(f"{_PREFIX}*"):
        stale.unlink()
    return folder


def link_path(folder: Path, number: int) -> Path:
    """Return the socket path of this process's core number `number`."""
    return folder / f"{_PREFIX}{os.getpid()}-{number}"


def _private_tmp(state_dir: Path) -> Path:
    name = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:16]
    folder = Path("/tmp") / f"tollgate-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not a private folder of this user: remove it, or choose a shorter ENGINE_STATE_DIR"
        )
    return folder
