"""Proof of the memory's bookkeeping: everything is recomputed from tables and tree and compared with what is kept."""

from collections import Counter
from typing import TYPE_CHECKING

from engine.errors import InvariantError
from engine.memory.accounts import Account
from engine.memory.pool import CACHED, LEAVING, OPEN, SEALED
from engine.memory.streaming import audit_streamed
from engine.memory.table import BlockTable
from engine.request import BlockId

if TYPE_CHECKING:
    from engine.memory.manager import KVMemory


def audit(memory: "KVMemory") -> None:
    """Check pool, tree, users, accounts, promises and rows. Raises InvariantError that says what differs."""
    memory.pool.audit()
    memory.tree.audit()
    memory.host.audit()
    users: Counter[BlockId] = Counter()
    owner: dict[BlockId, int] = {}
    for table in memory.tables.values():
        _table(memory, table, users, owner)
    for copy, account in memory.copies:
        users[copy.source] += 1
        _own(owner, copy.source, account.index)
    for block, account in memory.mover.arriving():
        users[block] += 1
        _own(owner, block, account.index)
    if memory.supply.copied != {block for block, _ in memory.mover.leaving()}:
        raise InvariantError("a block is kept for a copy that nobody makes")
    for block in map(BlockId, range(memory.pool.num_blocks)):
        if memory.pool.state(block) == LEAVING and block not in memory.supply.copied:
            raise InvariantError(f"block {block} was given up, and is never free")
        if memory.pool.users(block) != users[block]:
            raise InvariantError(f"block {block} counts {memory.pool.users(block)} users, has {users[block]}")
    cached = _tree(memory, owner)
    _accounts(memory, Counter(owner.values()), cached)
    rows = [*memory.rows, *(table.row for table in memory.tables.values())]
    if sorted(rows) != list(range(memory.shape.max_rows)):
        raise InvariantError("a row is lost or held twice")
    if sum(account.soft for account in memory.accounts) > memory.shape.num_blocks:
        raise InvariantError("more is guaranteed than the pool has")
    if memory.supply.reserved > memory.pool.num_free:
        raise InvariantError(f"{memory.supply.reserved} blocks are promised, {memory.pool.num_free} are free")


def _table(memory: "KVMemory", table: BlockTable, users: Counter[BlockId], owner: dict[BlockId, int]) -> None:
    audit_streamed(memory, table)
    resident = table.blocks[table.num_hosted :]
    if len(set(resident)) != len(resident):
        raise InvariantError(f"sequence {table.sequence} holds a block twice")
    for index, block in enumerate(resident, table.num_hosted):
        state, known = memory.pool.state(block), block in memory.tree
        if index < table.num_sealed:
            wrong = state != SEALED or known != (table.chain is not None)
        else:
            wrong = state != OPEN or known
        if wrong:
            raise InvariantError(
                f"block {block} of sequence {table.sequence} is in state {state}, in the tree: {known}"
            )
        users[block] += 1
        _own(owner, block, table.account_at(index).index)
        if known:
            _key(memory, table, index)
    if table.capacity != len(table.blocks) * memory.shape.block_size:
        raise InvariantError(f"sequence {table.sequence} has a wrong capacity")


def _key(memory: "KVMemory", table: BlockTable, index: int) -> None:
    """Check that the tree finds a sealed block under its key, in its place."""
    assert table.chain is not None, "checked by the caller"
    block = table.blocks[index]
    places: list[BlockId | None] = [None]  # also where a sequence that is streamed has lost what it continues
    if table.chain.root(index) is None and index > table.num_hosted:
        places.append(table.blocks[index - 1])
    if memory.tree.get(table.chain.keys[index]) != block or memory.tree.parent(block) not in places:
        raise InvariantError(f"block {block} of sequence {table.sequence} is not where its key says")


def _tree(memory: "KVMemory", owner: dict[BlockId, int]) -> Counter[int]:
    """Check what the tree holds; count the cached blocks by account, and add all to `owner`."""
    cached: Counter[int] = Counter()
    leaves: dict[int, set[BlockId]] = {}
    for block in memory.tree.blocks():
        account = memory.tree.account(block)
        state = memory.pool.state(block)
        if state not in (SEALED, CACHED):
            raise InvariantError(f"block {block} is in the tree in state {state}")
        _own(owner, block, account)
        key, before, token_ids = memory.tree.content(block)
        if memory.lookup.hasher.key(before, token_ids) != key or memory.tree.get(key) != block:
            raise InvariantError(f"block {block} is not found by the key of what it holds")
        parent = memory.tree.parent(block)
        if parent is not None and state == SEALED and memory.pool.state(parent) != SEALED:
            raise InvariantError(f"block {block} is in use, and its parent {parent} is not")
        if parent is not None and memory.tree.account(parent) != account:
            raise InvariantError(f"block {block} and its parent {parent} are of different accounts")
        if state == CACHED:
            cached[account] += 1
            if memory.tree.is_leaf(block):
                leaves.setdefault(account, set()).add(block)
    if cached.total() != memory.pool.num_cached:
        raise InvariantError(f"{memory.pool.num_cached} blocks are cached, and {cached.total()} of them in the tree")
    for account_index, blocks in leaves.items():
        if memory.supply.reclaim.of(account_index).blocks() != blocks:
            raise InvariantError(f"account {account_index} cannot give up all of its cached leaves")
    return cached


def _own(owner: dict[BlockId, int], block: BlockId, account: int) -> None:
    if owner.setdefault(block, account) != account:
        raise InvariantError(f"block {block} counts against accounts {owner[block]} and {account}")


def _accounts(memory: "KVMemory", blocks: Counter[int], cached: Counter[int]) -> None:
    reserved: Counter[int] = Counter()
    for table in memory.tables.values():
        reserved[table.account.index] += table.reserved
    for account in memory.accounts:
        index = account.index
        _account(account, (blocks.pop(index, 0), cached.pop(index, 0), reserved.pop(index, 0)))
    if blocks.total() or cached.total() or reserved.total():
        raise InvariantError(f"blocks without an account: {blocks}")
    memory.accounts.audit()
    if memory.supply.reserved != sum(account.reserved for account in memory.accounts):
        raise InvariantError(f"{memory.supply.reserved} blocks are promised, the accounts say otherwise")


def _account(account: Account, found: tuple[int, int, int]) -> None:
    kept = (account.blocks, account.cached, account.reserved)
    if kept != found:
        raise InvariantError(f"account of {account.owner}: blocks, cached, promised kept {kept}, found {found}")
    if account.peak < account.blocks:
        raise InvariantError(f"account of {account.owner} has a peak under its use")
