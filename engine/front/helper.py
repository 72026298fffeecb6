"""The helper process behind previews: started once, at a time when nobody minds, and asked through a socket.

To start costs more processor time than to answer, and the helper gets only what nobody else wants: on a busy machine a
helper that is started for each question would come too late with every answer.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence

import structlog

from engine.errors import EngineError
from engine.front.child import Child
from engine.replay.frames import HEADER

HELPER_COMMAND = (sys.executable, "-m", "engine.replay")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_MOST_BYTES = 64 << 20
_READ_BYTES = 1 << 16

log = structlog.get_logger(part="preview")


class HelperFailed(EngineError):
    """The helper has no answer: it ended, or could not be started; the log has the details."""


class Helper:
    """One process at a time, one question at a time. Call it on the event loop, from the thread that outlives it."""

    def __init__(self, command: Sequence[str] = HELPER_COMMAND) -> None:
        self._command = tuple(command)
        self._child: Child | None = None
        self._socket: socket.socket | None = None

    def start(self) -> socket.socket:
        """Have a helper that lives, and return the way to it.

        Raises:
            HelperFailed: it cannot be started.
        """
        if self._socket is not None and self._child is not None and self._child.status is None:
            return self._socket
        self.close()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        environment = {name: value for name, value in os.environ.items() if name != "ENGINE_TOKEN"} | _ONE_THREAD
        try:
            self._child = Child(self._command, environment, stdin=theirs.fileno(), stdout=theirs.fileno())
        except OSError as error:
            ours.close()
            raise HelperFailed(f"the helper cannot be started: {error}") from error
        finally:
            theirs.close()
        self._socket = ours
        return ours

    async def ask(self, question: bytes) -> bytes:
        """Return the answer. A question that is given up, or has none, ends the process; the next one has a new one.

        Raises:
            HelperFailed: there is no answer.
        """
        way, loop = self.start(), asyncio.get_running_loop()
        answered = False
        try:
            await loop.sock_sendall(way, HEADER.pack(len(question)) + question)
            (length,) = HEADER.unpack(await self._read(way, HEADER.size))
            if not 0 < length <= _MOST_BYTES:
                raise HelperFailed("the helper has failed")
            answer = await self._read(way, length)
            answered = True
            return answer
        except OSError as error:
            raise HelperFailed(f"the helper has ended: {error}") from error
        finally:
            if not answered:
                self.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._child is not None and self._child.status is None:
            self._child.kill()
        if self._socket is not None:
            self._socket.close()
        self._child = self._socket = None

    @staticmethod
    async def _read(way: socket.socket, count: int) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < count:
            part = await loop.sock_recv(way, min(_READ_BYTES, count - len(data)))
            if not part:
                raise HelperFailed("the helper has ended")
            data += part
        return bytes(data)
