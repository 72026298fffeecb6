"""A request with several outputs as its reader sees it."""

import pytest

from engine.protocol import pb
from gateway.workers import generation as module
from gateway.workers.client import WorkerClient
from gateway.workers.errors import GenerationFailed, SlowConsumer
from gateway.workers.generation import Admitted, Delta, Event, Finished, Generation, OutputFinished
from tests.gateway.wire.scripted import ScriptedEngine, admitted, delta, finished, output_finished, until
from tests.gateway.workers.test_client import run

END = Finished(pb.FINISH_REASON_STOP, "", 3, 0, 2)


def submit(n: int = 2, **fields: object) -> pb.Submit:
    """Return a request for `n` outputs."""
    return pb.Submit(request_id="r", tenant="t", token_ids=[1, 2, 3], n=n, **fields)  # type: ignore[arg-type]


async def read(generation: Generation) -> list[Event]:
    """Return all events to the end."""
    return [event async for event in generation]


def test_each_output_ends_on_its_own() -> None:
    """Deltas and ends carry their output's index, in the order in which they came; the request's end is the last."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            stream = (await until(lambda: engine.submits))[0].stream
            for event, told in (
                (admitted(stream), Admitted(10)),
                (delta(stream, "b", index=1), Delta("b", 1)),
                (delta(stream, "a"), Delta("a")),
                (output_finished(stream, 1, "c"), OutputFinished(pb.FINISH_REASON_STOP, "c", 1)),
                (delta(stream, "d"), Delta("d")),
                (output_finished(stream, 0), OutputFinished(pb.FINISH_REASON_STOP, "", 0)),
                (finished(stream), END),
            ):
                await engine.say(event)
                assert await generation.next(10) == told
            assert await generation.next() is None
            assert generation.num_tokens == 3
        assert engine.cancels == []
        assert client.num_active == 0

    run(story)


def test_unread_text_is_joined_by_output() -> None:
    """What a slow reader left unread comes as one event an output, its end included, and in the order of its first."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit(3)) as generation:
            stream = (await until(lambda: engine.submits))[0].stream
            await engine.say(delta(stream, "x", index=2), delta(stream, "a"), delta(stream, "y", index=2))
            await engine.say(delta(stream, "b"), output_finished(stream, 0, "c", pb.FINISH_REASON_LENGTH))
            await engine.say(output_finished(stream, 1), output_finished(stream, 2), finished(stream))
            await until(lambda: generation.over)
            events = await read(generation)
        assert events == [
            OutputFinished(pb.FINISH_REASON_STOP, "xy", 2),
            OutputFinished(pb.FINISH_REASON_LENGTH, "abc", 0),
            OutputFinished(pb.FINISH_REASON_STOP, "", 1),
            END,
        ]

    run(story)


def test_mailbox_is_bounded_over_all_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound counts what is unread of all outputs together, and reading makes room."""
    monkeypatch.setattr(module, "MAX_UNREAD", 100)

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit(4)) as generation:
            stream = (await until(lambda: engine.submits))[0].stream
            for _ in range(3):
                await engine.say(*(delta(stream, "x" * 25, index=index) for index in range(4)))
                events = [await generation.next(10) for _ in range(4)]
                assert events == [Delta("x" * 25, index) for index in range(4)]
            await engine.say(*(delta(stream, "x" * 26, index=index) for index in range(4)))
            await until(lambda: engine.cancels == [stream])
            with pytest.raises(SlowConsumer):
                await read(generation)

    run(story)


@pytest.mark.parametrize("fields", [{"best_of": 3}, {"beam_search": pb.BeamSearch(width=2)}])
def test_what_comes_at_the_end_in_one_piece_is_never_too_much(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
) -> None:
    """Outputs that a worker keeps back to the end come in one message, which no reader could take in parts."""
    monkeypatch.setattr(module, "MAX_UNREAD", 100)

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit(**fields)) as generation:
            stream = (await until(lambda: engine.submits))[0].stream
            texts = [delta(stream, "x" * 99, index=index) for index in range(2)]
            await engine.say(*texts, output_finished(stream, 0), output_finished(stream, 1), finished(stream))
            await until(lambda: generation.over)
            whole = [OutputFinished(pb.FINISH_REASON_STOP, "x" * 99, index) for index in range(2)]
            assert await read(generation) == [*whole, END]

    run(story)


@pytest.mark.parametrize(
    "wrong",
    [
        [finished(1)],
        [output_finished(1, 0), finished(1, text="all")],
        [output_finished(1, 0), output_finished(1, 1, reason=pb.FINISH_REASON_ERROR), finished(1)],
        [output_finished(1, 0), output_finished(1, 1), finished(1, pb.FINISH_REASON_ERROR)],
        [delta(1, "x", index=2)],
        [output_finished(1, 7)],
        [output_finished(1, 0), delta(1, "late")],
    ],
)
def test_outputs_that_are_missing_or_too_many_fail_the_request(wrong: list[pb.Event]) -> None:
    """A worker that doesn't know of several outputs, or fails one, ends the request with an error, and no other."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation, client.submit(submit(1)) as other:
            await until(lambda: len(engine.submits) == 2)
            await engine.say(*wrong, finished(2))
            with pytest.raises(GenerationFailed):
                await read(generation)
            assert await other.next(10) == END
        assert engine.num_streams == 1

    run(story)


def test_one_leave_cancels_all_outputs() -> None:
    """Leaving sends one Cancel, whatever has ended before."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit(8)) as generation:
            stream = (await until(lambda: engine.submits))[0].stream
            await engine.say(output_finished(stream, 5, "a"))
            assert await generation.next(10) == OutputFinished(pb.FINISH_REASON_STOP, "a", 5)
        await until(lambda: engine.cancels == [stream])

    run(story)


def test_the_end_of_the_request_says_why_it_failed() -> None:
    """Outputs that a dead core ended say only that they failed; the error's text is that of the request's own end."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            await until(lambda: engine.submits)
            await engine.say(output_finished(1, 0), output_finished(1, 1, reason=pb.FINISH_REASON_ERROR))
            end = pb.Finished(reason=pb.FINISH_REASON_ERROR, detail="the core died of signal 9")
            await engine.say(pb.Event(stream=1, finished=end))
            with pytest.raises(GenerationFailed, match="signal 9"):
                await read(generation)
        assert engine.cancels == []

    run(story)
