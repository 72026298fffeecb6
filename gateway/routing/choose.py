"""Choose a worker. Pure.

A session goes back to the worker that has its KV: rendezvous hashing ranks the workers for each session, alike in every
web process and without a word between them, and when a worker goes or comes, only its own sessions move.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

LOAD_FACTOR = 1.5  # times the mean load: what a session's worker may have to do before the next in rank takes the turn
LOAD_SLACK = 8  # requests; few requests are no load, however uneven


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker that serves the model; `num_active` counts this process's requests on it."""

    worker_id: str
    num_active: int


def affinity(tenant_id: str, session: str) -> bytes:
    """Return what ranks the workers for a tenant's session; empty: there is no session."""
    if not session:
        return b""
    return b"".join(len(part).to_bytes(4, "big") + part for part in (tenant_id.encode(), session.encode()))


def choose(
    candidates: Sequence[Candidate], tried: frozenset[str] = frozenset(), session: bytes = b""
) -> Candidate | None:
    """Return the worker to try next, or None.

    Without a session: the least loaded; ties go to the first id, so that choices repeat. With one: the first in its
    rank that is not overloaded, which the least loaded never is.

    Args:
        candidates: those that serve the model.
        tried: ids of those that were asked already.
        session: its `affinity`.
    """
    left = [candidate for candidate in candidates if candidate.worker_id not in tried]
    if session and left:
        most = LOAD_SLACK + LOAD_FACTOR * sum(candidate.num_active for candidate in left) / len(left)
        able = [candidate for candidate in left if candidate.num_active <= most]
        return max(able, key=lambda candidate: _rank(candidate.worker_id, session))
    return min(left, key=lambda candidate: (candidate.num_active, candidate.worker_id), default=None)


def _rank(worker_id: str, session: bytes) -> bytes:
    return hashlib.blake2b(session + worker_id.encode(), digest_size=8).digest()
