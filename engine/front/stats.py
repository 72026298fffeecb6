"""The worker's statistics as the controller sees them: the core's counters, with rates over the last second."""

import time
from collections import deque

from engine import ipc
from engine.protocol import pb

_WINDOW_FRAMES = 5  # four quarters of a second


class StatsBook:
    """Turns StatsFrames into Stats. Peaks, and pairs that have changed, last until `take` has handed them out."""

    def __init__(self) -> None:
        self._frames: deque[ipc.StatsFrame] = deque(maxlen=_WINDOW_FRAMES)
        self._peaks: dict[str, int] = {}
        self._group_peaks: dict[str, int] = {}
        self._preemptions_of_old_cores = 0
        self._core_started_at = 0.0  # unix seconds; 0: there is no core
        self._pairs: dict[tuple[str, str], ipc.Interference] = {}  # all of this core, by whom and of whom
        self._changed: set[tuple[str, str]] = set()  # not yet told, forgotten ones too

    def add(self, frame: ipc.StatsFrame) -> None:
        """Take the living core's newest frame."""
        self._frames.append(frame)
        self._core_started_at = self._core_started_at or frame.at
        for pair in frame.interference:
            self._changed.add((pair.by, pair.of))
            if _is_forgotten(pair):
                self._pairs.pop((pair.by, pair.of), None)
            else:
                self._pairs[pair.by, pair.of] = pair
        for use in frame.tenants:
            self._peaks[use.tenant] = max(self._peaks.get(use.tenant, 0), use.kv_peak_bytes)
        for group in frame.share_groups:
            self._group_peaks[group.name] = max(self._group_peaks.get(group.name, 0), group.kv_peak_bytes)

    def core_lost(self) -> None:
        """Forget the core's use; what counts since the worker's start stays."""
        if self._frames:
            self._preemptions_of_old_cores += self._frames[-1].num_preemptions
        self._frames.clear()
        self._core_started_at = 0.0
        self._pairs.clear()
        self._changed.clear()

    def take(self, *, block_bytes: int, applied_version: int, core_ready: bool, complete: bool = False) -> pb.Stats:
        """Return the statistics now; complete ones have all pairs, others those that have changed since the last."""
        if not self._frames:
            return pb.Stats(
                at=time.time(),
                block_bytes=block_bytes,
                applied_version=applied_version,
                core_ready=core_ready,
                num_preemptions=self._preemptions_of_old_cores,
            )
        first, last = self._frames[0], self._frames[-1]
        seconds = last.at - first.at
        return pb.Stats(
            at=last.at,
            step=last.step,
            blocks_total=last.blocks_total,
            blocks_free=last.blocks_free,
            blocks_open=last.blocks_open,
            blocks_sealed=last.blocks_sealed,
            blocks_cached=last.blocks_cached,
            block_bytes=block_bytes,
            running=last.running,
            queued=last.queued,
            prompt_tokens_per_second=_rate(last.prompt_tokens - first.prompt_tokens, seconds),
            output_tokens_per_second=_rate(last.output_tokens - first.output_tokens, seconds),
            tenants=self._tenants(first, last),
            applied_version=applied_version,
            core_ready=core_ready,
            num_preemptions=self._preemptions_of_old_cores + last.num_preemptions,
            share_groups=self._share_groups(last),
            core_started_at=self._core_started_at,
            pressure=_pressure(last.pressure),
            host_bytes_total=last.host_bytes_total,
            host_bytes_used=last.host_bytes_used,
            swapped_out_bytes=last.swapped_out_bytes,
            swapped_in_bytes=last.swapped_in_bytes,
            interference=self._interference(complete=complete),
            disk_bytes_total=last.disk_bytes_total,
            disk_bytes_used=last.disk_bytes_used,
            disk_problem=last.disk_problem,
            disk_errors=last.disk_errors,
            traffic=map(_traffic, last.traffic),
            tier_hits=[pb.TierHits(tier=tier, tokens=tokens) for tier, tokens in last.tier_hits.items()],
            tier_stall_seconds=last.tier_stall_seconds,
            prefetched_blocks=last.prefetched_blocks,
            prefetched_used_blocks=last.prefetched_used_blocks,
            num_sessions=last.num_sessions,
            prefix_asked_tokens=last.prefix_asked_tokens,
            prefix_found_tokens=last.prefix_found_tokens,
            swap_chosen=last.swap_chosen,
            recompute_chosen=last.recompute_chosen,
        )

    def _interference(self, *, complete: bool) -> list[pb.Interference]:
        changed, self._changed = set(self._pairs) if complete else self._changed, set()
        return [_pair(self._pairs.get(key) or _forgotten(key)) for key in changed]

    def _tenants(self, first: ipc.StatsFrame, last: ipc.StatsFrame) -> list[pb.TenantStats]:
        seconds = last.at - first.at
        before = {use.tenant: use.output_tokens for use in first.tenants}
        peaks, self._peaks = self._peaks, {}
        return [
            pb.TenantStats(
                tenant=use.tenant,
                kv_bytes=use.kv_bytes,
                running=use.running,
                queued=use.queued,
                output_tokens_per_second=_rate(use.output_tokens - before.get(use.tenant, 0), seconds),
                kv_peak_bytes=max(use.kv_peak_bytes, peaks.get(use.tenant, 0)),
                kv_cached_bytes=use.kv_cached_bytes,
                kv_borrowed_bytes=use.kv_borrowed_bytes,
                host_bytes=use.host_bytes,
                above_soft_seconds=use.above_soft_seconds,
                service=use.service,
                num_preemptions=use.num_preemptions,
                recomputed_tokens=use.recomputed_tokens,
                oldest_wait_seconds=use.oldest_wait_seconds,
                shadow=[
                    pb.ShadowCount(limit=count.limit, refused=count.refused, delayed=count.delayed)
                    for count in use.shadow
                ],
                output_tokens=use.output_tokens,
                weight=use.weight,
                disk_bytes=use.disk_bytes,
                num_sessions=use.num_sessions,
            )
            for use in last.tenants
        ]

    def _share_groups(self, last: ipc.StatsFrame) -> list[pb.ShareGroupStats]:
        peaks, self._group_peaks = self._group_peaks, {}
        return [
            pb.ShareGroupStats(
                name=use.name,
                kv_bytes=use.kv_bytes,
                kv_peak_bytes=max(use.kv_peak_bytes, peaks.get(use.name, 0)),
                kv_cached_bytes=use.kv_cached_bytes,
                num_prefixes=use.num_prefixes,
                prefix_tokens=use.prefix_tokens,
            )
            for use in last.share_groups
        ]


def _pressure(pressure: ipc.Pressure | None) -> pb.Pressure | None:
    if pressure is None:
        return None
    return pb.Pressure(
        score=pressure.score, use=pressure.use, borrowed=pressure.borrowed, wait=pressure.wait, swap=pressure.swap
    )


def _traffic(traffic: ipc.TierTraffic) -> pb.TierTraffic:
    return pb.TierTraffic(
        source=traffic.source,
        target=traffic.target,
        blocks=traffic.blocks,
        bytes=traffic.bytes,
        seconds=traffic.seconds,
        latencies=traffic.latencies,
    )


def _pair(pair: ipc.Interference) -> pb.Interference:
    return pb.Interference(
        by=pair.by,
        of=pair.of,
        cached_blocks=pair.cached_blocks,
        num_preemptions=pair.num_preemptions,
        recomputed_tokens=pair.recomputed_tokens,
        swapped_bytes=pair.swapped_bytes,
    )


def _forgotten(key: tuple[str, str]) -> ipc.Interference:
    by, of = key
    return ipc.Interference(by=by, of=of, cached_blocks=0, num_preemptions=0, recomputed_tokens=0, swapped_bytes=0)


def _is_forgotten(pair: ipc.Interference) -> bool:
    return pair == _forgotten((pair.by, pair.of))


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
