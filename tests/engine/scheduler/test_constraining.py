"""Requests that follow a grammar: whatever happens to them meanwhile, and whoever runs beside them."""

import time
from typing import Any

import pytest

from engine.request import BeamParams, FinishReason, RefusalCode, SequenceId, TenantId
from engine.scheduler.constraining import LOOK_SECONDS, PREPARE_SECONDS
from engine.scheduler.intake import HOLD_SECONDS, MAX_HELD
from tests.engine.alternating import DEADLINE_SECONDS, RUN, AlternatingGrammars, alternating, follows
from tests.engine.world import Output, ShortOutputs, World

EOS = (900, 901)


def make_world(*, late: bool = False, **changes: object) -> tuple[World, AlternatingGrammars]:
    """Return a world with a tenant, and its grammars."""
    grammars = AlternatingGrammars(late=late)
    world = World(eos=EOS, grammars=grammars, **changes)  # type: ignore[arg-type]
    world.policy("minnow")
    return world, grammars


def alone(prompt: list[int], text: str, max_tokens: int, seed: int) -> list[int]:
    """Return what a request gets that has a world for itself."""
    world, _ = make_world()
    request = world.submit("minnow", prompt, max_tokens, seed=seed, grammar=alternating(text))
    world.run()
    return world.tokens[request]


def run_late(world: World) -> None:
    """Step until all requests have ended, waiting for masks that a thread makes."""
    end = time.monotonic() + DEADLINE_SECONDS
    while world.scheduler.roster.sequences:
        assert time.monotonic() < end
        world.step()
    while world.scheduler.num_late:
        assert time.monotonic() < end
        world.step()


def assert_complete(world: World, output: Output, count: int) -> None:
    """Check that an output has gone through its whole grammar and ended there."""
    tokens = world.tokens[output]
    assert world.finished[output] is FinishReason.STOP
    assert len(tokens) == count + 1
    assert follows(tokens[:-1])
    assert tokens[-1] in EOS


@pytest.mark.parametrize("ahead", [False, True])
def test_output_follows_its_grammar_to_its_end(ahead: bool) -> None:
    """Each token is one that the mask allows; where nothing else is left the end token comes, and the output stops."""
    world, _ = make_world(ahead=ahead)
    request = world.submit("minnow", 9, 40, grammar=alternating("7"))
    free = world.submit("minnow", 5, 30)
    world.run()
    assert_complete(world, request, 7)
    world.assert_exact(free)
    assert not follows(world.tokens[free])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_what_must_come_costs_no_steps(ahead: bool, block_size: int) -> None:
    """Tokens that the grammar leaves no choice about are the output's at once; all are as if they had been sampled."""
    world, _ = make_world(ahead=ahead, block_size=block_size)
    world.policy("minnow", blocks=60)
    request = world.submit("minnow", 9, 50, grammar=alternating("36+"))
    world.run()
    assert_complete(world, request, 36)
    world.assert_exact(request)
    assert world.scheduler.step <= 36 // 2 + 4
    assert max(len(output.token_ids) for output in world.outputs[request]) == RUN
    assert world.scheduler.output_tokens == 37
    world.assert_empty()


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_no_limit_is_passed_by_what_must_come(max_tokens: int) -> None:
    """The last token is sampled, wherever among the others it is."""
    world, _ = make_world()
    request = world.submit("minnow", 9, max_tokens, grammar=alternating("36+"))
    world.run()
    assert world.finished[request] is FinishReason.LENGTH
    assert len(world.tokens[request]) == max_tokens
    world.assert_exact(request)


@pytest.mark.parametrize(
    "asked", [{"num_logprobs": 0}, {"frequency_penalty": 0.5}, {"logit_bias": ((4, 3.0),)}, {"stop_token_ids": {9}}]
)
def test_every_choice_that_somebody_asks_about_is_made(asked: dict[str, Any]) -> None:
    """Where tokens have scores, bias or penalties each is sampled; none that ends the output comes by itself."""
    world, _ = make_world()
    request = world.submit("minnow", 9, 80, grammar=alternating("12+"), **asked)
    world.run()
    if "stop_token_ids" not in asked:
        assert max(len(output.token_ids) for output in world.outputs[request]) == 1
    world.assert_exact(request)


def test_what_must_come_fits_the_step() -> None:
    """More sequences with tokens that must come than the step has room for: each goes on, by as many as there are."""
    world, _ = make_world(budget=8)
    requests = [world.submit("minnow", 3, 60, grammar=alternating("30+")) for _ in range(7)]
    most = 0
    while world.step():
        most = max(most, 0 if world.plan is None else world.plan.num_tokens)
    assert most <= 8
    for request in requests:
        assert_complete(world, request, 30)
        world.assert_exact(request)


def test_what_must_come_is_charged_as_output() -> None:
    """A tenant has paid the same for the same output, whether its tokens were sampled or not."""
    paid = []
    for text in ("36+", "36"):
        world, _ = make_world()
        world.submit("minnow", 9, 80, grammar=alternating(text))
        world.run()
        paid.append(world.scheduler.roster.tenant(TenantId("minnow")).output_tokens)
    assert paid[0] == paid[1] == 37


def test_output_that_is_cut_has_its_limit_as_the_reason() -> None:
    """`max_tokens` is stronger than the grammar."""
    world, _ = make_world()
    request = world.submit("minnow", 9, 4, grammar=alternating("7"))
    world.run()
    assert world.finished[request] is FinishReason.LENGTH
    assert len(world.tokens[request]) == 4
    assert follows(world.tokens[request])


def test_min_tokens_hold_as_long_as_the_grammar_can_go_on() -> None:
    """Before them no end token comes although the grammar would allow it; at the grammar's own end it does."""
    world, _ = make_world()
    end = frozenset(range(500))  # nearly every output would end at once
    short = world.submit("minnow", 9, 40, grammar=alternating("9?"), stop_token_ids=end)
    longer = world.submit("minnow", 9, 40, grammar=alternating("9?"), stop_token_ids=end, min_tokens=6)
    whole = world.submit("minnow", 9, 40, grammar=alternating("3"), min_tokens=20)
    world.run()
    assert len(world.tokens[short]) < 6
    assert len(world.tokens[longer]) > 6
    assert_complete(world, whole, 3)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_slabs", [0, 400])
def test_preempted_outputs_go_on_where_they_were(ahead: bool, num_slabs: int) -> None:
    """A constraint takes each token once, whatever its sequence lost meanwhile: outputs are those of requests alone."""
    world, _ = make_world(num_blocks=20, block_size=4, ahead=ahead, num_slabs=num_slabs)
    world.policy("minnow", blocks=20, slabs=num_slabs)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    prompts = [[(7 * number + place) % 900 for place in range(9)] for number in range(4)]
    requests = [
        world.submit("minnow", prompt, 60, seed=number, grammar=alternating("41"))
        for number, prompt in enumerate(prompts)
    ]
    world.run()
    assert world.scheduler.roster.num_preemptions > 0
    for number, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
        assert_complete(world, request, 41)
        assert world.tokens[request] == alone(prompt, "41", 60, number)
    world.assert_empty()


def test_every_output_of_a_request_has_its_own_constraint() -> None:
    """With `n` outputs each goes through the grammar by itself, as far as it likes."""
    world, _ = make_world()
    request = world.submit("minnow", 9, 40, n=4, grammar=alternating("11"))
    world.run()
    outputs: list[Output] = [request, *((request, index) for index in range(1, 4))]
    for output in outputs:
        assert_complete(world, output, 11)
    assert len({tuple(world.tokens[output]) for output in outputs}) == 4


@pytest.mark.parametrize("ahead", [False, True])
def test_output_whose_masks_are_slow_sits_out(ahead: bool) -> None:
    """They are made by a thread: the output goes on when they are there, and others need not wait for it."""
    world, grammars = make_world(ahead=ahead)
    slow = world.submit("minnow", 9, 40, n=2, grammar=alternating("slow7"))
    quick = world.submit("minnow", 9, 40, grammar=alternating("9"))
    free = world.submit("minnow", 9, 30)
    while free not in world.finished:
        assert world.step()
    assert_complete(world, quick, 9)
    assert len(world.tokens[slow]) == len(world.tokens[slow, 1]) == 1
    assert world.scheduler.num_late == 2
    timer = world.scheduler.next_timer()
    assert timer is not None
    assert timer <= world.now + LOOK_SECONDS
    grammars.gate.set()
    run_late(world)
    for output in (slow, (slow, 1)):
        assert_complete(world, output, 7)
    world.assert_empty()


@pytest.mark.parametrize("how", ["cancel", "preempt"])
def test_output_that_leaves_while_its_mask_is_made(how: str) -> None:
    """What is made for one that has ended is nobody's; one that lost its place goes on with it where it was."""
    world, grammars = make_world(num_blocks=14, block_size=4)
    slow = world.submit("minnow", 9, 40, seed=4, grammar=alternating("slow7"))
    while not world.scheduler.num_late:
        world.step()
    if how == "cancel":
        world.cancel(slow)
    else:
        world.scheduler.roster.preempt(world.scheduler.roster.running[0], 0, world.now)
        for _ in range(5):
            world.step()
        assert not world.scheduler.roster.running
    grammars.gate.set()
    run_late(world)
    if how == "cancel":
        assert world.finished[slow] is FinishReason.CANCELLED
    else:
        assert_complete(world, slow, 7)
        assert world.tokens[slow] == alone(list(world.requests[slow].prompt), "7", 40, 4)
    world.assert_empty()


def test_slow_output_that_cannot_go_on_ends_alone() -> None:
    """The thread's errors end the output as those of the loop do."""
    world, grammars = make_world()
    grammars.gate.set()
    slow = world.submit("minnow", 9, 40, grammar=alternating("slow3!"))
    run_late(world)
    assert world.finished[slow] is FinishReason.ERROR
    end = world.outputs[slow][-1]
    assert (end.message, end.field) == ("cannot be followed beyond 3 tokens: make it simpler", "grammar")
    world.assert_empty()


def test_request_waits_for_its_grammar_and_nobody_else_does() -> None:
    """While a thread prepares it the request is held, and others of its tenant go on."""
    world, grammars = make_world(late=True)
    request = world.submit("minnow", 9, 40, grammar=alternating("5"))
    other = world.submit("minnow", 9, 3)
    world.run()
    assert world.finished[other] is FinishReason.LENGTH
    assert request not in world.outputs
    timer = world.scheduler.next_timer()
    assert timer is not None
    assert timer <= world.now + LOOK_SECONDS  # an idle loop comes back soon
    grammars.finish("5")
    world.run()
    assert_complete(world, request, 5)
    world.assert_empty()
    assert world.scheduler.next_timer() is None


@pytest.mark.parametrize("text", ["5", "bad"])
@pytest.mark.parametrize("looks", range(4))
def test_grammar_that_is_ready_at_any_moment(text: str, looks: int) -> None:
    """A thread may have it ready from one look of the scheduler to the next: nobody is forgotten."""
    world, grammars = make_world(late=True)
    grammars.prepare("minnow", alternating(text)).looks_left = looks
    request = world.submit("minnow", 9, 40, grammar=alternating(text))
    for _ in range(3):
        world.step()
    world.run()
    if text == "bad":
        assert world.refused[request].field == "grammar"
    else:
        assert_complete(world, request, 5)
    world.assert_empty()


def test_grammar_that_is_none_is_refused() -> None:
    """At once where it is known, else when the thread has found out; the refusal names the field."""
    world, grammars = make_world(late=True)
    late = world.submit("minnow", 9, 40, grammar=alternating("bad"))
    assert late not in world.refused
    grammars.finish("bad")
    world.run()
    known = world.submit("minnow", 9, 40, grammar=alternating("bad"))
    world.run()
    for request in (late, known):
        assert world.refused[request].code is RefusalCode.INVALID
        assert (world.refused[request].message, world.refused[request].field) == ("it is bad", "grammar")
    world.assert_empty()


def test_output_that_cannot_go_on_ends_alone() -> None:
    """What a constraint cannot follow ends with an error that says so, after the tokens that it had; others go on."""
    world, _ = make_world()
    request = world.submit("minnow", 9, 40, n=2, grammar=alternating("3!"))
    other = world.submit("minnow", 9, 20)
    world.run()
    for output in (request, (request, 1)):
        assert world.finished[output] is FinishReason.ERROR
        end = world.outputs[output][-1]
        assert (end.message, end.field) == ("cannot be followed beyond 3 tokens: make it simpler", "grammar")
        assert len(world.tokens[output]) == 3
    world.assert_exact(other)
    assert world.finished[other] is FinishReason.LENGTH
    world.assert_empty()


@pytest.mark.parametrize("is_prepared_first", [False, True])
def test_request_waits_for_policy_and_grammar(is_prepared_first: bool) -> None:
    """It goes on when both are there, whichever comes first."""
    world, grammars = make_world(late=True)
    request = world.submit("carp", 9, 40, grammar=alternating("5"))
    world.step()
    for is_grammar in (is_prepared_first, not is_prepared_first):
        assert request not in world.outputs
        if is_grammar:
            grammars.finish("5")
        else:
            world.policy("carp")
        world.step()
    world.run()
    assert_complete(world, request, 5)


def test_policy_that_does_not_come_is_what_the_refusal_names() -> None:
    """A request whose grammar is ready and whose tenant is unknown waits as long as any other."""
    world, grammars = make_world(late=True)
    request = world.submit("carp", 9, 40, grammar=alternating("5"))
    grammars.finish("5")
    world.step()
    world.now += HOLD_SECONDS
    world.step()
    assert world.refused[request].code is RefusalCode.NO_POLICY


def test_grammar_that_takes_too_long_ends_the_wait() -> None:
    """After a while the request is refused, and the grammar's end is nobody's concern any more."""
    world, grammars = make_world(late=True)
    request = world.submit("minnow", 9, 40, grammar=alternating("5"))
    world.step()
    world.now += PREPARE_SECONDS
    world.step()
    assert world.refused[request].code is RefusalCode.UNAVAILABLE
    assert "grammar" in world.refused[request].message
    grammars.finish("5")
    world.run()
    world.assert_empty()


def test_cancelled_request_waits_for_nothing() -> None:
    """Its grammar may become ready afterwards."""
    world, grammars = make_world(late=True)
    request = world.submit("minnow", 9, 40, grammar=alternating("5"))
    world.step()
    world.cancel(request)
    grammars.finish("5")
    world.run()
    assert world.finished[request] is FinishReason.CANCELLED
    world.assert_empty()


def test_requests_that_wait_for_grammars_are_counted() -> None:
    """One tenant's can only be so many, as those that wait for a policy."""
    world, _ = make_world(late=True)
    for number in range(MAX_HELD + 1):
        last = world.submit("minnow", [1], 4, grammar=alternating(str(number % 50)))
    world.step()
    assert world.refused[last].code is RefusalCode.QUEUE_FULL
    assert len(world.refused) == 1


def test_beams_and_worlds_without_grammars_refuse_them() -> None:
    """A search follows no grammar, and a scheduler without grammars has none to follow."""
    world, _ = make_world()
    search = world.submit("minnow", 9, 8, beams=BeamParams(width=2), grammar=alternating("5"))
    bare = World()
    bare.policy("minnow")
    request: SequenceId = bare.submit("minnow", 9, 8, grammar=alternating("5"))
    for one, sequence in ((world, search), (bare, request)):
        one.run()
        assert (one.refused[sequence].code, one.refused[sequence].field) == (RefusalCode.INVALID, "grammar")
