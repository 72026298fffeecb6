"""Who gives way when memory is short.

For the pool: only tenants whose sequences use more than their soft limit, the largest borrower first, in each the
newest sequence first. A sequence that runs on reserved blocks is left alone; only a need within a guarantee takes it,
and only when nothing else is left; then what it is promised counts as if it were in use. The beams of a search run so
from the start, and they leave together. At the very last go those that run on blocks which a share group has borrowed.
(Cached blocks, which nobody uses, have gone before: engine/memory.)
For a tenant's own ceiling: its own newest sequence.
"""

from collections.abc import Iterable

from engine.memory.accounts import Account
from engine.memory.pool import BlockPool
from engine.request import BlockId
from engine.scheduler.sequence import SequenceState
from engine.scheduler.tenant import Tenant

MAX_EVICTIONS = 3  # then a sequence comes back only when all it may still need is reserved


def is_protected(sequence: SequenceState) -> bool:
    """Say whether it runs on reserved blocks: a beam, or one that was preempted for memory as often as one may be."""
    return sequence.evictions >= MAX_EVICTIONS or sequence.beams is not None


def newest(sequences: Iterable[SequenceState], *, protected: bool = False) -> SequenceState | None:
    """Return the one that arrived last, among the unprotected or among all."""
    candidates = (sequence for sequence in sequences if protected or not is_protected(sequence))
    return max(candidates, key=lambda sequence: sequence.number, default=None)


def pool_victim(tenants: Iterable[Tenant], *, protected: bool = False) -> SequenceState | None:
    """Return the sequence to preempt for want of free blocks, or None when nobody may be asked."""
    best: SequenceState | None = None
    most = 0
    for tenant in tenants:
        borrowed = _above_guarantee(tenant, protected=protected)
        if borrowed > most:
            is_in_use = tenant.account is not None and tenant.account.borrowed
            own = tenant.running if is_in_use else [one for one in tenant.running if _promised(one)]
            candidate = newest(own, protected=protected)
            if candidate is not None:
                best, most = candidate, borrowed
    return best


def group_victim(sequences: Iterable[SequenceState]) -> SequenceState | None:
    """Return the newest sequence on blocks of the share group that borrows most, or None when none borrows."""
    users = [one for one in sequences if _group_borrowed(one)]
    return max(users, key=lambda one: (_group_borrowed(one), one.number), default=None)


def freed_by_groups(sequences: Iterable[SequenceState], pool: BlockPool) -> int:
    """Return the blocks to be had when share groups' newest users are preempted until each is within its guarantee."""
    freed: dict[Account, int] = {}
    holders: dict[BlockId, int] = {}
    for sequence in sorted(sequences, key=lambda one: -one.number):
        table = sequence.table
        if table is None or freed.get(table.head_account, 0) >= _group_borrowed(sequence):
            continue
        for block in table.blocks[: table.num_head]:
            holders[block] = count = holders.get(block, 0) + 1
            freed[table.head_account] = freed.get(table.head_account, 0) + (count == pool.users(block))
    return sum(min(count, account.borrowed) for account, count in freed.items())


def freed_until_soft(tenant: Tenant, pool: BlockPool, *, protected: bool) -> int:
    """Return the blocks to be had when the tenant's newest sequences are preempted until it is within its guarantee."""
    borrowed = tenant.account.borrowed if tenant.account is not None else 0
    goal, promised, freed = _above_guarantee(tenant, protected=protected), 0, 0
    holders: dict[BlockId, int] = {}  # of the preempted ones: a block is free when they are all of its users
    for sequence in sorted(tenant.running, key=lambda one: -one.number):
        table = sequence.table
        if promised + freed >= goal:
            break
        if table is None or (is_protected(sequence) and not protected):
            continue
        if freed >= borrowed and not table.reserved:
            continue
        promised += table.reserved
        for block in table.blocks[table.num_head + table.num_hosted :]:  # one of them is 0
            holders[block] = count = holders.get(block, 0) + 1
            freed += count == pool.users(block)
    return promised + min(freed, borrowed)


def _above_guarantee(tenant: Tenant, *, protected: bool) -> int:
    """Return the blocks above its guarantee that a tenant's sequences use; of protected ones, what is promised too."""
    if tenant.account is None:
        return 0
    return tenant.account.overdrawn if protected else tenant.account.borrowed


def _group_borrowed(sequence: SequenceState) -> int:
    table = sequence.table
    return table.head_account.borrowed if table is not None and table.num_head else 0


def _promised(sequence: SequenceState) -> int:
    return 0 if sequence.table is None else sequence.table.reserved


def growth_ahead(sequences: Iterable[SequenceState], block_size: int) -> int:
    """Return the blocks that running sequences are expected to take beyond what they hold or have reserved."""
    return sum(growth(sequence, block_size) for sequence in sequences)


def expected_blocks(sequence: SequenceState, block_size: int) -> int:
    """Return the blocks that a sequence is expected to hold at its end, by its tenant's outputs so far."""
    length = len(sequence.tokens) + 1
    expected = sequence.num_prompt + sequence.tenant.lengths.predict(sequence.generated)
    return -(-min(sequence.max_length, max(length, expected)) // block_size)


def growth(sequence: SequenceState, block_size: int) -> int:
    """Return the blocks that one running sequence is expected to take; none beyond its reserve if it has one.

    A streamed one gives a block of its own for each that it takes.
    """
    table = sequence.table
    if table is None or table.reserved or sequence.streams:
        return 0
    return max(0, expected_blocks(sequence, block_size) - len(table.blocks))
