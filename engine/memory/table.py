"""A sequence's block table: the blocks that hold its tokens, in order, and for how long it is charged with them."""

from collections.abc import Iterable

from engine.memory.accounts import Account
from engine.memory.keys import KeyChain
from engine.request import BlockId, SequenceId, SlabId

NOWHERE = BlockId(-1)  # in place of a block that the device does not have


class BlockTable:
    """The blocks of one sequence. Only `KVMemory` changes it; others read.

    Token `t` of the sequence lives in slot `t % block_size` of `blocks[t // block_size]`. Sealed blocks may be in other
    tables too; an open one only between a fork and the first write to it. The leading blocks of a sequence that is
    streamed (streaming.py) are in slabs, and NOWHERE on the device.
    """

    __slots__ = (
        "account",
        "block_seconds",
        "blocks",
        "capacity",
        "chain",
        "head_account",
        "hosted",
        "meter",
        "num_head",
        "num_metered",
        "num_sealed",
        "reserved",
        "row",
        "sequence",
        "since",
    )

    def __init__(self, sequence: SequenceId, row: int, account: Account, now: float) -> None:
        self.sequence = sequence
        self.row = row  # of the runner's persistent table
        self.account = account
        self.chain: KeyChain | None = None  # keys of its blocks; None: it shares nothing through the tree
        self.num_head = 0  # leading blocks that count against a share group
        self.head_account = account  # whose those are
        self.blocks: list[BlockId] = []
        self.hosted: tuple[SlabId, ...] = ()  # where the leading ones are that the device does not have
        self.capacity = 0  # token slots in `blocks`
        self.num_sealed = 0  # leading blocks that are full
        self.reserved = 0  # blocks promised to this sequence and not yet taken
        self.block_seconds = 0.0  # block · seconds metered up to `since`
        self.since = now
        self.num_metered = 0  # of `blocks`, all but those that another output of the request is charged with
        self.meter: SharedMeter | None = None  # with the request's other outputs

    @property
    def num_hosted(self) -> int:
        """Leading blocks that are in host memory alone."""
        return len(self.hosted)

    @property
    def num_resident(self) -> int:
        """Blocks on the device."""
        return len(self.blocks) - len(self.hosted)

    def account_at(self, index: int) -> Account:
        """Return the account that block `index` counts against."""
        return self.head_account if index < self.num_head else self.account

    def held(self, now: float) -> float:
        """Return the block·seconds metered so far."""
        return self.block_seconds + self.num_metered * (now - self.since)

    def settle(self, now: float) -> None:
        """Add up what was metered until now; call before the number of blocks changes."""
        self.block_seconds += self.num_metered * (now - self.since)
        self.since = now


class SharedMeter:
    """Charges each block that outputs of one request hold to one of them: over all tables it is metered once.

    The first table that holds a block is charged with it. When that one lets go, another that still has it takes over:
    a block that outputs of a request share is in the same place of all their tables. Blocks that the prefix tree lets
    other requests share are charged to each of those in full: what a request would need alone.
    """

    __slots__ = ("_charged", "_tables", "_users")

    def __init__(self) -> None:
        self._tables: list[BlockTable] = []
        self._charged: dict[BlockId, BlockTable] = {}
        self._users: dict[BlockId, int] = {}

    def admit(self, table: BlockTable, now: float) -> None:
        """Take in a table with the blocks that it has."""
        table.settle(now)
        table.meter, table.num_metered = self, 0
        self._tables.append(table)
        self.add(table, table.blocks)

    def add(self, table: BlockTable, blocks: Iterable[BlockId]) -> None:
        """Note that a table, settled before, holds these blocks too."""
        users = self._users
        for block in blocks:
            users[block] = count = users.get(block, 0) + 1
            if count == 1:
                self._charged[block] = table
                table.num_metered += 1

    def replace(self, table: BlockTable, index: int, block: BlockId, now: float) -> None:
        """Note that a table has this block in place of the one that it holds there; call before it changes."""
        table.settle(now)
        self._take_off(table, index, now)
        self.add(table, (block,))

    def dismiss(self, table: BlockTable, now: float) -> None:
        """Let a table go, before it loses its blocks."""
        table.settle(now)
        self._tables.remove(table)
        for index in range(len(table.blocks)):
            self._take_off(table, index, now)
        table.meter = None

    def _take_off(self, table: BlockTable, index: int, now: float) -> None:
        block = table.blocks[index]
        self._users[block] -= 1
        if self._users[block] == 0:
            del self._users[block], self._charged[block]
        elif self._charged[block] is table:
            heir = next(one for one in self._tables if one is not table and one.blocks[index : index + 1] == [block])
            heir.settle(now)
            heir.num_metered += 1
            self._charged[block] = heir
        else:
            return
        table.num_metered -= 1
