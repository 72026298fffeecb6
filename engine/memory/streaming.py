"""A running sequence that is larger than its share of the device: its oldest blocks are in host memory alone.

    table     [ hosted ......... | resident ............... open ]
                 slabs, claimed     blocks of the device

Attention reads the hosted ones from their slabs, step by step (`SequenceStep.hosted`). `offload` moves the oldest
resident blocks over, by a plan's stores, in front of everything else that the plan does; `recall` loads the last hosted
ones back. A block that is offloaded leaves the prefix tree, unless others use it, as an evicted one does: its key is
found in host memory. What continues it stays, and hangs from a root with its key (`PrefixTree.uproot`).

A slab is held as long as a table names it, and then until every step that was launched by then is done (`take_unread`):
whoever takes its key away, a lowered ceiling or the erasure of its owner, what a step reads stays where it is.
Ids and counts only. Tables without a chain of keys, with a share group's blocks, or of a request with several outputs
are never offloaded.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import InvariantError
from engine.memory.table import NOWHERE, BlockTable
from engine.memory.tiers.claims import Streamed
from engine.request import BlockId, SlabId

if TYPE_CHECKING:
    from engine.memory.manager import KVMemory


def can_offload(table: BlockTable) -> bool:
    """Say whether a table's blocks may be in host memory alone."""
    return table.chain is not None and table.num_head == 0 and table.meter is None


def num_movable(table: BlockTable) -> int:
    """Return the blocks that `offload` could move: the full ones."""
    return table.num_sealed - table.num_hosted if can_offload(table) else 0


def offload(memory: "KVMemory", table: BlockTable, count: int, now: float) -> int:
    """Move up to `count` of a table's oldest resident blocks to host memory; return how many were moved.

    Fewer are where host memory or the owner's ceiling has no room, or where one is being copied there just now. Those
    that others use stay on the device for them.
    """
    chain, owner = table.chain, table.account.owner
    if chain is None or not can_offload(table):
        raise InvariantError(f"blocks of sequence {table.sequence} are to be streamed, and cannot be")
    table.settle(now)
    slabs: list[SlabId] = []
    start = table.num_hosted
    for index in range(start, min(start + count, table.num_sealed)):
        block = table.blocks[index]
        if block in memory.supply.copied:
            break
        entry = memory.host.keep(table.sequence, chain.keys[index], block, memory.supply.content(block), owner=owner)
        if entry is None:
            break
        slabs.append(memory.host.hold(entry))
        _leave(memory, table, block)
        table.blocks[index] = NOWHERE
    table.hosted += tuple(slabs)
    table.num_metered -= len(slabs)
    _uproot_first(memory, table)
    return len(slabs)


def begin(memory: "KVMemory", table: BlockTable, num_hosted: int) -> None:
    """Let a fresh table begin with so many blocks that host memory has, which become all of its sequence's claim."""
    chain, host = table.chain, memory.host
    if chain is None or table.blocks or not num_hosted:
        raise InvariantError(f"sequence {table.sequence} begins in host memory with blocks, or without keys")
    keys = chain.keys[:num_hosted]
    host.claims.release(Streamed(table.sequence))
    host.claims.claim(Streamed(table.sequence), table.account.owner, keys)
    entries = [host.get(key) for key in keys]
    table.hosted = tuple(host.hold(entry) for entry in entries if entry is not None)
    if len(table.hosted) < num_hosted:
        raise InvariantError(f"host memory does not have what sequence {table.sequence} is to stream")
    table.blocks = [NOWHERE] * num_hosted
    table.capacity = num_hosted * memory.shape.block_size
    table.num_sealed = num_hosted


def recall(memory: "KVMemory", table: BlockTable, count: int, token_ids: Sequence[int], now: float) -> int:
    """Load the last `count` hosted blocks of a table back into blocks that are to be had; return how many were.

    None where so many are not to be had.
    """
    chain, first = table.chain, table.num_hosted - count
    if chain is None or count <= 0 or first < 0:
        return 0
    if memory.supply.find(table, count) is not None:
        return 0
    table.settle(now)
    fresh = memory.supply.allocate(table, count)
    slabs = table.hosted[first:]
    for index, block in zip(range(first, first + count), fresh, strict=True):
        table.blocks[index] = block
    table.hosted = table.hosted[:first]
    table.num_metered += count
    memory.write_cells(table, first, fresh)
    memory.unread += slabs
    for index in range(first, first + count):
        if not memory.load_one(table, index, token_ids, now):
            raise InvariantError(f"host memory has lost a block that sequence {table.sequence} streams")
    memory.host.claims.release_last(Streamed(table.sequence), count)
    return count


def end(memory: "KVMemory", table: BlockTable) -> None:
    """Let go of the slabs of a table that is given up. What they hold stays claimed until the sequence is gone."""
    memory.unread += table.hosted
    table.hosted = ()


def audit_streamed(memory: "KVMemory", table: BlockTable) -> None:
    """Check that a table's hosted blocks are its leading ones, claimed, and where it says. Raises InvariantError."""
    host, count = memory.host, table.num_hosted
    is_right = table.blocks[:count] == [NOWHERE] * count and NOWHERE not in table.blocks[count:]
    if not is_right or count > table.num_sealed:
        raise InvariantError(f"sequence {table.sequence} streams other blocks than its first ones")
    keys = table.chain.keys[:count] if table.chain is not None else []
    if list(host.claims.of(Streamed(table.sequence))) != keys or len(keys) != count:
        raise InvariantError(f"sequence {table.sequence} claims other blocks than it streams")
    for key, slab in zip(keys, table.hosted, strict=True):
        entry = host.get(key)
        if entry is None or entry.slab != slab or not host.slabs.is_held(slab):
            raise InvariantError(f"a block that sequence {table.sequence} streams is not in its slab")


def _leave(memory: "KVMemory", table: BlockTable, block: BlockId) -> None:
    """Take a table's use off a full block; one that nobody else uses leaves the tree and is free."""
    supply = memory.supply
    if supply.pool.users(block) > 1:
        supply.pool.unshare(block)
        return
    order = supply.reclaim.of(table.account.index).order
    supply.tree.uproot_children(block)
    hits = supply.tree.hits(block)
    key, _ = supply.tree.remove(block)
    order.evicted(key, hits)
    supply.host.unload(block)
    table.account.blocks -= 1
    supply.discard([block])


def _uproot_first(memory: "KVMemory", table: BlockTable) -> None:
    """Let the first resident block depend on nothing that the table does not hold."""
    index = table.num_hosted
    if 0 < index < table.num_sealed:
        uproot(memory, table.blocks[index])


def uproot(memory: "KVMemory", block: BlockId) -> None:
    """Let a block of the tree not depend on the one that it continues, which can be given up before it then."""
    supply, parent = memory.supply, memory.tree.parent(block)
    if parent is not None:
        supply.tree.uproot(block)
        account = supply.accounts.at(supply.tree.account(parent))
        supply.reclaim.of(account.index).offer(parent, account.cached)
