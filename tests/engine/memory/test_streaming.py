"""Tables whose first blocks are in host memory alone: what moves, who keeps what, and that nothing is lost."""

import pytest

from engine.errors import InvariantError
from engine.memory.keys import KeyChain
from engine.memory.lookup import Match
from engine.memory.manager import KVMemory
from engine.memory.streaming import can_offload, num_movable, offload, recall
from engine.memory.table import NOWHERE, BlockTable
from engine.memory.tiers.claims import Streamed
from engine.memory.tiers.moves import Moves
from engine.request import SequenceId, TenantId
from engine.step import CacheShape

OWNER = TenantId("whale")
TOKENS = list(range(100))


class Memory:
    """A pool of 16 blocks of four tokens, host memory, and one tenant."""

    def __init__(self, *, slabs: int = 32, ceiling: int = 32, hard: int = 16) -> None:
        self.memory = KVMemory(
            CacheShape(
                num_blocks=16,
                block_size=4,
                block_bytes=100,
                max_rows=4,
                max_columns=32,
                num_slabs=slabs,
                streams=True,
            )
        )
        self.account = self.memory.accounts.set_limits(OWNER, soft=0, hard=hard)
        self.memory.host.limit(OWNER, ceiling)

    def chain(self) -> KeyChain:
        """Return new keys in the tenant's namespace."""
        chain = self.memory.lookup.chain(self.account, b"secret")
        assert chain is not None
        return chain

    def open(
        self, number: int, num_tokens: int, match: Match | None = None, chain: KeyChain | None = None
    ) -> BlockTable:
        """Return a table with so many tokens computed, on what a match has found."""
        memory = self.memory
        table = memory.open(SequenceId(number), OWNER, 0.0, chain=chain or self.chain(), match=match or Match())
        assert memory.grow(table, num_tokens, 0.0) is None
        memory.seal(table, num_tokens, TOKENS, 0.0)
        memory.audit()
        return table

    def offload(self, table: BlockTable, count: int) -> int:
        """Move blocks, and check everything."""
        moved = offload(self.memory, table, count, 1.0)
        self.memory.audit()
        return moved

    def plan(self) -> Moves:
        """Take a plan's copies, and have them made."""
        moves = self.memory.take_moves(1.0)
        self.memory.host.landed(moves.stores, moves.loads)
        self.memory.audit()
        return moves


def test_the_oldest_blocks_go() -> None:
    """They are stored by the next plan, are free at once, count no more, and are found in host memory."""
    one = Memory()
    table = one.open(1, 22)
    blocks = table.blocks.copy()
    assert num_movable(table) == 5
    assert one.offload(table, 3) == 3
    assert table.blocks == [NOWHERE] * 3 + blocks[3:]
    assert (table.num_hosted, table.num_resident, one.account.blocks) == (3, 3, 3)
    assert [(move.block, move.slab) for move in one.plan().stores] == list(zip(blocks[:3], table.hosted, strict=True))
    chain = one.chain()
    match = one.memory.lookup.match(chain, TOKENS[:20])
    assert (len(match.blocks), match.num_hosted) == (0, 3)
    assert one.memory.host.claims.of(Streamed(SequenceId(1))) == table.chain.keys[:3]  # type: ignore[union-attr]


def test_all_full_blocks_may_go_and_the_next_ones_join_the_tree() -> None:
    """A block that continues one in host memory hangs from a root with that one's key."""
    one = Memory()
    table = one.open(1, 20)
    assert one.offload(table, 9) == 5
    assert one.memory.grow(table, 28, 2.0) is None
    one.memory.seal(table, 28, TOKENS, 2.0)
    one.memory.audit()
    assert table.chain is not None
    assert one.memory.tree.get(table.chain.keys[5]) == table.blocks[5]
    assert one.memory.tree.parent(table.blocks[5]) is None
    assert one.memory.tree.parent(table.blocks[6]) == table.blocks[5]


def test_what_is_there_is_not_stored_again() -> None:
    """Blocks that came back and go again cost no copy while host memory still has them."""
    one = Memory()
    table = one.open(1, 20)
    one.offload(table, 3)
    one.plan()
    assert recall(one.memory, table, 2, TOKENS, 2.0) == 2
    one.memory.audit()
    moves = one.plan()
    assert [move.block for move in moves.loads] == table.blocks[1:3]
    assert one.offload(table, 2) == 2
    assert one.plan().stores == ()


def test_a_load_that_is_planned_is_not_made_for_a_block_that_goes() -> None:
    """What is called back and given again in one plan is copied in neither direction."""
    one = Memory()
    table = one.open(1, 20)
    one.offload(table, 3)
    one.plan()
    assert recall(one.memory, table, 1, TOKENS, 2.0) == 1
    assert one.offload(table, 1) == 1
    assert one.plan() == Moves()


def test_recall_needs_blocks() -> None:
    """Nothing comes back where so many blocks are not to be had."""
    one = Memory(hard=6)
    table = one.open(1, 20)
    one.offload(table, 3)
    assert one.memory.grow(table, 32, 2.0) is None
    assert recall(one.memory, table, 3, TOKENS, 2.0) == 0
    assert (table.num_hosted, one.account.blocks) == (3, 5)
    one.memory.audit()


def test_others_keep_what_they_share() -> None:
    """A shared block stays with its other users, in the tree; when they have gone it can be given up as any other."""
    one = Memory()
    table = one.open(1, 20)
    chain = one.chain()
    match = one.memory.lookup.match(chain, TOKENS[:13])
    assert len(match.blocks) == 3
    other = one.open(2, 14, match, chain)
    assert one.offload(table, 4) == 4
    assert one.account.blocks == 3 + 1 + 1
    assert one.memory.tree.find(table.chain.keys, 9) == other.blocks[:3]  # type: ignore[union-attr]
    one.memory.free(other, 3.0)
    one.memory.audit()
    while one.account.cached:
        one.memory.supply.evict(one.account)
        one.memory.audit()
    assert table.num_resident == 1


def test_no_room_moves_less() -> None:
    """What the tenant's ceiling or host memory does not hold stays on the device."""
    for memory in (Memory(ceiling=2), Memory(slabs=2)):
        table = memory.open(1, 20)
        assert memory.offload(table, 5) == 2
        assert memory.offload(table, 5) == 0


def test_slabs_are_held_until_no_step_reads_them() -> None:
    """An owner that is gone loses its keys at once; what a table names stays where it is until it is let go."""
    one = Memory()
    table = one.open(1, 20)
    one.offload(table, 3)
    one.plan()
    slabs = table.hosted
    one.memory.host.forget(OWNER)
    assert one.memory.host.num_broken == 3
    assert all(one.memory.host.slabs.is_held(slab) for slab in slabs)
    assert one.memory.host.take_dirty(9) == []
    one.memory.free(table, 2.0)
    assert all(one.memory.host.slabs.is_held(slab) for slab in slabs)
    assert table.hosted == ()
    one.memory.let_unread_go()
    one.memory.host.claims.release(Streamed(SequenceId(1)))
    assert sorted(one.memory.host.take_dirty(9)) == sorted(slabs)
    one.memory.audit()


def test_begins_on_what_is_in_host_memory() -> None:
    """A sequence starts with its first blocks in slabs and no block of the device for them, and goes on behind them."""
    one = Memory()
    first = one.open(1, 40)
    one.offload(first, 10)
    one.plan()
    one.memory.free(first, 2.0)
    one.memory.let_unread_go()
    one.memory.host.claims.release(Streamed(SequenceId(1)))
    chain = one.chain()
    match = one.memory.lookup.match_streamed(chain, TOKENS[:50], OWNER, 4)
    assert (match.num_streamed, match.num_tokens) == (10, 40)
    second = one.open(2, 50, match, chain)
    assert (second.num_hosted, second.num_resident, one.account.blocks) == (10, 3, 3)
    one.memory.audit()


def test_begins_with_what_the_device_has_of_it() -> None:
    """What the tree has behind the blocks in host memory is used, as far as there is room; more is loaded."""
    one = Memory()
    first = one.open(1, 40)
    one.offload(first, 6)
    one.plan()
    one.memory.free(first, 2.0)
    one.memory.let_unread_go()
    one.memory.host.claims.release(Streamed(SequenceId(1)))
    chain = one.chain()
    match = one.memory.lookup.match_streamed(chain, TOKENS[:50], OWNER, 3)
    assert (match.num_streamed, len(match.blocks), match.idle) == (6, 3, 3)
    second = one.open(2, 50, match, chain)
    assert second.num_hosted == 6
    assert second.blocks[6:9] == list(match.blocks)
    one.memory.audit()


def test_what_cannot_be_streamed() -> None:
    """A table without keys is not."""
    one = Memory()
    table = one.memory.open(SequenceId(1), OWNER, 0.0)
    assert one.memory.grow(table, 8, 0.0) is None
    one.memory.seal(table, 8, TOKENS, 0.0)
    assert not can_offload(table)
    assert num_movable(table) == 0
    with pytest.raises(InvariantError):
        offload(one.memory, table, 1, 0.0)


@pytest.mark.parametrize("wrong", ["claim", "slab", "cell"])
def test_audit_finds(wrong: str) -> None:
    """A hosted block that is not claimed, is elsewhere, or has a block of the device is found."""
    one = Memory()
    table = one.open(1, 20)
    one.offload(table, 3)
    if wrong == "claim":
        one.memory.host.claims.release_last(Streamed(SequenceId(1)), 1)
    elif wrong == "slab":
        table.hosted = (*table.hosted[:2], table.hosted[0])
    else:
        table.blocks[0] = table.blocks[4]
    with pytest.raises(InvariantError):
        one.memory.audit()
