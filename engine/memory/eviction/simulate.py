"""Replays a trace of prompts against an eviction order, and against the oracle that knows the future. Pure.

For benchmarks and tests.

    hit rate = blocks found, as an unbroken prefix of each prompt / blocks asked for

A prompt enters the cache whole, over its capacity if need be, and then the least valuable leaves go.
"""

import hashlib
import heapq
from collections.abc import Container, Sequence
from typing import NamedTuple

from engine.memory.eviction.base import BlockKey, CachedNode, EvictionOrder

_NEVER = 1 << 60


class Prompt(NamedTuple):
    """One request: the ids of its blocks, each id standing for a block and all that is before it."""

    at: float  # seconds
    blocks: Sequence[int]


class HitRate(NamedTuple):
    """Blocks found of those asked for, after the warm-up."""

    found: int
    asked: int

    @property
    def share(self) -> float:
        """Return the hit rate, 0 to 1."""
        return self.found / max(1, self.asked)


def simulate(trace: Sequence[Prompt], capacity: int, order: EvictionOrder, *, warm_up: int = 0) -> HitRate:
    """Return the hit rate of a cache of `capacity` blocks, not counting the first `warm_up` prompts."""
    return _rate(trace, finds(trace, capacity, order), warm_up)


def belady(trace: Sequence[Prompt], capacity: int, *, warm_up: int = 0) -> HitRate:
    """Return the best hit rate there is; see `belady_finds`."""
    return _rate(trace, belady_finds(trace, capacity), warm_up)


def finds(trace: Sequence[Prompt], capacity: int, order: EvictionOrder) -> list[int]:
    """Return for each prompt how many of its blocks a cache of `capacity` blocks finds."""
    cache = _Cache(order, capacity)
    return [cache.serve(prompt) for prompt in trace]


def belady_finds(trace: Sequence[Prompt], capacity: int) -> list[int]:
    """Return the same of the oracle: what is needed again last, or never, goes first (Belady, 1966)."""
    next_use = _next_uses(trace)
    held: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    found: list[int] = []
    for number, prompt in enumerate(trace):
        found.append(_prefix(prompt.blocks, held))
        for depth, block in enumerate(prompt.blocks):
            held[block] = use = next_use[number][depth]
            heapq.heappush(heap, (-use, -depth, block))
        while len(held) > capacity:
            use, _, block = heapq.heappop(heap)
            if held.get(block) == -use:
                del held[block]
    return found


def block_key(block: int) -> BlockKey:
    """Return a key for a block id of a trace."""
    return BlockKey(hashlib.sha256(block.to_bytes(8, "little")).digest())


class _Node:
    __slots__ = ("block", "children", "depth", "hits", "key", "last_use", "parent", "stamp")

    def __init__(self, block: int, key: BlockKey, parent: "_Node | None", hits: int) -> None:
        self.block = block
        self.key = key
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.hits = hits
        self.last_use = 0.0
        self.children = 0
        self.stamp = 0  # of its valid heap entry


class _Cache:
    """A prefix tree of keys with a capacity; candidates for eviction are its leaves."""

    def __init__(self, order: EvictionOrder, capacity: int) -> None:
        self._order = order
        self._capacity = capacity
        self._nodes: dict[int, _Node] = {}
        self._leaves: list[tuple[float, int, _Node]] = []
        self._generation = order.generation
        self._stamp = 0

    def serve(self, prompt: Prompt) -> int:
        """Take a prompt in; return how many of its blocks were here."""
        keys = [block_key(block) for block in prompt.blocks]
        found = _prefix(prompt.blocks, self._nodes)
        self._order.looked_up(keys, found, prompt.at)
        node: _Node | None = None
        for block, key in zip(prompt.blocks, keys, strict=True):
            node = self._use(block, key, node, prompt.at)
        if node is not None and not node.children:
            self._offer(node)
        self._shrink()
        return found

    def _use(self, block: int, key: BlockKey, parent: _Node | None, now: float) -> _Node:
        node = self._nodes.get(block)
        if node is None:
            before = None if parent is None else parent.key
            node = self._nodes[block] = _Node(block, key, parent, self._order.stored(key, now, before))
            if parent is not None:
                parent.children += 1
        else:
            node.hits += 1
        node.last_use = now
        return node

    def _offer(self, node: _Node) -> None:
        """Make a leaf a candidate, with the value that it has now."""
        self._stamp += 1
        node.stamp = self._stamp
        view = CachedNode(
            block=node.block,
            last_use=node.last_use,
            hits=node.hits,
            children=0,
            users=0,
            depth=node.depth,
            num_tokens=node.depth + 1,
        )
        heapq.heappush(self._leaves, (self._order.key(node.key, view), node.stamp, node))

    def _shrink(self) -> None:
        if self._generation != self._order.generation:
            self._generation = self._order.generation
            self._leaves = []
            for node in self._nodes.values():
                if not node.children:
                    self._offer(node)
        while len(self._nodes) > self._capacity:
            _, stamp, node = heapq.heappop(self._leaves)
            if node.stamp == stamp and not node.children:
                self._evict(node)

    def _evict(self, node: _Node) -> None:
        del self._nodes[node.block]
        node.stamp = 0
        self._order.evicted(node.key, node.hits)
        parent = node.parent
        if parent is not None:
            parent.children -= 1
            if not parent.children:
                self._offer(parent)


def _rate(trace: Sequence[Prompt], found: Sequence[int], warm_up: int) -> HitRate:
    return HitRate(sum(found[warm_up:]), sum(len(prompt.blocks) for prompt in trace[warm_up:]))


def _prefix(blocks: Sequence[int], held: Container[int]) -> int:
    """Return how many blocks from the first on are held."""
    for depth, block in enumerate(blocks):
        if block not in held:
            return depth
    return len(blocks)


def _next_uses(trace: Sequence[Prompt]) -> list[list[int]]:
    """Return for each block of each prompt the number of the next prompt with it."""
    seen: dict[int, int] = {}
    result: list[list[int]] = []
    for number in range(len(trace) - 1, -1, -1):
        blocks = trace[number].blocks
        result.append([seen.get(block, _NEVER) for block in blocks])
        seen.update(dict.fromkeys(blocks, number))
    return result[::-1]
