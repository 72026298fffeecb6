"""Preempted sequences that are swapped: what is stored, what is loaded, who may, and that nothing else changes.

What nobody waits for is kept in host memory too, where there is room: `test_tiers.py`.
"""

import pytest

from engine.memory.supply import Taking
from engine.memory.tiers.rate import START_RATE
from engine.request import BeamParams, FinishReason, SequenceId, TenantId
from engine.scheduler.swap_cost import SwapCost, SwapCounts
from engine.step import SlabMove
from tests.engine.costs import set_costs
from tests.engine.world import BLOCK_BYTES, World

MINNOW, WHALE = TenantId("minnow"), TenantId("whale")
PROMPT = [31 * place % 900 + 50 for place in range(40)]


class Story:
    """A world of 16 blocks of four, in which the whale borrows all of them and the minnow may take 8 back."""

    def __init__(self, *, slabs: int = 64, num_slabs: int = 64, share: float = 1.0, ahead: bool = False) -> None:
        self.world = World(num_blocks=16, block_size=4, budget=64, ahead=ahead, num_slabs=num_slabs)
        set_costs(self.world, share)
        self.world.policy("whale", blocks=16, slabs=slabs)
        self.world.policy("minnow", blocks=16, soft=8, slabs=slabs)
        self.stores: list[SlabMove] = []
        self.loads: list[SlabMove] = []
        self.computed: dict[SequenceId, int] = {}  # tokens, in all plans

    @property
    def counts(self) -> SwapCounts:
        """What was decided and done."""
        return self.world.scheduler.roster.swapping.counts

    @property
    def copied_out(self) -> int:
        """Blocks that were stored, within the steps and beside them."""
        return len(self.stores) + sum(len(one.moves) for one in self.world.runner.begun if one.is_store)

    def step(self) -> bool:
        """Step, and write down what is copied and computed."""
        is_busy = self.world.step()
        plan = self.world.plan
        if plan is not None:
            self.stores += plan.stores
            self.loads += plan.loads
            for part in plan.sequences:
                self.computed[part.sequence] = self.computed.get(part.sequence, 0) + len(part.token_ids)
        return is_busy

    def run(self) -> None:
        """Step until all has ended, and check every output."""
        while self.step():
            pass
        for output in self.world.tokens:
            self.world.assert_exact(output)

    def squeeze_out(self, prompt: list[int], tenant: str = "whale") -> SequenceId:
        """Let a request run, and then lower its tenant's limit to two blocks: eight more of its own are full."""
        request = self.world.submit(tenant, prompt, 12)
        for _ in range(3):
            self.step()
        self.world.policy(tenant, blocks=2, slabs=64)
        while self.world.held(tenant) or self.world.cached(tenant) > 2:
            self.step()
        return request

    def crowd_out(self) -> tuple[SequenceId, SequenceId]:
        """Let the whale have 12 blocks, and the minnow need 7 of the 16: the whale has to go."""
        whale = self.world.submit("whale", PROMPT, 12)
        for _ in range(3):
            self.step()
        minnow = self.world.submit("minnow", 26, 2)
        while not self.world.scheduler.roster.num_preemptions:
            assert self.step()
        return whale, minnow


@pytest.mark.parametrize("ahead", [False, True])
def test_only_what_is_taken_is_loaded(ahead: bool) -> None:
    """A victim's blocks stay on the device until somebody needs them; those alone come back by a copy."""
    story = Story(ahead=ahead)
    whale, _ = story.crowd_out()
    story.run()
    assert 0 < len(story.loads) < len(PROMPT) // 4, "some of them stayed where they were"
    assert story.copied_out >= len(story.loads)
    assert story.computed[whale] < len(PROMPT) + 12 + 4, "what is computed again is less than a block"
    assert story.counts.num_swapped == 1
    assert (story.counts.stored_blocks, story.counts.loaded_blocks) == (len(story.stores), len(story.loads))
    story.world.assert_empty()


@pytest.mark.parametrize("ahead", [False, True])
def test_the_same_tokens_whatever_is_chosen(ahead: bool) -> None:
    """Swapped, recomputed, and never preempted: the text is the same, and only recomputing computes again."""
    swapped, computed = Story(ahead=ahead), Story(share=0.0, ahead=ahead)
    roomy = World(num_blocks=64, block_size=4, budget=64, ahead=ahead)
    for tenant in ("whale", "minnow"):
        roomy.policy(tenant, blocks=64)
    alone = roomy.submit("whale", PROMPT, 12)
    roomy.run()
    found = []
    for story in (swapped, computed):
        whale, _ = story.crowd_out()
        story.run()
        found.append(story.world.tokens[whale])
        assert story.world.outputs[whale][-1].num_preemptions == 1
    assert found[0] == found[1] == roomy.tokens[alone]
    assert not computed.loads
    assert computed.counts.num_recomputed == 1
    assert computed.computed[whale] > swapped.computed[whale]


def test_recomputed_tokens_are_those_that_were_computed_again() -> None:
    """What was loaded was not computed again; what was moved out for whom is in the record of interference."""
    records = []
    for share in (1.0, 0.0):
        story = Story(share=share)
        whale, _ = story.crowd_out()
        story.run()
        again = story.computed[whale] - (len(PROMPT) + 12 - 1)
        assert story.world.scheduler.roster.tenant(WHALE).recomputed_tokens == again
        roster = story.world.scheduler.roster
        changed = dict(roster.interference.take_changed({}))
        records.append(changed[Taking(MINNOW, WHALE)])
        assert records[-1].swapped_bytes <= len(story.stores) * BLOCK_BYTES
    assert records[0].recomputed_tokens < 4 <= records[1].recomputed_tokens
    assert records[0].swapped_bytes > 0


@pytest.mark.parametrize(("slabs", "num_slabs"), [(0, 64), (3, 64), (64, 3), (64, 0)])
def test_without_room_it_is_recomputed(slabs: int, num_slabs: int) -> None:
    """A tenant's ceiling, or host memory itself, is too small for all that a victim has: nothing of it is claimed."""
    story = Story(slabs=slabs, num_slabs=num_slabs)
    story.crowd_out()
    story.run()
    assert story.world.scheduler.memory.host.used(WHALE) <= min(slabs, num_slabs)
    assert story.counts.num_swapped == 0
    assert story.counts.num_without_room == (1 if num_slabs else 0)
    story.world.assert_empty()


def test_a_second_preemption_stores_what_is_new() -> None:
    """A block stays in its slab when it is loaded, and is not copied out again."""
    story = Story()
    whale, _ = story.crowd_out()
    while not story.loads:
        assert story.step()
    first = len(story.stores)
    while whale not in story.world.finished and len(story.world.tokens[whale]) < 9:
        story.step()
    story.world.submit("minnow", 26, 2)
    story.run()
    assert story.world.outputs[whale][-1].num_preemptions == 2
    assert len(story.stores) > first or len(story.loads) > first
    assert story.copied_out == story.world.scheduler.memory.host.num_used, "each block has been copied once"


def test_another_tenants_same_prompt_finds_nothing() -> None:
    """Keys have the namespace in them, in host memory too."""
    story = Story()
    whale, _ = story.crowd_out()
    story.world.cancel(whale)
    host = story.world.scheduler.memory.host
    story.step()
    assert host.used(WHALE) > 0
    other = story.world.submit("minnow", PROMPT[:30], 2)
    story.run()
    assert story.world.cached_tokens[other] == 0
    assert not story.loads


def test_a_new_request_finds_what_a_swapped_one_left() -> None:
    """The next turn of a conversation whose last one was swapped out, and then cancelled, is not a cold start."""
    story = Story()
    whale, minnow = story.crowd_out()
    story.world.cancel(whale)
    while minnow not in story.world.finished:
        story.step()
    again = story.world.submit("whale", [*PROMPT, 1, 2, 3], 4)
    story.run()
    assert story.loads
    assert story.world.cached_tokens[again] == len(PROMPT)


def test_a_block_of_host_memory_goes_before_part_of_one_on_the_device() -> None:
    """Where both continue what is shared, the whole block is loaded and no part is copied."""
    story = Story()
    story.world.cancel(story.squeeze_out(PROMPT))
    story.world.policy("whale", blocks=16, slabs=64)
    like = story.world.submit("whale", [*PROMPT[:10], 1, 2, 3, 4], 1)
    while like not in story.world.finished:
        story.step()
    assert not story.loads
    again = story.world.submit("whale", [*PROMPT, 7], 4)
    story.run()
    assert len(story.loads) == 8
    assert story.world.cached_tokens[again] == len(PROMPT)


def test_what_loading_does_not_pay_for_is_computed() -> None:
    """A block that is found in host memory is computed all the same where that is cheaper by then."""
    story = Story()
    story.crowd_out()
    set_costs(story.world, 0.0)
    story.run()
    assert story.stores
    assert not story.loads


def test_a_removed_policy_takes_the_slabs_and_wipes_them() -> None:
    """At the next step nothing of the tenant is left in host memory, whatever else runs."""
    story = Story()
    story.crowd_out()
    host, runner = story.world.scheduler.memory.host, story.world.runner
    story.step()
    assert runner.slab_owners()
    assert host.used(WHALE) > 0
    story.world.update(removed=("whale",))
    assert host.num_used == 0
    story.step()
    assert not runner.slab_owners()
    story.world.policy("whale", blocks=16, slabs=64)
    story.run()


def test_a_removed_policy_is_wiped_where_nothing_runs() -> None:
    """The last tenant's slabs do not wait for a step of somebody else."""
    story = Story()
    whale, minnow = story.crowd_out()
    story.world.cancel(whale)
    while minnow not in story.world.finished:
        story.step()
    assert story.world.runner.slab_owners()
    story.world.update(removed=("whale", "minnow"))
    while story.step():
        pass
    assert not story.world.runner.slab_owners()
    assert not story.world.runner.block_owners(), "nor in the pages that they had"


def test_a_lowered_ceiling_holds_at_once() -> None:
    """What is above it is given up; what is lost is computed again."""
    story = Story()
    whale = story.squeeze_out(PROMPT)
    host = story.world.scheduler.memory.host
    assert host.used(WHALE) >= 8
    story.world.policy("whale", blocks=2, slabs=3)
    assert host.used(WHALE) == 3
    story.world.policy("whale", blocks=16, slabs=64)
    story.run()
    assert story.world.finished[whale] is FinishReason.LENGTH


@pytest.mark.parametrize("ahead", [False, True])
def test_a_lowered_device_limit_swaps_too(ahead: bool) -> None:
    """Who has to go for its own tenant's limit comes back without computing, when the limit is raised again."""
    story = Story(ahead=ahead)
    whale = story.squeeze_out(PROMPT)
    story.world.policy("whale", blocks=16, slabs=64)
    story.run()
    assert len(story.stores) == len(story.loads) == 8
    assert story.computed[whale] < len(PROMPT) + 12 + 4


@pytest.mark.parametrize("ahead", [False, True])
def test_outputs_fork_from_a_prompt_that_is_being_loaded(ahead: bool) -> None:
    """Several outputs and beams of a prompt that host memory has: loads come before copies and before reads."""
    story = Story(ahead=ahead)
    whale, minnow = story.crowd_out()
    story.world.cancel(whale)
    while minnow not in story.world.finished:
        story.step()
    story.world.submit("whale", [*PROMPT, 7], 3, n=3)
    story.world.submit("whale", [*PROMPT, 7], 3, beams=BeamParams(width=2))
    story.run()
    assert story.loads


def test_a_full_host_gives_idle_blocks_up() -> None:
    """Blocks of requests that are over make room, the least recently used first."""
    story = Story(num_slabs=12)
    host = story.world.scheduler.memory.host
    for number in range(3):
        request = story.squeeze_out([number * 100 + place for place in range(40)])
        story.world.cancel(request)
        story.world.policy("whale", blocks=16, slabs=64)
        assert 8 <= host.num_used <= 12
    assert host.num_used == 12
    assert host.num_evicted >= 12
    story.run()


def test_claimed_blocks_stay_in_a_full_host() -> None:
    """What a waiting sequence needs is not given up for another's: that one is computed again."""
    story = Story(num_slabs=12)
    host = story.world.scheduler.memory.host
    story.world.policy("minnow", blocks=16, slabs=64)
    first = story.squeeze_out(PROMPT)
    kept = host.used(WHALE)
    story.squeeze_out(PROMPT[::-1], "minnow")
    assert host.used(WHALE) == kept
    assert story.counts.num_without_room == 1
    story.world.policy("whale", blocks=16, slabs=64)
    story.world.policy("minnow", blocks=16, slabs=64)
    story.run()
    assert story.world.finished[first] is FinishReason.LENGTH


def test_predictions_are_compared_with_what_copies_took() -> None:
    """Rates are learnt from each step's copies; what was predicted before and what was seen are both counted."""
    story = Story()
    swapping = story.world.scheduler.roster.swapping
    swapping.cost = SwapCost(BLOCK_BYTES, story.world.scheduler.step_time)
    story.squeeze_out(PROMPT)
    story.world.policy("whale", blocks=16, slabs=64)
    story.run()
    counts = story.counts
    assert counts.num_swapped == 1, "computing takes 10 ms a step here, and copying a microsecond a block"
    assert counts.observed_seconds == pytest.approx(1e-6 * (len(story.stores) + len(story.loads)))
    assert counts.predicted_seconds == pytest.approx(16 * BLOCK_BYTES / START_RATE)
    assert counts.saved_seconds > 0
    for rate in (swapping.cost.out, swapping.cost.back):
        assert BLOCK_BYTES / 1e-6 < rate.bytes_per_second < START_RATE


def test_what_is_computed_again_is_compared_with_what_was_predicted() -> None:
    """Its tokens, what they were to add to their steps, and what the steps took beyond the rest of their work."""
    world = World(num_blocks=16, block_size=4, token_seconds=0.001)
    world.policy("whale", blocks=16)
    for length in (5, 20, 40, 9, 33, 14) * 3:  # steps from which the model of step times learns
        world.submit("whale", length, 2)
        world.run()
    counts = world.scheduler.roster.swapping.counts
    assert (counts.again_tokens, counts.again_observed_seconds) == (0, 0.0)
    world.submit("whale", PROMPT, 12)
    world.step()
    world.step()
    world.policy("whale", blocks=0)
    world.step()
    world.policy("whale", blocks=16)
    world.run()
    tenant = world.scheduler.roster.tenant(WHALE)
    assert counts.again_tokens == tenant.recomputed_tokens > 0
    assert counts.again_predicted_seconds > 0
    assert counts.again_observed_seconds == pytest.approx(counts.again_predicted_seconds, rel=0.5)
