"""Where a needed block comes from: every block's account, and who gives up what.

1. the free ones
2. the account's own cached blocks
3. cached blocks of other accounts above their soft limit, largest overage first
4. as a last resort, where a need does not fit beside the guarantees of others at all: any cached block
"""

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from engine.errors import InvariantError
from engine.memory.accounts import Account, AccountOwner, Accounts
from engine.memory.eviction.base import BlockKey, CachedNode, EvictionOrder
from engine.memory.pool import CACHED, BlockPool
from engine.memory.prefix import PrefixTree
from engine.memory.reclaim import Reclaim
from engine.memory.table import BlockTable
from engine.memory.tiers.host import HostTier
from engine.memory.tiers.hosted import Content
from engine.request import BlockId
from engine.step import CacheShape


class Shortage(Enum):
    """Why a table could not grow. A result, not an error."""

    ACCOUNT = "account"  # the tenant is at its own ceiling
    POOL = "pool"  # no block to be had that is not promised, guaranteed or in use


class Taking(NamedTuple):
    """By whose need, and of whose memory something was taken."""

    by: AccountOwner
    of: AccountOwner


class Supply:
    """Pool, tree and accounts together: a block changes hands here, and nowhere else."""

    def __init__(self, shape: CacheShape, make_order: Callable[[], EvictionOrder]) -> None:
        num_blocks = shape.num_blocks
        self.pool = BlockPool(num_blocks)
        self.tree = PrefixTree(num_blocks, shape.block_size)
        self.host = HostTier(shape.num_slabs, shape.block_size)
        self.host.value = self._worth
        self.accounts = Accounts(num_blocks)
        self.reclaim = Reclaim(self.pool, self.tree, make_order)
        self.reserved = 0  # blocks promised to sequences, all accounts; as many are free
        self.num_evicted = 0  # cached blocks that were given up
        self._taken: Counter[Taking] = Counter()
        self.touched: list[BlockId] = []  # allocated or freed, for the runner to poison
        self.copied: set[BlockId] = set()  # read by copies beside the steps: free when they are done, and no sooner
        self.seen = bytearray(num_blocks)  # 1: what the block holds is in host memory, or was refused there
        self.restless: dict[Account, None] = {}  # whose cached blocks have come or gone since they were last copied out
        self.unasked: set[BlockId] = set()  # brought in for a request that has not come yet

    def available(self, account: Account, *, last_resort: bool = False) -> int:
        """Return the blocks to be had for an account; promised ones are not among them."""
        free = self.pool.num_free - self.reserved
        if self.copied:  # given up, they are free only when they have been copied
            free -= sum(self.pool.state(block) == CACHED for block in self.copied)
        if last_resort:
            return free + self.pool.num_cached
        return free + account.cached + self.accounts.takeable(account)

    def find(self, table: BlockTable, count: int, *, num_head: int = 0, last_resort: bool = False) -> Shortage | None:
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
        self._give_way(account, own)
        self._give_way(head, num_head)
        while self.pool.num_free - self.reserved < count - promised:
            giver = self._giver(account, last_resort=last_resort)
            if giver is not account:
                self.note_taken(account, giver)
            self.evict(giver, by=account)
        return None

    def allocate(self, table: BlockTable, count: int, *, num_head: int = 0) -> list[BlockId]:
        """Take blocks that `find` has found, the first `num_head` on the account of the table's share group."""
        blocks = self.pool.allocate(count)
        assert blocks is not None, "found before"
        self.release(table, min(count - num_head, table.reserved))
        self._charge(table.head_account, num_head)
        self._charge(table.account, count - num_head)
        self.touched += blocks
        return blocks

    def allocate_one(self, table: BlockTable) -> BlockId | None:
        """Take a block on the table's account where only its own cache need give way; else, or of a promise, none.

        `find` and `allocate` for the common case: a decode that goes on to its next block.
        """
        account = table.account
        if table.reserved or account.blocks - account.cached + account.reserved >= account.hard:
            return None
        if account.blocks >= account.hard:  # above it, while a lowered one is enforced, one goes for one that comes
            if not account.cached:
                return None
            self.evict(account)
        while self.pool.num_free <= self.reserved:
            if not account.cached:
                return None
            self.evict(account)
        block = self.pool.allocate_one()
        account.blocks = blocks = account.blocks + 1
        if blocks > account.peak:
            account.peak = blocks
        self.touched.append(block)
        return block

    def release(self, table: BlockTable, count: int) -> None:
        """Take back so many of the blocks that are promised to a table; a negative count promises more."""
        table.reserved -= count
        table.account.reserved -= count
        self.reserved -= count

    def evict(self, account: Account, *, by: Account | None = None) -> None:
        """Give up the account's least valuable cached block, for its own need or `by` another's.

        It is stored in host memory if that is wanted (`Claims.wants`).
        """
        candidates = self.reclaim.of(account.index)
        block = candidates.take()
        if block is None:
            raise InvariantError(f"{account.owner} counts {account.cached} cached blocks, and none can be given up")
        hits = self.tree.hits(block)
        content = None
        if self.host.keeps(account.owner):
            self.seen[block] = 0
            if self.host.get(self.tree.key(block)) is None:
                content = self.content(block)
            self.unasked.discard(block)
            self.restless[account] = None
        key, parent = self.tree.remove(block)
        candidates.order.evicted(key, hits)
        account.cached -= 1
        account.blocks -= 1
        self.num_evicted += 1
        self.host.evicted(key, block, content, by=(by or account).owner, of=account.owner)
        self._give_up(block)
        if parent is not None:
            candidates.offer(parent, account.cached)

    def erase(self, block: BlockId) -> None:
        """Give up a cached block, and all that continues it, which nobody uses either. None of it is stored."""
        doomed, waiting = [block], [block]
        while waiting:
            children = self.tree.children(waiting.pop())
            doomed += children
            waiting += children
        for one in reversed(doomed):
            self._erase(one)

    def _erase(self, block: BlockId) -> None:
        account = self.accounts.at(self.tree.account(block))
        candidates, hits = self.reclaim.of(account.index), self.tree.hits(block)
        key, parent = self.tree.remove(block)
        candidates.order.evicted(key, hits)
        account.cached -= 1
        account.blocks -= 1
        self.seen[block] = 0
        self.unasked.discard(block)
        self.host.unload(block)
        self._give_up(block)
        if parent is not None:
            candidates.offer(parent, account.cached)

    def content(self, block: BlockId) -> Content:
        """Return what is known of a block of the tree beside its key."""
        tree = self.tree
        return Content(tree.before(block), tree.packed_tokens(block), tree.node(block, 0))

    def note_taken(self, by: Account, of: Account) -> None:
        """Note that an account is about to give up a cached block for another's need."""
        self._taken[Taking(by.owner, of.owner)] += 1

    def take_taken(self) -> dict[Taking, int]:
        """Return the cached blocks that accounts gave up for others' needs, since the last call."""
        taken, self._taken = self._taken, Counter()
        return taken

    def use(self, block: BlockId) -> None:
        """Add a user to a block."""
        if self.pool.state(block) == CACHED:
            self.accounts.at(self.tree.account(block)).cached -= 1
        self.pool.share(block)

    def let_go(self, block: BlockId, now: float) -> bool:
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
        self.restless[account] = None
        self.reclaim.of(account.index).offer(block, account.cached)
        return True

    def discard(self, blocks: list[BlockId]) -> None:
        """Free blocks whose account has been relieved of them."""
        self.pool.free(blocks)
        self.touched += blocks

    def take_spare(self, account: Account, count: int) -> list[BlockId]:
        """Take up to `count` free blocks on an account, for a copy beside the steps to fill: no plan touches them."""
        blocks = self.pool.take_free(count, self.host.next.stored_blocks())
        self._charge(account, len(blocks))
        if self.touched:
            taken = set(blocks)
            self.touched = [block for block in self.touched if block not in taken]
        return blocks

    def return_spare(self, account: Account, block: BlockId) -> None:
        """Give a block back that was filled for nothing."""
        account.blocks -= 1
        self.discard([block])

    def done_copying(self, block: BlockId) -> None:
        """Note that a block has been copied: it is free if it was given up meanwhile."""
        self.copied.remove(block)
        if self.pool.free_detained(block):
            self.touched.append(block)

    def _worth(self, owner: AccountOwner, key: BlockKey, node: CachedNode) -> float:
        """Return what a block is worth that has left the device, as its account's order would have it there."""
        account = self.accounts.get(owner)
        return node.last_use if account is None else self.reclaim.of(account.index).order.key(key, node)

    def _give_up(self, block: BlockId) -> None:
        if block in self.copied:
            self.pool.detain(block)
        else:
            self.pool.free_cached(block)
            self.touched.append(block)

    def _give_way(self, account: Account, count: int) -> None:
        """Give up what an account caches, so that `count` more blocks take it no higher than its ceiling.

        One that is above it, while a lowered one is enforced bit by bit, comes no higher than it is.
        """
        for _ in range(min(account.cached, account.blocks + count - max(account.hard, account.blocks))):
            self.evict(account)

    def _giver(self, account: Account, *, last_resort: bool) -> Account:
        """Return whose cached block goes next for an account's need."""
        giver = account if account.cached else self.accounts.largest_borrower(account)
        if giver is None and last_resort:
            giver = max(self.accounts, key=lambda one: one.cached)
        assert giver is not None and giver.cached, "counted by `available`"
        return giver

    def _charge(self, account: Account, count: int) -> None:
        account.blocks += count
        if account.blocks > account.peak:
            account.peak = account.blocks
