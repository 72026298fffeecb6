"""What the live workers told last, as Prometheus takes it. Their counters count from the start of a worker's core."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tenants.reports import LATENCY_MS, TenantUse, TierTraffic, WorkerStats

_Read = Callable[[WorkerStats], float]
_ReadTenant = Callable[[TenantUse], float]

_GAUGES: tuple[tuple[str, str, _Read], ...] = (
    ("kv_cache_usage_perc", "Share of the device pool that requests hold, 0 to 1.", lambda one: _share(one)),
    ("kv_blocks", "Blocks of the device pool.", lambda one: one.blocks_total),
    ("kv_blocks_free", "Blocks that hold nothing.", lambda one: one.blocks_free),
    ("kv_blocks_cached", "Blocks that no request holds and the next one may find.", lambda one: one.blocks_cached),
    ("kv_block_bytes", "Device bytes of one block.", lambda one: one.block_bytes),
    ("num_requests_running", "Requests that hold blocks.", lambda one: one.running),
    ("num_requests_waiting", "Requests that wait.", lambda one: one.queued),
    ("worker_ready", "1: the core serves; 0: it starts.", lambda one: one.core_ready),
    ("policy_version", "Version of the policy in force.", lambda one: one.applied_version),
    ("host_bytes", "Host memory for KV.", lambda one: one.host_bytes_total),
    ("host_bytes_used", "Of it, bytes that hold blocks.", lambda one: one.host_bytes_used),
    ("disk_bytes", "Disk for KV.", lambda one: one.disk_bytes_total),
    ("disk_bytes_used", "Of it, bytes that hold blocks.", lambda one: one.disk_bytes_used),
    ("disk_bypassed", "1: the disk has failed and is left alone for now.", lambda one: bool(one.disk_problem)),
    ("sessions", "Sessions whose KV is kept.", lambda one: one.num_sessions),
)
_COUNTERS: tuple[tuple[str, str, _Read], ...] = (
    ("num_preemptions", "Running requests that were preempted.", lambda one: one.num_preemptions),
    ("prefix_cache_queries", "Prompt tokens that were looked up.", lambda one: one.prefix_asked_tokens),
    ("prefix_cache_hits", "Prompt tokens that were found, in any tier.", lambda one: one.prefix_found_tokens),
    ("swapped_out_bytes", "Bytes moved from the device to host memory.", lambda one: one.swapped_out_bytes),
    ("swapped_in_bytes", "Bytes moved from host memory to the device.", lambda one: one.swapped_in_bytes),
    ("disk_errors", "Reads and writes that failed, and slabs that were damaged.", lambda one: one.disk_errors),
    ("tier_stall_seconds", "Time that requests have waited for a tier.", lambda one: one.tier_stall_seconds),
    ("prefetched_blocks", "Blocks brought up ahead of need.", lambda one: one.prefetched_blocks),
    ("prefetched_used_blocks", "Of them, those that a request used.", lambda one: one.prefetched_used_blocks),
    ("swap_chosen", "Preempted requests that were swapped, since that cost less.", lambda one: one.swap_chosen),
    ("recompute_chosen", "Preempted requests that compute again.", lambda one: one.recompute_chosen),
)
_TENANT_GAUGES: tuple[tuple[str, str, _ReadTenant], ...] = (
    ("tenant_kv_bytes", "Device bytes of a tenant's account.", lambda one: one.kv_bytes),
    ("tenant_kv_cached_bytes", "Of them, what no request holds.", lambda one: one.kv_cached_bytes),
    ("tenant_kv_borrowed_bytes", "Of them, what is above the soft limit.", lambda one: one.kv_borrowed_bytes),
    ("tenant_host_bytes", "A tenant's bytes in host memory.", lambda one: one.host_bytes),
    ("tenant_disk_bytes", "A tenant's bytes on disk.", lambda one: one.disk_bytes),
    ("tenant_sessions", "A tenant's sessions.", lambda one: one.num_sessions),
    ("tenant_requests_running", "A tenant's requests that hold blocks.", lambda one: one.running),
    ("tenant_requests_waiting", "A tenant's requests that wait.", lambda one: one.queued),
    ("tenant_oldest_wait_seconds", "How long the oldest has waited.", lambda one: one.oldest_wait_seconds),
)
_TENANT_COUNTERS: tuple[tuple[str, str, _ReadTenant], ...] = (
    ("tenant_above_soft_seconds", "Time above the soft limit.", lambda one: one.above_soft_seconds),
    ("tenant_service_tokens", "Weighted tokens: what fairness counts.", lambda one: one.service),
    ("tenant_generation_tokens", "Generated tokens.", lambda one: one.output_tokens),
    ("tenant_preemptions", "Requests of a tenant that were preempted.", lambda one: one.num_preemptions),
    ("tenant_recomputed_tokens", "Tokens computed again after it.", lambda one: one.recomputed_tokens),
)


class WorkerMetrics(Collector):
    """Reads what workers told each time that it is asked."""

    def __init__(self, workers: Iterable[WorkerStats], slugs: Mapping[str, str], missing: int) -> None:
        """Hold what is to be told.

        Args:
            workers: the last statistics of each live worker that has spoken.
            slugs: tenants' slugs by their id; one that is gone is left out.
            missing: live workers that have not spoken.
        """
        self._workers = tuple(workers)
        self._slugs = slugs
        self._missing = missing

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield GaugeMetricFamily("tollgate_workers", "Live workers that speak.", len(self._workers))
        yield GaugeMetricFamily("tollgate_workers_silent", "Live workers that do not.", self._missing)
        for name, words, read in _GAUGES:
            gauge = GaugeMetricFamily(f"tollgate_{name}", words, labels=("worker",))
            for worker in self._workers:
                gauge.add_metric((worker.worker_id,), read(worker))
            yield gauge
        for name, words, read in _COUNTERS:
            counter = CounterMetricFamily(f"tollgate_{name}", words, labels=("worker",))
            for worker in self._workers:
                counter.add_metric((worker.worker_id,), read(worker), created=worker.core_started_at or None)
            yield counter
        yield self._pressure()
        yield self._hits()
        yield from self._traffic()
        yield from self._tenants()

    def _pressure(self) -> Metric:
        words = "How short memory is, 0 to 1, and what makes it so."
        family = GaugeMetricFamily("tollgate_memory_pressure", words, labels=("worker", "part"))
        for worker in self._workers:
            for part in worker.pressure.__struct_fields__:
                family.add_metric((worker.worker_id, part), getattr(worker.pressure, part))
        return family

    def _hits(self) -> Metric:
        words = "Prompt tokens that were found, by the tier where they were."
        family = CounterMetricFamily("tollgate_tier_hit_tokens", words, labels=("worker", "tier"))
        for worker in self._workers:
            for tier, tokens in sorted(worker.tier_hits.items()):
                family.add_metric((worker.worker_id, tier), tokens)
        return family

    def _traffic(self) -> Iterator[Metric]:
        labels = ("worker", "source", "target")
        blocks = CounterMetricFamily("tollgate_tier_copied_blocks", "Blocks copied from tier to tier.", labels=labels)
        num_bytes = CounterMetricFamily("tollgate_tier_copied_bytes", "Bytes copied from tier to tier.", labels=labels)
        words = "How long copies from tier to tier took."
        seconds = HistogramMetricFamily("tollgate_tier_copy_seconds", words, labels=labels)
        for worker in self._workers:
            for one in worker.traffic:
                pair = (worker.worker_id, one.source, one.target)
                blocks.add_metric(pair, one.blocks)
                num_bytes.add_metric(pair, one.bytes)
                if one.latencies:
                    seconds.add_metric(pair, _buckets(one), one.seconds)
        yield from (blocks, num_bytes, seconds)

    def _tenants(self) -> Iterator[Metric]:
        labels = ("worker", "tenant")
        uses = [
            ((worker.worker_id, self._slugs[use.tenant_id]), use, worker.core_started_at or None)
            for worker in self._workers
            for use in worker.tenants
            if use.tenant_id in self._slugs
        ]
        for name, words, read in _TENANT_GAUGES:
            gauge = GaugeMetricFamily(f"tollgate_{name}", words, labels=labels)
            for names, use, _ in uses:
                gauge.add_metric(names, read(use))
            yield gauge
        for name, words, read in _TENANT_COUNTERS:
            counter = CounterMetricFamily(f"tollgate_{name}", words, labels=labels)
            for names, use, created in uses:
                counter.add_metric(names, read(use), created=created)
            yield counter


def _share(worker: WorkerStats) -> float:
    held = worker.blocks_total - worker.blocks_free - worker.blocks_cached
    return held / worker.blocks_total if worker.blocks_total else 0.0


def _buckets(traffic: TierTraffic) -> list[tuple[str, float]]:
    """Return the counts as a histogram has them, each with all below it."""
    bounds = [*(str(most / 1000) for most in LATENCY_MS), "+Inf"]
    total, found = 0, []
    for bound, count in zip(bounds, traffic.latencies, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
