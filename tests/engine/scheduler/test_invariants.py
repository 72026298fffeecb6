"""Any history of requests, cancels and policies: bookkeeping is right, limits hold, everyone gets their tokens.

`World.step` audits every count and every account after each plan and after each commit. All of it holds where steps are
planned ahead, too: then whatever happens, happens while a step is in flight.
"""

import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from engine.request import BeamParams, FinishReason, Priority
from tests.engine.costs import set_costs
from tests.engine.traffic import STOPS, TENANTS, Traffic, check_all_ended
from tests.engine.world import World

STEMS = ([], [(7 * place) % 800 + 100 for place in range(24)], [(11 * place) % 800 + 100 for place in range(9)])
PRIORITIES = tuple(Priority)
THEN = st.sampled_from((6, 3, 1, 0))  # steps after something has happened; none: two things at once


class Machine(RuleBasedStateMachine):
    """Four tenants on a small pool, with limits that are often too small and that change while requests run."""

    def __init__(self, block_size: int, num_steps: list[int], *, ahead: bool) -> None:
        super().__init__()
        self.block_size = block_size
        self.ahead = ahead
        self.num_steps = num_steps  # that ran, of each machine so far; this one adds its own at its end

    @initialize(
        num_tokens=st.integers(16, 320),
        rows=st.integers(1, 8),
        budget=st.integers(1, 40),
        num_slabs=st.sampled_from((0, 4, 30, 300)),
        swapped=st.sampled_from((1.0, 0.5)),
    )
    def start(self, num_tokens: int, rows: int, budget: int, num_slabs: int, swapped: float) -> None:
        """Choose a machine."""
        num_blocks = min(max(4, num_tokens // self.block_size), 60)  # an audit looks at each
        self.world = World(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_rows=rows,
            budget=budget,
            max_context=96,
            eos=STOPS,
            ahead=self.ahead,
            num_slabs=num_slabs,
        )
        set_costs(self.world, swapped)
        for tenant in TENANTS[:3]:  # the eel's policy may come later, or never
            self.world.policy(tenant, blocks=num_blocks, soft=num_blocks // 4, slabs=num_slabs)

    @rule(
        tenant=st.sampled_from(TENANTS),
        prompt=st.integers(1, 40),
        max_tokens=st.integers(0, 30),
        priority=st.sampled_from(PRIORITIES),
        patience=st.sampled_from((0.0, 0.0, 1.0, 30.0)),
        stem=st.sampled_from((0, 0, 1, 2)),
        n=st.sampled_from((1, 1, 1, 3)),
        width=st.sampled_from((0, 0, 0, 2, 3, 6)),
        num_logprobs=st.sampled_from((-1, -1, 0, 2)),
        then=THEN,
    )
    def submit(
        self,
        tenant: str,
        prompt: int,
        max_tokens: int,
        priority: Priority,
        patience: float,
        stem: int,
        n: int,
        width: int,
        num_logprobs: int,
        then: int,
    ) -> None:
        """A request arrives, perhaps with the beginning of others."""
        deadline = self.world.now + patience if patience else 0.0
        tokens = [*STEMS[stem], *range(prompt)] if stem else prompt
        self.world.submit(
            tenant,
            tokens,
            max_tokens,
            priority=priority,
            deadline=deadline,
            n=n,
            beams=BeamParams(width=width) if width else None,
            num_logprobs=num_logprobs,
        )
        self._go_on(then)

    @rule(blocks=st.integers(0, 12), soft=st.integers(0, 12), registered=st.booleans(), then=THEN)
    def share(self, blocks: int, soft: int, registered: bool, then: int) -> None:
        """A share group comes, changes or goes."""
        self.world.share("group", *([STEMS[1]] if registered else ()), blocks=blocks, soft=soft)
        self._go_on(then)

    @rule(
        tenant=st.sampled_from(TENANTS),
        blocks=st.integers(0, 60),
        soft=st.integers(0, 10),
        slabs=st.integers(0, 60),
        max_running=st.integers(0, 5),
        weight=st.sampled_from((0.1, 1.0, 8.0)),
        then=THEN,
    )
    def change_policy(
        self, tenant: str, blocks: int, soft: int, slabs: int, max_running: int, weight: float, then: int
    ) -> None:
        """An operator moves a tenant's limits, up or down."""
        groups = ("group",) if blocks % 2 else ()
        limits = {"blocks": blocks, "soft": soft, "slabs": slabs, "max_running": max_running}
        self.world.policy(tenant, weight=weight, share_groups=groups, **limits)
        self._go_on(then)

    @rule(tenant=st.sampled_from(TENANTS), then=THEN)
    def remove_policy(self, tenant: str, then: int) -> None:
        """A tenant is taken off this worker."""
        self.world.update(removed=(tenant,))
        self._go_on(then)

    @rule(choice=st.randoms(use_true_random=False), then=THEN)
    def cancel(self, choice: random.Random, then: int) -> None:
        """A client leaves, in whatever state its request is, or has enough of one of its outputs."""
        live = list(self.world.scheduler.roster.sequences.values())
        if live:
            one = choice.choice(live)
            index = choice.choice((None, one.index))
            self.world.scheduler.cancel([one.handle], FinishReason.CANCELLED, index)
        self._go_on(then)

    @rule(count=st.integers(4, 24), seconds=st.sampled_from((0.001, 0.2, 3.0)))
    def steps(self, count: int, seconds: float) -> None:
        """Time passes."""
        self._go_on(count, seconds)

    def _go_on(self, count: int, seconds: float = 0.01) -> None:
        for _ in range(count):
            self.world.step(seconds)

    @invariant()
    def tokens_are_exact(self) -> None:
        """Whatever came so far is what each request would have got alone."""
        if hasattr(self, "world"):
            for one in self.world.scheduler.roster.sequences.values():
                self.world.assert_exact((one.handle, one.index) if one.index else one.handle)

    def teardown(self) -> None:
        """Limits are opened, everything ends, nothing is left."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for tenant in TENANTS:
            world.policy(tenant, blocks=world.shape.num_blocks, soft=0, max_running=10)
        world.run(limit=6000)
        check_all_ended(world)
        self.num_steps.append(world.runner.num_steps)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_any_history(block_size: int, ahead: bool) -> None:
    """Ten thousand steps in all, each audited, of histories that hypothesis makes up and that differ in every run."""
    num_steps: list[int] = []
    while sum(num_steps) < 1250:
        run_state_machine_as_test(
            lambda: Machine(block_size, num_steps, ahead=ahead),
            settings=settings(
                max_examples=25,
                stateful_step_count=40,
                deadline=None,
                derandomize=False,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes longer than a test may
            ),
        )


@pytest.mark.parametrize("seed", range(12))
def test_random_traffic(seed: int) -> None:
    """Crowded worlds of all kinds, with forks, share groups and next turns, stay exact and end empty: see fuzz.py."""
    Traffic(seed).run(150)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_long_life(seed: int, ahead: bool) -> None:
    """Ten thousand steps in four worlds, with everything going on at once; each audited, and all ends well.

    Forks, beams, share groups, moving limits and next turns, over a crowded pool that is never empty between.
    """
    world = World(
        num_blocks=48, block_size=4, max_rows=12, budget=24, max_context=128, eos=STOPS, ahead=ahead, num_slabs=60
    )
    Traffic(seed, world).run_steps(2500)
    ended = [world.requests[one] for one in world.requests if one in world.finished]
    assert any(request.n > 1 and request.beams is None for request in ended)
    assert any(request.beams is not None for request in ended)
    assert world.scheduler.roster.num_preemptions > 0
    assert world.scheduler.memory.supply.num_evicted > 0
