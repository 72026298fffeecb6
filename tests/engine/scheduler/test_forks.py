"""Several outputs of one prompt: computed once, shared, each as if it were alone."""

import random

import pytest

from engine.request import BeamParams, FinishReason, RefusalCode, SequenceId, TenantId
from tests.engine.world import Output, ShortOutputs, World

PROMPT = [(7 * place) % 900 for place in range(42)]


def test_outputs_share_the_prompt() -> None:
    """Four outputs compute the prompt once and one token of it each; all are what they would be alone."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 10, n=4)
    total = most = 0
    while world.step():
        assert world.plan is not None
        total += world.plan.num_tokens
        most = max(most, world.held("minnow"))
    assert total == 42 + 3 * 1 + 4 * 9
    assert most <= 42 // 4 + 4 * 4
    outputs = [request, *((request, index) for index in range(1, 4))]
    for output in outputs:
        assert world.finished[output] is FinishReason.LENGTH
        assert len(world.tokens[output]) == 10
        world.assert_exact(output)
    assert len({tuple(world.tokens[output]) for output in outputs}) == 4
    world.assert_empty()


def test_outputs_share_without_a_namespace() -> None:
    """A fork needs no prefix tree."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 10, n=3, namespace=b"")
    total = 0
    while world.step():
        assert world.plan is not None
        total += world.plan.num_tokens
    assert total == 42 + 2 + 3 * 9
    for index in range(1, 3):
        world.assert_exact((request, index))
    assert world.scheduler.memory.pool.num_free == world.shape.num_blocks


def test_outputs_run_one_after_the_other_where_only_one_may_run() -> None:
    """max_running holds for outputs too; those that come late find the prompt in the tree."""
    world = World(block_size=4)
    world.policy("minnow", max_running=1)
    request = world.submit("minnow", PROMPT, 6, n=3)
    total = 0
    while world.step():
        assert world.plan is not None
        assert len(world.plan.sequences) == 1
        total += world.plan.num_tokens
    assert total <= 42 + 2 * 2 + 3 * 5
    for index in range(1, 3):
        world.assert_exact((request, index))


def test_outputs_survive_preemption() -> None:
    """Outputs that outgrow the pool together step back one by one, and all end whole and exact."""
    world = World(block_size=4, num_blocks=20)
    world.policy("minnow", blocks=20)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    request = world.submit("minnow", PROMPT, 30, n=5)
    other = world.submit("minnow", 10, 20)
    world.run()
    assert world.scheduler.roster.num_preemptions > 0
    for output in (request, other, *((request, index) for index in range(1, 5))):
        assert world.finished[output] is FinishReason.LENGTH
        world.assert_exact(output)
    world.assert_empty()


def test_a_cancel_ends_all_outputs() -> None:
    """Whatever state they are in: waiting for the prompt, running, or not begun at all."""
    world = World(block_size=4, budget=16)
    world.policy("minnow", max_running=3)
    started, queued = world.submit("minnow", PROMPT, 50, n=4), world.submit("minnow", PROMPT, 50, n=2)
    for _ in range(5):
        world.step()
    world.cancel(started, queued)
    world.step()
    outputs = [started, queued, (queued, 1), *((started, index) for index in range(1, 4))]
    assert {world.finished[output] for output in outputs} == {FinishReason.CANCELLED}
    world.assert_empty()


def test_one_output_can_be_ended_by_itself() -> None:
    """The front found a stop string in one output: that one ends, the others go on."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 20, n=3)
    for _ in range(5):
        world.step()
    world.scheduler.cancel([request], FinishReason.STOP, 1)
    world.run()
    assert world.finished[request, 1] is FinishReason.STOP
    assert len(world.tokens[request, 1]) < 20
    for output in (request, (request, 2)):
        assert len(world.tokens[output]) == 20
        world.assert_exact(output)
    world.assert_empty()


def test_an_output_that_ends_early_leaves_the_others_alone() -> None:
    """A stop token ends one output; the request's other outputs go on."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    probe = world.submit("minnow", PROMPT, 10, n=2, seed=9)
    world.run()
    stop = next(token for token in world.tokens[probe] if token not in world.tokens[probe, 1])
    again = world.submit("minnow", PROMPT, 10, n=2, seed=9, stop_token_ids=frozenset({stop}))
    world.run()
    assert world.finished[again] is FinishReason.STOP
    assert world.tokens[again, 1] == world.tokens[probe, 1]


def test_outputs_count_as_requests_in_the_queue() -> None:
    """Eight outputs never fit where seven requests may run and wait, so that no later try helps: n is named."""
    world = World()
    world.policy("minnow", max_running=4, max_queued=3)
    crowd, none, fits = (world.submit("minnow", 4, 2, n=n) for n in (8, 0, 7))
    world.run()
    for request in (crowd, none):
        assert (world.refused[request].code, world.refused[request].field) == (RefusalCode.INVALID, "n")
    assert (fits, 6) in world.finished


def test_outputs_count_in_the_queue_before_they_fork() -> None:
    """A crowd of requests that wait with many outputs each is turned away by all that it comes to."""
    world = World()
    world.policy("minnow", max_running=1, max_queued=9)
    first = world.submit("minnow", 4, 30)
    world.step()
    crowd = [world.submit("minnow", 4, 2, n=4) for _ in range(4)]
    assert world.scheduler.roster.tenant(TenantId("minnow")).num_live == 3
    world.cancel(crowd[0])
    late = world.submit("minnow", 4, 2, n=5)
    world.run()
    assert {request: world.refused[request].code for request in world.refused} == dict.fromkeys(
        crowd[2:], RefusalCode.QUEUE_FULL
    )
    for request in (first, crowd[1], late):
        assert world.finished[request] is FinishReason.LENGTH
    assert world.scheduler.roster.tenant(TenantId("minnow")).num_ahead == 0


def outputs_of(world: World, request: SequenceId, n: int) -> list[Output]:
    """Return the keys of a request's outputs."""
    return [request, *((request, index) for index in range(1, n))]


def test_outputs_that_come_late_fork_from_whoever_has_the_prompt() -> None:
    """The first output has long ended when the last one may run; another one holds the prompt still."""
    world = World(block_size=4, budget=64, max_rows=2)
    world.policy("minnow")
    probe = world.submit("minnow", PROMPT, 20, n=2, seed=9)
    world.run()
    stop = next(token for token in world.tokens[probe] if token not in world.tokens[probe, 1])
    request = world.submit("minnow", PROMPT, 20, n=3, seed=9, stop_token_ids=frozenset({stop}), namespace=b"")
    total = 0
    while world.step():
        assert world.plan is not None
        total += world.plan.num_tokens
    assert world.finished[request] is FinishReason.STOP
    outputs = outputs_of(world, request, 3)
    for output in outputs:
        world.assert_exact(output)
    assert total == 42 + 2 * 1 + sum(len(world.tokens[output]) - 1 for output in outputs)
    world.assert_empty()


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_the_prompt_is_computed_once_though_the_first_output_is_cancelled(num_steps: int) -> None:
    """Another output takes it over, and the rest wait for that one instead."""
    world = World(block_size=4, budget=16)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 10, n=4, namespace=b"")
    total = 0
    for count in range(100):
        if count == num_steps:
            world.scheduler.cancel([request], FinishReason.CANCELLED, 0)
        if not world.step():
            break
        assert world.plan is not None
        total += world.plan.num_tokens
    assert world.finished[request] is FinishReason.CANCELLED
    for output in outputs_of(world, request, 4)[1:]:
        assert world.finished[output] is FinishReason.LENGTH
        world.assert_exact(output)
    assert total <= 2 * 42 + 2 + 4 * 9
    world.assert_empty()


def test_a_first_output_that_ends_with_its_first_token_leaves_the_prompt_behind() -> None:
    """One token each: the outputs end before the next ones start, in whatever order, and all are exact."""
    for rows in (1, 2, 8):
        for namespace in (None, b""):
            world = World(block_size=4, budget=16, max_rows=rows)
            world.policy("minnow")
            request = world.submit("minnow", PROMPT, 1, n=5, namespace=namespace)
            world.run()
            for output in outputs_of(world, request, 5):
                assert len(world.tokens[output]) == 1
                world.assert_exact(output)
            world.assert_empty()


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 6])
def test_outputs_survive_the_preemption_of_the_first(num_steps: int) -> None:
    """At any moment of the prompt or after: a limit that leaves room for nothing, then for all again."""
    world = World(block_size=4, budget=16)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 10, n=4)
    for _ in range(num_steps):
        world.step()
    world.policy("minnow", blocks=4)
    world.step()
    assert not world.running()
    world.policy("minnow")
    world.run()
    for output in outputs_of(world, request, 4):
        assert len(world.tokens[output]) == 10
        world.assert_exact(output)
    world.assert_empty()


def test_outputs_and_searches_share_a_crowded_pool() -> None:
    """Forks of all kinds at once, over limits that move: nobody writes to another's block, and all ends well."""
    chance = random.Random(7)
    world = World(block_size=2, num_blocks=60, max_rows=12, budget=24)
    world.policy("minnow", blocks=60, max_running=12)
    requests = []
    for _ in range(30):
        beams = BeamParams(width=3) if chance.random() < 0.4 else None
        n = chance.randint(1, 3)
        requests.append(world.submit("minnow", PROMPT[: chance.randint(1, 12)], 8, n=n, beams=beams))
        for _ in range(chance.randint(0, 6)):
            world.step()
        world.policy("minnow", blocks=chance.choice((60, 60, 30, 22)), max_running=chance.choice((12, 12, 4)))
    world.policy("minnow", blocks=60, max_running=12)
    world.run()
    assert not world.refused
    for request in requests:
        for output in outputs_of(world, request, world.requests[request].n):
            assert world.finished[output] is FinishReason.LENGTH
            world.assert_exact(output)
    world.assert_empty()


def test_a_share_group_without_room_for_one_more_block_stops_no_fork() -> None:
    """The whole prompt is registered, and the group's account has just the blocks for it: others go on on their own."""
    world = World(block_size=1, num_blocks=64, budget=12, max_rows=4)
    world.policy("minnow", share_groups=("bank",))
    world.share("bank", PROMPT[:12], blocks=12)
    world.submit("minnow", PROMPT[:11], 30)
    request = world.submit("minnow", PROMPT[:12], 6, n=3)
    world.run()
    for output in outputs_of(world, request, 3):
        assert len(world.tokens[output]) == 6
        world.assert_exact(output)
    world.assert_empty()
