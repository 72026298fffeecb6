"""Random requests under random limits: whatever is replayed, the bookkeeping is right and the same twice."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.policy import TenantPolicy
from engine.replay.script import render
from engine.replay.setting import Setting
from engine.replay.simulation import Simulation
from engine.replay.story import FIRST_SYMBOL, Call, Output
from engine.replay.task import GroupLimits, Outcome
from engine.request import Priority, TenantId
from engine.trace.records import Machine

BLOCK_BYTES = 100
TENANTS = ("minnow", "whale", "carp")


def some_calls(chance: random.Random) -> tuple[list[Call], int]:
    """Return requests by arrival, with beginnings in common, and how many symbols they have."""
    stems = [[FIRST_SYMBOL + 10 * stem + block for block in range(8)] for stem in range(4)]
    next_symbol, at = FIRST_SYMBOL + 40, 1e9
    calls: list[Call] = []
    for _ in range(chance.randint(1, 40)):
        at += chance.choice((0.0, 0.001, 0.2, 3.0))
        num_prompt = chance.randint(1, 200)
        named = chance.choice((0, (num_prompt - 1) // 16))
        symbols = (chance.choice(stems) + [next_symbol + 1 + block for block in range(5)])[:named]
        num_outputs = chance.choice((1, 1, 1, 3))
        ran = chance.random() < 0.8
        outputs = {
            index: Output(chance.choice((None, 0, 1, chance.randint(1, 150))), (num_prompt - 1) // 16, symbols[:2])
            for index in range(num_outputs)
        }
        calls.append(
            Call(
                at=at,
                tenant=chance.choice((*TENANTS, "gone")),
                priority=chance.choice(tuple(Priority)),
                num_prompt=num_prompt,
                max_tokens=chance.choice((0, 1, 200)),
                num_outputs=num_outputs,
                deadline_seconds=chance.choice((0.0, 0.0, 0.5)),
                own_symbol=next_symbol,
                symbols=symbols,
                group=chance.choice(("", "bank")),
                num_head=min(2, len(symbols)),
                outputs=outputs if ran else {},
                gave_up_after=None if ran else chance.choice((None, 0.0, 1.0)),
            )
        )
        next_symbol += 6
    return calls, next_symbol


def some_policies(chance: random.Random, num_blocks: int) -> list[TenantPolicy]:
    """Return limits that often leave no room."""
    return [
        TenantPolicy(
            tenant=TenantId(name),
            weight=chance.choice((0.5, 1.0, 4.0)),
            kv_soft_bytes=chance.choice((0, chance.randint(0, num_blocks))) * BLOCK_BYTES,
            kv_hard_bytes=chance.randint(0, 2 * num_blocks) * BLOCK_BYTES,
            max_running=chance.choice((0, 1, 2, 8)),
            max_queued=chance.choice((0, 1, 50)),
            max_context_tokens=chance.choice((50, 400)),
            max_output_tokens=chance.choice((1, 100)),
            priority=chance.choice(tuple(Priority)),
            share_groups=chance.choice(((), ("bank",))),
            host_bytes=chance.choice((0, 1000)),
        )
        for name in TENANTS
    ]


def replay(seed: int, grain: int) -> Outcome:
    """Replay a random story to its end, in pieces, with all bookkeeping proven after each."""
    chance = random.Random(seed)
    calls, num_symbols = some_calls(chance)
    machine = Machine(
        num_blocks=chance.randint(8, 60),
        block_size=16,
        block_bytes=BLOCK_BYTES,
        max_rows=chance.randint(1, 12),
        max_context=400,
        max_batched_tokens=chance.choice((4, 32, 128)),
        num_slabs=chance.choice((0, 20)),
    )
    policies = some_policies(chance, machine.num_blocks)
    heads = frozenset(
        (call.group, tuple(call.symbols[: call.num_head])) for call in calls if call.group and call.num_head
    )
    group = GroupLimits(name="bank", kv_soft_bytes=3 * BLOCK_BYTES, kv_hard_bytes=6 * BLOCK_BYTES)
    setting = Setting(machine, None, [group], grain, num_symbols, heads)
    simulation = Simulation(setting, policies, [render(call, 16, grain) for call in calls])
    for seconds in (0.0, 0.5, 2.0, 10.0, 400.0):
        simulation.run(calls[-1].at + seconds)
        simulation.audit()
    outcome = simulation.outcome()
    assert sum(figures.num_requests for figures in outcome.tenants.values()) == len(calls)
    hard = {policy.tenant: policy.kv_hard_bytes for policy in policies}
    for name, figures in outcome.tenants.items():
        assert figures.num_refused <= figures.num_requests
        assert figures.cached_tokens <= figures.prompt_tokens
        assert figures.kv_peak_bytes <= hard.get(TenantId(name), 0)
        assert figures.output_tokens >= 0
        assert 0 <= figures.ttft_p50_seconds <= figures.ttft_p99_seconds
    assert 0 <= outcome.hit_rate <= 1
    assert 0 <= outcome.pressure <= 1
    return outcome


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), grain=st.sampled_from((1, 2, 4, 8, 16)))
def test_any_story_is_replayed(seed: int, grain: int) -> None:
    """Nobody is above a ceiling, every request is counted once, and a second replay says the same."""
    assert replay(seed, grain) == replay(seed, grain)
