"""A step in flight: planned, perhaps running on the device, and not yet committed.

Its sequences stand as if it were done: `computed` has moved on when it is planned, `tokens` grows when it is committed.
So in between a sequence that will be given a token has nothing left to compute, and a plan that is made meanwhile puts
a placeholder where the token belongs.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from engine.errors import InvariantError
from engine.scheduler.interference import Again
from engine.scheduler.sequence import SequenceState
from engine.scheduler.step_time import StepWork, chunk_pairs
from engine.step import StepPlan


class Flight(NamedTuple):
    """A plan, and whose it is."""

    plan: StepPlan
    planned: list[SequenceState]  # in the plan's order
    num_decodes: int  # the first of them
    num_hosted: int = 0  # blocks that attention reads from host memory, of all sequences
    again: Again = Again()  # of it, what had been computed before

    def places(self) -> dict[SequenceState, int]:
        """Return where in the step's result the token of each sequence will be, for those that get one."""
        pairs = zip(self.planned, self.plan.sequences, strict=True)
        sampled = [sequence for sequence, part in pairs if part.sampling is not None]
        return dict(zip(sampled, range(len(sampled)), strict=True))

    def work(self) -> StepWork:
        """Return what the step computes, for the model of how long steps take."""
        num_decodes, parts = self.num_decodes, self.plan.sequences
        chunks = parts[num_decodes:]
        return StepWork(
            num_decodes=num_decodes,
            context_tokens=sum(part.start for part in parts[:num_decodes]) + num_decodes,
            prefill_tokens=sum(len(part.token_ids) for part in chunks),
            prefill_pairs=sum(chunk_pairs(part.start, len(part.token_ids)) for part in chunks),
        )


def audit_flights(flights: Iterable[Flight], running: Iterable[SequenceState]) -> None:
    """Check that what runs stands where the last step leaves it that it is in. Raises InvariantError."""
    ends: dict[SequenceState, int] = {}
    to_come: Counter[SequenceState] = Counter()
    for flight in flights:
        for sequence, part in zip(flight.planned, flight.plan.sequences, strict=True):
            if sequence.table is None:  # it has left; should it come back, then in a later plan than the next
                continue
            if sequence.table.row != part.row or ends.get(sequence, part.start) != part.start:
                raise InvariantError(f"sequence {sequence.id} has started again while a step of it is in flight")
            ends[sequence] = part.start + len(part.token_ids)
            to_come[sequence] += part.sampling is not None
    for sequence in running:
        if sequence.computed != ends.get(sequence, sequence.computed):
            raise InvariantError(f"sequence {sequence.id} counts {sequence.computed} tokens, its step {ends[sequence]}")
        is_last = sequence.request.embed and sequence in ends  # nothing is sampled behind a prompt to embed
        if sequence.remaining < (0 if is_last else 1 - to_come[sequence]):
            raise InvariantError(f"sequence {sequence.id} has computed more tokens than it has and will be given")
