"""What a waiting sequence would start with: blocks to share or to fork from, and how many it needs beside them."""

from dataclasses import dataclass

from engine.memory.accounts import Account
from engine.memory.lookup import NO_MATCH, Match
from engine.memory.manager import KVMemory
from engine.scheduler.pressure import is_protected
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.scheduler.sharing import SharedPrefixes
from engine.scheduler.sizing import window_blocks

# In place of the registered prefixes' stamp: the chains of these sequences have none of them.
_STREAMED = -2
_RELUCTANT = -3  # that must compute most of what may be known of them


@dataclass(slots=True)
class Offer:
    """What a sequence would start with, and the blocks that it needs beside that."""

    account: Account
    whole: int  # blocks in all that must be there or found: for its tokens, or for all it may ever need
    match: Match
    parent: SequenceState | None = None  # it forks from this one
    num_shared: int = 0  # of `whole`, those that it shares
    num_own: int = 0  # of `whole`, those to find on its own account
    num_tokens: int = 0  # that the table has room for from the start; 0: for all

    @property
    def num_new(self) -> int:
        """Blocks to find, its share group's too."""
        return self.whole - self.num_shared

    @property
    def is_streamed(self) -> bool:
        """Whether it starts with a window of its blocks, and the others in host memory."""
        return self.num_tokens > 0

    @property
    def used(self) -> int:
        """Blocks of the account that would be in use."""
        return self.account.used + self.match.idle + self.num_own


class Offers:
    """Looks sequences up in memory. Changes nothing but a sequence's chain of keys."""

    def __init__(self, roster: Roster, shared: SharedPrefixes) -> None:
        self._roster = roster
        self._memory = roster.memory
        self._shared = shared
        self._plan_number = 0
        self._now = 0.0

    def begin(self, plan_number: int, now: float) -> None:
        """Start a plan."""
        self._plan_number, self._now = plan_number, now

    def make(self, sequence: SequenceState, account: Account) -> Offer:
        """Look up what a sequence can share."""
        if self._roster.streaming.is_large(sequence, account):
            offer = self._streamed(sequence, account)
            if offer is not None:
                return offer
        needed = self._memory.blocks_for(len(sequence.tokens))
        whole = needed
        if is_protected(sequence):
            whole = max(needed, min(most_blocks(sequence, self._memory), account.hard))
        parent = _parent(sequence, self._memory.shape.block_size)
        if parent is not None and parent.table is not None:
            # All but the block of the last prompt token: that one is copied, or its own.
            num_shared = self._memory.blocks_for(sequence.num_prompt) - 1
            num_head, group = parent.table.num_head, parent.table.head_account
            if num_head <= num_shared or group.used < group.hard:  # else it goes on with blocks of its own alone
                return Offer(account, whole, NO_MATCH, parent, num_shared, whole - max(num_shared, num_head))
        match = self._match(sequence, account)
        num_head = sequence.chain.num_head if sequence.chain is not None else 0
        num_shared = len(match.blocks)
        offer = Offer(account, whole, match, None, num_shared, whole - max(num_shared, min(num_head, needed)))
        if match.part is not None and sequence.chain is not None:
            alone = not self._roster.running
            short = offer.num_new > self._memory.available(account, match, last_resort=self.is_misfit(offer) and alone)
            is_one_too_many = offer.used == account.soft + 1 or offer.used + account.reserved > account.hard
            if short or is_one_too_many:
                offer.match = self._memory.lookup.without_part(match, sequence.chain)
        return offer

    def _streamed(self, sequence: SequenceState, account: Account) -> Offer | None:
        """Look up what a sequence that is to be streamed can share; None without keys: it cannot be.

        It starts with a window: what it finds of its end, and room for a chunk. It never has a share group's blocks.
        """
        memory, size = self._memory, self._memory.shape.block_size
        stamp = (sequence.tenant.policy_stamp, _STREAMED)
        if sequence.chain_stamp != stamp:
            sequence.chain = memory.lookup.chain(account, sequence.request.namespace)
            sequence.chain_stamp = stamp
        if sequence.chain is None:
            return None
        window = window_blocks(size)
        most = min(account.hard - account.used - account.reserved, memory.available(account)) - window
        match = memory.lookup.match_streamed(sequence.chain, _reusable(sequence), account.owner, max(0, most))
        num_found = len(match.blocks) + match.num_hosted
        end = min(len(sequence.tokens), match.num_tokens + (window - 1) * size)
        whole = memory.blocks_for(end) - match.num_streamed
        assert whole >= num_found, "the last token is never matched"
        return Offer(account, whole, match, None, len(match.blocks), whole - len(match.blocks), end)

    def _match(self, sequence: SequenceState, account: Account) -> Match:
        """Look the sequence up under its share group's namespace, or under its own where the group has no room now."""
        if sequence.reusable < len(sequence.tokens) - 1:
            return self._partial_match(sequence, account)
        stamp = (sequence.tenant.policy_stamp, self._shared.stamp)
        if sequence.chain_stamp != stamp:
            head = self._shared.head(sequence)
            sequence.chain = self._memory.lookup.chain(account, sequence.request.namespace, head)
            sequence.chain_stamp = stamp
        chain = sequence.chain
        if chain is None:
            return NO_MATCH
        match = self._roster.swapping.worthwhile(self._memory.lookup.match(chain, sequence.tokens))
        if chain.head is not None:
            group = self._memory.accounts.at(chain.head.account)
            needed = min(chain.num_head, self._memory.blocks_for(len(sequence.tokens)))
            missing = max(0, needed - len(match.blocks))
            waits = missing and self._roster.prefills.must_wait(sequence, match, self._plan_number, self._now)
            if not waits and not self._has_room(group, match, missing):
                chain = sequence.chain = self._memory.lookup.chain(account, sequence.request.namespace)
                sequence.chain_stamp = (-1, -1)  # the next plan looks again
                if chain is None:
                    return NO_MATCH
                return self._roster.swapping.worthwhile(self._memory.lookup.match(chain, sequence.tokens))
        return match

    def _partial_match(self, sequence: SequenceState, account: Account) -> Match:
        """Look up as much of a sequence as it need not compute, without its share group's blocks.

        One to embed has no keys: it can use nobody's blocks, and its own would only push others out of the cache.
        """
        stamp = (sequence.tenant.policy_stamp, _RELUCTANT)
        if sequence.chain_stamp != stamp:
            embeds = sequence.request.embed
            sequence.chain = None if embeds else self._memory.lookup.chain(account, sequence.request.namespace)
            sequence.chain_stamp = stamp
        if sequence.chain is None:
            return NO_MATCH
        return self._roster.swapping.worthwhile(self._memory.lookup.match(sequence.chain, _reusable(sequence)))

    def _has_room(self, group: Account, match: Match, missing: int) -> bool:
        """Say whether a share group can have so many more blocks: above its guarantee nobody gives way for it."""
        used = group.used + match.idle_head + missing
        if used > group.hard:
            return False
        return used <= group.soft or missing == 0 or missing <= self._memory.available(group, match)

    def is_misfit(self, offer: Offer) -> bool:
        """Say whether a need is in the way of guarantees: it exceeds what they leave of the pool in full use."""
        return offer.whole > self._memory.shape.num_blocks - self._memory.accounts.guarantees(offer.account)


def _reusable(sequence: SequenceState) -> list[int]:
    """Return the tokens to look up: as many as it may share, and one more, which never is."""
    tokens, count = sequence.tokens, sequence.reusable + 1
    return tokens if count == len(tokens) else tokens[:count]


def most_blocks(sequence: SequenceState, memory: KVMemory) -> int:
    """Return the blocks that a sequence may ever need, with all its beams if it is searched for."""
    if sequence.beams is not None:
        return sequence.beams.most_blocks
    return memory.blocks_for(sequence.max_length)


def waits_to_fork(sequence: SequenceState, block_size: int) -> bool:
    """Say whether a sequence is to fork from another output of its request that still computes the prompt.

    Where that one has the prompt's log-probabilities to report, nothing may come before them, be it running or not.
    """
    members = () if sequence.group is None or sequence.sampling.prompt_logprobs < 0 else sequence.group.members
    if any(one.unscored < one.num_prompt for one in members if one is not sequence):
        return True
    others = _others(sequence)
    return bool(others) and not any(_has_prompt(one, block_size) for one in others)


def _parent(sequence: SequenceState, block_size: int) -> SequenceState | None:
    """Return the sequence to fork from: an output of the same request that runs and has computed the prompt."""
    return next((one for one in _others(sequence) if _has_prompt(one, block_size)), None)


def _has_prompt(sequence: SequenceState, block_size: int) -> bool:
    """Say whether all but the last token of its prompt are there to share: computed, and full blocks sealed."""
    table, wanted = sequence.table, sequence.num_prompt - 1
    return table is not None and sequence.computed >= wanted and table.num_sealed >= wanted // block_size


def _others(sequence: SequenceState) -> list[SequenceState]:
    """Return the running outputs of its request, for one that has not begun to generate."""
    if sequence.group is None or sequence.generated:
        return []
    return [one for one in sequence.group.members if one.table is not None]
