"""Any history of requests, cancels and policies: bookkeeping is right, limits hold, everyone gets their tokens.

`World.step` audits every count and every account before and after each step.
"""

import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.request import BeamParams, Priority, RefusalCode
from tests.engine.traffic import STOPS, TENANTS, Traffic, check_all_ended
from tests.engine.world import World

STEMS = ([], [(7 * place) % 800 + 100 for place in range(24)], [(11 * place) % 800 + 100 for place in range(9)])
PRIORITIES = tuple(Priority)


class Machine(RuleBasedStateMachine):
    """Four tenants on a small pool, with limits that are often too small and that change while requests run."""

    @initialize(
        num_blocks=st.integers(4, 40),
        block_size=st.sampled_from((1, 2, 4, 16)),
        rows=st.integers(1, 8),
        budget=st.integers(1, 40),
    )
    def start(self, num_blocks: int, block_size: int, rows: int, budget: int) -> None:
        """Choose a machine."""
        self.world = World(
            num_blocks=num_blocks, block_size=block_size, max_rows=rows, budget=budget, max_context=96, eos=STOPS
        )
        for tenant in TENANTS[:3]:  # the eel's policy may come later, or never
            self.world.policy(tenant, blocks=num_blocks, soft=num_blocks // 4)

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

    @rule(blocks=st.integers(0, 12), soft=st.integers(0, 12), registered=st.booleans())
    def share(self, blocks: int, soft: int, registered: bool) -> None:
        """A share group comes, changes or goes."""
        self.world.share("group", *([STEMS[1]] if registered else ()), blocks=blocks, soft=soft)

    @rule(
        tenant=st.sampled_from(TENANTS),
        blocks=st.integers(0, 40),
        soft=st.integers(0, 10),
        max_running=st.integers(0, 5),
        weight=st.sampled_from((0.1, 1.0, 8.0)),
    )
    def change_policy(self, tenant: str, blocks: int, soft: int, max_running: int, weight: float) -> None:
        """An operator moves a tenant's limits, up or down."""
        groups = ("group",) if blocks % 2 else ()
        self.world.policy(tenant, blocks=blocks, soft=soft, max_running=max_running, weight=weight, share_groups=groups)

    @rule(tenant=st.sampled_from(TENANTS))
    def remove_policy(self, tenant: str) -> None:
        """A tenant is taken off this worker."""
        self.world.update(removed=(tenant,))

    @rule(choice=st.randoms(use_true_random=False))
    def cancel(self, choice: random.Random) -> None:
        """A client leaves, in whatever state its request is."""
        live = list(self.world.scheduler.roster.sequences)
        if live:
            self.world.cancel(choice.choice(live))

    @rule(count=st.integers(1, 12), seconds=st.sampled_from((0.001, 0.2, 3.0)))
    def steps(self, count: int, seconds: float) -> None:
        """Time passes."""
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


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes longer than a test may
)


@pytest.mark.parametrize("seed", range(12))
def test_random_traffic(seed: int) -> None:
    """Crowded worlds of all kinds, with forks, share groups and next turns, stay exact and end empty: see fuzz.py."""
    Traffic(seed).run(150)


def test_ten_thousand_steps_of_traffic() -> None:
    """A long run over a crowded pool, with everything going on at once, stays exact and ends empty."""
    chance = random.Random(11)
    world = World(num_blocks=48, block_size=4, max_rows=12, budget=24, max_context=160, audit=False)
    for tenant in TENANTS:
        world.policy(tenant, blocks=32, soft=8)
    for number in range(10_000):
        if chance.random() < 0.25:
            world.submit(chance.choice(TENANTS), chance.randint(1, 60), chance.randint(0, 40))
        if chance.random() < 0.02 and world.scheduler.roster.sequences:
            world.cancel(chance.choice(list(world.scheduler.roster.sequences)))
        if chance.random() < 0.02:
            world.policy(chance.choice(TENANTS), blocks=chance.randint(16, 48), soft=chance.randint(0, 12))
        world.step(0.005)
        if number % 50 == 0:
            world.scheduler.audit()
    for tenant in TENANTS:
        world.policy(tenant, blocks=48)
    world.run(limit=20_000)
    assert set(world.finished) | set(world.refused) == set(world.requests)
    assert {refusal.code for refusal in world.refused.values()} <= {RefusalCode.KV_LIMIT, RefusalCode.QUEUE_FULL}
    for sequence in world.finished:
        world.assert_exact(sequence)
    assert world.scheduler.roster.num_preemptions > 0
    world.assert_empty()
