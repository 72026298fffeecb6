"""Which cached block goes first, account by account: leaves before parents, in the order of an eviction policy."""

from collections.abc import Callable, Iterator

from engine.memory.eviction.base import EvictionOrder
from engine.memory.pool import CACHED, BlockPool
from engine.memory.prefix import PrefixTree
from engine.memory.ranking import Ranking
from engine.request import BlockId

_SLACK = 64  # stale entries that a ranking may carry beyond as many as it has good ones


class Candidates:
    """One account's evictable blocks, and the order that they go in.

    A block enters when it becomes a cached leaf. It may be used again meanwhile, and come back with another value, or
    be valued anew where it is (`EvictionOrder.key`): an entry counts only while its block is a cached leaf of the
    account and has that value still; else it goes back to the place that is right now.
    """

    __slots__ = ("_account", "_generation", "_pool", "_ranking", "_tree", "order")

    def __init__(self, account: int, pool: BlockPool, tree: PrefixTree, order: EvictionOrder) -> None:
        self.order = order
        self._account = account
        self._pool = pool
        self._tree = tree
        self._generation = order.generation
        self._ranking = Ranking()

    def offer(self, block: BlockId, num_cached: int) -> None:
        """Consider a block that has just become cached, or whose last child has left. `num_cached`: the account's."""
        if self._is_candidate(block):
            if len(self._ranking) > 2 * num_cached + _SLACK:
                self._sort()
            self._ranking.add(self._value(block), block)

    def take(self) -> BlockId | None:
        """Return the least valuable block, or None."""
        if self.order.generation != self._generation:
            self._generation = self.order.generation
            self._sort()
        while self._ranking:
            value, block = self._ranking.pop()
            if self._is_candidate(block):
                now = self._value(block)
                if now == value:
                    return block
                self._ranking.add(now, block)
        return None

    def tail(self) -> Iterator[BlockId]:
        """Iterate over the blocks, about in the order in which they will go. Not over a change."""
        return (block for block in self._ranking if self._is_candidate(block))

    def blocks(self) -> set[BlockId]:
        """Return the blocks that `take` would find."""
        return {block for block in self._ranking if self._is_candidate(block)}

    def _sort(self) -> None:
        self._ranking = Ranking((self._value(block), block) for block in self.blocks())

    def _is_candidate(self, block: BlockId) -> bool:
        pool, tree = self._pool, self._tree
        return pool.state(block) == CACHED and tree.is_leaf(block) and tree.account(block) == self._account

    def _value(self, block: BlockId) -> float:
        return self.order.key(self._tree.key(block), self._tree.node(block, 0))


class Reclaim:
    """The candidates of all accounts, by account index. Each account has an eviction order of its own.

    So no tenant's traffic decides how well another's cache works.
    """

    def __init__(self, pool: BlockPool, tree: PrefixTree, make_order: Callable[[], EvictionOrder]) -> None:
        self._pool = pool
        self._tree = tree
        self._make_order = make_order
        self._accounts: dict[int, Candidates] = {}

    def of(self, account: int) -> Candidates:
        """Return an account's candidates."""
        candidates = self._accounts.get(account)
        if candidates is None:
            candidates = Candidates(account, self._pool, self._tree, self._make_order())
            self._accounts[account] = candidates
        return candidates

    def forget(self, account: int) -> None:
        """Drop those of an account that is closed."""
        self._accounts.pop(account, None)
