"""The controller's process: stand by until elected, lead until the lock is lost, stand by again; SIGTERM ends it."""

import asyncio
import signal
from dataclasses import dataclass

import structlog

from gateway.controller.errors import LeadershipLost
from gateway.controller.fleet import Fleet
from gateway.controller.leadership import Leadership, elected
from gateway.controller.threads import DatabaseThreads
from gateway.hints import HintPublisher
from gateway.workers.client import Dial

log = structlog.get_logger("controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What the process needs of its environment."""

    conninfo: str  # psycopg's connection string; a direct connection, not through a transaction pooler
    redis_url: str
    token: str  # bearer token of worker calls
    ca_file: str = ""  # PEM; set: host:port workers are dialled with TLS


async def run(settings: ControllerSettings) -> None:
    """Run until SIGTERM or SIGINT, then release the lock and return."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    threads = DatabaseThreads()
    work = asyncio.create_task(control(settings, threads))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        stop.cancel()
        work.cancel()
        await asyncio.gather(work, stop, return_exceptions=True)
        await asyncio.to_thread(threads.close)
        log.info("controller_stopped")


async def control(settings: ControllerSettings, threads: DatabaseThreads) -> None:
    """Stand by and lead in turn, until cancelled."""
    hints = HintPublisher(settings.redis_url)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hints.run(), name="hints")
        while True:
            async with elected(settings.conninfo) as leadership:
                await _lead(settings, threads, hints, leadership)


async def _lead(
    settings: ControllerSettings, threads: DatabaseThreads, hints: HintPublisher, leadership: Leadership
) -> None:
    log.info("controller_active", term=leadership.term)
    dial = Dial(address="", token=settings.token, ca_file=settings.ca_file)
    try:
        await Fleet(leadership, threads, hints, dial).run()
    except* LeadershipLost as lost:
        log.warning("controller_steps_down", reason=str(lost.exceptions[0]))
