"""The beams of one request: running sequences that search together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.request import SamplingParams
from engine.scheduler.beams import BeamSearch, Branch, Candidates, Hypothesis, num_candidates
from engine.scheduler.sizing import beam_width, most_blocks

if TYPE_CHECKING:
    from engine.scheduler.sequence import SequenceState


class BeamGroup:
    """A request's search, and what is counted for all of its beams together.

    The leader stands for the request in lines, timers and reports. It computes the prompt, and is one of the beams.
    """

    __slots__ = (
        "_block_size",
        "_held_since",
        "_previous",
        "_unseen",
        "leader",
        "members",
        "num_counted",
        "search",
        "width",
    )

    def __init__(self, leader: "SequenceState", block_size: int) -> None:
        self.leader = leader
        self.members = [leader]  # in the order of the search: the leader alone until the first result
        self.width = beam_width(leader.request)
        self.search: BeamSearch | None = None  # since the first result; none while the prompt is computed
        self.num_counted = 0  # steps whose tokens are paid for and reported, in this run or in one that was preempted
        self._previous: BeamSearch | None = None  # of the preempted run that had come farthest
        self._unseen = 0  # tokens generated since the last report
        self._held_since = 0.0
        self._block_size = block_size

    @property
    def num_to_come(self) -> int:
        """Beams that will fork from the leader: their rows are kept for them."""
        return self.width - 1 if self.search is None else 0

    @property
    def most_blocks(self) -> int:
        """The blocks that all beams need at most, those that they share once."""
        return most_blocks(self.leader.num_prompt, self.leader.max_tokens, self.width, self._block_size)

    def sampling(self, vocab_size: int) -> SamplingParams:
        """Return what the runner is asked for: as many continuations as the search must see."""
        leader = self.leader
        assert leader.request.beams is not None, "only a request with beams has a group"
        count = min(num_candidates(leader.request.beams, leader.stop_ids), vocab_size)
        count = max(count, leader.request.sampling.num_logprobs)
        return replace(leader.request.sampling, temperature=0.0, top_p=1.0, top_k=0, num_logprobs=count)

    def advance(self, candidates: Sequence[Candidates], now: float) -> list[Branch]:
        """Take a step's result in, charge it if it is new, and return the beams that go on: none at the end."""
        leader = self.leader
        if self.search is None:
            assert leader.request.beams is not None and leader.table is not None, "the leader has just been computed"
            self.search = BeamSearch(
                leader.request.beams,
                stop_ids=leader.stop_ids,
                max_tokens=leader.max_tokens,
                num_top=leader.request.sampling.num_logprobs,
            )
            leader.kv_block_seconds += leader.table.held(now)
            self._held_since = now
        self.settle(now)
        branches = self.search.advance(candidates)
        if self.search.num_steps > self.num_counted:  # a run that was preempted had not come so far
            self.num_counted = self.search.num_steps
            self._unseen += self.width
            leader.tenant.counter += self.width * leader.tenant.output_cost
            leader.tenant.output_tokens += self.width
        return branches

    def take_unseen(self) -> int:
        """Return the tokens generated since the last call: `width` a step, whichever of them the search keeps."""
        unseen, self._unseen = self._unseen, 0
        return unseen

    def settle(self, now: float) -> None:
        """Add up the block·seconds that the beams have held until now, each block once."""
        if self.search is None:
            return
        shared = self.leader.num_prompt // self._block_size
        own = {block for one in self.members if one.table is not None for block in one.table.blocks[shared:]}
        self.leader.kv_block_seconds += (shared + len(own)) * (now - self._held_since)
        self._held_since = now

    def best(self, count: int) -> list[Hypothesis]:
        """Return the best hypotheses so far, of this run or of one before that had come farther."""
        search = self._farthest()
        return [] if search is None else search.best(count)

    def begin_again(self) -> None:
        """Go back to the prompt; what was found counts until this run has come as far."""
        self._previous, self.search = self._farthest(), None

    def _farthest(self) -> BeamSearch | None:
        runs = [one for one in (self.search, self._previous) if one is not None]
        return max(runs, key=lambda one: one.num_steps, default=None)
