"""The link to one worker: its Control stream, opened again with back-off for as long as the worker is known."""

import asyncio
import random
import time
from typing import Protocol

import structlog

from engine.protocol import engine_pb2 as pb
from gateway.controller.threads import DatabaseThreads
from gateway.controller.usage import UsageIntake
from gateway.workers.client import Dial
from gateway.workers.control import Command, ControlError, ControlStream, open_control

FIRST_BACKOFF = 0.05
LAST_BACKOFF = 3.0
STEADY_SECONDS = 5.0  # a stream that lived this long starts the back-off anew

log = structlog.get_logger("controller")


class LinkListener(Protocol):
    """What a link tells the fleet. Calls come in the order of the stream."""

    async def connected(self, worker_id: str, hello: pb.Hello) -> None:
        """A stream is open."""
        ...

    def disconnected(self, worker_id: str) -> None:
        """The stream is gone."""
        ...

    def applied(self, worker_id: str, applied: pb.Applied) -> None:
        """The worker has applied a push. May raise `Superseded`, which ends the stream."""
        ...

    def settled(self, worker_id: str, settled: pb.Settled) -> None:
        """Nobody is above the limits of a push that the worker has applied any more."""
        ...

    def stats(self, worker_id: str, stats: pb.Stats) -> None:
        """The worker's statistics, 4 a second."""
        ...


class WorkerLink:
    """One worker's link. `run` it in a task; cancelling the task closes the stream."""

    def __init__(self, worker_id: str, dial: Dial, listener: LinkListener, threads: DatabaseThreads) -> None:
        self.worker_id = worker_id
        self.dial = dial
        self._listener = listener
        self._threads = threads
        self._stream: ControlStream | None = None

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._stream is not None

    def send(self, command: Command) -> None:
        """Send a command if a stream is open. What is lost with a stream is made good by the next one's snapshot."""
        if self._stream is not None:
            self._stream.send(command)

    async def card(self) -> pb.ModelCard:
        """Ask what the worker serves.

        Raises:
            ControlError: no stream is open, or the worker does not say, for now.
        """
        if self._stream is None:
            raise ControlError("no stream is open")
        return await self._stream.card()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        backoff, said = FIRST_BACKOFF, ""
        while True:
            opened_at = time.monotonic()
            try:
                async with open_control(self.dial) as stream:
                    said = ""
                    await self._serve(stream)
                reason = "the worker closed the stream"
            except ControlError as error:
                reason = str(error)
            except Exception as error:  # one worker's fault must not take the others' control away
                log.exception("worker_link_failed", worker=self.worker_id)
                reason = repr(error)
            if reason != said:
                log.warning("worker_down", worker=self.worker_id, address=self.dial.address, reason=reason)
                said = reason
            if time.monotonic() - opened_at > STEADY_SECONDS:
                backoff = FIRST_BACKOFF
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(backoff * 2, LAST_BACKOFF)

    async def _serve(self, stream: ControlStream) -> None:
        if stream.hello.worker_id != self.worker_id:
            raise ControlError(f"the worker there is {stream.hello.worker_id!r}")
        intake = UsageIntake(self.worker_id, self._threads, self._ack_usage)
        storing = asyncio.create_task(intake.run(), name=f"usage of {self.worker_id}")
        self._stream = stream
        try:
            await self._listener.connected(self.worker_id, stream.hello)
            log.info("worker_up", worker=self.worker_id, applied=stream.hello.applied_version)
            async for event in stream.events():
                self._take(event, intake)
                if storing.done():
                    storing.result()
        finally:
            self._stream = None
            self._listener.disconnected(self.worker_id)
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)

    def _take(self, event: pb.ControlEvent, intake: UsageIntake) -> None:
        match event.WhichOneof("event"):
            case "applied":
                self._listener.applied(self.worker_id, event.applied)
            case "settled":
                self._listener.settled(self.worker_id, event.settled)
            case "stats":
                self._listener.stats(self.worker_id, event.stats)
            case "usage":
                intake.take(event.usage)

    def _ack_usage(self, up_to: int) -> None:
        self.send(pb.ControlCommand(usage_ack=pb.UsageAck(up_to=up_to)))
