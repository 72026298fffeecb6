"""The same prefix twice at once is computed once: the second request waits for the first one's prefill.

It waits only where that costs it nothing: the first one is running, is of the same namespace (or share group: the keys
are equal, and a key names its namespace), is served before it, and has the very block in work that comes next for it.
The wait is bounded in plans, so that no slow prefill holds another request up for long.
"""

from engine.memory.eviction.base import BlockKey
from engine.memory.lookup import Match
from engine.scheduler.fairness import effective_rank
from engine.scheduler.sequence import SequenceState, State

_GRACE_PLANS = 4  # beyond twice the plans that the prefill would take with the whole budget


class Prefills:
    """Which block is being computed by whom."""

    def __init__(self, block_size: int, budget: int) -> None:
        self._block_size = block_size
        self._budget = budget
        self._computing: dict[BlockKey, SequenceState] = {}

    def begin(self, sequence: SequenceState) -> None:
        """Note what a sequence that has just started is going to compute."""
        table, chain = sequence.table, sequence.chain
        if table is None or chain is None:
            return
        for key in chain.keys[table.num_sealed : len(sequence.tokens) // self._block_size]:
            if self._holder(key) is None:
                self._computing[key] = sequence

    def end(self, sequence: SequenceState) -> None:
        """Forget a sequence that has computed its prompt, or has stopped."""
        if sequence.chain is not None:
            for key in sequence.chain.keys:
                if self._computing.get(key) is sequence:
                    del self._computing[key]

    def must_wait(self, sequence: SequenceState, match: Match, plan: int, now: float) -> bool:
        """Say whether a sequence should start later, on blocks that another one is computing."""
        chain, known = sequence.chain, match.num_streamed + len(match.blocks) + match.num_hosted
        if chain is None or known >= min(len(chain.keys), sequence.reusable // self._block_size):
            return False
        first = self._holder(chain.keys[known])
        if first is None or first is sequence or effective_rank(first, now) > effective_rank(sequence, now):
            return False
        if not sequence.join_until:
            sequence.join_until = plan + 2 * -(-first.remaining // self._budget) + _GRACE_PLANS
        return plan < sequence.join_until

    def _holder(self, key: BlockKey) -> SequenceState | None:
        holder = self._computing.get(key)
        return holder if holder is not None and holder.state is State.RUNNING else None
