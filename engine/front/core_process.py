"""Starts the core, watches it, ends it when it is frozen, and starts the next one when it is gone."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
import zmq.asyncio

from engine import ipc
from engine.config import EngineConfig
from engine.errors import ConfigError, ProtocolError
from engine.front.child import Child
from engine.front.link import Link, link_folder, link_path

_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 0.1, 5.0
_STEADY_SECONDS = 10.0  # a core that was ready this long starts the back-off anew
_STOP_SECONDS = 3.0
_DEATH_SECONDS = 10.0  # from a SIGKILL to the end; a device driver may hold a process for longer
_TICKS_TO_STALL = 8  # silence is counted in parts of the patience, so that time in which this process froze is one
_NOT_STARTED = 126  # the exit status that a shell gives to a command that cannot be run
_CONFIG_EXIT = 2  # the core's exit status for settings that it cannot serve with

CORE_COMMAND = (sys.executable, "-m", "engine.core")

log = structlog.get_logger(part="core")


class CoreWatcher(Protocol):
    """Who is told what the core does. Calls come from the event loop, in the core's order."""

    def core_frame(self, frame: ipc.ToFront) -> None:
        """Take a frame of the living core."""
        ...

    def core_lost(self, detail: str) -> None:
        """The core is gone, with everything it held; `detail` is fit for clients."""
        ...


@dataclass(frozen=True, slots=True)
class _End:
    """How a core ended; the cause is fit for clients."""

    status: int | None  # None: it was killed, and the kernel holds on to it
    cause: str


class CoreProcess:
    """One core at a time. Nothing outlives `run`."""

    def __init__(
        self, config: EngineConfig, context: zmq.asyncio.Context, command: Sequence[str] = CORE_COMMAND
    ) -> None:
        self._context = context
        self._command = tuple(command)
        self._stall_seconds = config.stall_seconds
        self._folder = link_folder(config.state_dir)
        self._link: Link | None = None
        self._num_frames = 0
        self._ready_at = 0.0
        self._ever_ready = False

    def send(self, frame: ipc.ToCore) -> None:
        """Send to the living core; without one, what it would have changed is gone with the old one anyway."""
        if self._link is not None and self._ready_at:
            self._link.send(frame)

    async def run(self, watcher: CoreWatcher) -> None:
        """Keep a core running until cancelled.

        Raises:
            ConfigError: the first core refused its settings; it has said why on stderr.
        """
        delay, number = _FIRST_DELAY_SECONDS, 0
        while True:
            number += 1
            self._ready_at = 0.0
            end = await self._live_and_die(watcher, number)
            lived = time.monotonic() - self._ready_at if self._ready_at else 0.0
            if end.status == _CONFIG_EXIT and not self._ever_ready:
                raise ConfigError("the engine core refused its settings (its own line above says which)")
            delay = _FIRST_DELAY_SECONDS if lived >= _STEADY_SECONDS else delay
            log.error("core_died", status=end.status, ready_seconds=round(lived, 3), restart_in_seconds=delay)
            watcher.core_lost(f"the engine core ended unexpectedly ({end.cause}) and is being restarted")
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LAST_DELAY_SECONDS)

    async def _live_and_die(self, watcher: CoreWatcher, number: int) -> _End:
        """Run one core from start to end."""
        self._link = link = Link(self._context, link_path(self._folder, number))
        try:
            try:
                child = self._start(link)
            except OSError as error:
                log.error("core_not_started", error=str(error))
                return _End(_NOT_STARTED, f"it cannot be started: {error.strerror}")
            log.info("core_started", pid=child.pid)
            try:
                return await self._watch(watcher, link, child)
            finally:
                if not child.was_killed:
                    await self._stop(link, child)
        finally:
            self._link = None
            link.close()

    def _start(self, link: Link) -> Child:
        environment = {name: value for name, value in os.environ.items() if name != "ENGINE_TOKEN"}
        return Child((*self._command, "--endpoint", link.endpoint), environment)

    async def _watch(self, watcher: CoreWatcher, link: Link, child: Child) -> _End:
        """Pass on what the core sends until it ends, or has to."""
        receiving = asyncio.create_task(self._receive(watcher, link))
        waiting = asyncio.create_task(child.wait())
        stalling = asyncio.create_task(self._stalled())
        tasks: set[asyncio.Task[Any]] = {receiving, waiting, stalling}
        cause = ""
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stalling.done():
                cause = stalling.result()
                await self._kill(child)
            receiving.cancel()
            await asyncio.wait({receiving})
            if not receiving.cancelled():
                receiving.result()
            async for frame in link.rest():
                self._take(watcher, frame)
        except ProtocolError as error:
            cause = str(error)
            log.error("core_frame_unreadable", error=cause)
            await self._kill(child)
        finally:
            for task in tasks:
                task.cancel()
        return _End(child.status, cause or _describe(child.status))

    async def _receive(self, watcher: CoreWatcher, link: Link) -> None:
        async for frame in link.frames():
            self._take(watcher, frame)

    def _take(self, watcher: CoreWatcher, frame: ipc.ToFront) -> None:
        self._num_frames += 1
        if isinstance(frame, ipc.ReadyFrame):
            self._ready_at = time.monotonic()
            self._ever_ready = True
        watcher.core_frame(frame)

    async def _stalled(self) -> str:
        """Return the cause once a core that was ready has sent nothing, not even statistics, for too long.

        A step sends nothing while it runs. Loading may take as long as it takes.
        """
        if not self._stall_seconds:
            await asyncio.Event().wait()
        ticks, seen = 0, self._num_frames
        while ticks < _TICKS_TO_STALL:
            await asyncio.sleep(self._stall_seconds / _TICKS_TO_STALL)
            ticks = ticks + 1 if self._ready_at and self._num_frames == seen else 0
            seen = self._num_frames
        log.error("core_stalled", seconds=self._stall_seconds)
        return f"it gave no sign of life for {self._stall_seconds} s"

    async def _kill(self, child: Child) -> None:
        """End the process; one that the kernel holds on to is left to it."""
        child.kill()
        try:
            await asyncio.wait_for(child.wait(), _DEATH_SECONDS)
        except TimeoutError:
            log.error("core_does_not_die", pid=child.pid)

    async def _stop(self, link: Link, child: Child) -> None:
        """End the process, gently at first."""
        if child.status is not None:
            return
        if self._ready_at:
            link.send(ipc.StopFrame())
            try:
                await asyncio.wait_for(child.wait(), _STOP_SECONDS)
            except TimeoutError:
                log.warning("core_did_not_stop", pid=child.pid)
        if child.status is None:
            await self._kill(child)


def _describe(status: int | None) -> str:
    if status is None:
        return "it was killed"
    return f"signal {-status}" if status < 0 else f"exit status {status}"
