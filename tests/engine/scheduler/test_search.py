"""Beam search in the engine: on shared blocks it finds what a search that keeps everything finds."""

import random
from dataclasses import replace

import pytest

from engine.errors import InvariantError
from engine.request import BeamParams, FinishReason, RefusalCode, SequenceId, TenantId
from tests.engine.fake_runner import distribution
from tests.engine.world import BLOCK_BYTES, Output, ShortOutputs, World

PROMPT = [(7 * place) % 900 for place in range(42)]
STOPS = frozenset(range(0, 1000, 9))


def outputs_of(world: World, request: SequenceId) -> list[Output]:
    """Return the keys of a request's outputs."""
    return [request, *((request, index) for index in range(1, world.requests[request].n))]


def assert_found(world: World, *requests: SequenceId) -> None:
    """Check that searches have ended by themselves, with all outputs, exact."""
    for request in requests:
        for output in outputs_of(world, request):
            assert world.finished[output] in (FinishReason.STOP, FinishReason.LENGTH)
            assert not world.outputs[output][-1].message
            assert world.tokens[output]
            world.assert_exact(output)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_finds_what_a_full_search_finds(seed: int, block_size: int, ahead: bool) -> None:
    """Random prompts, widths, penalties and stops, several at once, beside requests that sample."""
    chance = random.Random(seed)
    world = World(
        block_size=block_size,
        num_blocks=2048 // block_size,
        max_rows=40,
        budget=chance.randint(20, 64),
        ahead=ahead,
    )
    world.policy("minnow", blocks=2048 // block_size, max_running=40)
    mates, searches = [], []
    for _ in range(4):
        width = chance.randint(2, 6)
        beams = BeamParams(
            width=width,
            length_penalty=chance.choice((1.0, 0.0, -1.0, 2.0)),
            early_stopping=chance.random() < 0.5,
        )
        searches.append(
            world.submit(
                "minnow",
                [chance.randrange(1000) for _ in range(chance.randint(1, 50))],
                chance.choice((1, 2, chance.randint(3, 24))),
                n=chance.randint(1, width),
                beams=beams,
                stop_token_ids=chance.choice((frozenset(), STOPS)),
            )
        )
        mates.append(world.submit("minnow", chance.randint(1, 40), chance.randint(1, 20)))
        world.step()
    world.run()
    assert_found(world, *searches)
    for mate in mates:
        world.assert_exact(mate)
    world.assert_empty()


def test_beams_share_what_they_have_in_common() -> None:
    """The prompt is computed once and held once; each beam computes one token a step."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 12, beams=BeamParams(width=4))
    total = most = 0
    while world.step():
        assert world.plan is not None
        total += world.plan.num_tokens
        most = max(most, world.held("minnow"))
    _, num_steps = world.found(request)
    assert total == 42 + 4 * (num_steps - 1)
    assert most <= 42 // 4 + 4 * 4
    assert_found(world, request)


def test_reports_growth_step_by_step_and_hypotheses_at_the_end() -> None:
    """Nothing is seen before the end; what was generated is counted at once, and by tenant and core alike."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 10, n=2, beams=BeamParams(width=3), num_logprobs=0)
    world.run()
    news = world.outputs[request]
    assert news[0].admitted_max_tokens == 10
    assert [one.unseen_tokens for one in news] == [3] * 10
    assert all(not one.token_ids and one.finish_reason is None for one in news[:-1])
    assert world.scores[request] >= world.scores[request, 1]
    assert world.scheduler.output_tokens == 30
    assert world.scheduler.roster.tenant(TenantId("minnow")).output_tokens == 30
    for output in outputs_of(world, request):
        tokens = world.tokens[output]
        expected = [float(distribution([*PROMPT, *tokens[:place]])[token]) for place, token in enumerate(tokens)]
        assert world.logprobs[output] == expected
    assert_found(world, request)


def test_blocks_that_beams_share_are_metered_once() -> None:
    """One second a step: the meter shows what the account held, prompt and all, and not each beam's table in full."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    request = world.submit("minnow", PROMPT, 8, n=2, beams=BeamParams(width=4), namespace=b"")
    held = 0
    while world.step(1.0):
        if world.running():
            held += sum(world.scheduler.memory.pool.users(block) > 0 for block in range(64))
    metered = sum(world.outputs[output][-1].kv_byte_seconds for output in outputs_of(world, request)) / BLOCK_BYTES
    assert 0 < metered <= held + 8 * 4 + 4 * 4
    assert metered >= 8 * (42 // 4)
    assert world.outputs[request, 1][-1].kv_byte_seconds == 0.0


@pytest.mark.parametrize("namespace", [None, b""])
def test_the_prefix_cache_changes_nothing(namespace: bytes | None) -> None:
    """The same search again, on cached blocks of the first or without any."""
    world = World(block_size=4, budget=64, num_blocks=128)
    world.policy("minnow", blocks=128)
    again = []
    for _ in range(3):
        again.append(world.submit("minnow", PROMPT, 10, n=3, beams=BeamParams(width=5), namespace=namespace))
        world.run()
    assert_found(world, *again)
    assert (world.cached_tokens[again[2]] > 0) == (namespace is None)


def test_the_next_turn_finds_the_best_answer_cached() -> None:
    """A chat goes on with what the search returned: its blocks are in the tree."""
    world = World(block_size=2, budget=64, num_blocks=256)
    world.policy("minnow", blocks=256)
    request = world.submit("minnow", PROMPT, 10, beams=BeamParams(width=4))
    world.run()
    turn = world.submit("minnow", [*PROMPT, *world.tokens[request], 3, 4], 4)
    world.run()
    assert world.cached_tokens[turn] >= 42 + 8
    world.assert_exact(turn)


def test_a_search_through_a_share_group() -> None:
    """The head counts against the group, the beams against the tenant."""
    world = World(block_size=4, budget=64)
    world.policy("minnow", share_groups=("bank",))
    world.share("bank", PROMPT[:20])
    requests = [world.submit("minnow", PROMPT, 10, n=2, beams=BeamParams(width=4)) for _ in range(2)]
    world.run()
    assert_found(world, *requests)


def test_searches_run_one_after_the_other_where_only_one_fits() -> None:
    """By memory, by rows and by max_running; none is preempted, and beams never wait for each other."""
    for limits in ({"num_blocks": 30}, {"max_rows": 4}, {"max_running": 5}):
        max_running = limits.pop("max_running", 8)
        world = World(**{"block_size": 4, "budget": 64} | limits)  # type: ignore[arg-type]
        world.policy("minnow", blocks=world.shape.num_blocks, max_running=max_running)
        requests = [world.submit("minnow", PROMPT[: 21 + index], 12, beams=BeamParams(width=4)) for index in range(3)]
        while world.step():
            assert len(world.running()) <= 4
        assert world.scheduler.roster.num_preemptions == 0
        assert_found(world, *requests)
        world.assert_empty()


def test_a_search_gets_its_rows_in_a_crowd() -> None:
    """Single requests come all the time and would fill each row that gets free; the search has its turn."""
    world = World(block_size=4, num_blocks=256, max_rows=4, budget=64)
    world.policy("minnow", blocks=128, max_running=4)
    world.policy("whale", blocks=128, max_running=4)
    for _ in range(4):
        world.submit("whale", 5, 8)
        world.step(0.5)
        world.step(0.5)
    request = world.submit("minnow", PROMPT, 6, beams=BeamParams(width=4))
    for _ in range(60):
        world.submit("whale", 5, 8)
        world.step(0.5)
    assert_found(world, request)
    world.run()


def test_growth_of_others_never_takes_what_beams_were_promised() -> None:
    """In a pool where everybody outgrows what was predicted, samplers are preempted and the search is not."""
    world = World(block_size=4, num_blocks=40, max_rows=12)
    world.policy("minnow", blocks=40)
    world.policy("whale", blocks=40)
    for tenant in ("minnow", "whale"):
        world.scheduler.roster.tenant(TenantId(tenant)).lengths = ShortOutputs()
    search = world.submit("minnow", PROMPT[:13], 14, n=3, beams=BeamParams(width=3))
    others = [world.submit(tenant, 6, 40) for tenant in ("minnow", "whale", "whale", "minnow")]
    world.run()
    assert world.scheduler.roster.num_preemptions > 0
    assert world.outputs[search][-1].num_preemptions == 0
    assert_found(world, search)
    for other in others:
        world.assert_exact(other)


def test_a_sequence_without_its_reserve_steps_back_behind_a_search() -> None:
    """One that was preempted too often and then lost its reserve to a lowered limit: what beams have stays theirs."""
    world = World(block_size=4, num_blocks=64, budget=64)
    world.policy("minnow")
    sampler = world.submit("minnow", 8, 40)
    world.step()
    world.scheduler.roster.sequences[sampler].evictions = 3
    search = world.submit("minnow", PROMPT[:20], 12, n=2, beams=BeamParams(width=4))
    world.step()
    world.policy("minnow", blocks=20)
    world.run()
    assert world.outputs[search][-1].num_preemptions == 0
    assert world.outputs[sampler][-1].num_preemptions > 0
    assert_found(world, search)
    world.assert_exact(sampler)


def test_a_guarantee_takes_the_whole_search() -> None:
    """Another tenant claims what it was guaranteed: all beams leave, start again, find the same, and count once."""
    world = World(block_size=4, num_blocks=32, max_rows=12, budget=64)
    world.policy("whale", blocks=32)
    world.policy("minnow", blocks=32, soft=20)
    search = world.submit("whale", PROMPT[:20], 16, n=2, beams=BeamParams(width=5))
    for _ in range(6):
        world.step()
    counted = world.unseen[search]
    assert counted > 0
    claim = world.submit("minnow", 60, 12)
    world.step()
    assert len(world.running()) == 1
    world.run()
    assert world.outputs[search][-1].num_preemptions == 1
    assert_found(world, search)
    world.assert_exact(claim)
    world.assert_empty()


@pytest.mark.parametrize("soft", [5, 10, 20, 30])
def test_a_guarantee_takes_what_a_search_is_promised(soft: int) -> None:
    """A search that uses less than its tenant's guarantee, and is promised more than that, gives way at once."""
    world = World(block_size=4, num_blocks=64, budget=256)
    world.policy("whale", soft=soft)
    world.policy("minnow", soft=30)
    search = world.submit("whale", 8, 60, beams=BeamParams(width=3))
    for _ in range(3):
        world.step()
    account = world.scheduler.memory.accounts.get(TenantId("whale"))
    assert account is not None
    assert account.used <= soft < account.reserved
    minnow = world.submit("minnow", 100, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    world.run()
    assert_found(world, search)


def test_what_a_search_is_promised_costs_no_neighbour_within_the_guarantee() -> None:
    """The tenant's other sequences, which use less than its guarantee, go on when its search gives way."""
    world = World(block_size=4, num_blocks=64, budget=256)
    world.policy("whale", soft=20)
    world.policy("minnow", soft=30)
    search = world.submit("whale", 8, 60, beams=BeamParams(width=3))
    world.step()
    mate = world.submit("whale", 8, 24)
    for _ in range(3):
        world.step()
    minnow = world.submit("minnow", 100, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    assert world.running() == [mate]
    world.run()
    assert_found(world, search)
    world.assert_exact(mate)


def test_a_guarantee_takes_the_rows_of_a_search() -> None:
    """With every row taken by borrowers' beams, a tenant within its guarantee runs in the next step."""
    world = World(block_size=4, num_blocks=200, max_rows=8, budget=256)
    world.policy("whale", blocks=200)
    world.policy("minnow", soft=30)
    searches = [world.submit("whale", 8, 40, beams=BeamParams(width=4)) for _ in range(2)]
    for _ in range(3):
        world.step()
    assert len(world.running()) == 8
    minnow = world.submit("minnow", 100, 1)
    world.step()
    assert world.finished[minnow] is FinishReason.LENGTH
    world.run()
    assert_found(world, *searches)


def test_a_search_that_is_always_in_the_way_ends_with_what_it_has() -> None:
    """It needs more than guarantees leave it, and gives way each time they are claimed: not for ever."""
    world = World(block_size=4, num_blocks=32, max_rows=12, budget=64)
    world.policy("whale", blocks=32)
    world.policy("minnow", blocks=32, soft=20)
    search = world.submit("whale", PROMPT[:20], 16, n=2, beams=BeamParams(width=5))
    claims = []
    for round_number in range(4):
        for _ in range(4 + round_number):
            world.step()
        claims.append(world.submit("minnow", 60, 4))
        world.step()
        while claims[-1] not in world.finished:
            world.step()
    world.run()
    last = world.outputs[search][-1]
    assert last.num_preemptions == 4
    assert "kv_soft_bytes" in last.message
    for output in outputs_of(world, search):
        assert world.finished[output] is FinishReason.LENGTH
        assert 0 < len(world.tokens[output]) < 16
    assert world.unseen[search] == 5 * len(world.tokens[search])
    for claim in claims:
        world.assert_exact(claim)
    world.assert_empty()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("moment", range(1, 12))
def test_a_lowered_limit_takes_the_whole_search(moment: int, ahead: bool) -> None:
    """At any moment: its beams leave together, and it finds the same once the limit is raised again."""
    world = World(block_size=4, budget=16, num_blocks=64, ahead=ahead)
    world.policy("minnow", blocks=64)
    search = world.submit("minnow", PROMPT, 10, n=2, beams=BeamParams(width=4))
    mate = world.submit("minnow", 5, 30)
    for _ in range(moment):
        world.step()
    world.policy("minnow", blocks=20)
    for _ in range(3):
        world.step()
        assert world.held("minnow") <= 20
    assert world.running() == [mate]
    world.policy("minnow", blocks=64)
    world.run()
    assert_found(world, search)
    world.assert_exact(mate)
    world.assert_empty()


def test_a_limit_that_leaves_it_room_leaves_it_alone() -> None:
    """What was promised to the beams is theirs, and a newer request gives way instead."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT[:9], 12, beams=BeamParams(width=3))
    world.step()
    other = world.submit("minnow", 20, 20)
    for _ in range(2):
        world.step()
    world.policy("minnow", blocks=16)
    world.step()
    assert other not in world.running()
    world.run()
    assert world.outputs[search][-1].num_preemptions == 0
    assert_found(world, search)
    world.assert_exact(other)


def test_a_lowered_max_running_takes_the_whole_search() -> None:
    """Fewer rows than beams: it waits until it may run as a whole, or its time is over."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 20, n=2, beams=BeamParams(width=4))
    for _ in range(8):
        world.step()
    world.policy("minnow", max_running=3)
    world.step()
    assert not world.running()
    world.now += 100.0
    world.run()
    last = world.outputs[search][-1]
    assert world.finished[search] is FinishReason.LENGTH
    assert "max_running" in last.message
    assert world.unseen[search] == 4 * 8
    assert len(world.tokens[search]) == 8, "the best so far, of the run before"
    assert len(world.tokens[search, 1]) == 8
    world.assert_empty()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 7])
def test_a_cancel_ends_the_whole_search(num_steps: int, ahead: bool) -> None:
    """Queued, computing its prompt, or with its beams in flight: one end for each output, and nothing is left."""
    world = World(block_size=4, budget=16, ahead=ahead)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 20, n=3, beams=BeamParams(width=4))
    for _ in range(num_steps):
        world.step()
    world.cancel(search)
    world.run()
    assert {world.finished[output] for output in outputs_of(world, search)} == {FinishReason.CANCELLED}
    assert world.unseen[search] == world.scheduler.output_tokens
    world.assert_empty()


def test_a_cancel_of_one_output_is_not_for_searches() -> None:
    """They have no output to end before they end themselves."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 6, n=2, beams=BeamParams(width=3))
    for _ in range(3):
        world.step()
        for index in (0, 1):
            world.scheduler.cancel([search], FinishReason.STOP, index)
    world.run()
    assert_found(world, search)


def test_a_deadline_returns_the_best_so_far() -> None:
    """Finished and running hypotheses compete, with the reason why it ended."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 30, n=3, beams=BeamParams(width=4), deadline=world.now + 0.055)
    world.run()
    outputs = [world.outputs[output][-1] for output in outputs_of(world, search)]
    assert all("deadline" in one.message and one.finish_reason is FinishReason.LENGTH for one in outputs)
    assert {len(one.token_ids) for one in outputs} == {6}
    assert [one.score for one in outputs] == sorted((one.score for one in outputs), reverse=True)
    assert len({one.token_ids for one in outputs}) == 3
    world.assert_empty()


def test_a_tenant_without_policy_loses_its_search() -> None:
    """Parked as a whole, and ended when no policy comes; started again when one does."""
    world = World(block_size=4, budget=64)
    for returns in (True, False):
        world.policy("minnow")
        search = world.submit("minnow", PROMPT, 12, n=2, beams=BeamParams(width=4))
        for _ in range(4):
            world.step()
        world.update(removed=("minnow",))
        world.step()
        assert not world.running()
        if returns:
            world.policy("minnow")
            world.run()
            assert_found(world, search)
        else:
            world.now += 10.0
            world.run()
            assert {world.finished[output] for output in outputs_of(world, search)} == {FinishReason.ERROR}
    world.assert_empty()


def test_a_drain_lets_a_search_go_on() -> None:
    """What runs goes on."""
    world = World(block_size=4, budget=16)
    world.policy("minnow")
    search = world.submit("minnow", PROMPT, 12, n=2, beams=BeamParams(width=4))
    world.step()
    world.scheduler.drain(True)
    world.run()
    assert_found(world, search)


@pytest.mark.parametrize(
    ("n", "beams", "field"),
    [
        (1, BeamParams(width=1), "beam_width"),
        (1, BeamParams(width=0), "beam_width"),
        (1, BeamParams(width=-3), "beam_width"),
        (1, BeamParams(width=17), "beam_width"),
        (4, BeamParams(width=3), "n"),
        (0, BeamParams(width=3), "n"),
        (1, BeamParams(width=3, length_penalty=float("nan")), "length_penalty"),
        (1, BeamParams(width=3, length_penalty=float("inf")), "length_penalty"),
        (1, BeamParams(width=3, length_penalty=-11.0), "length_penalty"),
    ],
)
def test_refuses_what_makes_no_search(n: int, beams: BeamParams, field: str) -> None:
    """The refusal names the field; a width beyond the rows of the table can never run."""
    world = World(max_rows=16)
    world.policy("minnow", max_running=100)
    request = world.submit("minnow", 5, 5, n=n, beams=beams)
    world.run()
    assert (world.refused[request].code, world.refused[request].field) == (RefusalCode.INVALID, field)


def test_refuses_more_beams_than_may_run() -> None:
    """Beams run together or not at all; with the message come the numbers and the way out."""
    world = World(max_rows=100, budget=100)
    world.policy("minnow", max_running=100)
    request = world.submit("minnow", 5, 5, beams=BeamParams(width=65))
    world.run()
    assert "from 2 to 64" in world.refused[request].message
    world.policy("minnow", max_running=3)
    request = world.submit("minnow", 5, 5, beams=BeamParams(width=4))
    world.run()
    assert (world.refused[request].code, world.refused[request].field) == (RefusalCode.INVALID, "beam_width")
    assert "max_running" in world.refused[request].message


def test_refuses_what_can_never_fit() -> None:
    """All beams' blocks count; without max_tokens each beam gets what fits."""
    world = World(block_size=4, budget=64)
    world.policy("minnow", blocks=20)
    too_long = world.submit("minnow", 10, 16, beams=BeamParams(width=4))
    fits = world.submit("minnow", 10, 8, beams=BeamParams(width=4))
    too_wide = world.submit("minnow", 70, 0, beams=BeamParams(width=5))
    open_end = world.submit("minnow", 10, 0, beams=BeamParams(width=4))
    world.run()
    for refused in (too_long, too_wide):
        assert (world.refused[refused].code, world.refused[refused].field) == (RefusalCode.KV_LIMIT, "beam_width")
    assert "22 blocks" in world.refused[too_long].message
    assert world.granted[open_end] == (2 + 18 // 4) * 4 - 10
    assert_found(world, fits, open_end)


def test_an_open_end_is_not_for_all_the_memory() -> None:
    """What a search may need is reserved from the start, so without max_tokens it is not given everything."""
    world = World(num_blocks=4096, max_context=8192, budget=64)
    world.policy("minnow", blocks=4096, max_context_tokens=8192, max_output_tokens=8192)
    search = world.submit("minnow", 10, 0, beams=BeamParams(width=2))
    sampler = world.submit("minnow", 10, 0)
    world.step()
    assert world.granted == {search: 1024, sampler: 8182}
    world.cancel(search, sampler)


def test_a_search_counts_as_its_beams_in_the_queue() -> None:
    """Where three requests run and wait, a search with four beams is one too many, and so is one more behind it."""
    world = World()
    world.policy("minnow", max_running=4, max_queued=1)
    first = world.submit("minnow", 5, 30)
    world.step()
    fits = world.submit("minnow", 5, 5, beams=BeamParams(width=4))
    second = world.submit("minnow", 5, 5, beams=BeamParams(width=4))
    world.run()
    assert second in world.refused
    assert_found(world, fits)
    world.assert_exact(first)


def test_every_beams_token_is_charged() -> None:
    """The tenant's counter grows with all of them, so a search is no way around the order of service."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    tenant = world.scheduler.roster.tenant(TenantId("minnow"))
    world.submit("minnow", PROMPT, 10, beams=BeamParams(width=4))
    before = tenant.counter
    world.run()
    assert tenant.counter - before == 42 * tenant.prefill_cost + 40 * tenant.output_cost


def test_a_runner_that_returns_no_candidates_is_found_out() -> None:
    """A beam without log-probabilities must not pass for a sampled token."""
    world = World(block_size=4, budget=64)
    world.policy("minnow")
    world.submit("minnow", 5, 10, beams=BeamParams(width=3))
    plan = world.scheduler.plan()
    assert plan is not None
    result = world.runner.launch(plan).wait()
    with pytest.raises(InvariantError, match="log-probabilities"):
        world.scheduler.commit(plan, replace(result, logprobs=()))
