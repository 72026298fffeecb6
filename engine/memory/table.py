"""A sequence's block table: the blocks that hold its tokens, in order."""

from engine.memory.accounts import Account
from engine.request import BlockId, SequenceId


class BlockTable:
    """The blocks of one sequence. Only `KVMemory` changes it; others read.

    Token `t` of the sequence lives in slot `t % block_size` of `blocks[t // block_size]`.
    """

    __slots__ = ("account", "block_seconds", "blocks", "capacity", "num_sealed", "reserved", "row", "sequence", "since")

    def __init__(self, sequence: SequenceId, row: int, account: Account, now: float) -> None:
        self.sequence = sequence
        self.row = row  # of the runner's persistent table
        self.account = account
        self.blocks: list[BlockId] = []
        self.capacity = 0  # token slots in `blocks`
        self.num_sealed = 0  # leading blocks that are full
        self.reserved = 0  # blocks promised to this sequence and not yet taken
        self.block_seconds = 0.0  # block · seconds held up to `since`
        self.since = now

    def held(self, now: float) -> float:
        """Return the block·seconds held so far."""
        return self.block_seconds + len(self.blocks) * (now - self.since)

    def settle(self, now: float) -> None:
        """Add up what was held until now; call before the number of blocks changes."""
        self.block_seconds += len(self.blocks) * (now - self.since)
        self.since = now
