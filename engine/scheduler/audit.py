"""Proof of the scheduler's bookkeeping: states, lines, searches and places are recounted and compared."""

from typing import TYPE_CHECKING

from engine.errors import InvariantError
from engine.scheduler.beam_group import BeamGroup
from engine.scheduler.sequence import State

if TYPE_CHECKING:
    from engine.scheduler.roster import Roster


def audit(roster: "Roster") -> None:
    """Recount everything, the memory too. Raises InvariantError that says what differs."""
    roster.memory.audit()
    count = dict.fromkeys(State, 0)
    for sequence in roster.sequences.values():
        count[sequence.state] += 1
        if (sequence.table is not None) != (sequence.state is State.RUNNING):
            raise InvariantError(f"sequence {sequence.id} is {sequence.state.value} with a wrong table")
    tenants = roster.tenants.values()
    found = {
        State.HELD: len(roster.held),
        State.WAITING: sum(tenant.num_waiting for tenant in tenants),
        State.FETCHING: roster.fetching.num_fetching,
        State.PARKED: sum(len(tenant.parked) for tenant in tenants),
        State.RUNNING: len(roster.running),
        State.ENDED: 0,
    }
    if roster.num_embeds != sum(one.request.embed for one in roster.running):
        raise InvariantError(f"{roster.num_embeds} running sequences are counted that embed, which is wrong")
    if found != count or sum(len(tenant.running) for tenant in tenants) != len(roster.running):
        raise InvariantError(f"sequences by state {count}, in lists {found}")
    live = sum(tenant.num_live for tenant in tenants)
    num_held = sum(one.num_asked for one in roster.held.values())
    if live != len(roster.sequences) or sum(tenant.num_held for tenant in tenants) != num_held:
        raise InvariantError("a tenant's number of live or held requests is wrong")
    idle = [one for one in roster.sequences.values() if one.state is not State.RUNNING]
    if sum(tenant.num_ahead for tenant in tenants) != sum(one.num_asked - 1 for one in idle):
        raise InvariantError("a tenant's number of outputs to come is wrong")
    if {tenant.name for tenant in tenants if tenant.num_waiting} != set(roster.waiting):
        raise InvariantError("the list of waiting tenants is wrong")
    for group in roster.searches.values():
        _search(roster, group)
    roster.fetching.audit()
    roster.parking.audit()
    if roster.num_places() > roster.max_running:
        raise InvariantError(f"{roster.num_places()} sequences run or are to come, and {roster.max_running} may")


def _search(roster: "Roster", group: BeamGroup) -> None:
    """Check that a search's beams run, have one length, and can have all that they may need."""
    leader, members = group.leader, group.members
    if leader not in members or any(one.beams is not group or one.table is None for one in members):
        raise InvariantError(f"a beam of request {leader.id} does not run, or its leader is none")
    if len({(len(one.tokens), one.computed) for one in members}) != 1:
        raise InvariantError(f"the beams of request {leader.id} differ in length")
    tables = [one.table for one in members if one.table is not None]
    held = {block for table in tables for block in table.blocks}
    if len(held) + sum(table.reserved for table in tables) > group.most_blocks:
        raise InvariantError(f"the beams of request {leader.id} hold or are promised more than they may need")
    most = roster.memory.blocks_for(leader.max_length)
    if group.search is not None and any(len(table.blocks) + table.reserved < most for table in tables):
        raise InvariantError(f"a beam of request {leader.id} is promised less than it may need")
