"""The worker's statistics as the controller sees them: the core's counters, with rates over the last second."""

import time
from collections import deque

from engine import ipc
from engine.protocol import pb

_WINDOW_FRAMES = 5  # four quarters of a second


class StatsBook:
    """Turns StatsFrames into Stats. Peaks last until `take` has handed them out."""

    def __init__(self) -> None:
        self._frames: deque[ipc.StatsFrame] = deque(maxlen=_WINDOW_FRAMES)
        self._peaks: dict[str, int] = {}
        self._group_peaks: dict[str, int] = {}
        self._preemptions_of_old_cores = 0

    def add(self, frame: ipc.StatsFrame) -> None:
        """Take the living core's newest frame."""
        self._frames.append(frame)
        for use in frame.tenants:
            self._peaks[use.tenant] = max(self._peaks.get(use.tenant, 0), use.kv_peak_bytes)
        for group in frame.share_groups:
            self._group_peaks[group.name] = max(self._group_peaks.get(group.name, 0), group.kv_peak_bytes)

    def core_lost(self) -> None:
        """Forget the core's use; what counts since the worker's start stays."""
        if self._frames:
            self._preemptions_of_old_cores += self._frames[-1].num_preemptions
        self._frames.clear()

    def take(self, *, block_bytes: int, applied_version: int, core_ready: bool) -> pb.Stats:
        """Return the statistics now."""
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
        )

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


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
