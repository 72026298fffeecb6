"""What a request is charged for: each block that its outputs hold, once, for as long as one of them holds it."""

import random
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine.request import FinishReason, SequenceId, TenantId
from engine.scheduler.outputs import RequestOutput
from tests.engine.world import BLOCK_BYTES, Output, ShortOutputs, World

PROMPT = [(7 * place) % 900 for place in range(42)]
SECONDS = (0.25, 0.5, 1.0, 4.0)  # sums of these times whole blocks are exact


def check(world: World, *requests: SequenceId) -> None:
    """Compare what each request's outputs have reported with what was counted from outside, to the last bit."""
    assert world.held_seconds
    for request in requests:
        assert world.metered(request) == world.held_seconds[request]


def test_outputs_pay_for_the_prompt_once() -> None:
    """Four outputs: ten full blocks of the prompt, and each its own three; one of them pays for the ten."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 10, n=4)
    world.step(1.0)
    world.step(1.0)
    assert world.metered(request) == 11 + 10 + 4
    while world.step(1.0):
        pass
    check(world, request)
    paid = sorted(world.outputs[output][-1].kv_byte_seconds for output in (request, (request, 3)))
    assert paid[1] > 3 * paid[0]


@pytest.mark.parametrize("namespace", [None, b""])
def test_an_output_that_ends_hands_over_what_others_still_hold(namespace: bytes | None) -> None:
    """The one that pays for the prompt is ended first, then the next: the sum follows what is held."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 20, n=3, namespace=namespace)
    for index in range(3):
        for _ in range(4):
            world.step(0.5)
            check(world, request)
        world.scheduler.cancel([request], FinishReason.STOP, index)
        world.step(0.5)
        check(world, request)
    assert world.metered(request) > 12 * 0.5 * (10 + 1)
    world.assert_empty()


def test_outputs_that_come_back_find_each_others_blocks() -> None:
    """Preempted outputs return to what the prefix tree kept of them and of the others: still each block once."""
    world = World(block_size=4, num_blocks=20)
    world.policy("minnow", blocks=20)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    request, other = world.submit("minnow", PROMPT, 30, n=5), world.submit("minnow", 10, 20)
    while world.step(0.25):
        pass
    assert world.scheduler.roster.num_preemptions > 0
    check(world, request, other)


def test_equal_outputs_pay_for_equal_blocks_once() -> None:
    """Outputs whose samples agree end up on the same blocks: of the filled ones, the meter knows one."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 20, n=2)
    world.step(1.0)
    for one in world.scheduler.roster.sequences.values():
        one.random_key = 3
    while world.step(1.0):
        pass
    assert world.tokens[request][1:] != world.expected(request, 20)[1:]  # both follow another stream than theirs
    check(world, request)
    assert world.held_seconds[request] < 20 * (10 + 2 * 2 + 5)


def test_requests_that_share_through_the_cache_pay_in_full() -> None:
    """Two requests with one prompt: each is charged as if it were alone, for that does not depend on the other."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    first = world.submit("minnow", PROMPT, 10)
    world.step(1.0)
    second = world.submit("minnow", PROMPT, 10)
    while world.step(1.0):
        pass
    assert world.cached_tokens[second] == 40
    assert world.metered(second) == world.metered(first)
    check(world, first, second)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(
    chance=st.randoms(use_true_random=False),
    block_size=st.sampled_from((1, 2, 4, 16)),
    num_blocks=st.integers(8, 40),
    rows=st.integers(1, 8),
    most_outputs=st.integers(2, 6),
)
def test_the_sum_over_outputs_is_what_the_request_held(
    chance: random.Random, block_size: int, num_blocks: int, rows: int, most_outputs: int
) -> None:
    """Any history of forks, ends, cancels and preemptions: Σ over outputs = ∫ distinct blocks, exactly."""
    world = World(block_size=block_size, num_blocks=num_blocks, max_rows=rows, budget=rows + 12, eos=(5, 6, 7))
    world.policy("minnow", blocks=num_blocks)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    stem = [chance.randrange(900) for _ in range(20)]
    for _ in range(25):
        if chance.random() < 0.3:
            prompt = [*stem[: chance.randint(0, 20)], chance.randrange(900)]
            namespace = chance.choice((None, None, b""))
            world.submit(
                "minnow", prompt, chance.randint(1, 20), n=chance.randint(1, most_outputs), namespace=namespace
            )
        live = list(world.scheduler.roster.sequences.values())
        if live and chance.random() < 0.1:
            one = chance.choice(live)
            world.scheduler.cancel([one.handle], FinishReason.STOP, one.index)
        if chance.random() < 0.15:
            world.policy("minnow", blocks=chance.randint(num_blocks // 2, num_blocks), max_running=chance.randint(1, 8))
        world.step(chance.choice(SECONDS))
    world.policy("minnow", blocks=num_blocks)
    while world.step(chance.choice(SECONDS)):
        pass
    for request in world.requests:
        assert world.metered(request) == world.held_seconds[request]
    world.assert_empty()


def test_reports_never_fall() -> None:
    """What an output has reported stays: a block that it hands over was its own until then."""
    world = World(block_size=2, num_blocks=24)
    world.policy("minnow", blocks=24)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    world.submit("minnow", PROMPT[:12], 20, n=4)
    while world.step(0.5):
        pass
    reports: dict[Output, list[float]] = defaultdict(list)
    for output, news in world.outputs.items():
        reports[output] = [one.kv_byte_seconds / BLOCK_BYTES for one in news]
    assert len(reports) == 4
    assert all(values == sorted(values) for values in reports.values())


def test_news_of_a_decode_has_every_field() -> None:
    """The hot loop writes it down field by field: it is what a call would make."""
    world = World(block_size=4)
    world.policy("minnow")
    request = world.submit("minnow", 6, 4)
    for _ in range(3):
        world.step(1.0)
    token = world.tokens[request][-1]
    assert world.outputs[request][-1] == RequestOutput(request, (token,), (2 + 2 + 2) * float(BLOCK_BYTES))
