"""Requests with several outputs, in whatever order a core runs them: every output whole, every token counted once."""

from hypothesis import given
from hypothesis import strategies as st

from engine import ipc
from engine.protocol import pb
from tests.engine.front.conftest import Run
from tests.engine.front.dispatching import Client, Front
from tests.engine.front.output_scripts import END_TOKEN, STORIES, Core, characters, expected, play, scripts


@given(data=st.data(), **STORIES)
def test_any_interleaving_gives_every_output_whole(
    front: Front, run: Run, data: st.DataObject, stops: list[str], order: list[tuple[list[int], int]], delay: int
) -> None:
    """Whatever the order of tokens, ends and cancels: each output gets its tokens, its text up to the first stop string
    and one end; the request one end after all of them; and the usage counts what they have, once.
    """
    outputs = data.draw(scripts(characters(front)))
    wanted = [expected(front, script, stops) for script in outputs]

    async def story() -> None:
        client = Client(front)
        sampling = pb.Sampling(top_p=1, stop=stops, stop_token_ids=[END_TOKEN])
        core = Core(client.submit(n=len(outputs), sampling=sampling), outputs, delay)
        await play(front, client, core, order)
        await client.end()
        assert [client.of(index) for index in range(len(outputs))] == [
            (t, text, [reason]) for t, text, reason in wanted
        ]
        (end,) = client.ends()
        assert client.events[-1] == end
        assert [event.HasField("admitted") for event in client.events].count(True) == 1
        total = sum(len(token_ids) for token_ids, _, _ in wanted)
        assert end.finished.usage == pb.Usage(prompt_tokens=3, cached_tokens=2, completion_tokens=total)
        record = await client.record()
        assert (record.prompt_tokens, record.completion_tokens, record.num_preemptions) == (3, total, len(outputs))
        assert record.finish_reason == end.finished.reason == max(reason for _, _, reason in wanted)

    run(story())


@given(data=st.data(), num_best=st.integers(1, 4), **STORIES)
def test_best_outputs_come_back_best_first(
    front: Front,
    run: Run,
    data: st.DataObject,
    num_best: int,
    stops: list[str],
    order: list[tuple[list[int], int]],
    delay: int,
) -> None:
    """`best_of` tells nothing until all have ended, then the outputs of the highest mean log-probability a token, each
    whole; what was dropped is counted.
    """
    outputs = data.draw(scripts(characters(front)))
    num_best = min(num_best, len(outputs) - 1)
    wanted = [expected(front, script, stops) for script in outputs]
    means = [
        sum(script.logprobs[: len(token_ids)]) / len(token_ids)
        for script, (token_ids, _, _) in zip(outputs, wanted, strict=True)
    ]
    best = sorted(range(len(outputs)), key=lambda index: -means[index])[:num_best]

    async def story() -> None:
        client = Client(front)
        sampling = pb.Sampling(top_p=1, stop=stops, stop_token_ids=[END_TOKEN])
        core = Core(client.submit(n=num_best, best_of=len(outputs), sampling=sampling), outputs, delay)
        await play(front, client, core, order)
        await client.end()
        for rank, index in enumerate(best):
            token_ids, text, reason = wanted[index]
            assert client.of(rank) == (token_ids, text, [reason] if num_best > 1 else [])
        assert {event.index for event in client.events} == set(range(num_best))
        (end,) = client.ends()
        total = sum(len(token_ids) for token_ids, _, _ in wanted)
        assert (end.finished.usage.completion_tokens, end.finished.text) == (total, "")
        assert end.finished.reason == max(wanted[index][2] for index in best)
        assert (await client.record()).completion_tokens == total

    run(story())


@given(
    data=st.data(),
    stop_after=st.integers(0, 8),
    way=st.sampled_from(["cancel", "leave", "core dies"]),
    ranked=st.booleans(),
    **STORIES,
)
def test_requests_that_are_broken_off_count_what_was_told(
    front: Front,
    run: Run,
    data: st.DataObject,
    stop_after: int,
    way: str,
    ranked: bool,
    stops: list[str],
    order: list[tuple[list[int], int]],
    delay: int,
) -> None:
    """A cancel, a broken connection or a dead core in any phase: one record with what was counted until then, at most
    one end an output, and an end of the request if somebody is there to hear it.
    """
    outputs = data.draw(scripts(characters(front)))

    async def story() -> None:
        client = Client(front)
        fields = {"best_of": len(outputs)} if ranked else {"n": len(outputs)}
        core = Core(client.submit(sampling=pb.Sampling(top_p=1, stop=stops), **fields), outputs, delay)
        await play(front, client, core, order, until=stop_after)
        ended = all(not script.news for script in outputs)
        if way == "cancel":
            front.dispatcher.cancel(client.connection, 1)
            core.cancels += [(core.step, frame) for frame in front.sent if isinstance(frame, ipc.CancelFrame)]
            await play(front, client, core, order[stop_after:])
            await client.end()
        elif way == "leave":
            await client.close()
            assert all(frame.handles == [core.handle] for frame in front.sent if isinstance(frame, ipc.CancelFrame))
        else:
            front.dispatcher.end_all("the core is gone")
            await client.end()
        record = await client.record()
        given_tokens = sum(script.given for script in outputs)
        assert client.tokens() <= record.completion_tokens <= given_tokens
        assert len(client.ends()) == (1 if way != "leave" else len(client.ends())) <= 1
        for index in range(len(outputs)):
            assert len(client.of(index)[2]) <= 1
        if way == "core dies" and not ended and not ranked:
            assert client.ends()[0].finished.reason in (record.finish_reason, pb.FINISH_REASON_ERROR)
            assert client.tokens() == record.completion_tokens
        front.sent.clear()
        assert front.meter.in_use == 0

    run(story())
