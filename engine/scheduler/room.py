"""A decode's next block: taken where it is to be had, else somebody is preempted for it, or gives up a piece."""

from engine.memory.accounts import Account
from engine.memory.supply import Shortage
from engine.scheduler.admission import evict
from engine.scheduler.pressure import group_victim, newest, pool_victim
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState


def make_room(roster: Roster, sequence: SequenceState, plan_number: int, now: float) -> bool:
    """Grow a sequence by one block, preempting where needed; False when it gives way itself, or sits this step out."""
    table = sequence.table
    assert table is not None, "only a running sequence grows"
    memory, streaming = roster.memory, roster.streaming
    while True:
        shortage = memory.grow(table, sequence.computed + 1, now)
        if shortage is None:
            return True
        if _is_lowered(sequence.tenant.account, shortage):
            return False
        if not _is_guaranteed(sequence.tenant.account, shortage) and streaming.give(sequence, now):
            continue
        alone = len(roster.running) == 1  # then only idle caches within guarantees can be in its way
        if alone and memory.grow(table, sequence.computed + 1, now, last_resort=True) is None:
            return True
        victim = _victim(roster, sequence, shortage)
        if victim.tenant is sequence.tenant and (
            streaming.give(sequence, now) or streaming.squeeze(victim.tenant, now)
        ):
            continue
        if victim is sequence and streaming.waits(sequence):
            return False
        evict(roster, victim, plan_number, now, by=sequence.tenant)
        if sequence.table is None:
            return False


def _is_guaranteed(account: Account | None, shortage: Shortage) -> bool:
    """Say whether others have to give way for a tenant's next block."""
    return shortage is Shortage.POOL and account is not None and account.blocks < account.soft


def _is_lowered(account: Account | None, shortage: Shortage) -> bool:
    """Say whether a tenant's own lowered limit forbids the block: then enforce.py says who gives way, and how soon."""
    assert account is not None, "a running sequence has an account"
    return shortage is Shortage.ACCOUNT and account.used + account.reserved > account.hard


def _victim(roster: Roster, sequence: SequenceState, shortage: Shortage) -> SequenceState:
    """Return who gives way for this sequence's next block; the sequence itself when nobody else may be asked."""
    own = sequence.tenant.running
    if shortage is Shortage.ACCOUNT:
        return newest(own) or newest((one for one in own if one.beams is None), protected=True) or sequence
    account = sequence.tenant.account
    assert account is not None, "a running sequence has an account"
    busy = roster.busy.values()
    victim = pool_victim(busy)
    if victim is None and account.blocks < account.soft:
        others = [tenant for tenant in busy if tenant is not sequence.tenant]
        victim = pool_victim(others, protected=True)
        victim = victim or group_victim(one for tenant in others for one in tenant.running)
    return victim or newest(own) or sequence
