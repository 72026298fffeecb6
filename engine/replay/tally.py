"""What each tenant got in one replay."""

import math
from dataclasses import dataclass, field

from engine.replay.task import Figures


@dataclass(slots=True)
class Tally:
    """Counts of one tenant while a replay runs. A request that still waits at its end counts with its wait so far."""

    num_requests: int = 0
    num_refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0  # beside those that the scheduler counts: what coarse tokens make of them too many
    ttft: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)

    def figures(
        self,
        *,
        late: list[float],
        queued: list[float],
        output_tokens: int,
        num_preemptions: int,
        evicted_blocks: int,
        kv_peak_bytes: int,
        above_soft_seconds: float,
    ) -> Figures:
        """Return the figures, with those that scheduler and memory have counted.

        `late` and `queued` are the waits for a first token, and for a start, that have not ended.
        """
        ttft = [*self.ttft, *late]
        return Figures(
            num_requests=self.num_requests,
            num_refused=self.num_refused,
            num_preemptions=num_preemptions,
            evicted_blocks=evicted_blocks,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=output_tokens,
            kv_peak_bytes=kv_peak_bytes,
            above_soft_seconds=above_soft_seconds,
            ttft_p50_seconds=percentile(ttft, 0.50),
            ttft_p99_seconds=percentile(ttft, 0.99),
            queue_p99_seconds=percentile([*self.queue, *queued], 0.99),
        )


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that this share of all does not exceed (nearest rank); 0 for none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
