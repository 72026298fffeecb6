"""Copies between device and host memory beside the steps: out ahead of eviction, in ahead of the request.

    out   a finished turn's blocks, as soon as it has ended (`park`); then, where the pool or an account is nearly full,
          the cached blocks that would be given up next. A block that host memory has is given up for nothing.
    in    chains of blocks that are about to be asked for (`bring`), into blocks that are free beyond a reserve: nobody
          gives anything up for a guess.

At most two transfers are under way, so that one is prepared while the other runs. What a transfer reads on the device
stays where it is: a cached block that is given up meanwhile is gone for everybody at once, and free when it has been
copied (`BlockPool.detain`). What it writes is nobody's until it is done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from engine.memory.accounts import Account, AccountOwner
from engine.memory.eviction.base import BlockKey
from engine.memory.pool import CACHED, SEALED
from engine.memory.supply import Supply
from engine.memory.tiers.hosted import Hosted, Presence
from engine.memory.tokens import unpack
from engine.request import BlockId, SlabId
from engine.step import CacheShape, SlabMove, Transfer, TransferDone

MOST_IN_FLIGHT = 2
_TRANSFER_BYTES = 16 << 20
_TRANSFER_BLOCKS = 64
_NEARLY_FULL = 0.9  # of the pool's blocks, or of an account's: what is given up next is copied out ahead
_WINDOW = 32  # blocks of an account that are looked at, those to go next
_DEEP = 2  # of them, those whose predecessors are looked at too, which go right after them
_SLACK_SHARE = 4  # a transfer reads at most one in so many of the blocks that nobody uses
_MOST_PARKED = 1 << 16  # blocks that may wait to be copied out
_MOST_CHAINS = 64  # that may wait to be brought in; the oldest is forgotten


@dataclass(slots=True)
class _Flight:
    """A transfer under way."""

    transfer: Transfer
    keys: list[BlockKey]  # of its moves
    account: Account | None = None  # of the blocks that it fills
    is_over: bool = False
    lost: set[BlockKey] = field(default_factory=set)  # what was erased meanwhile: nobody is to find it


@dataclass(slots=True)
class _Chain:
    """Blocks to bring in, first to last."""

    owner: AccountOwner
    keys: Sequence[BlockKey]
    start: int = 0  # the first ones are on the device, or on their way


class Mover:
    """Chooses what is copied beside the steps, and keeps it from everybody until it is done."""

    def __init__(self, supply: Supply, shape: CacheShape) -> None:
        self.stored_blocks = self.loaded_blocks = 0
        self.brought_blocks = 0  # that have joined the tree
        self.asked_blocks = 0  # of them, those that a request found
        self._supply = supply
        self._host = supply.host
        self._pool, self._tree = supply.pool, supply.tree
        most = min(_TRANSFER_BLOCKS, _TRANSFER_BYTES // max(1, shape.block_bytes))
        self._batch = max(1, min(shape.num_blocks // 16, most))
        self._reserve = shape.num_blocks - int(shape.num_blocks * _NEARLY_FULL)
        self._window = min(_WINDOW, max(1, shape.num_blocks // 4))
        self._share = shape.num_blocks // 8  # of the pool: what a tenant without a guarantee may have brought in
        self._parked: dict[BlockKey, None] = {}  # in order
        self._chains: list[_Chain] = []
        self._flights: dict[int, _Flight] = {}
        self._number = 0
        self._seen = (0, 0)  # blocks evicted and cached when there was last nothing to copy out

    @property
    def is_moving(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self._flights)

    @property
    def has_work(self) -> bool:
        """Whether there is something to copy that does not wait for anything but its turn."""
        return bool(self._flights or self._parked)

    def park(self, keys: Sequence[BlockKey]) -> None:
        """Copy blocks out soon: they will be wanted again, and not now."""
        if self._host.num_slabs:
            self._parked.update(dict.fromkeys(keys[: max(0, _MOST_PARKED - len(self._parked))]))

    def bring(self, owner: AccountOwner, keys: Sequence[BlockKey]) -> None:
        """Copy blocks in, first to last, as far as they are in host memory by then, and there is room to spare."""
        if self._host.num_slabs and keys:
            self._chains = [*self._chains[1 - _MOST_CHAINS :], _Chain(owner, keys)]

    def forget(self, keys: Sequence[BlockKey]) -> None:
        """Let nobody find what is on its way, nor copy what is to be: these blocks are being erased."""
        gone = set(keys)
        self._parked = {key: None for key in self._parked if key not in gone}
        self._chains = [chain for chain in self._chains if gone.isdisjoint(chain.keys)]
        for flight in self._flights.values():
            flight.lost |= gone.intersection(flight.keys)

    def forget_owner(self, owner: AccountOwner) -> None:
        """Let nobody find what is on its way for an owner."""
        self._chains = [chain for chain in self._chains if chain.owner != owner]
        for flight in self._flights.values():
            if flight.account is not None and flight.account.owner == owner:
                flight.lost.update(flight.keys)

    def loaded(self, block: BlockId) -> None:
        """Note that a plan brings a block in from host memory: the block is known there, and its content here."""
        self._supply.seen[block] = 1
        entry = self._host.get(self._tree.key(block))
        if entry is not None and entry.packed_tokens is None:
            entry.learn(self._supply.content(block))

    def asked_for(self, blocks: Sequence[BlockId]) -> None:
        """Note that a request found these blocks: some may be there because it was expected."""
        unasked = self._supply.unasked
        found = unasked.intersection(blocks)
        self.asked_blocks += len(found)
        unasked -= found

    def is_copying(self, keys: Sequence[BlockKey]) -> bool:
        """Say whether any of these blocks is being copied."""
        return any(not set(flight.keys).isdisjoint(keys) for flight in self._flights.values())

    # ------------------------------------------------------------ turns

    def take(self) -> list[Transfer]:
        """Return transfers to start, after the step that was launched last."""
        transfers: list[Transfer] = []
        while len(self._flights) < MOST_IN_FLIGHT:
            is_out_first = not self._supply.copied or not self._chains  # neither way keeps the other waiting
            transfer = self._next_out() if is_out_first else self._next_in()
            transfer = transfer or (self._next_in() if is_out_first else self._next_out())
            if transfer is None:
                break
            transfers.append(transfer)
        return transfers

    def done(self, over: Sequence[TransferDone]) -> list[tuple[Transfer, float]]:
        """Take in what transfers have copied; return them with their seconds."""
        ended: list[tuple[Transfer, float]] = []
        for one in over:
            flight = self._flights[one.number]
            flight.is_over = True
            ended.append((flight.transfer, one.seconds))
            if flight.transfer.is_store:
                del self._flights[one.number]
                self._end_out(flight)
        for flight in [one for one in self._flights.values() if not one.transfer.is_store]:
            if not flight.is_over:
                break  # those after it may continue what it brings
            del self._flights[flight.transfer.number]
            self._end_in(flight)
        return ended

    # ------------------------------------------------------------ out

    def _next_out(self) -> Transfer | None:
        keys, moves = [], []
        slack = self._pool.num_free - self._supply.reserved + self._pool.num_cached
        most = min(self._batch, slack // _SLACK_SHARE)  # what is copied cannot be had meanwhile
        if most > 0 and (self._parked or self._is_due()):
            for key, block, account in self._candidates():
                slab = self._host.expect(key, account.owner, self._supply.content(block))
                if slab is None:
                    continue
                self._supply.copied.add(block)
                self._supply.seen[block] = 1
                keys.append(key)
                moves.append(SlabMove(block, slab))
                if len(moves) == most:
                    break
        if not moves:
            return None
        return self._start(_Flight(self._transfer(moves, is_store=True), keys))

    def _is_due(self) -> bool:
        """Say whether enough has happened since there was nothing to copy out."""
        pool, (evicted, cached) = self._pool, self._seen
        num_evicted = self._supply.num_evicted - evicted
        if num_evicted >= self._window:
            return True
        is_full = pool.num_free - self._supply.reserved <= self._reserve
        return is_full and num_evicted + abs(pool.num_cached - cached) >= self._window

    def _candidates(self) -> Iterator[tuple[BlockKey, BlockId, Account]]:
        """Yield blocks that host memory does not have: parked ones, then those that the device gives up next."""
        supply, seen = self._supply, self._supply.seen
        while self._parked:
            key = next(iter(self._parked))
            del self._parked[key]
            block = self._tree.get(key)
            if block is not None and self._is_there(block) and self._host.get(key) is None:
                account = supply.accounts.at(self._tree.account(block))
                if self._host.keeps(account.owner):
                    yield key, block, account
        is_full = self._pool.num_free - supply.reserved <= self._reserve
        while supply.restless:
            one = next(iter(supply.restless))
            is_open = supply.accounts.get(one.owner) is one and self._host.keeps(one.owner)
            if not is_open or not (is_full or one.blocks > one.hard * _NEARLY_FULL):
                del supply.restless[one]
                continue
            for place, leaf in enumerate(list(islice(supply.reclaim.of(one.index).tail(), self._window))):
                for block in self._up(leaf, self._batch if place < _DEEP else 1):
                    key = self._tree.key(block)
                    if self._host.get(key) is None:
                        yield key, block, one
                    seen[block] = 1
            del supply.restless[one]  # else its turn was not over
        self._seen = (supply.num_evicted, self._pool.num_cached)

    def _up(self, leaf: BlockId, most: int) -> list[BlockId]:
        """Return which of a block and up to `most` before it are to be copied out: they are given up one by one."""
        blocks: list[BlockId] = []
        block: BlockId | None = leaf
        seen, pool, tree = self._supply.seen, self._pool, self._tree
        for _ in range(most):
            if block is None or pool.state(block) != CACHED:
                break
            if not seen[block] and self._is_there(block):
                blocks.append(block)
            block = tree.parent(block)
        return blocks

    def _is_there(self, block: BlockId) -> bool:
        """Say whether a block's content is on the device, and nothing copies it already."""
        return (
            self._pool.state(block) in (CACHED, SEALED)
            and block not in self._supply.copied
            and not self._host.next.is_loading(block)
        )

    def _end_out(self, flight: _Flight) -> None:
        for block, slab in flight.transfer.moves:
            self._supply.done_copying(block)
            self._host.arrived(slab, ok=True)
        self.stored_blocks += len(flight.transfer.moves)

    # ------------------------------------------------------------ in

    def _next_in(self) -> Transfer | None:
        while self._chains:
            chain = self._chains[0]
            account = self._supply.accounts.get(chain.owner)
            entries = [] if account is None else self._ready(chain, self._room(account))
            blocks = [] if account is None else self._supply.take_spare(account, len(entries))
            if account is None or not blocks:
                del self._chains[0]
                continue
            entries = entries[: len(blocks)]
            moves = [SlabMove(block, self._host.hold(entry)) for block, entry in zip(blocks, entries, strict=True)]
            keys = [entry.key for entry in entries]
            return self._start(_Flight(self._transfer(moves, is_store=False), keys, account))
        return None

    def _room(self, account: Account) -> int:
        """Return how many blocks may be brought in for an account at nobody's cost."""
        share = max(account.soft, self._share) - account.blocks
        ceiling = account.hard - max(account.blocks, account.used + account.reserved)
        free = self._pool.num_free - self._supply.reserved - self._reserve
        return max(0, min(share, ceiling, free, self._batch))

    def _ready(self, chain: _Chain, limit: int) -> list[Hosted]:
        """Return the next blocks of a chain that can be brought in: those before them are on the device."""
        entries: list[Hosted] = []
        coming = {key for flight in self._flights.values() if not flight.transfer.is_store for key in flight.keys}
        keys = chain.keys
        while chain.start < len(keys) and (
            keys[chain.start] in coming or self._tree.get(keys[chain.start]) is not None
        ):
            chain.start += 1
        for key in keys[chain.start : chain.start + limit]:
            entry = self._host.get(key)
            if entry is None or entry.presence is not Presence.READY or entry.packed_tokens is None:
                break
            if key in coming or self._tree.get(key) is not None:
                break
            entries.append(entry)
        return entries

    def _end_in(self, flight: _Flight) -> None:
        """Let what has been brought in join the tree, cached; what does not fit there any more is given back."""
        account = flight.account
        assert account is not None, "blocks are filled on somebody's account"
        for (block, slab), key in zip(flight.transfer.moves, flight.keys, strict=True):
            entry = self._host.get(key)
            is_wanted = key not in flight.lost and entry is not None and entry.slab == slab
            if is_wanted and entry is not None and self._join(block, entry, account):
                self._supply.unasked.add(block)
                self.brought_blocks += not entry.guessed  # else it counts already
                entry.guessed = False
            else:
                self._supply.return_spare(account, block)
            self._host.let_go(slab)
        self.loaded_blocks += len(flight.transfer.moves)

    def _join(self, block: BlockId, entry: Hosted, account: Account) -> bool:
        """Let a block join the tree, cached, if what it continues is there and nobody has computed it meanwhile."""
        tree, before, packed = self._tree, entry.before, entry.packed_tokens
        assert before is not None and packed is not None, "chosen for it"
        place = before if entry.depth == 0 else tree.get(before)
        if place is None or tree.get(entry.key) is not None:
            return False
        tree.insert(entry.key, block, place, token_ids=unpack(packed), account=account.index)
        order = self._supply.reclaim.of(account.index).order
        tree.start_with(block, max(entry.hits, order.stored(entry.key, self._host.now)), self._host.now)
        self._supply.seen[block] = 1
        self._pool.seal(block)
        self._supply.let_go(block, self._host.now)
        return True

    # ------------------------------------------------------------ parts

    def _transfer(self, moves: list[SlabMove], *, is_store: bool) -> Transfer:
        self._number += 1
        return Transfer(self._number, is_store, tuple(moves))

    def _start(self, flight: _Flight) -> Transfer:
        self._flights[flight.transfer.number] = flight
        return flight.transfer

    def arriving(self) -> Iterator[tuple[BlockId, Account]]:
        """Yield the blocks that are being filled, with their accounts."""
        for flight in self._flights.values():
            if flight.account is not None:
                for move in flight.transfer.moves:
                    yield move.block, flight.account

    def leaving(self) -> Iterator[tuple[BlockId, SlabId]]:
        """Yield the blocks that are being copied out, with their slabs."""
        for flight in self._flights.values():
            if flight.transfer.is_store:
                yield from flight.transfer.moves
