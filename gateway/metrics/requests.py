"""What a web process counts of the requests that it serves, by tenant and model.

Names follow vLLM's where it has one. Where several web processes share a port, each writes its values to a file in
PROMETHEUS_MULTIPROC_DIR, and whichever is asked adds all of them up.
"""

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from engine.protocol import pb
from gateway.workers.errors import Refused, SlowConsumer, WorkerUnavailable
from gateway.workers.generation import Finished

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
_LABELS = ("tenant", "model")
_FIRST_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2, 4, 8, 15, 30, 60, 120)
_NEXT_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_WHOLE_SECONDS = (0.1, 0.3, 0.6, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
_REASONS: dict[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


class RequestMetrics:
    """The families of a process; `of_process` has them."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register the families.

        Args:
            registry: the process's own; tests bring another.
        """
        if folder := os.environ.get(FOLDER):
            Path(folder).mkdir(parents=True, exist_ok=True)
        self.first = Histogram(
            "tollgate_time_to_first_token_seconds",
            "From a request's admission by the gateway to its first token.",
            _LABELS,
            buckets=_FIRST_SECONDS,
            registry=registry,
        )
        self.between = Histogram(
            "tollgate_inter_token_latency_seconds",
            "From one token of a request to the next; tokens that come together share the time.",
            _LABELS,
            buckets=_NEXT_SECONDS,
            registry=registry,
        )
        self.whole = Histogram(
            "tollgate_e2e_request_latency_seconds",
            "From a request's admission by the gateway to its end, of those that finished.",
            _LABELS,
            buckets=_WHOLE_SECONDS,
            registry=registry,
        )
        self.ended = Counter(
            "tollgate_requests",
            "Requests by how they ended: stop, length, cancelled, refused, slow_reader, unavailable, failed.",
            (*_LABELS, "outcome"),
            registry=registry,
        )
        self.prompt = Counter(
            "tollgate_prompt_tokens", "Prompt tokens of finished requests.", _LABELS, registry=registry
        )
        self.cached = Counter(
            "tollgate_cached_prompt_tokens", "Of them, those whose KV was there.", _LABELS, registry=registry
        )
        self.output = Counter(
            "tollgate_generation_tokens", "Generated tokens of finished requests.", _LABELS, registry=registry
        )

    def watch(self, tenant: str, model: str, clock: Callable[[], float] = time.monotonic) -> "RequestWatch":
        """Return what counts one request, from now on."""
        return RequestWatch(self, tenant, model, clock)


class RequestWatch:
    """Counts one request, whatever number of workers it is tried on."""

    __slots__ = ("_between", "_clock", "_families", "_is_over", "_labels", "_last", "_started")

    def __init__(self, families: RequestMetrics, tenant: str, model: str, clock: Callable[[], float]) -> None:
        self._families = families
        self._labels = (tenant, model)
        self._clock = clock
        self._started = clock()
        self._last = 0.0  # when the last token came; 0: none has
        self._between = families.between.labels(tenant, model)
        self._is_over = False

    def tokens(self, count: int) -> None:
        """Note tokens that came together."""
        if not count:
            return
        now = self._clock()
        if self._last:
            self._between.observe((now - self._last) / count)
        else:
            self._families.first.labels(*self._labels).observe(now - self._started)
        self._last = now

    def finished(self, end: Finished) -> None:
        """Note a good end."""
        if self._is_over:
            return
        families, labels = self._families, self._labels
        families.whole.labels(*labels).observe(self._clock() - self._started)
        families.prompt.labels(*labels).inc(end.prompt_tokens)
        families.cached.labels(*labels).inc(end.cached_tokens)
        families.output.labels(*labels).inc(end.completion_tokens)
        self._end(_REASONS.get(end.reason, "stop"))

    def failed(self, error: BaseException) -> None:
        """Note an end before its time."""
        if isinstance(error, Refused):
            self._end("refused")
        elif isinstance(error, SlowConsumer):
            self._end("slow_reader")
        elif isinstance(error, WorkerUnavailable):
            self._end("unavailable")
        else:
            self._end("failed")

    def left(self) -> None:
        """Note that nobody reads any more; nothing, if the request has ended."""
        self._end("cancelled")

    def _end(self, outcome: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._families.ended.labels(*self._labels, outcome).inc()


@lru_cache(maxsize=1)
def of_process() -> RequestMetrics:
    """Return the process's families: a name is registered once."""
    return RequestMetrics()


def counted() -> CollectorRegistry:
    """Return what all web processes have counted, to be read."""
    if not os.environ.get(FOLDER):
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library gives it no types
    return registry
