"""A sequence's block table: the blocks that hold its tokens, in order."""

from engine.memory.accounts import Account
from engine.memory.keys import KeyChain
from engine.request import BlockId, SequenceId


class BlockTable:
    """The blocks of one sequence. Only `KVMemory` changes it; others read.

    Token `t` of the sequence lives in slot `t % block_size` of `blocks[t // block_size]`. Sealed blocks may be in other
    tables too; an open one only between a fork and the first write to it.
    """

    __slots__ = (
        "account",
        "block_seconds",
        "blocks",
        "capacity",
        "chain",
        "head_account",
        "num_head",
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
        self.capacity = 0  # token slots in `blocks`
        self.num_sealed = 0  # leading blocks that are full
        self.reserved = 0  # blocks promised to this sequence and not yet taken
        self.block_seconds = 0.0  # block · seconds held up to `since`, a shared block in full
        self.since = now

    def account_at(self, index: int) -> Account:
        """Return the account that block `index` counts against."""
        return self.head_account if index < self.num_head else self.account

    def held(self, now: float) -> float:
        """Return the block·seconds held so far."""
        return self.block_seconds + len(self.blocks) * (now - self.since)

    def settle(self, now: float) -> None:
        """Add up what was held until now; call before the number of blocks changes."""
        self.block_seconds += len(self.blocks) * (now - self.since)
        self.since = now
