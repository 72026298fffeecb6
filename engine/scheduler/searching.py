"""Beam search on the roster: beams are running sequences that fork from each other in every step.

prompt      the leader computes it. All blocks that the beams may ever need are promised to it at its start, and
            their rows are kept free: no beam ever waits, neither for another beam nor for anybody else.
each step   every beam has decoded one token, so all have the same length. The search says which go on: a beam with
            several heirs is forked, on the place of one that has none. Forks share all full blocks; the open one is
            copied before anybody writes to it, into a block that was promised.
the end     all beams leave together. A search that is preempted starts again from the prompt: it will find the
            same, and what was counted once is not counted again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.request import FinishReason
from engine.scheduler.beam_group import BeamGroup
from engine.scheduler.beams import Branch, Hypothesis
from engine.scheduler.outputs import OutputExtras, RequestOutput
from engine.scheduler.sequence import SequenceState

if TYPE_CHECKING:
    from engine.scheduler.roster import Roster


def branch(roster: "Roster", group: BeamGroup, branches: Sequence[Branch], now: float) -> None:
    """Let the beams go on as the search says: `branches` of the present members, in their order."""
    memory, leader, members = roster.memory, group.leader, group.members
    if len(members) == 1:
        roster.prefills.end(leader)  # while its keys are still those of the prompt
    parents = {heir.parent for heir in branches}
    idle = [one for place, one in enumerate(members) if place not in parents]
    idle.sort(key=lambda one: one is leader)  # the last to leave, and the first to get another's place
    for one in members:
        assert one.table is not None, "beams run until they end"
        memory.unreserve(one.table)
    for _ in range(len(members) - len(branches)):
        if idle[0] is not leader:
            roster.part(idle.pop(0), now)
    for one in idle:
        _clear(roster, one, now)
    heirs, forked = _place(roster, group, branches, idle, now)
    _secure(roster, leader, heirs, forked, now)
    for heir, chosen in zip(heirs, branches, strict=True):
        heir.tokens.append(chosen.token)
    group.members = heirs


def _place(
    roster: "Roster", group: BeamGroup, branches: Sequence[Branch], idle: list[SequenceState], now: float
) -> tuple[list[SequenceState], list[SequenceState]]:
    """Return the sequences that go on, in the order of the branches, and those of them that have just been forked."""
    leader, members = group.leader, group.members
    heirs: list[SequenceState] = []
    forked: list[SequenceState] = []
    for one in branches:
        heir = parent = members[one.parent]
        if parent in heirs:
            heir = idle.pop() if idle else roster.add_beam(leader)
            _fork(roster, heir, parent, now)
            forked.append(heir)
        heirs.append(heir)
    if idle:  # fewer beams than before, and none of them from the leader: it takes over the best one
        _fork(roster, leader, heirs[0], now)
        roster.part(heirs[0], now)
        heirs[0] = leader
        forked.append(leader)
    return heirs, forked


def _secure(
    roster: "Roster", leader: SequenceState, heirs: Sequence[SequenceState], forked: Sequence[SequenceState], now: float
) -> None:
    """Copy open blocks that are shared, and promise every beam what it may still need."""
    memory = roster.memory
    most = memory.blocks_for(leader.max_length)
    shortage = None
    for one in forked:
        if one.table is not None and one.computed < one.table.capacity:
            shortage = shortage or memory.write_at(one.table, one.computed, now)
    for one in heirs:
        if one.table is not None:
            shortage = shortage or memory.reserve(one.table, most)
    assert shortage is None, "all that the beams need was promised to the leader"


def _fork(roster: "Roster", heir: SequenceState, parent: SequenceState, now: float) -> None:
    assert parent.table is not None, "a beam forks from one that runs"
    table = roster.memory.fork(heir.id, parent.table, parent.computed, now)
    heir.table, heir.chain, heir.chain_stamp = table, table.chain, parent.chain_stamp
    heir.tokens, heir.computed = parent.tokens.copy(), parent.computed


def _clear(roster: "Roster", sequence: SequenceState, now: float) -> None:
    assert sequence.table is not None, "beams run until they end"
    roster.memory.free(sequence.table, now)
    sequence.table = None


def gather(roster: "Roster", group: BeamGroup, now: float) -> None:
    """End all beams but the leader."""
    group.settle(now)
    for one in group.members:
        if one is not group.leader:
            roster.part(one, now)
    group.members = [group.leader]


def report_end(
    roster: "Roster", group: BeamGroup, hypotheses: Sequence[Hypothesis], reason: FinishReason, message: str
) -> None:
    """Report the end of every output, best first: `reason` is that of those without a stop token.

    What concerns the whole request goes with the first.
    """
    leader = group.leader
    num_top = leader.request.sampling.num_logprobs
    news = leader.admitted and not leader.announced
    for index in range(leader.request.n):
        first = index == 0
        found = hypotheses[index] if index < len(hypotheses) else Hypothesis((), (), 0.0, False)
        roster.report(
            RequestOutput(
                sequence=leader.id,
                token_ids=found.token_ids,
                kv_byte_seconds=leader.kv_block_seconds * roster.memory.shape.block_bytes if first else 0.0,
                num_preemptions=leader.num_preemptions if first else 0,
                output_index=index,
                admitted_max_tokens=leader.max_tokens if news and first else 0,
                queue_seconds=leader.queue_seconds if news and first else 0.0,
                cached_tokens=leader.cached_tokens if news and first else 0,
                finish_reason=FinishReason.STOP if found.stopped else reason,
                message=message,
                logprobs=found.logprobs if num_top >= 0 else (),
                unseen_tokens=group.take_unseen(),
                score=found.score,
                extras=OutputExtras(top=found.tops) if num_top > 0 else None,
            )
        )
