"""Decide whether the running product is ready: web serves, the model is listed, the controller reaches the worker."""

import time

import msgspec
import redis

from gateway.embedded.probe import get_json, is_ready, listed_models
from tenants.contracts import DemoAccess
from tenants.reports import STATS_KEY, WorkerStats


class Readiness:
    """What remains to be waited for. Each answer is asked anew, so that a part that left is noticed."""

    def __init__(self, base_url: str, redis_url: str, demo: DemoAccess) -> None:
        self._base_url = base_url
        self._redis_url = redis_url
        self._demo = demo
        self._since = time.time()  # a worker's statistics of an earlier run do not count

    def missing(self) -> str:
        """Return what is not there yet, or nothing when a request can be served under its policy."""
        if not is_ready(self._base_url):
            return "web to answer /readyz"
        if not self.models():
            return "the engine to announce its model"
        if not self._controlled():
            return "the controller to reach the engine"
        return ""

    def models(self) -> list[str]:
        """Return the models that a tenant sees."""
        return listed_models(self._base_url, self._demo.tenants["minnow"].api_key)

    def _controlled(self) -> bool:
        """Say whether a worker has, in this run, reported that it works under the newest policy of the demo tenants."""
        versions = [
            get_json(f"{self._base_url}/api/v1/tenants/{slug}/policy/", key=self._demo.operator.api_key)
            for slug in self._demo.tenants
        ]
        newest = max((int(answer["version"]) for answer in versions if isinstance(answer, dict)), default=None)
        return newest is not None and any(
            stats.at > self._since and stats.core_ready and stats.applied_version >= newest for stats in self._stats()
        )

    def _stats(self) -> list[WorkerStats]:
        with redis.Redis.from_url(self._redis_url) as client:
            keys = list(client.scan_iter(STATS_KEY.format(worker_id="*")))
            values = [client.get(key) for key in keys]
        return [msgspec.json.decode(value, type=WorkerStats) for value in values if isinstance(value, bytes)]
