"""What is taken, held and refused, and how requests end that nobody serves."""

import pytest

from engine.errors import ProtocolError
from engine.request import BeamParams, FinishReason, GenerationRequest, RefusalCode, RequestId, SequenceId, TenantId
from engine.scheduler.intake import MAX_HELD
from tests.engine.world import World


@pytest.mark.parametrize(
    ("prompt", "sampling", "field"),
    [
        ([], {}, "prompt"),
        ([3, -1], {}, "prompt"),
        ([3, 1000], {}, "prompt"),
        ([3], {"temperature": float("nan")}, "temperature"),
        ([3], {"temperature": -0.1}, "temperature"),
        ([3], {"top_p": 0.0}, "top_p"),
        ([3], {"top_p": float("nan")}, "top_p"),
        ([3], {"top_k": -1}, "top_k"),
        ([3], {"num_logprobs": 129}, "logprobs"),
        ([3], {"num_logprobs": -2}, "logprobs"),
        ([3], {"max_tokens": -1}, "max_tokens"),
    ],
)
def test_refuses_a_malformed_request(prompt: list[int], sampling: dict[str, float], field: str) -> None:
    """A request that no model could serve is invalid, and the answer names the field."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", prompt, **sampling)
    assert not world.step()
    assert world.refused[request].code is RefusalCode.INVALID
    assert world.refused[request].field == field
    world.assert_empty()


def test_refuses_what_exceeds_the_context_with_its_numbers() -> None:
    """Prompt and output together must fit the smaller of the model's and the policy's context."""
    world = World(max_context=256)
    world.policy("minnow", max_context_tokens=100)
    too_long, fits = world.submit("minnow", 90, 11), world.submit("minnow", 90, 10)
    prompt_too_long = world.submit("minnow", 100, 0)
    world.run()
    refusal = world.refused[too_long]
    assert refusal.code is RefusalCode.CONTEXT_TOO_LONG
    assert refusal.field == "max_tokens"
    assert "101" in refusal.message
    assert "100" in refusal.message
    assert world.refused[prompt_too_long].field == "prompt"
    assert world.finished[fits] is FinishReason.LENGTH


def test_refuses_what_can_never_fit_the_hard_limit_with_its_bytes() -> None:
    """Blocks for prompt and max_tokens above the ceiling: refused at once, limit and need named in bytes."""
    world = World(block_size=4)
    world.policy("minnow", blocks=5)
    too_large, fits = world.submit("minnow", 13, 8), world.submit("minnow", 12, 8)
    world.run()
    refusal = world.refused[too_large]
    assert refusal.code is RefusalCode.KV_LIMIT
    assert "600 bytes" in refusal.message
    assert "500 bytes" in refusal.message
    assert len(world.tokens[fits]) == 8


def test_refuses_what_can_never_fit_the_pool() -> None:
    """A hard limit above the pool does not help."""
    world = World(block_size=4, num_blocks=5)
    world.policy("minnow", blocks=1000)
    request = world.submit("minnow", 20, 8)
    world.run()
    assert world.refused[request].code is RefusalCode.KV_LIMIT
    assert "500 bytes in all" in world.refused[request].message


@pytest.mark.parametrize(
    ("changes", "granted"),
    [({}, 246), ({"max_output_tokens": 30}, 30), ({"max_context_tokens": 50}, 40), ({"blocks": 6}, 14)],
)
def test_an_open_request_gets_all_that_limits_leave(changes: dict[str, int], granted: int) -> None:
    """Without max_tokens the grant is the least of context, output limit and hard limit."""
    world = World(block_size=4)
    world.policy("minnow", **changes)  # type: ignore[arg-type]
    request = world.submit("minnow", 10, 0)
    world.run()
    assert world.granted[request] == granted
    assert len(world.tokens[request]) == granted
    assert world.finished[request] is FinishReason.LENGTH


def test_an_explicit_max_tokens_is_cut_to_the_output_limit() -> None:
    """The grant says what a request may generate, all limits applied."""
    world = World()
    world.policy("minnow", max_output_tokens=5)
    request = world.submit("minnow", 10, 50)
    world.run()
    assert world.granted[request] == len(world.tokens[request]) == 5


def test_refuses_above_the_queue_limit() -> None:
    """A tenant has max_running and max_queued places; the next request is told so, other tenants are not."""
    world = World()
    world.policy("whale", max_running=2, max_queued=3)
    world.policy("minnow")
    requests = [world.submit("whale", 4) for _ in range(6)]
    other = world.submit("minnow", 4)
    world.run()
    assert [request in world.refused for request in requests] == [False] * 5 + [True]
    refusal = world.refused[requests[-1]]
    assert refusal.code is RefusalCode.QUEUE_FULL
    assert "max_queued 3" in refusal.message
    assert world.finished[other] is FinishReason.LENGTH


def test_holds_a_request_until_its_policy_comes() -> None:
    """A request ahead of its tenant's policy waits for it, and holds up nobody."""
    world = World()
    world.policy("whale")
    early = world.submit("minnow", 4)
    other = world.submit("whale", 4)
    world.run()
    assert world.finished[other] is FinishReason.LENGTH
    assert not world.outputs[early]
    world.policy("minnow")
    world.run()
    assert world.finished[early] is FinishReason.LENGTH
    world.assert_exact(early)


def test_holds_a_request_until_the_version_it_was_made_under() -> None:
    """A request that carries a newer policy version runs under that version, not under an older one."""
    world = World()
    world.policy("minnow", max_output_tokens=3)
    request = world.submit("minnow", 4, 9, policy_version=2)
    world.run()
    assert not world.outputs[request]
    world.policy("minnow", max_output_tokens=7)
    world.run()
    assert world.granted[request] == 7


def test_refuses_a_held_request_after_five_seconds() -> None:
    """Without a policy in time the request is refused, and the timer says when to look."""
    world = World()
    request = world.submit("stranger", 4)
    assert not world.step()
    assert world.scheduler.next_timer() == pytest.approx(world.now + 5.0)
    world.now += 4.9
    world.step()
    assert request not in world.refused
    world.now += 0.2
    world.step()
    assert world.refused[request].code is RefusalCode.NO_POLICY
    assert "stranger" in world.refused[request].message
    assert world.scheduler.next_timer() is None
    assert not world.scheduler.roster.tenants


def test_a_queued_request_ends_at_its_deadline() -> None:
    """Nobody is left waiting past a deadline: never run, it is refused; running, it ends with what it has."""
    world = World()
    world.policy("minnow", max_running=1)
    running = world.submit("minnow", 4, 100, deadline=world.now + 1.0)
    queued = world.submit("minnow", 4, 4, deadline=world.now + 0.5)
    world.step()
    world.now += 0.6
    world.step()
    assert world.refused[queued].code is RefusalCode.UNAVAILABLE
    assert "deadline" in world.refused[queued].message
    world.now += 0.6
    world.run()
    assert world.finished[running] is FinishReason.LENGTH
    assert "deadline" in world.outputs[running][-1].message
    world.assert_exact(running)
    world.assert_empty()


def test_draining_takes_nothing_new_and_finishes_what_is_there() -> None:
    """Drained: running and queued requests go on, new ones are refused until draining ends."""
    world = World()
    world.policy("minnow", max_running=1)
    first, second = world.submit("minnow", 4), world.submit("minnow", 4)
    world.step()
    world.scheduler.drain(True)
    late = world.submit("minnow", 4)
    world.run()
    assert world.refused[late].code is RefusalCode.DRAINING
    assert set(world.finished) == {first, second}
    world.scheduler.drain(False)
    again = world.submit("minnow", 4)
    world.run()
    assert again in world.finished


def test_a_sequence_id_in_use_is_misuse() -> None:
    """Two requests under one id would mix up their tokens."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", 4)
    twin = GenerationRequest(request_id=RequestId("x"), tenant=TenantId("minnow"), namespace=b"", prompt=[1])
    with pytest.raises(ProtocolError, match="in use"):
        world.scheduler.submit(SequenceId(request), twin)
    world.run()
    world.assert_exact(request)


def test_cancel_works_in_every_state() -> None:
    """Held, queued, in the middle of a prefill or of a decode: a cancel ends the request before the next step."""
    world = World(budget=8)
    world.policy("minnow", max_running=2)
    decoding = world.submit("minnow", 4, 100)
    world.step()
    prefilling = world.submit("minnow", 60, 4)
    world.step()
    queued, held = world.submit("minnow", 4), world.submit("stranger", 4)
    assert set(world.running()) == {decoding, prefilling}
    world.cancel(decoding, prefilling, queued, held, SequenceId(999))
    assert not world.step()
    assert set(world.finished.values()) == {FinishReason.CANCELLED}
    assert set(world.finished) == {decoding, prefilling, queued, held}
    world.cancel(decoding)
    world.assert_empty()


def test_a_removed_tenant_stops_at_the_next_plan() -> None:
    """Without a policy nothing is granted: blocks go back at once, and requests end when no policy returns."""
    world = World()
    world.policy("minnow", max_running=1)
    running, queued = world.submit("minnow", 4, 50), world.submit("minnow", 4, 50)
    for _ in range(3):
        world.step()
    world.update(removed=("minnow",))
    assert not world.step()
    assert world.held("minnow") == 0
    world.now += 5.1
    world.step()
    assert world.finished[running] is FinishReason.ERROR
    assert world.refused[queued].code is RefusalCode.NO_POLICY
    world.assert_exact(running)
    world.assert_empty()


def test_a_returning_policy_lets_requests_go_on() -> None:
    """A tenant that was removed and is back in time loses nothing but time."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", 4, 20)
    world.step()
    world.update(removed=("minnow",))
    world.step()
    world.policy("minnow")
    world.run()
    assert len(world.tokens[request]) == 20
    world.assert_exact(request)


def test_an_older_policy_changes_nothing() -> None:
    """Policies are ordered by version and epoch; what is not newer is answered with what is in force."""
    world = World()
    world.policy("minnow", max_output_tokens=3)
    world.policy("minnow", max_output_tokens=9)
    world._version = 0
    world.policy("minnow", max_output_tokens=4)
    request = world.submit("minnow", 4, 20)
    world.run()
    assert world.granted[request] == 9


def test_end_of_turn_and_stop_ids_end_a_request() -> None:
    """An end-of-turn token stops a request unless it ignores them; a stop id of its own stops it always."""
    world = World()
    world.policy("minnow")
    probe = world.submit("minnow", [7, 8, 9], 40, seed=3)
    world.run()
    tokens = world.tokens[probe]
    stop = tokens[5]
    other = World(eos=(stop,))
    other.policy("minnow")
    stops = other.submit("minnow", [7, 8, 9], 40, seed=3)
    ignores = other.submit("minnow", [7, 8, 9], 40, seed=3, ignore_eos=True)
    own = other.submit("minnow", [7, 8, 9], 40, seed=3, ignore_eos=True, stop_token_ids=frozenset({tokens[2]}))
    other.run()
    assert other.tokens[stops] == tokens[: tokens.index(stop) + 1]
    assert other.finished[stops] is FinishReason.STOP
    assert other.tokens[ignores] == tokens
    assert other.tokens[own] == tokens[: tokens.index(tokens[2]) + 1]


def test_what_is_held_is_counted_in_outputs() -> None:
    """Without a policy there is no queue limit, so that many outputs or beams a request count as so many requests."""
    world = World(max_rows=64)
    taken = [world.submit("stranger", 4, n=100) for _ in range(10)]
    late = world.submit("stranger", 4, n=25)
    wide = world.submit("stranger", 4, beams=BeamParams(width=25))
    taken.append(world.submit("stranger", 4, n=20))
    taken += [world.submit("stranger", 4) for _ in range(4)]
    last = world.submit("stranger", 4)
    world.step()
    assert set(world.refused) == {late, wide, last}
    assert {refusal.code for refusal in world.refused.values()} == {RefusalCode.QUEUE_FULL}
    assert "1024 outputs" in world.refused[last].message
    assert world.scheduler.roster.tenant(TenantId("stranger")).num_held == MAX_HELD
    world.cancel(taken[0])
    again = world.submit("stranger", 4, n=100)
    world.policy("stranger", max_queued=1100)
    world.step()
    assert again not in world.refused
    assert world.scheduler.roster.tenant(TenantId("stranger")).num_held == 0
