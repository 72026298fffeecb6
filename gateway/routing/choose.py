"""Choose a worker. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker that serves the model; `num_active` counts this process's requests on it."""

    worker_id: str
    num_active: int


def choose(candidates: Sequence[Candidate], tried: frozenset[str] = frozenset()) -> Candidate | None:
    """Return the least loaded worker not yet tried, or None; ties go to the first id, so that choices repeat."""
    left = [candidate for candidate in candidates if candidate.worker_id not in tried]
    return min(left, key=lambda candidate: (candidate.num_active, candidate.worker_id), default=None)
