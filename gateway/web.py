"""What one web process owns beside Django, and how it starts and stops."""

import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import redis.asyncio
from django.conf import settings
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.admission.admit import Admission
from gateway.admission.buffers import Buffers
from gateway.admission.counting import Counting
from gateway.admission.leases import STORE_SECONDS, Leases
from gateway.admission.trials import Trials
from gateway.api.auth import KeyCache
from gateway.api.kept import KeptAnswers
from gateway.api.responses.desk import ResponseDesk
from gateway.config import GatewayConfig
from gateway.database import conninfo
from gateway.drain import Drain
from gateway.feed import Feed
from gateway.listener import Listener
from gateway.metrics.requests import RequestMetrics, of_process
from gateway.reads import Reads
from gateway.realtime.sockets import Most, Sockets
from gateway.workers.registry import WorkerRegistry
from gateway.workers.session_desk import SessionDesk
from tenants import selectors
from tenants.contracts import RESPONSES_CHANNEL

REACH_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    """The parts that requests use; `scope["state"]["web"]` in every HTTP and websocket scope."""

    keys: KeyCache
    registry: WorkerRegistry
    admission: Admission
    buffers: Buffers
    counting: Counting
    drain: Drain
    reads: Reads
    sessions: SessionDesk
    responses: ResponseDesk
    kept: KeptAnswers
    sockets: Sockets
    metrics: RequestMetrics


@asynccontextmanager
async def running(config: GatewayConfig) -> AsyncIterator[Web]:
    """Start everything; stop it in reverse order.

    Live workers have REACH_SECONDS to answer, so that a process that comes beside others, or for one that died, refuses
    nothing that those would serve. With Postgres, Redis or every worker away it starts all the same, says so in
    `/readyz`, and catches up when they come.
    """
    _allow_files()
    reads = Reads()
    registry = WorkerRegistry(
        lambda: reads.run(selectors.live_workers), token=config.engine_token, ca_file=config.engine_ca
    )
    keys = KeyCache(lambda digest: reads.run(selectors.grant_for_digest, digest), pepper=config.key_pepper)
    store = redis.asyncio.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=STORE_SECONDS,
        socket_connect_timeout=STORE_SECONDS,
        retry=Retry(NoBackoff(), 1),
    )
    leases = Leases(store, processes=config.web_workers)
    trials = Trials(leases, store)
    sockets = Sockets(Most.of(config.realtime_sockets), config.realtime_slow_seconds)
    feed = Feed(keys, sockets, registry, reads)
    responses = ResponseDesk()
    handlers = feed.handlers | {RESPONSES_CHANNEL: responses.stopped}
    listener = Listener(conninfo(settings.DATABASES["default"]), handlers, feed.poll)
    drain = Drain(config.drain_seconds)
    async with AsyncExitStack() as stack:
        stack.callback(reads.close)
        sessions = SessionDesk()
        stack.callback(sessions.close)
        stack.callback(responses.close)
        await stack.enter_async_context(store)
        leases.start()
        stack.push_async_callback(leases.stop)
        trials.start()
        stack.push_async_callback(trials.stop)
        stack.push_async_callback(registry.close)
        stack.push_async_callback(keys.close)
        sockets.start()
        stack.push_async_callback(sockets.stop)
        listener.start()
        stack.push_async_callback(listener.stop)
        drain.on_signals()
        await registry.reach(REACH_SECONDS)
        admission = Admission(leases, trials)
        yield Web(
            keys=keys,
            registry=registry,
            admission=admission,
            buffers=Buffers(config.body_bytes),
            counting=Counting(admission),
            drain=drain,
            reads=reads,
            sessions=sessions,
            responses=responses,
            kept=KeptAnswers(store),
            sockets=sockets,
            metrics=of_process(),
        )


def _allow_files() -> None:
    """Let this process hold as many connections as it may: most systems give 1,024 files to who doesn't ask."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
