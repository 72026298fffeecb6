"""Registered prefixes: which leading blocks of a prompt belong to a share group's account and namespace."""

from engine.memory.accounts import Account, ShareGroupId
from engine.memory.keys import SharedHead
from engine.memory.manager import KVMemory
from engine.policy import SharedPrefix, ShareGroup
from engine.scheduler.sequence import SequenceState
from engine.scheduler.sizing import Limits


class SharedPrefixes:
    """The share groups of this worker. A group's account is open from its registration to its removal."""

    def __init__(self, memory: KVMemory, limits: Limits) -> None:
        self.stamp = 0  # counts changes: what was looked up under an older one is looked up again
        self.changed: set[ShareGroupId] = set()  # groups whose limits the next plan must enforce
        self._memory = memory
        self._limits = limits
        self._groups: dict[str, ShareGroup] = {}

    def register(self, group: ShareGroup) -> None:
        """Add or replace a group."""
        self._groups[group.name] = group
        self._limit(group.name, soft=group.kv_soft_bytes, hard=group.kv_hard_bytes)

    def remove(self, name: str) -> None:
        """Take a group away; the next plan takes its blocks from those that run on them."""
        if self._groups.pop(name, None) is not None:
            self._limit(name, soft=0, hard=0)

    def names(self) -> set[str]:
        """Return the names of the groups that are registered."""
        return set(self._groups)

    def groups(self) -> list[ShareGroup]:
        """Return the groups that are registered."""
        return list(self._groups.values())

    def settle(self) -> list[Account]:
        """Return the accounts whose limits have changed since the last call."""
        accounts = [self._memory.accounts.get(owner) for owner in self.changed]
        self.changed.clear()
        return [account for account in accounts if account is not None]

    def forget_if_removed(self, account: Account) -> None:
        """Close the account of a group that is gone, once no sequence holds a block of it."""
        owner = account.owner
        if isinstance(owner, ShareGroupId) and owner.group not in self._groups:
            self._memory.forget(owner)

    def head(self, sequence: SequenceState) -> SharedHead | None:
        """Return the longest registered prefix that a sequence's prompt begins with, in whole blocks, or None."""
        policy, prompt = sequence.tenant.policy, sequence.request.prompt
        best: SharedPrefix | None = None
        most = 0
        for name in policy.share_groups if policy is not None else ():
            group = self._groups.get(name)
            for prefix in group.prefixes if group is not None else ():
                num_blocks = len(prefix.token_ids) // self._limits.block_size
                length = num_blocks * self._limits.block_size
                if num_blocks <= most or length > len(prompt):  # what cannot match must cost nothing
                    continue
                if tuple(prompt[:length]) == prefix.token_ids[:length]:
                    best, most = prefix, num_blocks
        if best is None:
            return None
        account = self._memory.accounts.get(ShareGroupId(best.group))
        return SharedHead(best.namespace, account.index, most) if account is not None else None

    def _limit(self, name: str, *, soft: int, hard: int) -> None:
        self.stamp += 1
        owner = ShareGroupId(name)
        block_bytes, most = self._limits.block_bytes, self._limits.num_blocks
        self._memory.accounts.set_limits(
            owner, soft=min(soft // block_bytes, most), hard=min(hard // block_bytes, most)
        )
        self.changed.add(owner)
