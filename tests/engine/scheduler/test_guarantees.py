"""Any history of a crowded pool: what is guaranteed is there at once and stays, ceilings hold, everybody finishes."""

import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from engine.request import BeamParams, FinishReason, Priority, TenantId
from tests.engine.guarded import GuardedWorld
from tests.engine.traffic import STOPS, TENANTS, check_all_ended
from tests.engine.world import ShortOutputs

NUM_BLOCKS = 48
MOST_SOFT = 6  # of a tenant and of the group: with those of all others in full use, each request still fits
STEMS = ([], [(7 * place) % 800 + 100 for place in range(14)], [(11 * place) % 800 + 100 for place in range(9)])
NUM_STEPS = 5000  # at least, in each way


class Machine(RuleBasedStateMachine):
    """Four tenants and a share group; limits move, and far more is admitted than fits."""

    def __init__(self, worlds: list[GuardedWorld], *, ahead: bool) -> None:
        super().__init__()
        self.world = GuardedWorld(
            num_blocks=NUM_BLOCKS,
            block_size=2,
            max_rows=64,
            budget=1000,
            max_context=64,
            eos=STOPS,
            ahead=ahead,
            blocks_a_plan=4,
        )
        worlds.append(self.world)

    @initialize(soft=st.lists(st.integers(0, MOST_SOFT), min_size=4, max_size=4))
    def start(self, soft: list[int]) -> None:
        """Everybody has a policy, and outputs are taken to be short."""
        for tenant, blocks in zip(TENANTS, soft, strict=True):
            self.world.policy(tenant, blocks=NUM_BLOCKS, soft=blocks)
            self.world.scheduler.roster.tenant(TenantId(tenant)).lengths = ShortOutputs()

    @rule(
        tenant=st.sampled_from(TENANTS),
        prompt=st.integers(1, 14),
        max_tokens=st.integers(1, 16),
        priority=st.sampled_from((Priority.STANDARD, Priority.BATCH)),
        stem=st.sampled_from((0, 0, 0, 1, 2)),
        n=st.sampled_from((1, 1, 1, 2)),
        width=st.sampled_from((0, 0, 0, 0, 2)),
        count=st.sampled_from((1, 2, 4)),
        then=st.integers(0, 3),
    )
    def submit(
        self,
        tenant: str,
        prompt: int,
        max_tokens: int,
        priority: Priority,
        stem: int,
        n: int,
        width: int,
        count: int,
        then: int,
    ) -> None:
        """Requests arrive, perhaps with the beginning of others."""
        tokens = [*STEMS[stem], *range(prompt % 9)] if stem else prompt
        max_tokens = min(max_tokens, 4) if width else max_tokens
        beams = BeamParams(width=width) if width else None
        for _ in range(count):
            self.world.submit(tenant, tokens, max_tokens, priority=priority, n=n, beams=beams)
        self._go_on(then)

    @rule(
        tenant=st.sampled_from(TENANTS),
        blocks=st.sampled_from((NUM_BLOCKS, NUM_BLOCKS, 24, 12, 0)),
        soft=st.integers(0, MOST_SOFT),
        max_running=st.sampled_from((12, 12, 2, 0)),
        weight=st.sampled_from((0.1, 1.0, 8.0)),
        shares=st.booleans(),
        then=st.integers(0, 6),
    )
    def change_policy(
        self, tenant: str, blocks: int, soft: int, max_running: int, weight: float, shares: bool, then: int
    ) -> None:
        """An operator moves limits while everything runs."""
        groups = ("group",) if shares else ()
        self.world.policy(tenant, blocks=blocks, soft=soft, max_running=max_running, weight=weight, share_groups=groups)
        self._go_on(then)

    @rule(soft=st.integers(0, MOST_SOFT), blocks=st.integers(0, 12), registered=st.booleans(), then=st.integers(0, 3))
    def share(self, soft: int, blocks: int, registered: bool, then: int) -> None:
        """A share group comes, changes or goes."""
        self.world.share("group", *([STEMS[1]] if registered else ()), blocks=blocks, soft=min(soft, blocks))
        self._go_on(then)

    @rule(choice=st.randoms(use_true_random=False), then=st.integers(0, 3))
    def cancel(self, choice: random.Random, then: int) -> None:
        """A client leaves."""
        live = list(self.world.scheduler.roster.sequences.values())
        if live:
            self.world.scheduler.cancel([choice.choice(live).handle], FinishReason.CANCELLED)
        self._go_on(then)

    @rule(count=st.integers(4, 20))
    def steps(self, count: int) -> None:
        """Time passes."""
        self._go_on(count)

    def _go_on(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    def teardown(self) -> None:
        """Limits are opened, and everything ends, exact and whole."""
        for tenant in TENANTS:
            self.world.policy(tenant, blocks=NUM_BLOCKS, soft=0, max_running=12)
        self.world.run(limit=6000)
        check_all_ended(self.world)


@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_guaranteed_is_there_at_once_and_stays(ahead: bool) -> None:
    """Ten thousand steps in all, each checked: see guarded.py for what."""
    worlds: list[GuardedWorld] = []
    while sum(world.runner.num_steps for world in worlds) < NUM_STEPS:
        run_state_machine_as_test(
            lambda: Machine(worlds, ahead=ahead),
            settings=settings(
                max_examples=25,
                stateful_step_count=50,
                deadline=None,
                derandomize=False,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes longer than a test may
            ),
        )
    assert sum(world.num_entitled for world in worlds) > 30
    assert ahead or sum(world.num_decodes for world in worlds) > 30
    assert sum(world.scheduler.roster.num_preemptions for world in worlds) > 50
