"""What workers told, as Prometheus takes it."""

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.metrics.workers import WorkerMetrics
from tenants.reports import Pressure, TenantUse, TierTraffic, WorkerStats


def use(tenant_id: str, **figures: float) -> TenantUse:
    """Return one tenant's use of a worker."""
    told = {
        "kv_bytes": 100,
        "kv_peak_bytes": 120,
        "running": 1,
        "queued": 2,
        "output_tokens_per_second": 3.0,
    } | figures
    return TenantUse(tenant_id=tenant_id, **told)  # type: ignore[arg-type]  # each figure has its field's type


def stats(worker_id: str = "w-0", **figures: object) -> WorkerStats:
    """Return a worker's statistics with a pool of 10 blocks, 4 free and 2 cached."""
    told = {
        "at": 1000.0,
        "core_ready": True,
        "applied_version": 7,
        "blocks_total": 10,
        "blocks_free": 4,
        "blocks_cached": 2,
        "block_bytes": 50,
        "running": 1,
        "queued": 2,
        "prompt_tokens_per_second": 0.0,
        "output_tokens_per_second": 0.0,
        "num_preemptions": 5,
        "tenants": (use("t-1", kv_borrowed_bytes=40, disk_bytes=9, num_sessions=3, above_soft_seconds=1.5),),
        "core_started_at": 900.0,
        "pressure": Pressure(score=0.5, use=0.75),
    } | figures
    return WorkerStats(worker_id=worker_id, **told)  # type: ignore[arg-type]  # each figure has its field's type


def collected(*workers: WorkerStats, missing: int = 0) -> CollectorRegistry:
    """Return a registry that tells of workers; only the tenant t-1 is known."""
    registry = CollectorRegistry()
    registry.register(WorkerMetrics(workers, {"t-1": "acme"}, missing))
    return registry


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("tollgate_workers", {}, 1),
        ("tollgate_workers_silent", {}, 2),
        ("tollgate_kv_cache_usage_perc", {"worker": "w-0"}, 0.4),
        ("tollgate_num_requests_waiting", {"worker": "w-0"}, 2),
        ("tollgate_num_preemptions_total", {"worker": "w-0"}, 5),
        ("tollgate_disk_bypassed", {"worker": "w-0"}, 1),
        ("tollgate_memory_pressure", {"worker": "w-0", "part": "score"}, 0.5),
        ("tollgate_memory_pressure", {"worker": "w-0", "part": "use"}, 0.75),
        ("tollgate_tier_hit_tokens_total", {"worker": "w-0", "tier": "disk"}, 64),
        ("tollgate_tenant_kv_borrowed_bytes", {"worker": "w-0", "tenant": "acme"}, 40),
        ("tollgate_tenant_disk_bytes", {"worker": "w-0", "tenant": "acme"}, 9),
        ("tollgate_tenant_sessions", {"worker": "w-0", "tenant": "acme"}, 3),
        ("tollgate_tenant_above_soft_seconds_total", {"worker": "w-0", "tenant": "acme"}, 1.5),
    ],
)
def test_figures(name: str, labels: dict[str, str], value: float) -> None:
    """Each figure is told under its name, with the worker and, where it is one's, the tenant's slug."""
    registry = collected(stats(disk_problem="it is full", tier_hits={"disk": 64, "device": 8}), missing=2)
    assert registry.get_sample_value(name, labels) == value


def test_copies_have_a_histogram() -> None:
    """Latencies come as a histogram does: each bucket with all below it, in seconds."""
    counts = (1, 0, 2, *(0 for _ in range(9)), 1)
    traffic = TierTraffic(source="device", target="host", blocks=40, bytes=2000, seconds=3.5, latencies=counts)
    registry = collected(stats(traffic=(traffic,)))
    pair = {"worker": "w-0", "source": "device", "target": "host"}
    told = [
        registry.get_sample_value("tollgate_tier_copy_seconds_bucket", pair | {"le": bound})
        for bound in ("0.001", "0.002", "0.005", "5.0", "+Inf")
    ]
    assert told == [1, 1, 3, 3, 4]
    assert registry.get_sample_value("tollgate_tier_copy_seconds_sum", pair) == 3.5
    assert registry.get_sample_value("tollgate_tier_copied_bytes_total", pair) == 2000


def test_a_tenant_that_is_gone_is_left_out() -> None:
    """A worker may still tell of a tenant that nobody knows any more; its id is nobody's to see."""
    registry = collected(stats(tenants=(use("t-1"), use("gone"))))
    tenants = {
        one.labels["tenant"] for family in registry.collect() for one in family.samples if "tenant" in one.labels
    }
    assert tenants == {"acme"}


def test_it_is_openmetrics() -> None:
    """A strict parser takes all of it, with several workers and with none."""
    for workers in ((), (stats("w-0"), stats("w-1", core_started_at=0.0))):
        families = list(text_string_to_metric_families(openmetrics(collected(*workers)).decode()))
        assert len({family.name for family in families}) == len(families) > 40
