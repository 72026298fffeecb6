"""What is known of a sequence: whole blocks to share, then blocks to load from host memory or part of one to copy."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.memory.accounts import Account, AccountOwner
from engine.memory.keys import BlockHasher, KeyChain, SharedHead
from engine.memory.pool import CACHED, BlockPool
from engine.memory.prefix import PrefixTree
from engine.memory.tiers.host import HostTier
from engine.request import BlockId


class Match(NamedTuple):
    """What is known of a sequence: whole blocks of the tree, and what follows them in host memory.

    Where host memory has nothing to follow them, part of a block of the tree that can be copied.
    """

    blocks: tuple[BlockId, ...] = ()
    num_tokens: int = 0  # in all of it
    part: BlockId | None = None
    idle: int = 0  # of the blocks of the sequence's own account, those that nobody uses: taking them costs the account
    idle_head: int = 0  # the same of its share group's account
    num_hosted: int = 0  # blocks to load, behind the whole ones; each needs a new block of the device
    num_streamed: int = 0  # blocks before the whole ones that stay in host memory: see streaming.py


NO_MATCH = Match()


class Lookup:
    """Makes the key chains of sequences and finds what is known of them. Changes no block.

    A namespace belongs to the account that first used it, until that one is forgotten.
    """

    def __init__(self, pool: BlockPool, tree: PrefixTree, hasher: BlockHasher, host: HostTier) -> None:
        self._pool = pool
        self._tree = tree
        self._host = host
        self.hasher = hasher
        self._namespaces: dict[bytes, int] = {}  # account index of each

    def chain(self, account: Account, namespace: bytes, head: SharedHead | None = None) -> KeyChain | None:
        """Return a new chain of keys in an account's namespace; None when the sequence cannot share anything.

        That is so without a namespace, and when the namespace is another account's.
        """
        if not namespace or self._namespaces.setdefault(namespace, account.index) != account.index:
            return None
        if head is not None and self._namespaces.setdefault(head.namespace, head.account) != head.account:
            head = None
        return KeyChain(self.hasher, namespace, head)

    def match(self, chain: KeyChain, token_ids: Sequence[int]) -> Match:
        """Look up the longest known prefix of a sequence, its last token never included: that one makes the logits."""
        size, limit = self._tree.block_size, len(token_ids) - 1
        chain.extend(token_ids, limit // size)
        blocks = self._tree.find(chain.keys, limit // size)
        count = len(blocks)
        num_hosted = self._host.find(chain.keys, count, limit // size) if self._host.num_used else 0
        part, num_part = BlockId(-1), 0
        rest = token_ids[count * size : min(limit, (count + 1) * size)]
        if rest and not num_hosted:
            root = chain.root(count)
            part, num_part = self._tree.find_part(blocks[-1] if root is None else root, rest)
        taken = [*blocks, part] if num_part else blocks
        idle = [index for index, block in enumerate(taken) if self._pool.state(block) == CACHED]
        idle_head = sum(index < chain.num_head for index in idle)
        return Match(
            blocks=tuple(blocks),
            num_tokens=(count + num_hosted) * size + num_part,
            part=part if num_part else None,
            idle=len(idle) - idle_head,
            idle_head=idle_head,
            num_hosted=num_hosted,
        )

    def match_streamed(self, chain: KeyChain, token_ids: Sequence[int], owner: AccountOwner, most: int) -> Match:
        """Look up a sequence that may stay in host memory in part: what is there, and up to `most` blocks behind it.

        Whichever is longer: what the device has from the first block on, or what host memory has and `owner` may claim.
        """
        size, limit, keys = self._tree.block_size, (len(token_ids) - 1) // self._tree.block_size, chain.keys
        chain.extend(token_ids, limit)
        start = self._host.num_claimable(keys, owner, limit)
        blocks = self._tree.find(keys, limit)
        if len(blocks) >= start:
            start = 0
        else:
            blocks = self._tree.find(keys[start:limit], limit - start)
            while start > 0 and len(blocks) < most and (block := self._tree.get(keys[start - 1])) is not None:
                blocks.insert(0, block)
                start -= 1
        blocks = blocks[:most]
        end = start + len(blocks)
        num_hosted = self._host.find(keys, end, min(limit, start + most)) if end - start < most else 0
        for index in range(end, end + num_hosted):
            if self._tree.get(keys[index]) is not None:
                num_hosted = index - end
                break
        return Match(
            blocks=tuple(blocks),
            num_tokens=(end + num_hosted) * size,
            idle=sum(self._pool.state(block) == CACHED for block in blocks),
            num_hosted=num_hosted,
            num_streamed=start,
        )

    def without_hosted(self, match: Match) -> Match:
        """Return the match without what would have to be loaded."""
        return match._replace(num_tokens=len(match.blocks) * self._tree.block_size, num_hosted=0)

    def without_part(self, match: Match, chain: KeyChain) -> Match:
        """Return the match without the block to copy: holding its source may be one block too many."""
        if match.part is None:
            return match
        idle, in_head = self._pool.state(match.part) == CACHED, len(match.blocks) < chain.num_head
        return Match(
            blocks=match.blocks,
            num_tokens=len(match.blocks) * self._tree.block_size,
            idle=match.idle - (idle and not in_head),
            idle_head=match.idle_head - (idle and in_head),
        )

    def forget(self, account: Account) -> None:
        """Let the account's namespaces go."""
        self._namespaces = {name: index for name, index in self._namespaces.items() if index != account.index}
