"""The first part of a plan: every decode gets a slot for its token, oldest sequences first.

one token behind        a decode; where memory is short somebody is preempted for it (room.py)
its token is to come    planned ahead with a placeholder, where that costs nobody anything
some tokens behind      it was given tokens without a step (constraining.py): a short chunk
its prompt is not done  an unfinished prefill, which has to wait for its portion (portions.py)
"""

from collections.abc import Collection

from engine.scheduler.constraining import Constraining
from engine.scheduler.options import options_of
from engine.scheduler.portions import Prefills
from engine.scheduler.room import make_room
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.step import SequenceStep, placeholder

_new = tuple.__new__


class Decodes:
    """Secures the decodes of one plan after the other.

    Args:
        roster: who runs.
        constraining: knows whose masks are late.
        budget: tokens of a step.
    """

    def __init__(self, roster: Roster, constraining: Constraining, budget: int) -> None:
        self.planned: list[SequenceState] = []  # of the plan that is being made, in its order
        self.short: dict[SequenceState, int] = {}  # of it: who catches up, by how many tokens
        self.places: dict[SequenceState, int] = {}  # of the tokens to come, in the result of the step in flight
        self.resting: Collection[SequenceState] = ()  # streamed sequences that sit this plan out
        self._roster = roster
        self._memory = roster.memory
        self._constraining = constraining
        self._budget = budget
        self._spare = 0  # tokens of the plan beyond the one that each sequence that runs may have

    @property
    def num_short(self) -> int:
        """Tokens of all short chunks of the plan."""
        return sum(self.short.values())

    def secure(self, number: int, now: float) -> tuple[list[SequenceStep], Prefills]:
        """Give each decode a slot for its token, oldest sequences first; return their steps and unfinished prefills.

        The hot loop of a plan: one pass, and no call for a decode that has its token and its slot.
        """
        num_preempted = self._roster.num_preemptions
        parts: list[SequenceStep] = []
        planned = self.planned = []
        self.short = {}
        self._spare = max(0, self._budget - len(self._roster.running))
        prefills: Prefills = {}
        late = self._constraining.late
        for sequence in self._roster.running.copy():
            table = sequence.table
            if table is None:  # preempted for an older one in this loop
                continue
            if late and sequence in late:
                continue
            tokens, computed = sequence.tokens, sequence.computed
            hosted = table.hosted
            if hosted and sequence in self.resting:
                continue
            if len(tokens) - computed == 1:
                if computed >= table.capacity and not make_room(self._roster, sequence, number, now):
                    continue
                token = tokens[computed]  # all but this one are computed
            elif computed < len(tokens):
                if sequence.constraint is None or computed < sequence.num_prompt or sequence.streams:
                    prefills.setdefault(sequence.tenant, []).append(sequence)
                else:
                    self._catch_up(sequence, number, now)
                continue
            elif self._goes_ahead(sequence, now):
                token = placeholder(self.places[sequence])
            else:
                continue
            planned.append(sequence)
            sequence.computed = after = computed + 1
            position = after - sequence.num_prompt
            # In the order of SequenceStep's fields: a call of SequenceStep takes twice as long.
            step = (
                sequence.id,
                table.row,
                computed,
                (token,),
                sequence.sampling,
                position,
                sequence.random_key,
                hosted,
                options_of(sequence, computed, 1) if sequence.is_special else None,
            )
            parts.append(_new(SequenceStep, step))
        if num_preempted != self._roster.num_preemptions:
            parts = self.without_preempted(parts)
        if self._roster.num_embeds:
            parts = self._without_embeds(parts, prefills)
        return parts, prefills

    def _catch_up(self, sequence: SequenceState, number: int, now: float) -> None:
        """Plan the tokens that a sequence has been given without a step, as far as there is room for them."""
        table, computed = sequence.table, sequence.computed
        assert table is not None, "it runs"
        end = len(sequence.tokens)
        if self._memory.grow(table, end, now) is not None:  # all are not to be had without anybody giving way
            if computed >= table.capacity and not make_room(self._roster, sequence, number, now):
                return
            end = min(end, table.capacity)
        self.short[sequence] = size = min(end - computed, 1 + self._spare)
        self._spare -= size - 1

    def _goes_ahead(self, sequence: SequenceState, now: float) -> bool:
        """Say whether a sequence whose token is to come goes on behind it, with a slot for it that costs nobody."""
        table, computed = sequence.table, sequence.computed
        if table is None or sequence.needs_result or computed + 1 >= sequence.max_length:
            return False
        return computed < table.capacity or self._memory.grow(table, computed + 1, now) is None

    def without_preempted(self, parts: list[SequenceStep]) -> list[SequenceStep]:
        """Take those out of the plan that were preempted after they had been given a slot."""
        kept = [pair for pair in zip(self.planned, parts, strict=True) if pair[0].table is not None]
        self.planned = [sequence for sequence, _ in kept]
        return [part for _, part in kept]

    def _without_embeds(self, parts: list[SequenceStep], prefills: Prefills) -> list[SequenceStep]:
        """Make unfinished prefills again of prompts to embed of which one token is left: no decode follows."""
        kept: list[SequenceStep] = []
        planned, self.planned = self.planned, []
        for sequence, part in zip(planned, parts, strict=True):
            if sequence.request.embed:
                sequence.computed = part.start
                prefills.setdefault(sequence.tenant, []).append(sequence)
            else:
                self.planned.append(sequence)
                kept.append(part)
        return kept

    def as_hosted(self, parts: list[SequenceStep]) -> list[SequenceStep]:
        """Say anew which blocks of each sequence are in host memory: some have moved since it was written down."""
        pairs = zip(self.planned, parts, strict=True)
        return [part._replace(hosted=one.table.hosted) if one.table is not None else part for one, part in pairs]
