"""What web processes count of requests: one end each, times from the right moments, and all processes together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from engine.protocol import pb
from gateway.metrics.requests import RequestMetrics, RequestWatch
from gateway.workers.errors import GenerationFailed, Refused, SlowConsumer, WorkerUnavailable
from gateway.workers.generation import Finished

LABELS = {"tenant": "acme", "model": "tiny"}
END = Finished(pb.FINISH_REASON_LENGTH, "", 30, 16, 7)


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def registry() -> CollectorRegistry:
    """Return a registry of the test's own."""
    return CollectorRegistry()


@pytest.fixture
def clock() -> Clock:
    """Return a clock."""
    return Clock()


@pytest.fixture
def watch(registry: CollectorRegistry, clock: Clock) -> RequestWatch:
    """Return what counts one request of acme."""
    return RequestMetrics(registry).watch("acme", "tiny", clock)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return one sample of acme's."""
    return registry.get_sample_value(name, LABELS | labels)


def test_times(registry: CollectorRegistry, clock: Clock, watch: RequestWatch) -> None:
    """The first token counts from the start, the next from it; tokens that come together share their time."""
    for at, count in ((100.5, 1), (100.75, 1), (101.75, 4)):
        clock.now = at
        watch.tokens(count)
    clock.now = 102.0
    watch.finished(END)
    assert value(registry, "tollgate_time_to_first_token_seconds_sum") == 0.5
    assert value(registry, "tollgate_inter_token_latency_seconds_sum") == 0.25 + 0.25
    assert value(registry, "tollgate_inter_token_latency_seconds_count") == 2
    assert value(registry, "tollgate_e2e_request_latency_seconds_sum") == 2.0


def test_a_message_without_tokens_is_no_token(registry: CollectorRegistry, watch: RequestWatch) -> None:
    """Text that was held back comes without tokens: it is neither first nor next."""
    watch.tokens(0)
    assert value(registry, "tollgate_time_to_first_token_seconds_count") is None


def test_a_good_end_counts_tokens(registry: CollectorRegistry, watch: RequestWatch) -> None:
    """Prompt, cached and generated tokens count once, whoever leaves afterwards."""
    watch.finished(END)
    watch.finished(END)
    watch.left()
    assert value(registry, "tollgate_prompt_tokens_total") == 30
    assert value(registry, "tollgate_cached_prompt_tokens_total") == 16
    assert value(registry, "tollgate_generation_tokens_total") == 7
    assert value(registry, "tollgate_requests_total", outcome="length") == 1
    assert value(registry, "tollgate_requests_total", outcome="cancelled") is None


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Refused(pb.REFUSAL_CODE_KV_LIMIT, "too long", ""), "refused"),
        (SlowConsumer("unread"), "slow_reader"),
        (WorkerUnavailable("away"), "unavailable"),
        (GenerationFailed("broken"), "failed"),
        (ValueError("anything"), "failed"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_a_bad_end_has_one_reason(
    error: Exception, outcome: str, registry: CollectorRegistry, watch: RequestWatch
) -> None:
    """What ended a request first is what counts."""
    watch.failed(error)
    watch.left()
    samples = [one for family in registry.collect() for one in family.samples if one.name == "tollgate_requests_total"]
    assert [(one.labels["outcome"], one.value) for one in samples] == [(outcome, 1.0)]


def test_whoever_leaves_has_cancelled(registry: CollectorRegistry, watch: RequestWatch) -> None:
    """A request that is given up before its end is cancelled."""
    watch.tokens(1)
    watch.left()
    assert value(registry, "tollgate_requests_total", outcome="cancelled") == 1


COUNT = """
from gateway.metrics.requests import of_process
of_process().watch("acme", "tiny").left()
"""
READ = """
from prometheus_client import generate_latest
from gateway.metrics.requests import counted
print(generate_latest(counted()).decode())
"""


def test_processes_are_added_up(tmp_path: Path) -> None:
    """Whichever process is asked tells what all of them have counted, those that are gone too."""
    env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", COUNT], env=env, check=True, timeout=120)
    told = subprocess.run(
        [sys.executable, "-c", READ], env=env, check=True, timeout=120, capture_output=True, text=True
    )
    assert 'tollgate_requests_total{model="tiny",outcome="cancelled",tenant="acme"} 2.0' in told.stdout
