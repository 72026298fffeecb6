"""Starts the core, watches it, and starts the next one when it dies."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from typing import Protocol

import structlog
import zmq.asyncio

from engine import ipc
from engine.config import EngineConfig
from engine.errors import ConfigError, ProtocolError
from engine.front.link import Link, link_folder, link_path

_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 0.1, 5.0
_STEADY_SECONDS = 10.0  # a core that was ready this long starts the back-off anew
_STOP_SECONDS = 3.0
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


class CoreProcess:
    """One core at a time. Nothing outlives `run`."""

    def __init__(
        self, config: EngineConfig, context: zmq.asyncio.Context, command: Sequence[str] = CORE_COMMAND
    ) -> None:
        self._context = context
        self._command = tuple(command)
        self._folder = link_folder(config.state_dir)
        self._link: Link | None = None
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
            status = await self._live_and_die(watcher, number)
            lived = time.monotonic() - self._ready_at if self._ready_at else 0.0
            if status == _CONFIG_EXIT and not self._ever_ready:
                raise ConfigError("the engine core refused its settings (its own line above says which)")
            delay = _FIRST_DELAY_SECONDS if lived >= _STEADY_SECONDS else delay
            log.error("core_died", status=status, ready_seconds=round(lived, 3), restart_in_seconds=delay)
            watcher.core_lost(f"the engine core ended unexpectedly ({_describe(status)}) and is being restarted")
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LAST_DELAY_SECONDS)

    async def _live_and_die(self, watcher: CoreWatcher, number: int) -> int:
        """Run one core from start to end and return its exit status."""
        self._link = link = Link(self._context, link_path(self._folder, number))
        try:
            try:
                process = await self._start(link)
            except OSError as error:
                log.error("core_not_started", error=str(error))
                return _NOT_STARTED
            log.info("core_started", pid=process.pid)
            try:
                return await self._watch(watcher, link, process)
            finally:
                await self._stop(link, process)
        finally:
            self._link = None
            link.close()

    async def _start(self, link: Link) -> Process:
        # Its own session: a Ctrl-C in the terminal is for the front, which drains before it stops the core.
        environment = {name: value for name, value in os.environ.items() if name != "ENGINE_TOKEN"}
        return await asyncio.create_subprocess_exec(
            *self._command, "--endpoint", link.endpoint, env=environment, start_new_session=True
        )

    async def _watch(self, watcher: CoreWatcher, link: Link, process: Process) -> int:
        receiving = asyncio.create_task(self._receive(watcher, link))
        waiting = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({receiving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                receiving.result()
            receiving.cancel()
            await asyncio.wait({receiving})
            async for frame in link.rest():
                self._take(watcher, frame)
            return waiting.result()
        except ProtocolError as error:
            log.error("core_frame_unreadable", error=str(error))
            process.kill()
            return await process.wait()
        finally:
            receiving.cancel()
            waiting.cancel()

    async def _receive(self, watcher: CoreWatcher, link: Link) -> None:
        async for frame in link.frames():
            self._take(watcher, frame)

    def _take(self, watcher: CoreWatcher, frame: ipc.ToFront) -> None:
        if isinstance(frame, ipc.ReadyFrame):
            self._ready_at = time.monotonic()
            self._ever_ready = True
        watcher.core_frame(frame)

    async def _stop(self, link: Link, process: Process) -> None:
        """End the process, gently at first."""
        if process.returncode is not None:
            return
        if self._ready_at:
            link.send(ipc.StopFrame())
            try:
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
            except TimeoutError:
                log.warning("core_did_not_stop", pid=process.pid)
        if process.returncode is None:
            process.kill()
            await process.wait()


def _describe(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
