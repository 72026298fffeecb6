"""KVMemory: block tables of running sequences and the cache of what was computed, every block on an account.

A block that is needed comes from, in this order:

    1. the free ones
    2. the account's own cached blocks
    3. cached blocks of other accounts above their soft limit, largest overage first
    4. as a last resort, where a need does not fit beside the guarantees of others at all: any cached block
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from engine.errors import InvariantError
from engine.memory.accounts import Account, AccountOwner, Accounts
from engine.memory.audit import audit
from engine.memory.eviction.base import EvictionOrder
from engine.memory.eviction.guard import GuardedOrder
from engine.memory.eviction.reuse import ReuseWeighted
from engine.memory.keys import BlockHasher, KeyChain, SharedHead
from engine.memory.pool import CACHED, OPEN, BlockPool
from engine.memory.prefix import Place, PrefixTree
from engine.memory.reclaim import Reclaim
from engine.memory.table import BlockTable
from engine.request import BlockId, SequenceId
from engine.step import BlockCopy, CacheShape, TableWrite


class Shortage(Enum):
    """Why a table could not grow. A result, not an error."""

    ACCOUNT = "account"  # the tenant is at its own ceiling
    POOL = "pool"  # no block to be had that is not promised, guaranteed or in use


class Match(NamedTuple):
    """What the tree holds of a sequence: whole blocks, and part of the next one that can be copied."""

    blocks: tuple[BlockId, ...] = ()
    num_tokens: int = 0  # in both
    part: BlockId | None = None
    idle: int = 0  # of the blocks of the sequence's own account, those that nobody uses: taking them costs the account
    idle_head: int = 0  # the same of its share group's account


NO_MATCH = Match()


class KVMemory:
    """Owner of all blocks of the device pool.

    No operation lets an account pass its ceiling, whatever the caller wants; each takes all blocks it needs or none.
    What the runner must do before the next step piles up until `take_writes`.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        model: bytes = b"",
        kv_format: str = "auto",
        make_order: Callable[[], EvictionOrder] = lambda: GuardedOrder(ReuseWeighted()),
    ) -> None:
        """Start with every block free.

        Args:
            shape: of the runner's pool.
            model: fingerprint of weights and adapter; it is part of every block's key.
            kv_format: how the pages hold numbers; part of every key too.
            make_order: the eviction order of a new account.
        """
        self.shape = shape
        self.pool = BlockPool(shape.num_blocks)
        self.tree = PrefixTree(shape.num_blocks, shape.block_size)
        self.accounts = Accounts()
        self.reserved = 0  # blocks promised to sequences, all accounts; as many are free
        self.num_evicted = 0  # cached blocks that were given up
        self.tables: dict[SequenceId, BlockTable] = {}
        self.rows = list(range(shape.max_rows - 1, -1, -1))  # free ones
        self.reclaim = Reclaim(self.pool, self.tree, make_order)
        self._hasher = BlockHasher(model=model, kv_format=kv_format, block_size=shape.block_size)
        self._namespaces: dict[bytes, int] = {}  # account index of each
        self._writes: list[TableWrite] = []
        self._poison: list[BlockId] = []
        self.copies: list[tuple[BlockCopy, Account]] = []  # each holds its source, which counts against that account

    @property
    def num_free_rows(self) -> int:
        """Sequences that may still open a table."""
        return len(self.rows)

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.shape.block_size)

    def available(self, account: Account, match: Match = NO_MATCH, *, last_resort: bool = False) -> int:
        """Return the blocks to be had for an account, beside those of a match; promised ones are not among them."""
        total = self.pool.num_free - self.reserved + account.cached - match.idle
        if last_resort:
            return self.pool.num_free - self.reserved + self.pool.num_cached - match.idle - match.idle_head
        return total + self.accounts.takeable(account) - match.idle_head

    # ------------------------------------------------------------ the cache

    def chain(self, account: Account, namespace: bytes, head: SharedHead | None = None) -> KeyChain | None:
        """Return a new chain of keys in an account's namespace; None when the sequence cannot share anything.

        That is so without a namespace, and when the namespace is another account's.
        """
        if not namespace or self._namespaces.setdefault(namespace, account.index) != account.index:
            return None
        if head is not None and self._namespaces.setdefault(head.namespace, head.account) != head.account:
            head = None
        return KeyChain(self._hasher, namespace, head)

    def match(self, chain: KeyChain, account: Account, token_ids: Sequence[int]) -> Match:
        """Look up the longest known prefix of a sequence, its last token never included: that one makes the logits."""
        size, limit = self.shape.block_size, len(token_ids) - 1
        chain.extend(token_ids, limit // size)
        blocks = self.tree.find(chain.keys, limit // size)
        count = len(blocks)
        part, num_part = BlockId(-1), 0
        rest = token_ids[count * size : min(limit, (count + 1) * size)]
        if rest:
            root = chain.root(count)
            place = Place(None, root) if root is not None else Place(blocks[-1], None)
            part, num_part = self.tree.find_part(place, rest)
        taken = [*blocks, part] if num_part else blocks
        idle = [index for index, block in enumerate(taken) if self.pool.state(block) == CACHED]
        idle_head = sum(index < chain.num_head for index in idle)
        return Match(
            blocks=tuple(blocks),
            num_tokens=count * size + num_part,
            part=part if num_part else None,
            idle=len(idle) - idle_head,
            idle_head=idle_head,
        )

    def without_part(self, match: Match, chain: KeyChain) -> Match:
        """Return the match without the block to copy: holding its source may be one block too many."""
        if match.part is None:
            return match
        idle, in_head = self.pool.state(match.part) == CACHED, len(match.blocks) < chain.num_head
        return Match(
            blocks=match.blocks,
            num_tokens=len(match.blocks) * self.shape.block_size,
            idle=match.idle - (idle and not in_head),
            idle_head=match.idle_head - (idle and in_head),
        )

    def trim(self, account: Account) -> None:
        """Give up cached blocks of an account that is above its ceiling."""
        while account.blocks > account.hard and account.cached:
            self._evict(account)

    def forget(self, owner: AccountOwner) -> None:
        """Drop all cached blocks of an account and the account itself. It must have no sequence left."""
        account = self.accounts.get(owner)
        if account is None:
            return
        while account.cached:
            self._evict(account)
        self._namespaces = {name: index for name, index in self._namespaces.items() if index != account.index}
        self.accounts.close(owner)
        self.reclaim.forget(account.index)

    # ------------------------------------------------------------ tables

    def open(
        self,
        sequence: SequenceId,
        owner: AccountOwner,
        now: float,
        *,
        chain: KeyChain | None = None,
        match: Match = NO_MATCH,
    ) -> BlockTable:
        """Give a sequence a row and a table with the blocks of a fresh match.

        Its owner must have an account, and a row must be free. The part of the match is held until `copy_part`,
        which must come before the next step.
        """
        account = self.accounts.get(owner)
        if account is None or not self.rows or sequence in self.tables:
            raise InvariantError(f"sequence {sequence} of {owner} opens a table without account or row, or twice")
        table = BlockTable(sequence, self.rows.pop(), account, now)
        self.tables[sequence] = table
        if chain is not None:
            table.chain = chain
            if chain.head is not None:
                table.num_head = chain.head.num_blocks
                table.head_account = self.accounts.at(chain.head.account)
            for block in match.blocks:
                self._use(block)
            self._looked_up(table, len(match.blocks), now)
            self.tree.hit(match.blocks, now)
            if match.part is not None:  # held from here on: what grows next must not take it
                self._use(match.part)
                self.tree.hit((match.part,), now)
            self._append(table, match.blocks)
            table.num_sealed = len(match.blocks)
        return table

    def copy_part(self, table: BlockTable, match: Match) -> None:
        """Copy the part of the match that the table was opened with into its first open block, once it has one."""
        if match.part is None:
            return
        account = table.account_at(table.num_sealed)
        self.copies.append((BlockCopy(match.part, table.blocks[table.num_sealed]), account))

    def fork(self, sequence: SequenceId, parent: BlockTable, num_tokens: int, now: float) -> BlockTable:
        """Give a sequence a table that shares the blocks of another's first `num_tokens` tokens, an open one too."""
        if not self.rows or sequence in self.tables:
            raise InvariantError(f"sequence {sequence} forks without a row, or twice")
        table = BlockTable(sequence, self.rows.pop(), parent.account, now)
        self.tables[sequence] = table
        table.num_head, table.head_account = parent.num_head, parent.head_account
        table.chain = None if parent.chain is None else parent.chain.fork(num_tokens // self.shape.block_size)
        blocks = parent.blocks[: self.blocks_for(num_tokens)]
        for block in blocks:
            self._use(block)
        self._append(table, blocks)
        table.num_sealed = num_tokens // self.shape.block_size
        return table

    def grow(self, table: BlockTable, num_tokens: int, now: float, *, last_resort: bool = False) -> Shortage | None:
        """Make room for `num_tokens` tokens in all; return what is short, and then change nothing."""
        held = len(table.blocks)
        count = -(-num_tokens // self.shape.block_size) - held
        if count <= 0:
            return None
        if count == 1 and held >= table.num_head and self._grow_by_one(table, now):
            return None
        num_head = min(count, max(0, table.num_head - held))
        shortage = self._find(table, count, num_head=num_head, last_resort=last_resort)
        if shortage is not None:
            return shortage
        blocks = self.pool.allocate(count)
        assert blocks is not None, "found above"
        table.settle(now)
        self._release(table, min(count - num_head, table.reserved))
        _charge(table.head_account, num_head)
        _charge(table.account, count - num_head)
        self._append(table, blocks)
        self._poison += blocks
        return None

    def _grow_by_one(self, table: BlockTable, now: float) -> bool:
        """Grow where nothing is short and nothing was promised: 16 decodes in a step of 256 come this way."""
        account, pool = table.account, self.pool
        if table.reserved or account.blocks + account.reserved >= account.hard or pool.num_free <= self.reserved:
            return False
        table.block_seconds += len(table.blocks) * (now - table.since)
        table.since = now
        block = pool.allocate_one()
        account.blocks = blocks = account.blocks + 1
        if blocks > account.peak:
            account.peak = blocks
        self._writes.append(TableWrite(table.row, len(table.blocks), (block,)))
        table.blocks.append(block)
        table.capacity += self.shape.block_size
        self._poison.append(block)
        return True

    def write_at(self, table: BlockTable, position: int, now: float) -> Shortage | None:
        """Make the block that holds `position` the table's own: the first write to a shared block copies it."""
        index = position // self.shape.block_size
        block = table.blocks[index]
        copied = sum(copy.source == block for copy, _ in self.copies)  # by other users, before any write of this step
        if self.pool.users(block) - copied == 1 and self.pool.state(block) == OPEN:
            return None
        account = table.account_at(index)
        shortage = self._find(table, 1, num_head=int(index < table.num_head))
        if shortage is not None:
            return shortage
        fresh = self.pool.allocate(1)
        assert fresh is not None, "found above"
        if account is table.account:
            self._release(table, min(1, table.reserved))
        _charge(account, 1)
        table.blocks[index] = fresh[0]
        self._poison += fresh
        self.copies.append((BlockCopy(block, fresh[0]), account))  # takes over what held the block for the table
        self._writes.append(TableWrite(row=table.row, column=index, blocks=(fresh[0],)))
        return None

    def reserve(self, table: BlockTable, num_blocks: int, *, last_resort: bool = False) -> Shortage | None:
        """Promise a sequence blocks up to `num_blocks` in all: later growth up to there cannot fail."""
        count = num_blocks - len(table.blocks) - table.reserved
        if count <= 0:
            return None
        shortage = self._find(table, count + table.reserved, last_resort=last_resort)
        if shortage is None:
            table.reserved += count
            table.account.reserved += count
            self.reserved += count
        return shortage

    def unreserve(self, table: BlockTable) -> None:
        """Take back what was promised; the blocks already held stay."""
        self._release(table, table.reserved)

    def seal(self, table: BlockTable, num_tokens: int, token_ids: Sequence[int], now: float) -> None:
        """Seal the blocks that `num_tokens` computed tokens fill; from then on the tree finds them.

        Where the tree has a block of this content already, the table takes that one and gives its own back.
        """
        size = self.shape.block_size
        full = num_tokens // size
        chain = table.chain
        if chain is not None and table.num_sealed < full:
            chain.extend(token_ids, full)
        for index in range(table.num_sealed, full):
            block = table.blocks[index]
            if chain is None:
                self.pool.seal(block)
            elif (known := self.tree.get(chain.keys[index])) is not None:
                self._replace(table, index, known)
            else:
                self.pool.seal(block)
                key, root = chain.keys[index], chain.root(index)
                place = Place(table.blocks[index - 1], None) if root is None else Place(None, root)
                account, tokens = table.account_at(index).index, token_ids[index * size : (index + 1) * size]
                self.tree.insert(key, block, place, token_ids=tokens, account=account)
                self.tree.start_with(block, self.reclaim.of(account).order.stored(key, now), now)
        if full > table.num_sealed:
            table.num_sealed = full

    def free(self, table: BlockTable, now: float) -> None:
        """Give back the row, all promises, and all blocks: what the tree knows of them stays cached."""
        if self.tables.pop(table.sequence, None) is not table:
            raise InvariantError(f"table of sequence {table.sequence} is freed twice")
        table.settle(now)
        self._release(table, table.reserved)
        if self.copies:
            self._drop_copies(table, now)
        unknown: list[BlockId] = []
        for index in range(len(table.blocks) - 1, -1, -1):  # leaves first
            block = table.blocks[index]
            if not self._let_go(block, now):
                table.account_at(index).blocks -= 1
                unknown.append(block)
        self._discard(unknown)
        self.rows.append(table.row)
        table.blocks = []
        table.capacity = 0

    def take_writes(self, now: float) -> tuple[tuple[TableWrite, ...], tuple[BlockId, ...], tuple[BlockCopy, ...]]:
        """Return table cells to write, blocks to poison and blocks to copy since the last call, each in order."""
        writes, poison = tuple(self._writes), tuple(self._poison)
        copies = tuple(copy for copy, _ in self.copies)
        if writes:
            self._writes = []
        if poison:
            self._poison = []
        if copies:
            held, self.copies = self.copies, []
            for copy, account in held:  # what is freed from here on is written to in a later step
                self._free_source(copy, account, now)
        return writes, poison, copies

    def audit(self) -> None:
        """Recompute everything from the tables and compare with what is kept. Raises InvariantError."""
        audit(self)

    # ------------------------------------------------------------ parts

    def _find(self, table: BlockTable, count: int, *, num_head: int = 0, last_resort: bool = False) -> Shortage | None:
        """Have `count` blocks free for a table, the first `num_head` of its share group's; say what forbids it.

        A sequence's own promise is its to use.
        """
        account, head = table.account, table.head_account
        own = count - num_head
        if own and account.used + account.reserved - table.reserved + own > account.hard:
            return Shortage.ACCOUNT
        if num_head and head.used + num_head > head.hard:
            return Shortage.ACCOUNT
        promised = min(own, table.reserved)
        missing = count - promised - self.pool.num_free + self.reserved
        if missing > 0 and count - promised > self.available(account, last_resort=last_resort):
            return Shortage.POOL
        while account.blocks + own > account.hard and account.cached:
            self._evict(account)
        while num_head and head.blocks + num_head > head.hard:
            self._evict(head)
        while self.pool.num_free - self.reserved < count - promised:
            self._evict(self._giver(account, last_resort=last_resort))
        return None

    def _giver(self, account: Account, *, last_resort: bool) -> Account:
        """Return whose cached block goes next for an account's need."""
        giver = account if account.cached else self.accounts.largest_borrower(account)
        if giver is None and last_resort:
            giver = max(self.accounts, key=lambda one: one.cached)
        assert giver is not None and giver.cached, "counted by `available`"
        return giver

    def _evict(self, account: Account) -> None:
        candidates = self.reclaim.of(account.index)
        block = candidates.take()
        if block is None:
            raise InvariantError(f"{account.owner} counts {account.cached} cached blocks, and none can be given up")
        hits = self.tree.node(block, 0).hits
        key, parent = self.tree.remove(block)
        candidates.order.evicted(key, hits)
        account.cached -= 1
        account.blocks -= 1
        self.num_evicted += 1
        self._discard([block])
        if parent is not None:
            candidates.offer(parent, account.cached)

    def _looked_up(self, table: BlockTable, num_found: int, now: float) -> None:
        """Tell the eviction orders what was asked for: the tenant's own, and its share group's."""
        assert table.chain is not None, "checked by the caller"
        keys, num_head = table.chain.keys, table.num_head
        if num_head:
            order = self.reclaim.of(table.head_account.index).order
            order.looked_up(keys[:num_head], min(num_found, num_head), now)
        self.reclaim.of(table.account.index).order.looked_up(keys[num_head:], max(0, num_found - num_head), now)

    def _use(self, block: BlockId) -> None:
        if self.pool.state(block) == CACHED:
            self.accounts.at(self.tree.account(block)).cached -= 1
        self.pool.share(block)

    def _let_go(self, block: BlockId, now: float) -> bool:
        """Take a user off a block; False when it was the last one and nothing knows the block any more."""
        if self.pool.users(block) > 1:
            self.pool.unshare(block)
            return True
        if block not in self.tree:
            return False
        self.pool.cache(block)
        self.tree.touch(block, now)
        account = self.accounts.at(self.tree.account(block))
        account.cached += 1
        self.reclaim.of(account.index).offer(block, account.cached)
        return True

    def _discard(self, blocks: list[BlockId]) -> None:
        self.pool.free(blocks)
        self._poison += blocks

    def _replace(self, table: BlockTable, index: int, known: BlockId) -> None:
        """Put a block of the same content in place of the table's own."""
        own = table.blocks[index]
        self._use(known)
        table.blocks[index] = known
        self._writes.append(TableWrite(row=table.row, column=index, blocks=(known,)))
        table.account_at(index).blocks -= 1
        self._discard([own])

    def _append(self, table: BlockTable, blocks: Sequence[BlockId]) -> None:
        if not blocks:
            return
        self._writes.append(TableWrite(row=table.row, column=len(table.blocks), blocks=tuple(blocks)))
        table.blocks += blocks
        table.capacity = len(table.blocks) * self.shape.block_size

    def _drop_copies(self, table: BlockTable, now: float) -> None:
        """Forget copies into a table that is given up before they were made."""
        own = set(table.blocks)
        dropped = [held for held in self.copies if held[0].target in own]
        self.copies = [held for held in self.copies if held[0].target not in own]
        for copy, account in dropped:
            self._free_source(copy, account, now)

    def _free_source(self, copy: BlockCopy, account: Account, now: float) -> None:
        if not self._let_go(copy.source, now):
            account.blocks -= 1
            self._discard([copy.source])

    def _release(self, table: BlockTable, count: int) -> None:
        table.reserved -= count
        table.account.reserved -= count
        self.reserved -= count


def _charge(account: Account, count: int) -> None:
    account.blocks += count
    if account.blocks > account.peak:
        account.peak = account.blocks
