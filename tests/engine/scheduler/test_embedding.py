"""Requests to embed: their prompt is computed, all of it, nothing is generated, and they leave nothing behind."""

import pytest

from engine.request import BeamParams, FinishReason, RefusalCode, SequenceId, TenantId
from tests.engine.fake_runner import embedding
from tests.engine.world import World

PROMPT = [(13 * place) % 900 for place in range(30)]


def assert_embedded(world: World, *requests: SequenceId) -> None:
    """Check that requests have their embeddings, and nothing else."""
    for request in requests:
        assert world.finished[request] is FinishReason.STOP
        assert world.embeddings[request] == embedding(list(world.requests[request].prompt))
        assert world.tokens[request] == []
        assert world.metered(request) == pytest.approx(world.held_seconds[request])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("budget", [1, 2, 3, 7, 64])
def test_prompts_of_any_length_in_chunks_of_any_size(budget: int, ahead: bool) -> None:
    """A last chunk of one token is no decode, be it the whole prompt; requests beside them get their tokens."""
    world = World(budget=budget, ahead=ahead)
    world.policy("minnow")
    plain = world.submit("minnow", PROMPT, 20)
    requests = [world.submit("minnow", PROMPT[:length], 0, embed=True) for length in (1, 2, 3, 4, 5, 8, 29)]
    other = world.submit("minnow", PROMPT[:7], 9)
    world.run()
    assert_embedded(world, *requests)
    for one in (plain, other):
        assert len(world.tokens[one]) == world.granted[one]
        world.assert_exact(one)
    world.assert_empty()


def test_admission_is_told_once_and_the_prompt_is_paid_for() -> None:
    """It is admitted as any request, its tenant pays for its prompt's tokens, and for no output."""
    world = World(budget=8)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 0, embed=True)
    world.run()
    assert world.granted[request] == 1  # at most; so that the admission is seen
    tenant = world.scheduler.roster.tenant(TenantId("minnow"))
    assert (tenant.prefill_tokens, tenant.output_tokens) == (len(PROMPT), 0)
    assert tenant.counter == pytest.approx(len(PROMPT) * tenant.prefill_cost)
    assert world.scheduler._commit.output_tokens == 0
    assert_embedded(world, request)


def test_nothing_is_taken_from_the_cache_nor_left_there() -> None:
    """Cached tokens have no hidden states; and a flood of texts to embed pushes nobody's prompt out of the cache."""
    world = World()
    world.policy("minnow")
    world.submit("minnow", PROMPT, 4)
    world.run()
    cached = world.cached("minnow")
    requests = [world.submit("minnow", [*PROMPT[:16], *range(place, place + 9)], 0, embed=True) for place in range(5)]
    requests.append(world.submit("minnow", PROMPT, 0, embed=True))
    world.run()
    assert_embedded(world, *requests)
    assert [world.cached_tokens[request] for request in requests] == [0] * len(requests)
    assert world.cached("minnow") == cached


def test_registered_prefixes_are_computed_too() -> None:
    """A share group's blocks are of no use to a request to embed."""
    world = World()
    world.share("bank", PROMPT[:16])
    world.policy("minnow", share_groups=("bank",))
    world.submit("minnow", PROMPT, 4)
    world.run()
    request = world.submit("minnow", PROMPT, 0, embed=True)
    world.run()
    assert world.cached_tokens[request] == 0
    assert_embedded(world, request)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_slabs", [0, 64])
def test_preempted_ones_start_again(ahead: bool, num_slabs: int) -> None:
    """Sums of an earlier run are not counted, and nothing is swapped for a request that must compute it all again."""
    world = World(budget=4, ahead=ahead, num_slabs=num_slabs)
    world.policy("minnow", slabs=num_slabs)
    requests = [world.submit("minnow", [*PROMPT, place], 0, embed=True) for place in range(3)]
    for count in (4, 6, 9):
        for _ in range(count):
            world.step()
        world.policy("minnow", blocks=0, slabs=num_slabs)
        world.step()
        world.policy("minnow", slabs=num_slabs)
    world.run()
    assert world.scheduler.roster.num_preemptions >= 2
    assert world.scheduler.roster.swapping.counts.num_swapped == 0
    assert_embedded(world, *requests)
    world.assert_empty()


def test_a_result_in_flight_counts_for_who_has_lost_its_place() -> None:
    """The last chunk was launched before the request was preempted: it ends with that, rather than start again."""
    world = World(budget=64, ahead=True)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 0, embed=True)
    world.step()
    world.policy("minnow", blocks=0)
    world.step()
    assert world.scheduler.roster.num_preemptions == 1
    assert_embedded(world, request)
    world.run()
    world.assert_empty()


def test_the_whole_context_may_be_prompt() -> None:
    """Nothing follows a prompt to embed, so that it may fill the context; one token more is refused."""
    world = World(num_blocks=64, block_size=4, max_context=64)
    world.policy("minnow", max_context_tokens=64, max_output_tokens=0)
    fits = world.submit("minnow", 64, 0, embed=True)
    beyond = world.submit("minnow", 65, 0, embed=True)
    world.run()
    assert_embedded(world, fits)
    assert world.refused[beyond].code is RefusalCode.CONTEXT_TOO_LONG
    assert world.refused[beyond].field == "prompt"


def test_it_must_fit_the_hard_limit() -> None:
    """A prompt that never fits is refused by name; one that fits exactly is embedded."""
    world = World(num_blocks=64, block_size=4)
    world.policy("minnow", blocks=8)
    fits = world.submit("minnow", 32, 0, embed=True)
    beyond = world.submit("minnow", 33, 0, embed=True)
    world.run()
    assert_embedded(world, fits)
    assert world.refused[beyond].code is RefusalCode.KV_LIMIT
    assert "no output" in world.refused[beyond].message


@pytest.mark.parametrize("ahead", [False, True])
def test_a_prompt_larger_than_the_pool(ahead: bool) -> None:
    """A streamed prompt is embedded like any other, and keeps nothing in host memory."""
    world = World(num_blocks=16, num_slabs=128, streams=True, budget=24, max_context=512, ahead=ahead)
    world.policy("whale", blocks=16, slabs=128, max_context_tokens=512)
    large = world.submit("whale", 301, 0, embed=True)
    small = world.submit("whale", 40, 0, embed=True)
    plain = world.submit("whale", 30, 10)
    world.run(5000)
    assert world.scheduler.roster.streaming.offloaded_blocks > 0
    assert_embedded(world, large, small)
    world.assert_exact(plain)
    world.assert_empty()
    assert all(account.num_claims == 0 for account in world.scheduler.memory.host.accounts())


def test_a_deadline_ends_it_without_an_embedding() -> None:
    """What is not whole is not returned."""
    world = World(budget=2)
    world.policy("minnow")
    late = world.submit("minnow", PROMPT, 0, embed=True, deadline=world.now + 0.05)
    world.run()
    assert world.finished[late] is FinishReason.LENGTH
    assert late not in world.embeddings
    assert "deadline" in world.outputs[late][-1].message.lower()
    world.assert_empty()


def test_a_client_that_leaves_while_the_last_chunk_runs() -> None:
    """Its result is nobody's."""
    world = World(budget=64, ahead=True)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 0, embed=True)
    world.step()
    world.cancel(request)
    world.run()
    assert world.finished[request] is FinishReason.CANCELLED
    assert request not in world.embeddings
    world.assert_empty()


def test_a_session_keeps_nothing_of_it() -> None:
    """It may be of a session, whose turns go on as before."""
    world = World()
    world.policy("minnow")
    first = world.submit("minnow", PROMPT, 4, session="chat")
    world.run()
    embedded = world.submit("minnow", PROMPT[::-1], 0, embed=True, session="chat")
    world.run()
    assert_embedded(world, embedded)
    turn = world.submit("minnow", [*PROMPT, *world.tokens[first], 1, 2, 3], 4, session="chat")
    world.run()
    assert world.cached_tokens[turn] >= 32


@pytest.mark.parametrize("asked", [{"n": 2}, {"beams": BeamParams(width=2)}])
def test_several_outputs_of_one_embedding_are_refused(asked: dict[str, object]) -> None:
    """There is one vector."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 0, embed=True, **asked)  # type: ignore[arg-type]
    world.run()
    assert world.refused[request].code is RefusalCode.INVALID
