"""Order of service: classes with ageing, and between tenants virtual counters of weighted service.

    counter += (prefill tokens + 2 · output tokens) / weight

The tenant with the lowest counter goes first ("Fairness in Serving Large Language Models", Sheng et al., 2024: VTC).
A tenant that wakes is lifted to the lowest counter of those that are busy: idling saves up no claim on the future.

When memory is short (pressure_score.py), minnows go first: a request stands where its tenant's counter will be once it
is done, not where it is now,

    place = counter + eagerness · patience · (prompt tokens left + 2 · output tokens expected) / weight

so that what needs little memory and ends soon comes before the next chunk of what is large, within a class. Eagerness
goes from 0 to 1 as the score goes from `EAGER_FROM` to `EAGER_AT`, patience from 1 to 0 as the tenant's line of that
class waits for `PATIENCE_SECONDS`: so long a whale lets minnows pass, and no longer, however many tenants send them. It
ends sooner where each of them has had as much more service as the whale's request is worth: the order is that of
weighted fair queueing (Demers, Keshav, Shenker, 1989), so shares drift apart by one request at most, not for good. A
prefill that has begun does not fall back: what it computes goes over from the one term to the other.
"""

from collections.abc import Iterable

from engine.request import Priority
from engine.scheduler.sequence import SequenceState
from engine.scheduler.tenant import Tenant

AGEING_SECONDS = 2.0  # a tenant's line that was not served for this long moves up one class, and another, to the first
EAGER_FROM, EAGER_AT = 0.3, 0.6  # pressure at which minnows begin to go first, and from which on they do so wholly
PATIENCE_SECONDS = 4.0
RANK = {Priority.INTERACTIVE: 0, Priority.STANDARD: 1, Priority.BATCH: 2}


def class_rank(asked: Priority, allowed: Priority) -> int:
    """Return the rank of a request: a tenant cannot ask for a better class than its policy gives."""
    return max(RANK[asked], RANK[allowed])


def effective_rank(sequence: SequenceState, now: float) -> int:
    """Return the rank after ageing.

    What ages is the tenant's line of that class, not the request: a tenant with a long backlog has many old requests,
    and they must not go before the fresh ones of a tenant that has had less service.
    """
    if sequence.rank == 0:
        return 0
    return max(0, sequence.rank - int(_unserved(sequence, now) / AGEING_SECONDS))


def eagerness(score: float) -> float:
    """Return how much a request's size counts at this pressure: 0 not at all, 1 in full."""
    return min(1.0, max(0.0, (score - EAGER_FROM) / (EAGER_AT - EAGER_FROM)))


def place(sequence: SequenceState, eager: float, now: float) -> float:
    """Return where a sequence stands among those of its class; the lowest goes first.

    Args:
        sequence: one that is to have prompt tokens computed.
        eager: how much its size counts.
        now: the time.
    """
    tenant = sequence.tenant
    patience = 1.0 - _unserved(sequence, now) / PATIENCE_SECONDS
    if eager <= 0.0 or patience <= 0.0:
        return tenant.counter
    return tenant.counter + eager * patience * _cost(sequence)


def is_behind(sequence: SequenceState, busy: Iterable[Tenant]) -> bool:
    """Say whether another tenant is ahead of a sequence's by more than what the sequence will cost."""
    least = sequence.tenant.counter + _cost(sequence)
    return any(tenant.counter > least for tenant in busy)


def lift(tenant: Tenant, busy: Iterable[Tenant], floor: float) -> None:
    """Lift a waking tenant's counter to the lowest of the busy ones, or to `floor` when nobody is busy."""
    tenant.counter = max(tenant.counter, min((other.counter for other in busy), default=floor))


def first_waiting(tenant: Tenant, now: float) -> SequenceState | None:
    """Return the tenant's own next sequence: best class after ageing, then arrival."""
    best: SequenceState | None = None
    best_key = (0, 0)
    for line in tenant.lines:
        head = line.head()
        if head is not None:
            key = (effective_rank(head, now), head.number)
            if best is None or key < best_key:
                best, best_key = head, key
    return best


def _cost(sequence: SequenceState) -> float:
    """Return what a sequence will add to its tenant's counter until its end, as far as one can tell."""
    tenant = sequence.tenant
    output = min(sequence.max_tokens, tenant.lengths.predict(sequence.generated)) - sequence.generated
    return sequence.remaining * tenant.prefill_cost + max(0, output) * tenant.output_cost


def _unserved(sequence: SequenceState, now: float) -> float:
    """Return for how long the tenant's line of its class has not been served, as far as the sequence was in it."""
    return now - max(sequence.tenant.lines[sequence.rank].served_at, sequence.request.arrived_at)
