"""Which blocks sequences wait for, or stream: claimed, they have room in host memory and no other need takes them.

    claim ─▶ wherever the block is, here, on the device or on its way ─▶ release

A block that several sequences claim counts once, against the ceiling of the first. Claims know keys alone: what becomes
of a block that is claimed, or is not any more, is told to the tier (`changed`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from engine.errors import InvariantError
from engine.memory.accounts import AccountOwner
from engine.memory.eviction.base import BlockKey
from engine.memory.tiers.hosted import HostAccount
from engine.memory.tiers.shares import Shares
from engine.request import SequenceId, SlabId


class Streamed(NamedTuple):
    """Claims what a running sequence has in host memory alone (memory/streaming.py), also while it is preempted."""

    sequence: SequenceId


Claimant = SequenceId | Streamed


class _Claim(NamedTuple):
    account: HostAccount
    keys: list[BlockKey]


class Claims:
    """Owner of all claims, and of what accounts count of them."""

    def __init__(self, shares: Shares, changed: Callable[[BlockKey], None]) -> None:
        """Take the accounts; `changed` is called for a block that nobody claimed before, or nobody claims any more."""
        self._shares, self._changed = shares, changed
        self._claims: dict[Claimant, _Claim] = {}
        self._counts: Counter[BlockKey] = Counter()  # of the sequences that claim a block

    def __contains__(self, claimant: object) -> bool:
        """Whether a sequence waits for blocks, or streams them."""
        return claimant in self._claims

    # ------------------------------------------------------------ what there is

    def wants(self, key: BlockKey) -> bool:
        """Say whether a sequence waits for a block."""
        return key in self._counts

    def of(self, claimant: Claimant) -> Sequence[BlockKey]:
        """Return the blocks that a claimant keeps, in order."""
        claim = self._claims.get(claimant)
        return () if claim is None else claim.keys

    def sequences(self) -> set[SequenceId]:
        """Return the sequences for which anything is kept."""
        return {one.sequence if isinstance(one, Streamed) else one for one in self._claims}

    def num_new(self, keys: Iterable[BlockKey]) -> int:
        """Return how many of these blocks nobody claims yet."""
        return sum(key not in self._counts for key in keys)

    def room(self, owner: AccountOwner) -> int:
        """Return how many more blocks an owner's sequences may claim."""
        account = self._shares.get(owner)
        if account is None:
            return 0
        return max(0, min(account.ceiling - account.num_claims, self._shares.num_slabs - len(self._counts)))

    def headroom(self, owner: AccountOwner) -> int:
        """Return how many more blocks an owner's sequences could claim, were all slabs free."""
        account = self._shares.get(owner)
        return 0 if account is None else max(0, min(account.ceiling, self._shares.num_slabs) - account.num_claims)

    # ------------------------------------------------------------ changes

    def claim(self, claimant: Claimant, owner: AccountOwner, keys: Iterable[BlockKey]) -> None:
        """Keep an owner's blocks for a sequence until `release`, wherever they are now; see `room`."""
        account = self._shares.get(owner)
        if account is None or claimant in self._claims:
            raise InvariantError(f"sequence {claimant} of {owner} claims blocks twice, or without an account")
        claim = self._claims[claimant] = _Claim(account, [])
        for key in keys:
            self._add(claim, key)

    def claim_one(self, claimant: Claimant, account: HostAccount, key: BlockKey) -> None:
        """Keep one more block for a claimant, behind those that it has; it need not have any."""
        self._add(self._claims.setdefault(claimant, _Claim(account, [])), key)

    def release_last(self, claimant: Claimant, count: int) -> None:
        """End the claim of the last `count` blocks that a claimant keeps."""
        claim = self._claims[claimant]
        last = [claim.keys.pop() for _ in range(count)]
        self._remove(claim.account, last)
        if not claim.keys:
            del self._claims[claimant]

    def release(self, claimant: Claimant) -> None:
        """End a claim, if there is one. What is here stays, idle, as used just now."""
        claim = self._claims.pop(claimant, None)
        if claim is None:
            return
        self._remove(claim.account, claim.keys)
        self._shares.close_if_done(claim.account)

    def audit(self, is_held: Callable[[SlabId], bool]) -> None:
        """Recount claims, and each account. Raises InvariantError."""
        if Counter(key for claim in self._claims.values() for key in claim.keys) != self._counts:
            raise InvariantError("a block is claimed by more sequences, or by fewer, than are waiting for it")
        for account in self._shares:
            account.audit({k for one in self._claims.values() if one.account is account for k in one.keys}, is_held)

    # ------------------------------------------------------------ parts

    def _add(self, claim: _Claim, key: BlockKey) -> None:
        claim.keys.append(key)
        self._counts[key] += 1
        if self._counts[key] == 1:
            claim.account.num_claims += 1
            self._changed(key)

    def _remove(self, account: HostAccount, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                account.num_claims -= 1
                self._changed(key)
