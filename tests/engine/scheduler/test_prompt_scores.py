"""Log-probabilities of a prompt's tokens: each is told once, in order, before anything is generated."""

import pytest

from engine.request import BeamParams, FinishReason, RefusalCode, SequenceId, TenantId
from engine.scheduler import portions
from engine.scheduler.sizing import MAX_PROMPT_SCORES
from tests.engine.fake_runner import prompt_scores
from tests.engine.world import ShortOutputs, World

PROMPT = [(11 * place) % 900 for place in range(30)]


def assert_told(world: World, request: SequenceId) -> None:
    """Check that all of a prompt's tokens have been told of, and that the request is exact."""
    asked, prompt = world.requests[request].sampling.prompt_logprobs, list(world.requests[request].prompt)
    assert world.prompt_scores[request] == prompt_scores(prompt, asked)
    world.assert_exact(request)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("budget", [1, 3, 8, 64])
def test_every_token_of_the_prompt_is_told_once(budget: int, ahead: bool) -> None:
    """Wherever chunks end, beside requests that do not ask, and beside log-probabilities of what is generated."""
    world = World(budget=budget, ahead=ahead)
    world.policy("minnow")
    asks = world.submit("minnow", PROMPT, 6, prompt_logprobs=3, num_logprobs=2)
    alone = world.submit("minnow", PROMPT[:9], 6, prompt_logprobs=0)
    quiet = world.submit("minnow", PROMPT[:17], 6)
    world.run()
    assert_told(world, asks)
    assert_told(world, alone)
    assert [len(top) for top in world.tops[asks]] == [2] * 6
    assert world.prompt_scores[quiet] == []
    world.assert_exact(quiet)


@pytest.mark.parametrize("length", [1, 2])
def test_nothing_precedes_the_first_token(length: int) -> None:
    """A prompt of one token has nothing to tell, and one of two has one."""
    world = World()
    world.policy("minnow")
    request = world.submit("minnow", PROMPT[:length], 3, prompt_logprobs=1)
    world.run()
    assert len(world.prompt_scores[request]) == length - 1
    assert_told(world, request)


def test_what_must_be_seen_is_not_taken_from_the_cache() -> None:
    """A prompt that is cached is computed for who wants its log-probabilities; what it computes others can use."""
    world = World()
    world.policy("minnow")
    world.submit("minnow", PROMPT, 4)
    world.run()
    asks = world.submit("minnow", PROMPT, 4, prompt_logprobs=0)
    world.run()
    assert world.cached_tokens[asks] == 0
    assert_told(world, asks)
    other = [*PROMPT[:16], *range(600, 620)]
    asks = world.submit("minnow", other, 4, prompt_logprobs=0)
    world.run()
    assert_told(world, asks)
    plain = world.submit("minnow", other, 4)
    world.run()
    assert world.cached_tokens[plain] >= 32


def test_a_registered_prefix_is_computed_too() -> None:
    """A share group's blocks are not used where their tokens' log-probabilities are wanted, nor is its account."""
    world = World()
    world.share("bank", PROMPT[:16])
    world.policy("minnow", share_groups=("bank",))
    world.submit("minnow", PROMPT, 4)
    world.run()
    asks = world.submit("minnow", PROMPT, 20, prompt_logprobs=0)
    for _ in range(4):
        world.step()
    sequence = world.scheduler.roster.sequences[asks]
    assert sequence.table is not None and sequence.table.num_head == 0
    world.run()
    assert_told(world, asks)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_slabs", [0, 64])
def test_preemption_in_mid_prompt_tells_nothing_twice(ahead: bool, num_slabs: int) -> None:
    """A request that loses its blocks goes on behind what it has told, on what is still known of that part."""
    world = World(budget=4, ahead=ahead, num_slabs=num_slabs)
    world.policy("minnow", slabs=num_slabs)
    asks = [world.submit("minnow", [*PROMPT, place], 8, prompt_logprobs=1) for place in range(3)]
    for count in (4, 6, 9):
        for _ in range(count):
            world.step()
        world.policy("minnow", blocks=0, slabs=num_slabs)
        world.step()
        world.policy("minnow", slabs=num_slabs)
    world.run()
    assert world.scheduler.roster.num_preemptions >= 3
    for request in asks:
        assert_told(world, request)


def test_a_prompt_that_is_told_is_cached_as_any() -> None:
    """Once all of it is told, a preempted request takes its prompt from the cache."""
    world = World(budget=64)
    world.policy("minnow")
    asks = world.submit("minnow", PROMPT, 20, prompt_logprobs=0)
    for _ in range(5):
        world.step()
    world.policy("minnow", blocks=5)
    world.step()
    sequence = world.scheduler.roster.sequences[asks]
    assert sequence.table is None and sequence.reusable == len(sequence.tokens) - 1
    assert world.cached("minnow") == 5
    world.policy("minnow")
    before = world.scheduler._commit.prompt_tokens
    world.run()
    assert world.scheduler._commit.prompt_tokens - before < len(PROMPT) - 10
    assert_told(world, asks)


@pytest.mark.parametrize("ahead", [False, True])
def test_several_outputs_have_one_prompt(ahead: bool) -> None:
    """The prompt is told once, before any output's first token, even where the first output loses its place."""
    world = World(budget=6, num_blocks=24, ahead=ahead)
    world.policy("minnow", blocks=24)
    world.scheduler.roster.tenant(TenantId("minnow")).lengths = ShortOutputs()
    request = world.submit("minnow", PROMPT, 12, n=4, prompt_logprobs=2, num_logprobs=1)
    for _ in range(3):
        world.step()
    world.policy("minnow", blocks=0)
    world.step()
    world.policy("minnow", blocks=24)
    world.run()
    assert_told(world, request)
    for index in range(1, 4):
        world.assert_exact((request, index))
        assert len(world.tops[request, index]) == 12


def test_a_beam_search_tells_its_prompt_and_its_best() -> None:
    """The prompt's come while it searches, those of the beams whole with the end; the search itself stays the same."""
    world = World(num_blocks=64)
    world.policy("minnow", blocks=64)
    beams = BeamParams(width=3)
    asks = world.submit("minnow", PROMPT, 8, n=2, beams=beams, prompt_logprobs=1, num_logprobs=9)
    quiet = world.submit("minnow", PROMPT, 8, n=2, beams=beams)
    world.run()
    assert_told(world, asks)
    for key, other in ((asks, quiet), ((asks, 1), (quiet, 1))):
        world.assert_exact(key)
        assert world.tokens[key] == world.tokens[other]
        assert [len(top) for top in world.tops[key]] == [9] * len(world.tokens[key])
        chosen = [dict(top).get(token) for token, top in zip(world.tokens[key], world.tops[key], strict=True)]
        assert all(one in (None, logprob) for one, logprob in zip(chosen, world.logprobs[key], strict=True))
        assert not world.tops[other]


def test_a_client_that_leaves_in_mid_prompt() -> None:
    """What was in flight for it is dropped, and others go on."""
    world = World(budget=4, ahead=True)
    world.policy("minnow")
    gone = world.submit("minnow", PROMPT, 8, prompt_logprobs=1)
    stays = world.submit("minnow", PROMPT[:20], 8, prompt_logprobs=1)
    for _ in range(3):
        world.step()
    world.cancel(gone)
    world.run()
    assert world.finished[gone] is FinishReason.CANCELLED
    assert_told(world, stays)
    world.assert_empty()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_prompt_larger_than_the_pool(ahead: bool) -> None:
    """A streamed prompt is told of like any other."""
    world = World(num_blocks=16, num_slabs=128, streams=True, budget=24, max_context=512, ahead=ahead)
    world.policy("whale", blocks=16, slabs=128, max_context_tokens=512)
    request = world.submit("whale", 200, 20, prompt_logprobs=1)
    world.run(5000)
    assert world.scheduler.roster.streaming.offloaded_blocks > 0
    assert_told(world, request)
    world.assert_empty()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_tells_of_so_many_at_most(monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    """Whoever asks for many beside each token has shorter chunks; a prompt that nobody asks about goes on beside it."""
    monkeypatch.setattr(portions, "STEP_SCORES", 40)
    world = World(budget=64, ahead=ahead)
    world.policy("minnow")
    asks = [world.submit("minnow", PROMPT, 4, prompt_logprobs=count) for count in (0, 9, 3, 20)]
    plain = world.submit("minnow", 60, 4)
    while world.step():
        parts = [] if world.plan is None else world.plan.sequences
        told = [part for part in parts if part.options is not None and part.options.prompt_logprobs >= 0]
        assert sum(len(part.token_ids) * (1 + part.options.prompt_logprobs) for part in told if part.options) <= 40
    for request in asks:
        assert_told(world, request)
    world.assert_exact(plain)


def test_too_many_are_refused() -> None:
    """The whole of what is asked for is bounded, and the refusal says by what."""
    world = World(num_blocks=64, max_context=4096)
    world.policy("minnow", max_context_tokens=4096)
    most = MAX_PROMPT_SCORES // 129
    request = world.submit("minnow", [1] * (most + 1), 4, prompt_logprobs=128)
    world.run()
    assert world.refused[request].code is RefusalCode.INVALID
    assert world.refused[request].field == "prompt_logprobs"
    assert str(MAX_PROMPT_SCORES) in world.refused[request].message
