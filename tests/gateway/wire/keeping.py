"""A worker that keeps sessions as the protocol says, over a real socket: for what a real one does too rarely."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from django.utils import timezone

from engine.protocol import pb, rpc
from gateway.config import config
from tenants.contracts import WorkerAnnouncement
from tenants.models import Worker
from tenants.services.workers import announce

KIB = 1024


@dataclass
class Keeper(rpc.EngineServicer):
    """Sessions by tenant and id, and what was asked of them."""

    worker_id: str
    model: str = "tiny"
    refusal: grpc.StatusCode | None = None  # of every call
    is_unread: bool = False  # its disk may have more than it lists: it does not answer erasures
    sessions: dict[tuple[str, str], pb.Session] = field(default_factory=dict)
    changes: list[tuple[str, int]] = field(default_factory=list)  # (session, action)
    queries: list[pb.SessionQuery] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, tenant_id: str, session: str, *, used: float, **more: Any) -> None:
        """Have a session that was last used at `used`, unix seconds."""
        fields = {
            "num_tokens": 100,
            "device_bytes": 64 * KIB,
            "num_turns": 2,
            "created_at": used - 5,
            "expires_at": used + 3600,
        }
        fields |= {"session": session, "last_used_at": used} | more
        self.sessions[tenant_id, session] = pb.Session(**fields)  # type: ignore[arg-type]

    def names(self) -> list[str]:
        """Return the ids of all sessions."""
        return sorted(session for _, session in self.sessions)

    def ListSessions(self, request: pb.SessionQuery, context: Any) -> pb.SessionPage:  # noqa: N802
        """Return a page, the last used first."""
        self._refuse(context)
        self.queries.append(request)
        with self._lock:
            kept = [session for (tenant, _), session in self.sessions.items() if tenant == request.tenant]
        found = sorted(kept, key=lambda session: -session.last_used_at)
        if request.session:
            found = [session for session in found if session.session == request.session]
        if request.before:
            found = [session for session in found if session.last_used_at < request.before]
        return pb.SessionPage(sessions=found[: request.limit or 100], num_sessions=len(kept))

    def ChangeSession(self, request: pb.SessionChange, context: Any) -> pb.Session:  # noqa: N802
        """Change a session; NOT_FOUND where there is none."""
        self._refuse(context)
        self.changes.append((request.session, request.action))
        if self.is_unread and request.action == pb.SESSION_ACTION_ERASE:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "its disk is not read yet")
        with self._lock:
            session = self.sessions.get((request.tenant, request.session))
            if session is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
            if request.action == pb.SESSION_ACTION_ERASE:
                return self.sessions.pop((request.tenant, request.session))
            if request.action in (pb.SESSION_ACTION_PIN, pb.SESSION_ACTION_UNPIN):
                session.pinned = request.action == pb.SESSION_ACTION_PIN
                session.expires_at = 0 if session.pinned else time.time() + 3600
            return session

    def _refuse(self, context: Any) -> None:
        assert dict(context.invocation_metadata())["authorization"] == f"Bearer {config().engine_token}"
        if self.refusal is not None:
            context.abort(self.refusal, "it refuses")


@contextmanager
def keeping(folder: Path, *workers: Keeper) -> Iterator[None]:
    """Serve and announce workers."""
    servers = []
    for worker in workers:
        server = grpc.server(ThreadPoolExecutor(4))
        rpc.add_EngineServicer_to_server(worker, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{folder}/{worker.worker_id}")
        server.start()
        servers.append(server)
        come(worker.worker_id, f"unix:{folder}/{worker.worker_id}", worker.model)
    try:
        yield
    finally:
        for server in servers:
            server.stop(None).wait()


def come(worker_id: str, address: str = "unix:/nowhere", model: str = "tiny") -> None:
    """Announce a worker."""
    announce(
        announcement=WorkerAnnouncement(
            worker_id=worker_id,
            address=address,
            model=model,
            digest="d" * 64,
            kv_bytes=1 << 26,
            block_bytes=1 << 14,
            max_context=2048,
        )
    )


def go(worker_id: str) -> None:
    """Let a worker have been silent for five minutes."""
    Worker.objects.filter(pk=worker_id).update(last_seen_at=timezone.now() - timedelta(minutes=5))
