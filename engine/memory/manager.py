"""KVMemory: block tables of running sequences, every block counted against its tenant's account."""

from enum import Enum

from engine.errors import InvariantError
from engine.memory.accounts import Account, Accounts
from engine.memory.pool import OPEN, SEALED, BlockPool
from engine.memory.table import BlockTable
from engine.request import BlockId, SequenceId, TenantId
from engine.step import CacheShape, TableWrite


class Shortage(Enum):
    """Why a table could not grow. A result, not an error."""

    ACCOUNT = "account"  # the tenant is at its own ceiling
    POOL = "pool"  # no free block that is not promised to another sequence


class KVMemory:
    """Owner of all blocks of the device pool.

    grow() never lets an account pass its ceiling, whatever the caller wants; it takes all blocks it needs or none.
    What the runner must write into its persistent table piles up until `take_writes`.
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.pool = BlockPool(shape.num_blocks)
        self.accounts = Accounts(shape.num_blocks)
        self.reserved = 0  # blocks promised to sequences, all accounts
        self._rows = list(range(shape.max_rows - 1, -1, -1))
        self._tables: dict[SequenceId, BlockTable] = {}
        self._writes: list[TableWrite] = []
        self._poison: list[BlockId] = []

    @property
    def num_free_rows(self) -> int:
        """Sequences that may still open a table."""
        return len(self._rows)

    @property
    def num_available(self) -> int:
        """Free blocks that are promised to nobody."""
        return self.pool.num_free - self.reserved

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.shape.block_size)

    def open(self, sequence: SequenceId, tenant: TenantId, now: float) -> BlockTable:
        """Give a sequence an empty table and a row. The tenant must have an account, and a row must be free."""
        account = self.accounts.get(tenant)
        if account is None or not self._rows or sequence in self._tables:
            raise InvariantError(f"sequence {sequence} of {tenant} opens a table without account or row, or twice")
        table = BlockTable(sequence, self._rows.pop(), account, now)
        self._tables[sequence] = table
        return table

    def grow(self, table: BlockTable, num_tokens: int, now: float) -> Shortage | None:
        """Make room for `num_tokens` tokens in all; return what is short, and then change nothing."""
        held = len(table.blocks)
        count = -(-num_tokens // self.shape.block_size) - held
        if count <= 0:
            return None
        account = table.account
        shortage = self._short(table, count)
        if shortage is not None:
            return shortage
        blocks = self.pool.allocate(count)
        assert blocks is not None, "checked above"
        table.settle(now)
        table.blocks += blocks
        table.capacity = len(table.blocks) * self.shape.block_size
        self._release(table, min(count, table.reserved))
        account.blocks += count
        if account.blocks > account.peak:
            account.peak = account.blocks
        self._writes.append(TableWrite(row=table.row, column=held, blocks=tuple(blocks)))
        self._poison += blocks
        return None

    def reserve(self, table: BlockTable, num_blocks: int) -> Shortage | None:
        """Promise a sequence blocks up to `num_blocks` in all: later growth up to there cannot fail."""
        count = num_blocks - len(table.blocks) - table.reserved
        if count <= 0:
            return None
        shortage = self._short(table, count + table.reserved)
        if shortage is None:
            table.reserved += count
            table.account.reserved += count
            self.reserved += count
        return shortage

    def unreserve(self, table: BlockTable) -> None:
        """Take back what was promised; the blocks already held stay."""
        self._release(table, table.reserved)

    def seal(self, table: BlockTable, num_tokens: int) -> None:
        """Seal the blocks that `num_tokens` computed tokens fill."""
        full = num_tokens // self.shape.block_size
        for index in range(table.num_sealed, full):
            self.pool.seal(table.blocks[index])
        table.num_sealed = max(table.num_sealed, full)

    def free(self, table: BlockTable, now: float) -> None:
        """Give back all blocks, promises and the row."""
        if self._tables.pop(table.sequence, None) is not table:
            raise InvariantError(f"table of sequence {table.sequence} is freed twice")
        table.settle(now)
        self._release(table, table.reserved)
        self.pool.free(table.blocks)
        table.account.blocks -= len(table.blocks)
        self._poison += table.blocks
        self._rows.append(table.row)
        table.blocks = []
        table.capacity = 0

    def take_writes(self) -> tuple[tuple[TableWrite, ...], tuple[BlockId, ...]]:
        """Return table cells to write and blocks to poison since the last call, in order."""
        writes, poison = tuple(self._writes), tuple(self._poison)
        if writes:
            self._writes = []
        if poison:
            self._poison = []
        return writes, poison

    def audit(self) -> None:
        """Recompute everything from the tables and compare with what is kept. Raises InvariantError."""
        self.pool.audit()
        owner: dict[BlockId, SequenceId] = {}
        blocks: dict[TenantId, int] = {}
        reserved: dict[TenantId, int] = {}
        rows = list(self._rows)
        for table in self._tables.values():
            self._audit_table(table, owner)
            tenant = table.account.tenant
            blocks[tenant] = blocks.get(tenant, 0) + len(table.blocks)
            reserved[tenant] = reserved.get(tenant, 0) + table.reserved
            rows.append(table.row)
        for account in self.accounts:
            self._audit_account(account, blocks.pop(account.tenant, 0), reserved.pop(account.tenant, 0))
        if sum(account.soft for account in self.accounts) > self.shape.num_blocks:
            raise InvariantError("more is guaranteed than the pool has")
        if any(blocks.values()) or any(reserved.values()):
            raise InvariantError(f"blocks without an account: {blocks}")
        if len(owner) != self.pool.num_open + self.pool.num_sealed:
            raise InvariantError(f"{len(owner)} blocks are in tables, the pool counts others")
        if sorted(rows) != list(range(self.shape.max_rows)):
            raise InvariantError("a row is lost or held twice")
        if self.reserved != sum(account.reserved for account in self.accounts) or self.num_available < 0:
            raise InvariantError(f"{self.reserved} blocks are promised, {self.pool.num_free} are free")

    def _short(self, table: BlockTable, count: int) -> Shortage | None:
        """Say what forbids `count` more blocks; a sequence's own promise is its to use."""
        account = table.account
        if account.blocks + account.reserved - table.reserved + count > account.hard:
            return Shortage.ACCOUNT
        if count > self.pool.num_free - self.reserved + table.reserved:
            return Shortage.POOL
        return None

    def _release(self, table: BlockTable, count: int) -> None:
        table.reserved -= count
        table.account.reserved -= count
        self.reserved -= count

    def _audit_table(self, table: BlockTable, owner: dict[BlockId, SequenceId]) -> None:
        for index, block in enumerate(table.blocks):
            expected = SEALED if index < table.num_sealed else OPEN
            if self.pool.state(block) != expected:
                raise InvariantError(f"block {block} of sequence {table.sequence} is in state {self.pool.state(block)}")
            if block in owner:
                raise InvariantError(f"block {block} is in sequences {owner[block]} and {table.sequence}")
            owner[block] = table.sequence
        if table.capacity != len(table.blocks) * self.shape.block_size:
            raise InvariantError(f"sequence {table.sequence} has a wrong capacity")

    @staticmethod
    def _audit_account(account: Account, blocks: int, reserved: int) -> None:
        if (account.blocks, account.reserved) != (blocks, reserved):
            raise InvariantError(
                f"account of {account.tenant} keeps {account.blocks} blocks and {account.reserved} promised,"
                f" its tables {blocks} and {reserved}"
            )
        if account.peak < account.blocks:
            raise InvariantError(f"account of {account.tenant} has a peak under its use")
