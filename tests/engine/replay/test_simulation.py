"""The replay of a trace against what was measured when it was recorded, in every grain, and under other limits."""

import random
from pathlib import Path

import msgspec
import pytest

from engine.replay.compare import policy_of
from engine.replay.script import render
from engine.replay.setting import Setting
from engine.replay.simulation import Simulation
from engine.request import Priority
from engine.trace.records import Speed
from tests.engine.replay.recorded import BLOCK_SIZE, Arrival, Recording, limits, rank
from tests.engine.world import BLOCK_BYTES

GRAINS = (1, 2, 4, 8, 16)


def stem(seed: int, num_tokens: int) -> list[int]:
    """Return the beginning that prompts have in common."""
    chance = random.Random(seed)
    return [chance.randrange(10, 1000) for _ in range(num_tokens)]


def traffic(seed: int = 1) -> list[Arrival]:
    """Return two whales with long prompts of few beginnings, and a minnow with short ones, for a minute."""
    chance = random.Random(seed)
    arrivals = []
    for number in range(150):
        whale = number % 5 < 2
        beginning = stem(chance.randrange(3) if whale else 9, 240 if whale else 48)
        own = [chance.randrange(10, 1000) for _ in range(chance.randint(100, 500) if whale else chance.randint(1, 60))]
        arrivals.append(
            Arrival(
                at=number * 0.1 + chance.random() * 0.1,
                tenant=("whale", "orca")[number % 2] if whale else "minnow",
                prompt=beginning + own,
                max_tokens=chance.randint(20, 120) if whale else chance.randint(5, 40),
            )
        )
    return arrivals


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A crowded pool: caches are given up all the time."""
    made = Recording(tmp_path_factory.mktemp("trace") / "trace", num_blocks=260)
    made.policy("whale", blocks=240)
    made.policy("orca", blocks=240)
    made.policy("minnow", blocks=120, soft=40, priority=Priority.INTERACTIVE)
    return made.serve(traffic())


@pytest.mark.parametrize("grain", GRAINS)
def test_a_replay_agrees_with_what_was_measured(recording: Recording, grain: int) -> None:
    """Requests and tokens exactly, hits within half a block a request, evictions within a tenth, and who waits longest.

    What coarse tokens cannot tell: the part of a block that is found and copied, and the order within a coarse step.
    """
    outcome = recording.replay(recording.policies, grain)
    for name, served in recording.served.items():
        figures = outcome.tenants[name]
        assert (figures.num_requests, figures.num_refused) == (served.num_requests, 0)
        assert (figures.prompt_tokens, figures.output_tokens) == (served.prompt_tokens, served.output_tokens)
        half_a_block = served.num_requests * BLOCK_SIZE / 2
        assert abs(figures.cached_tokens - served.cached_tokens) <= half_a_block + 0.1 * served.cached_tokens
    num_evicted = sum(figures.evicted_blocks for figures in outcome.tenants.values())
    assert num_evicted == pytest.approx(recording.world.scheduler.memory.supply.num_evicted, rel=0.1)
    measured = sorted(recording.served, key=lambda name: rank(recording.served[name].ttft, 0.5))
    assert sorted(outcome.tenants, key=lambda name: outcome.tenants[name].ttft_p50_seconds) == measured


def test_the_finest_replay_is_what_was_measured(recording: Recording) -> None:
    """Token by token, under the limits that were in force, every figure is near the measured one.

    Not equal: the eviction order judges itself by a sample of blocks, chosen by their keys, which no replay has.
    """
    outcome = recording.replay(recording.policies, 1)
    for name, served in recording.served.items():
        figures = outcome.tenants[name]
        assert figures.cached_tokens == pytest.approx(served.cached_tokens, rel=0.1)
        assert figures.ttft_p50_seconds == pytest.approx(rank(served.ttft, 0.5), rel=0.1)
        assert figures.ttft_p99_seconds == pytest.approx(rank(served.ttft, 0.99), rel=0.1)
    num_evicted = sum(figures.evicted_blocks for figures in outcome.tenants.values())
    assert num_evicted == pytest.approx(recording.world.scheduler.memory.supply.num_evicted, rel=0.1)


@pytest.mark.parametrize("grain", GRAINS)
def test_times_to_the_first_token_agree(recording: Recording, grain: int) -> None:
    """Within a fifth of what was measured, or a few machine steps; the 99th within half, or one coarse step."""
    outcome = recording.replay(recording.policies, grain)
    coarse_step = grain * 0.007
    for name, served in recording.served.items():
        figures = outcome.tenants[name]
        assert figures.ttft_p50_seconds == pytest.approx(rank(served.ttft, 0.5), rel=0.2, abs=0.01)
        assert figures.ttft_p99_seconds == pytest.approx(rank(served.ttft, 0.99), rel=0.5, abs=coarse_step)


@pytest.mark.parametrize("grain", GRAINS)
def test_the_same_limits_make_no_difference(recording: Recording, grain: int) -> None:
    """Two replays of one trace under one policy are equal to the last figure."""
    assert recording.replay(recording.policies, grain) == recording.replay(recording.policies, grain)


def changed(recording: Recording, tenant: str, **changes: object) -> list:  # type: ignore[type-arg]
    """Return the policies with some limits of one tenant replaced."""
    return [
        msgspec.structs.replace(policy, **changes) if policy.tenant == tenant else policy
        for policy in recording.policies
    ]


@pytest.mark.parametrize("grain", [1, 16])
def test_a_lower_ceiling_costs_the_whale_and_frees_the_others(recording: Recording, grain: int) -> None:
    """Its cache goes and its requests wait; what it no longer holds is what others find more of."""
    before = recording.replay(recording.policies, grain)
    after = recording.replay(changed(recording, "whale", kv_hard_bytes=60 * BLOCK_BYTES), grain)
    whale, orca, minnow = (after.tenants[name] for name in ("whale", "orca", "minnow"))
    assert whale.kv_peak_bytes <= 60 * BLOCK_BYTES < before.tenants["whale"].kv_peak_bytes
    assert whale.cached_tokens < before.tenants["whale"].cached_tokens
    assert whale.queue_p99_seconds > 2 * before.tenants["whale"].queue_p99_seconds
    assert orca.cached_tokens >= before.tenants["orca"].cached_tokens
    assert orca.evicted_blocks < before.tenants["orca"].evicted_blocks
    assert minnow.evicted_blocks < before.tenants["minnow"].evicted_blocks


def test_a_request_that_could_never_fit_is_refused_to_the_token(recording: Recording) -> None:
    """Limits in tokens are judged in the model's tokens, whatever the grain."""
    calls = [call for call in recording.story().calls if call.tenant == "whale"]
    limit = sorted(call.num_prompt + call.max_tokens for call in calls)[len(calls) // 2]
    expected = sum(call.num_prompt + call.max_tokens > limit for call in calls)
    for grain in GRAINS:
        after = recording.replay(changed(recording, "whale", max_context_tokens=limit), grain)
        assert after.tenants["whale"].num_refused == expected
    outputs = recording.replay(changed(recording, "whale", max_output_tokens=10), 16)
    assert outputs.tenants["whale"].output_tokens <= 10 * len(calls)


def test_a_full_queue_refuses(recording: Recording) -> None:
    """A tenant that may neither run nor wait in numbers loses what comes too fast."""
    after = recording.replay(changed(recording, "whale", max_running=1, max_queued=0), 16)
    assert 0 < after.tenants["whale"].num_refused < after.tenants["whale"].num_requests


def test_conversations_find_what_was_generated_before(tmp_path: Path) -> None:
    """The next turn of a conversation begins with the last one's answer: its blocks are in the trace as well."""
    recording = Recording(tmp_path / "trace", num_blocks=400)
    recording.policy("minnow", blocks=400)
    first = recording.world.submit("minnow", stem(1, 40), 100, ignore_eos=True)
    recording.serve([])
    history = [*stem(1, 40), *recording.world.tokens[first]]
    again = Recording(tmp_path / "again", num_blocks=400)
    again.policy("minnow", blocks=400)
    again.serve(
        [
            Arrival(0.0, "minnow", stem(1, 40), 100, {"ignore_eos": True, "seed": int(first)}),
            Arrival(30.0, "minnow", [*history, 11, 12, 13], 5),
        ]
    )
    measured = again.served["minnow"].cached_tokens
    assert measured >= 128
    for grain in (1, 16):
        cached = again.replay(again.policies, grain).tenants["minnow"].cached_tokens
        assert measured - BLOCK_SIZE < cached <= measured


@pytest.mark.parametrize("grain", [1, 16])
def test_several_outputs_and_cancels_are_replayed(tmp_path: Path, grain: int) -> None:
    """Outputs of one request share its prompt; one whose client left early is as long as it had become."""
    recording = Recording(tmp_path / "trace", num_blocks=200)
    recording.policy("minnow", blocks=200)
    several = recording.world.submit("minnow", stem(3, 100), 30, n=3, ignore_eos=True)
    left = recording.world.submit("minnow", stem(4, 100), 300, ignore_eos=True)
    for _ in range(20):
        recording.world.step()
    recording.world.cancel(left)
    recording.serve([])
    outcome = recording.replay(recording.policies, grain)
    figures = outcome.tenants["minnow"]
    assert figures.num_requests == 2
    assert figures.output_tokens == 3 * 30 + len(recording.world.tokens[left])
    assert figures.kv_peak_bytes < 4 * 10 * BLOCK_BYTES
    assert several in recording.world.finished


def test_a_client_that_gave_up_gives_up_again(tmp_path: Path) -> None:
    """What never ran in its client's patience runs under limits that let it run sooner, and only then."""
    recording = Recording(tmp_path / "trace", num_blocks=200)
    recording.policy("minnow", blocks=200, max_running=1)
    recording.world.submit("minnow", stem(3, 100), 200, ignore_eos=True)
    waiting = recording.world.submit("minnow", stem(4, 100), 20, ignore_eos=True)
    for _ in range(50):
        recording.world.step()
    recording.world.cancel(waiting)
    recording.serve([])
    assert recording.replay(recording.policies, 1).tenants["minnow"].prompt_tokens == 100
    sooner = [limits("minnow", blocks=200, max_running=2)]
    assert recording.replay(sooner, 1).tenants["minnow"].prompt_tokens == 200


def test_a_tenant_without_policy_is_refused(tmp_path: Path) -> None:
    """A proposal says nothing of a tenant that is gone; its requests still count as asked."""
    recording = Recording(tmp_path / "trace", num_blocks=200)
    recording.policy("minnow", blocks=200)
    recording.serve([Arrival(0.0, "minnow", stem(1, 40), 5)])
    outcome = recording.replay([limits("whale", blocks=10)], 16)
    assert (outcome.tenants["minnow"].num_requests, outcome.tenants["minnow"].num_refused) == (1, 1)
    assert outcome.tenants["whale"].num_requests == 0


def test_what_is_preempted_is_swapped_where_the_worker_would(tmp_path: Path) -> None:
    """With host memory blocks go there and come back, for who may have it; time passes for the copies."""
    recording = Recording(tmp_path / "trace", num_blocks=40)
    recording.policy("whale", blocks=40, slabs=100)
    recording.policy("minnow", blocks=40, soft=30)
    whales = [Arrival(0.0, "whale", stem(number, 200), 200, {"ignore_eos": True}) for number in range(2)]
    recording.serve([*whales, Arrival(0.5, "minnow", stem(9, 400), 20)])
    story = recording.story()
    with_host = msgspec.structs.replace(story.machine, num_slabs=100)
    quick = Speed(0.0, (0.004, 0.0002, 0.0, 0.0002, 0.0), 1e12, 1e12)
    policies = [policy_of(policy) for policy in recording.policies]
    parts = [render(call, BLOCK_SIZE, 4) for call in story.calls]
    stored = []
    for machine in (story.machine, with_host):
        simulation = Simulation(Setting(machine, quick, (), 4, story.num_symbols, frozenset()), policies, parts)
        simulation.run(story.calls[0].at + 60.0)
        assert simulation.outcome().tenants["whale"].num_preemptions > 0
        stored.append(simulation.num_stored_blocks)
    assert stored[0] == 0 < stored[1]
