"""An operator of ours: changes policies over the management API, sees acks, reads the worker's statistics.

with Operator(server) as operator:
    version = operator.change("whale", kv_hard_bytes=64 << 20)
    acks = operator.acks(version)
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx
import msgspec
import redis

from bench.peers.environment import PeerError
from bench.peers.servers import OurServer
from tenants.contracts import PolicyAcks, PolicyView
from tenants.reports import STATS_KEY, WorkerStats

SECONDS = 30.0  # for one call


class Operator:
    """The operator of the demo. Not safe for several threads at once: each makes its own."""

    def __init__(self, server: OurServer) -> None:
        serve = server.serve
        origin = str(serve["base_url"]).removesuffix("/v1")
        headers = {"authorization": f"Bearer {serve['operator']['api_key']}"}
        self._http = httpx.Client(base_url=f"{origin}/api/v1", headers=headers, timeout=SECONDS)
        self._store: redis.Redis[bytes] = redis.Redis.from_url(server.redis_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._store.close()

    def policy(self, slug: str) -> PolicyView:
        """Return a tenant's policy."""
        return msgspec.json.decode(self._content(self._http.get(f"/tenants/{slug}/policy/")), type=PolicyView)

    def change(self, slug: str, **changes: object) -> int:
        """Change fields of a tenant's policy and return the new version."""
        match = {"if-match": f'"{self.policy(slug).version}"'}
        response = self._http.patch(f"/tenants/{slug}/policy/", json=changes, headers=match)
        return msgspec.json.decode(self._content(response), type=PolicyView).version

    def set_all(self, policies: Mapping[str, Mapping[str, object]]) -> None:
        """Change policies, by slug, and wait until they are in force."""
        versions = [self.change(slug, **changes) for slug, changes in policies.items()]
        deadline = time.monotonic() + SECONDS
        while any(acks.of == 0 or acks.applied < acks.of for acks in map(self.acks, versions)):
            if time.monotonic() > deadline:
                raise PeerError(f"policies of {', '.join(policies)} are not in force after {SECONDS:.0f} s")
            time.sleep(0.05)

    def acks(self, version: int) -> PolicyAcks:
        """Return how far a version has come."""
        return msgspec.json.decode(self._content(self._http.get(f"/policy-versions/{version}/acks/")), type=PolicyAcks)

    def stats(self) -> WorkerStats | None:
        """Return the only worker's last statistics; None: it has sent none for seconds."""
        for key in self._store.scan_iter(STATS_KEY.format(worker_id="*")):
            if kept := self._store.get(key):
                return msgspec.json.decode(kept, type=WorkerStats)
        return None

    @staticmethod
    def _content(response: httpx.Response) -> bytes:
        if not response.is_success:
            raise PeerError(
                f"{response.request.method} {response.url} answered {response.status_code}: {response.text}"
            )
        return response.content
