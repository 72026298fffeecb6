"""KVMemory: block tables of running sequences over the blocks of the pool, and the cache of what was computed."""

from collections.abc import Callable, Sequence

from engine.errors import InvariantError
from engine.memory.accounts import Account, AccountOwner
from engine.memory.audit import audit
from engine.memory.eviction.base import EvictionOrder
from engine.memory.eviction.guard import GuardedOrder
from engine.memory.keys import BlockHasher, KeyChain
from engine.memory.lookup import NO_MATCH, Lookup, Match
from engine.memory.pool import OPEN
from engine.memory.streaming import begin, end, uproot
from engine.memory.supply import Shortage, Supply
from engine.memory.table import NOWHERE, BlockTable
from engine.memory.tiers.mover import Mover
from engine.memory.tiers.moves import Moves
from engine.memory.tiers.tiers import Tiers
from engine.request import BlockId, SequenceId, SlabId
from engine.step import BlockCopy, CacheShape, TableWrite

_new = tuple.__new__


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
        make_order: Callable[[], EvictionOrder] = GuardedOrder,
    ) -> None:
        """Start with every block free.

        Args:
            shape: of the runner's pool.
            model: fingerprint of weights and adapter; it is part of every block's key.
            kv_format: how the pages hold numbers; part of every key too.
            make_order: the eviction order of a new account.
        """
        self.shape = shape
        self.supply = Supply(shape, make_order)
        self.pool, self.tree, self.accounts = self.supply.pool, self.supply.tree, self.supply.accounts
        self.host = self.supply.host
        self.mover = Mover(self.supply, shape)
        self.tiers = Tiers(self.supply, self.mover, shape)
        hasher = BlockHasher(model=model, kv_format=kv_format, block_size=shape.block_size)
        self.lookup = Lookup(self.pool, self.tree, hasher, self.host)
        self.tables: dict[SequenceId, BlockTable] = {}
        self.rows = list(range(shape.max_rows - 1, -1, -1))  # free ones
        self._writes: list[TableWrite] = []
        self.unread: list[SlabId] = []  # held for steps that may still read them: see `take_unread`
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
        beside = match.idle + match.idle_head
        return self.supply.available(account, last_resort=last_resort) - beside

    def trim(self, account: Account) -> None:
        """Give up cached blocks of an account that is above its ceiling."""
        while account.blocks > account.hard and account.cached:
            self.supply.evict(account)

    def forget(self, owner: AccountOwner) -> None:
        """Drop all blocks of an account, in every tier, and the account itself. It must have no sequence left."""
        account = self.accounts.get(owner)
        if account is None:
            return
        while account.cached:
            self.supply.evict(account)
        self.tiers.forget(owner)
        self.tiers.erase_free()
        self.lookup.forget(account)
        self.accounts.close(owner)
        self.supply.reclaim.forget(account.index)

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
            if match.num_streamed:
                begin(self, table, match.num_streamed)
            for block in match.blocks:
                self.supply.use(block)
            self._looked_up(table, match.num_streamed + len(match.blocks), now)
            self.tree.hit(match.blocks, now)
            if match.part is not None:  # held from here on: what grows next must not take it
                self.supply.use(match.part)
                self.tree.hit((match.part,), now)
            if self.supply.unasked:
                self.mover.asked_for(match.blocks)
            self._append(table, match.blocks)
            table.num_sealed = len(table.blocks)
            if match.num_streamed and match.blocks:
                uproot(self, match.blocks[0])
        return table

    def copy_part(self, table: BlockTable, match: Match) -> None:
        """Copy the part of the match that the table was opened with into its first open block, once it has one."""
        if match.part is None:
            return
        account = table.account_at(table.num_sealed)
        self.copies.append((BlockCopy(match.part, table.blocks[table.num_sealed]), account))

    def load(self, table: BlockTable, match: Match, token_ids: Sequence[int], now: float) -> int:
        """Load what a match has found in host memory into the blocks that a table has grown; return how many there are.

        They are sealed, and the tree finds them from here on: whoever reads them does so after the loads of the plan.
        """
        chain, start = table.chain, table.num_sealed
        if chain is None or not match.num_hosted:
            return 0
        for index in range(start, start + match.num_hosted):
            if not self.load_one(table, index, token_ids, now):
                break  # its slab was needed while the table grew
            table.num_sealed = index + 1
        return table.num_sealed - start

    def load_one(self, table: BlockTable, index: int, token_ids: Sequence[int], now: float) -> bool:
        """Load a full block of a table and seal it; take that of the tree, if there is one. False: neither has it."""
        assert table.chain is not None, "checked by the caller"
        key = table.chain.keys[index]
        if self.tree.get(key) is None and not self.host.load(key, table.blocks[index]):
            return False
        if self.place(table, index, token_ids, now):
            self.mover.loaded(table.blocks[index])
        return True

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
            self.supply.use(block)
        self._append(table, blocks)
        table.num_sealed = num_tokens // self.shape.block_size
        if parent.meter is not None:
            parent.meter.admit(table, now)
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
        shortage = self.supply.find(table, count, num_head=num_head, last_resort=last_resort)
        if shortage is not None:
            return shortage
        table.settle(now)
        self._append(table, self.supply.allocate(table, count, num_head=num_head))
        return None

    def _grow_by_one(self, table: BlockTable, now: float) -> bool:
        """Grow where nothing is short and nothing was promised: 16 decodes in a step of 256 come this way."""
        block = self.supply.allocate_one(table)
        if block is None:
            return False
        table.block_seconds += table.num_metered * (now - table.since)
        table.since = now
        if table.meter is None:
            table.num_metered += 1
        else:
            table.meter.add(table, (block,))
        self._writes.append(_new(TableWrite, (table.row, len(table.blocks), (block,))))
        table.blocks.append(block)
        table.capacity += self.shape.block_size
        return True

    def write_at(self, table: BlockTable, position: int, now: float) -> Shortage | None:
        """Make the block that holds `position` the table's own: the first write to a shared block copies it."""
        index = position // self.shape.block_size
        block = table.blocks[index]
        copied = sum(copy.source == block for copy, _ in self.copies)  # by other users, before any write of this step
        if self.pool.users(block) - copied == 1 and self.pool.state(block) == OPEN:
            return None
        account = table.account_at(index)
        num_head = int(index < table.num_head)
        shortage = self.supply.find(table, 1, num_head=num_head)
        if shortage is not None:
            return shortage
        (fresh,) = self.supply.allocate(table, 1, num_head=num_head)
        if table.meter is not None:
            table.meter.replace(table, index, fresh, now)
        table.blocks[index] = fresh
        self.copies.append((BlockCopy(block, fresh), account))  # takes over what held the block for the table
        self._writes.append(TableWrite(row=table.row, column=index, blocks=(fresh,)))
        return None

    def reserve(self, table: BlockTable, num_blocks: int, *, last_resort: bool = False) -> Shortage | None:
        """Promise a sequence blocks up to `num_blocks` in all: later growth up to there cannot fail."""
        count = num_blocks - len(table.blocks) - table.reserved
        if count <= 0:
            return None
        shortage = self.supply.find(table, count + table.reserved, last_resort=last_resort)
        if shortage is None:
            self.supply.release(table, -count)
        return shortage

    def unreserve(self, table: BlockTable) -> None:
        """Take back what was promised; the blocks already held stay."""
        self.supply.release(table, table.reserved)

    def seal(self, table: BlockTable, num_tokens: int, token_ids: Sequence[int], now: float) -> None:
        """Seal the blocks that `num_tokens` computed tokens fill; from then on the tree finds them.

        Where the tree has a block of this content already, the table takes that one and gives its own back.
        """
        size, start, chain = self.shape.block_size, table.num_sealed, table.chain
        full = num_tokens // size
        if full <= start:
            return
        if chain is not None:
            chain.extend(token_ids, full)
        for index in range(start, full):
            if chain is None:
                self.pool.seal(table.blocks[index])
            else:
                self.place(table, index, token_ids, now)
        table.num_sealed = full

    def place(self, table: BlockTable, index: int, token_ids: Sequence[int], now: float) -> bool:
        """Seal a full block and have it join the tree; False if the table now has another's in its place."""
        known = self._join(table, index, token_ids, now)
        if known is not None:
            self._replace(table, index, known, now)
        if table.hosted and index == table.num_hosted:
            uproot(self, table.blocks[index])
        return known is None

    def free(self, table: BlockTable, now: float) -> None:
        """Give back the row, all promises, and all blocks: what the tree knows of them stays cached."""
        if self.tables.pop(table.sequence, None) is not table:
            raise InvariantError(f"table of sequence {table.sequence} is freed twice")
        table.settle(now)
        if table.meter is not None:
            table.meter.dismiss(table, now)
        self.supply.release(table, table.reserved)
        if self.copies:
            self._drop_copies(table, now)
        unknown: list[BlockId] = []
        for index in range(len(table.blocks) - 1, table.num_hosted - 1, -1):  # leaves first
            block = table.blocks[index]
            if not self.supply.let_go(block, now):
                account = table.account_at(index)
                account.blocks -= 1
                unknown.append(block)
        self.supply.discard(unknown)
        end(self, table)
        self.rows.append(table.row)
        table.blocks = []
        table.capacity = table.num_metered = 0

    def take_writes(self, now: float) -> tuple[tuple[TableWrite, ...], tuple[BlockId, ...], tuple[BlockCopy, ...]]:
        """Return table cells to write, blocks to poison and blocks to copy since the last call, each in order."""
        writes, poison = tuple(self._writes), tuple(self.supply.touched)
        copies = tuple(copy for copy, _ in self.copies)
        if writes:
            self._writes = []
        if poison:
            self.supply.touched = []
        if copies:
            held, self.copies = self.copies, []
            for copy, account in held:  # what is freed from here on is written to in a later step
                self._free_source(copy, account, now)
        return writes, poison, copies

    def take_moves(self, now: float) -> Moves:
        """Return blocks to copy to host memory and back since the last call; they go with `take_writes`."""
        self.host.now = now
        return self.host.take()

    def take_unread(self) -> list[SlabId]:
        """Return the slabs that tables have ceased to name since the last call.

        Each is held until the caller lets it go (`HostTier.let_go`): when the steps that may read it are done.
        """
        unread, self.unread = self.unread, []
        return unread

    def let_unread_go(self) -> None:
        """Let go of slabs that tables have ceased to name, where no step can read them."""
        for slab in self.take_unread():
            self.host.let_go(slab)

    def write_cells(self, table: BlockTable, column: int, blocks: Sequence[BlockId]) -> None:
        """Have cells of a table's row written before the next step."""
        self._writes.append(TableWrite(row=table.row, column=column, blocks=tuple(blocks)))

    def audit(self) -> None:
        """Recompute everything from the tables and compare with what is kept. Raises InvariantError."""
        audit(self)

    def _join(self, table: BlockTable, index: int, token_ids: Sequence[int], now: float) -> BlockId | None:
        """Seal a full block of a table and let it join the tree; return what has its content there already, if any."""
        chain, size, block = table.chain, self.shape.block_size, table.blocks[index]
        assert chain is not None, "checked by the caller"
        key, account = chain.keys[index], table.account_at(index).index
        place, depth = chain.root(index) or table.blocks[index - 1], 0
        if place == NOWHERE:
            place, depth = chain.keys[index - 1], index
        tokens = token_ids[index * size : (index + 1) * size]
        known = self.tree.insert(key, block, place, token_ids=tokens, account=account, depth=depth)
        if known is None:
            self.pool.seal(block)
            before = chain.keys[index - 1] if index else None
            self.tree.start_with(block, self.supply.reclaim.of(account).order.stored(key, now, before), now)
        return known

    def _looked_up(self, table: BlockTable, num_found: int, now: float) -> None:
        """Tell the eviction orders what was asked for: the tenant's own, and its share group's."""
        assert table.chain is not None, "checked by the caller"
        keys, num_head = table.chain.keys, table.num_head
        if num_head:
            order = self.supply.reclaim.of(table.head_account.index).order
            order.looked_up(keys[:num_head], min(num_found, num_head), now)
        self.supply.reclaim.of(table.account.index).order.looked_up(keys[num_head:], max(0, num_found - num_head), now)

    def _replace(self, table: BlockTable, index: int, known: BlockId, now: float) -> None:
        """Put a block of the same content in place of the table's own."""
        own = table.blocks[index]
        self.supply.use(known)
        if table.meter is not None:
            table.meter.replace(table, index, known, now)
        table.blocks[index] = known
        self._writes.append(TableWrite(row=table.row, column=index, blocks=(known,)))
        account = table.account_at(index)
        account.blocks -= 1
        self.supply.discard([own])

    def _append(self, table: BlockTable, blocks: Sequence[BlockId]) -> None:
        if not blocks:
            return
        self._writes.append(TableWrite(row=table.row, column=len(table.blocks), blocks=tuple(blocks)))
        table.blocks += blocks
        table.capacity = len(table.blocks) * self.shape.block_size
        if table.meter is None:
            table.num_metered += len(blocks)
        else:
            table.meter.add(table, blocks)

    def _drop_copies(self, table: BlockTable, now: float) -> None:
        """Forget copies into a table that is given up before they were made."""
        own = set(table.blocks)
        dropped = [held for held in self.copies if held[0].target in own]
        self.copies = [held for held in self.copies if held[0].target not in own]
        for copy, account in dropped:
            self._free_source(copy, account, now)

    def _free_source(self, copy: BlockCopy, account: Account, now: float) -> None:
        if not self.supply.let_go(copy.source, now):
            account.blocks -= 1
            self.supply.discard([copy.source])
