"""Steps that are planned while the one before them is in flight: nobody's tokens, blocks, limits or meters differ.

In these worlds `step` plans and launches a step and only then commits the one before it, and the fake runner computes
a step no sooner than it is waited for.
"""

import itertools

import pytest

from engine.errors import InvariantError
from engine.request import BeamParams, FinishReason, Priority, SamplingParams, SequenceId, TenantId
from engine.scheduler.flight import Flight
from engine.scheduler.step_time import StepWork
from engine.scheduler.tenant import OUTPUT_COST, PREFILL_COST
from engine.step import SequenceStep, StepPlan
from tests.engine.world import ShortOutputs, World

PROMPT = [31 * place % 900 + 50 for place in range(21)]


def placeholders(plan: StepPlan | None) -> list[SequenceId]:
    """Return the sequences that go on behind a token that is to come."""
    assert plan is not None
    return [part.sequence for part in plan.sequences if min(part.token_ids) < 0]


def stop_after(world: World, request: SequenceId, count: int) -> int:
    """Return the token that a request's output has at this place for the first time."""
    tokens = world.expected(request, 60)
    return next(one for place, one in enumerate(tokens) if place >= count and tokens.index(one) == place)


def crowd(world: World) -> list[SequenceId]:
    """Submit requests of all kinds, with limits that move, cancels and stop ids; run all to their ends."""
    for tenant in ("minnow", "whale"):
        world.policy(tenant, blocks=40, soft=6)
    requests: list[SequenceId] = []
    for number in range(24):
        requests.append(
            world.submit(
                ("minnow", "whale")[number % 3 % 2],
                [*PROMPT[: number % 4 * 7], *range(number, number + 3 + number % 11)],
                1 + 5 * number % 23,
                n=3 if number % 5 == 4 else 1,
                beams=BeamParams(width=2 + number % 3) if number % 7 == 6 else None,
                num_logprobs=(-1, 0, 2)[number % 3],
                priority=tuple(Priority)[number % 3],
                stop_token_ids=frozenset(range(number, 1000, 29)),
            )
        )
        for _ in range(number % 3):
            world.step()
        if number % 6 == 5:
            world.policy("whale", blocks=10 + number % 9, soft=6)
    world.run()
    return requests


def test_tokens_are_those_of_steps_in_turn() -> None:
    """The same requests in both ways: every output has the same tokens, log-probabilities, scores and end."""
    in_turn, ahead = World(num_blocks=40), World(num_blocks=40, ahead=True)
    assert crowd(in_turn) == crowd(ahead)
    assert ahead.scheduler.roster.num_preemptions > 0
    assert set(ahead.finished.values()) == {FinishReason.STOP, FinishReason.LENGTH}
    for found in ("tokens", "logprobs", "scores", "finished", "unseen", "granted"):
        assert getattr(ahead, found) == getattr(in_turn, found), found
    assert ahead.scheduler.output_tokens == in_turn.scheduler.output_tokens
    for tenant in ("minnow", "whale"):
        counts = [world.scheduler.roster.tenant(TenantId(tenant)).output_tokens for world in (in_turn, ahead)]
        assert counts[0] == counts[1]
    ahead.assert_empty()


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_what_follows_a_stop_token_is_dropped(block_size: int) -> None:
    """It is never reported, paid for, metered or counted, and its slot is in nobody's way."""
    world = World(num_blocks=200, block_size=block_size, ahead=True)
    world.policy("minnow", blocks=200)
    request = world.submit("minnow", PROMPT, 40)
    stop = stop_after(world, request, 9)
    world.cancel(request)
    request = world.submit("minnow", PROMPT, 40, seed=1, stop_token_ids=frozenset((stop,)))
    other = world.submit("minnow", 7, 60)
    while request not in world.finished:
        assert world.step()
    assert placeholders(world.plan) == [request, other], "the step in flight goes on behind the stop token"
    counter = world.scheduler.roster.tenant(TenantId("minnow")).counter
    count = len(world.tokens[request]) + len(world.tokens[other])
    assert world.tokens[request][-1] == stop
    assert world.metered(request) == pytest.approx(world.held_seconds[request])
    world.cancel(other)
    world.step()
    assert world.scheduler.roster.tenant(TenantId("minnow")).counter == counter
    assert world.scheduler.output_tokens == count
    world.assert_exact(request)
    world.assert_empty()


def test_a_known_last_token_has_nothing_planned_behind_it() -> None:
    """A request that ends with max_tokens takes as many steps as it takes in turn."""
    world = World(ahead=True)
    world.policy("minnow")
    request = world.submit("minnow", 6, 5)
    world.run()
    assert world.runner.num_steps == 5
    assert len(world.tokens[request]) == 5
    world.assert_empty()


def test_blocks_of_a_request_that_left_are_safe_to_give_away() -> None:
    """A cancel frees blocks that the step in flight still reads and writes; their next owner comes after it."""
    world = World(num_blocks=8, block_size=4, ahead=True)
    world.policy("minnow")
    world.policy("whale")
    first = world.submit("whale", 28, 4, namespace=b"")
    for _ in range(3):
        world.step()
    held = set(world.scheduler.roster.sequences[first].table.blocks)  # type: ignore[union-attr]
    world.cancel(first)
    second = world.submit("minnow", 26, 6, namespace=b"")
    world.step()
    assert held & set(world.scheduler.roster.sequences[second].table.blocks)  # type: ignore[union-attr]
    tokens = list(world.tokens[first])
    world.run()
    assert world.tokens[first] == tokens, "nothing is heard of it any more"
    assert world.finished[first] is FinishReason.CANCELLED
    world.assert_exact(second)
    world.assert_empty()


def test_a_stop_while_the_next_step_fills_a_block() -> None:
    """The block that the dropped token fills is not cached, and what is cached keeps its own tokens."""
    world = World(num_blocks=20, block_size=4, ahead=True)
    world.policy("minnow")
    probe = world.submit("minnow", PROMPT, 40)
    world.cancel(probe)
    for count in (5, 6, 7, 8):  # the dropped token is in each place of a block
        stop = stop_after(world, probe, count)
        request = world.submit("minnow", PROMPT, 20, seed=1, stop_token_ids=frozenset((stop,)))
        world.run()
        world.assert_exact(request)
        again = world.submit("minnow", [*PROMPT, *world.tokens[request], *PROMPT], 3)
        world.run()
        world.assert_exact(again)
        assert world.cached_tokens[again] >= (len(PROMPT) + len(world.tokens[request]) - 1) // 4 * 4
    world.assert_empty()


def test_a_lowered_limit_is_kept_from_the_next_plan_on() -> None:
    """Who must leave for it while a token of theirs is in flight is given that token, and goes on with it."""
    world = World(block_size=4, ahead=True)
    world.policy("minnow", blocks=30)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()  # so that all are admitted
    requests = [world.submit("minnow", 8, 16) for _ in range(4)]
    for _ in range(4):
        world.step()
    before = [len(world.tokens[one]) for one in requests]
    world.policy("minnow", blocks=7)
    world.step()
    assert world.held("minnow") <= 7, "no block above it is held while the step before it is in flight"
    assert world.scheduler.roster.num_preemptions >= 2
    assert [len(world.tokens[one]) for one in requests] == [count + 1 for count in before]
    world.run()
    for request in requests:
        world.assert_exact(request)
        assert len(world.tokens[request]) == 16
    world.assert_empty()


def test_a_request_ends_with_a_token_that_comes_after_it_was_preempted() -> None:
    """It does not run again for it: neither for a stop token nor for its last one."""
    for stops in (True, False):
        world = World(block_size=4, ahead=True)
        world.policy("minnow", blocks=30)
        request = world.submit("minnow", PROMPT, 6)
        tokens = world.expected(request, 6)
        world.cancel(request)
        assert tokens.index(tokens[3]) == 3
        stop_ids = frozenset(tokens[3:4]) if stops else frozenset()
        request = world.submit("minnow", PROMPT, 6 if stops else 4, seed=1, stop_token_ids=stop_ids)
        while len(world.tokens[request]) < 3:
            world.step()
        world.policy("minnow", blocks=0)
        world.step()
        assert world.tokens[request] == tokens[:4]
        assert world.finished[request] is (FinishReason.STOP if stops else FinishReason.LENGTH)
        assert world.outputs[request][-1].num_preemptions == 1
        world.assert_empty()


def test_a_token_that_comes_late_is_paid_for_once() -> None:
    """What a request costs its tenant is its prompt and its output, whenever it was preempted."""
    world = World(ahead=True)
    world.policy("minnow")
    request = world.submit("minnow", 18, 10)
    for _ in range(5):
        world.step()
    world.policy("minnow", blocks=0)
    world.step()
    assert not world.running()
    world.policy("minnow")
    world.run()
    assert world.outputs[request][-1].num_preemptions == 1
    assert world.scheduler.roster.tenant(TenantId("minnow")).counter == 18 * PREFILL_COST + 10 * OUTPUT_COST
    world.assert_exact(request)


def test_who_loses_a_shared_prefix_comes_back_behind_its_token() -> None:
    """It fits at once on blocks of its own, but a token of it is in flight: it starts in the plan after."""
    world = World(block_size=4, ahead=True)
    world.share("bank", PROMPT)
    world.policy("minnow", share_groups=("bank",))
    request = world.submit("minnow", [*PROMPT, 1, 2, 3], 12)
    for _ in range(4):
        world.step()
    assert placeholders(world.plan) == [request]
    count = len(world.tokens[request])
    world.share("bank")
    world.step()
    assert world.plan is None
    assert len(world.tokens[request]) == count + 1
    world.step()
    assert world.running() == [request]
    world.run()
    assert world.outputs[request][-1].num_preemptions == 1
    world.assert_exact(request)
    world.assert_empty()


def test_a_removed_tenant_stops_while_a_step_is_in_flight() -> None:
    """Its requests are held with the tokens that were on their way, and go on when the policy is back."""
    world = World(ahead=True)
    world.policy("minnow")
    requests = [world.submit("minnow", 6, 12), world.submit("minnow", 6, 12, beams=BeamParams(width=3))]
    for _ in range(5):
        world.step()
    world.update(removed=("minnow",))
    world.step()
    assert not world.running()
    assert world.held("minnow") == 0
    world.policy("minnow")
    world.run()
    for request in requests:
        assert world.finished[request] is FinishReason.LENGTH
        world.assert_exact(request)
    world.assert_empty()


def test_nobody_is_preempted_for_a_token_that_may_be_the_last() -> None:
    """A decode behind a token to come, with no block to be had, sits one step out; then it takes what is its own."""
    world = World(num_blocks=6, block_size=4, ahead=True)
    world.policy("minnow", soft=6)
    world.policy("whale", soft=0)
    world.scheduler.roster.tenant(TenantId("whale")).lengths = ShortOutputs()
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    borrower = world.submit("whale", 10, 10)
    owner = world.submit("minnow", 11, 9)
    held: list[tuple[int, int]] = []
    planned: list[list[SequenceId]] = []
    while not world.scheduler.roster.num_preemptions:
        assert world.step()
        planned.append([] if world.plan is None else [part.sequence for part in world.plan.sequences])
        held.append((world.held("whale"), world.held("minnow")))
    assert planned == [[borrower, owner], [borrower, owner], [borrower], [owner]]
    assert held == [(3, 3), (3, 3), (3, 3), (0, 4)]
    world.run()
    for request in (borrower, owner):
        world.assert_exact(request)
    world.assert_empty()


def test_a_deadline_passes_while_a_step_is_in_flight() -> None:
    """The token that comes after it is nobody's."""
    world = World(ahead=True)
    world.policy("minnow")
    request = world.submit("minnow", 6, 60, deadline=world.now + 1.0)
    for _ in range(4):
        world.step()
    count = len(world.tokens[request])
    world.now += 2.0
    world.step()
    assert world.finished[request] is FinishReason.LENGTH
    assert len(world.tokens[request]) == count
    world.run()
    world.assert_empty()


def test_beams_wait_for_their_candidates() -> None:
    """A search runs in every other step beside a stream that runs in each, and finds what it finds alone."""
    world = World(ahead=True)
    world.policy("minnow")
    search = world.submit("minnow", 6, 8, n=2, beams=BeamParams(width=3))
    stream = world.submit("minnow", 6, 40)
    runs = []
    while world.step():
        if world.plan is not None:
            running = [part.sequence for part in world.plan.sequences]
            assert stream in running
            runs.append(any(one != stream for one in running))
    assert not any(one and other for one, other in itertools.pairwise(runs))
    assert sum(runs) == 8
    for output in (search, (search, 1), stream):
        world.assert_exact(output)
    world.assert_empty()


@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("budget", [3, 64])
def test_outputs_fork_from_a_prompt_that_is_there(num_prompt: int, budget: int) -> None:
    """They wait until what they share is computed and sealed, and the prompt is still computed once."""
    world = World(block_size=4, budget=budget, ahead=True)
    world.policy("minnow")
    request = world.submit("minnow", num_prompt, 7, n=3)
    computed = 0
    while world.step():
        if world.plan is not None:
            computed += sum(
                max(0, min(num_prompt - 1, one.start + len(one.token_ids)) - one.start) for one in world.plan.sequences
            )
    assert computed == num_prompt - 1
    for output in (request, (request, 1), (request, 2)):
        assert len(world.tokens[output]) == 7
        world.assert_exact(output)
    world.assert_empty()


def test_the_same_prompt_twice_is_computed_once() -> None:
    """The second one waits for a prefill of which the last chunk is in flight, and finds its blocks."""
    world = World(block_size=4, budget=16, ahead=True)
    world.policy("minnow")
    first = world.submit("minnow", [*PROMPT, *PROMPT], 4)
    world.step()
    second = world.submit("minnow", [*PROMPT, *PROMPT], 4)
    world.run()
    assert world.cached_tokens[first] == 0
    assert world.cached_tokens[second] == 40
    for request in (first, second):
        world.assert_exact(request)
    world.assert_empty()


def test_a_step_teaches_what_it_took_itself() -> None:
    """A step's time is learnt with its own work, not with that of the plan made behind it."""
    world = World(num_blocks=512, budget=64, max_context=1500, token_seconds=0.001, ahead=True)
    world.policy("whale", blocks=512, max_context_tokens=1500, max_running=16)
    for number in range(40):
        world.submit("whale", 30 + 90 * number % 400, 4)
        for _ in range(5):
            world.step(0.01)
    model = world.scheduler.step_time
    for tokens in (16, 64):
        predicted = model.predict(StepWork(0, 0, tokens, 0))
        assert predicted == pytest.approx(0.01 + 0.001 * tokens, rel=0.3)


def test_work_counts_each_part_of_a_flight() -> None:
    """Decodes with their context, chunks with their pairs."""
    sampling = SamplingParams()
    parts = (
        SequenceStep(SequenceId(1), 0, 9, (-1,), sampling),
        SequenceStep(SequenceId(2), 1, 4, (5,), sampling),
        SequenceStep(SequenceId(3), 2, 2, (1, 2, 3), None),
    )
    flight = Flight(StepPlan(number=1, sequences=parts, table_writes=()), [], 2)
    assert flight.work() == StepWork(2, 15, 3, 12)


def test_one_step_ahead_and_no_more() -> None:
    """A third plan, a commit out of turn and a second commit of a step are the caller's mistakes, and said so."""
    world = World(ahead=True)
    world.policy("minnow")
    world.submit("minnow", 6, 20)
    scheduler, runner = world.scheduler, world.runner
    first = scheduler.plan()
    assert first is not None
    one = runner.launch(first)
    second = scheduler.plan()
    assert second is not None
    other = runner.launch(second)
    with pytest.raises(InvariantError, match="third step"):
        scheduler.plan()
    result = one.wait()
    with pytest.raises(InvariantError, match="committed twice"):
        scheduler.commit(second, result)
    scheduler.commit(first, result)
    with pytest.raises(InvariantError, match="committed twice"):
        scheduler.commit(first, result)
    scheduler.commit(second, other.wait())
    scheduler.audit()
