"""The engine client against a scripted engine over a real socket."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.protocol import pb
from gateway.workers import generation as module
from gateway.workers.client import Dial, WorkerClient
from gateway.workers.errors import GenerationFailed, Refused, SlowConsumer, WorkerUnavailable
from gateway.workers.generation import Admitted, Delta, Finished
from tests.gateway.wire.scripted import TOKEN, ScriptedEngine, admitted, delta, finished, refused, serving, until

Story = Callable[[ScriptedEngine, WorkerClient], Coroutine[Any, Any, None]]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ScriptedEngine, WorkerClient]]:
    """A scripted engine and a client connected to it."""
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        async with serving(Path(folder)) as engine:

            async def take_card(card: pb.ModelCard) -> None:
                assert card.model == "scripted"

            client = WorkerClient(Dial(address=engine.address, token=TOKEN), take_card)
            client.start()
            try:
                async with asyncio.timeout(60):
                    await client.connected.wait()
                yield engine, client
            finally:
                await client.stop()


def run(story: Story) -> None:
    """Run a story."""

    async def main() -> None:
        async with connected() as (engine, client):
            await story(engine, client)

    asyncio.run(main())


def submit() -> pb.Submit:
    """Return some request."""
    return pb.Submit(request_id="r", tenant="t", token_ids=[1, 2, 3])


def test_one_message_a_step_for_all_requests() -> None:
    """Events of one message go to the requests that they are for, in order, over one stream."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as one, client.submit(submit()) as two:
            await until(lambda: len(engine.submits) == 2)
            first, second = (sent.stream for sent in engine.submits)
            await engine.say(admitted(first), admitted(second), delta(first, "a"), delta(second, "x"))
            await engine.say(delta(first, "b"), finished(first, text="c"), finished(second, pb.FINISH_REASON_LENGTH))
            events = [[event async for event in each] for each in (one, two)]
        assert events[0][0] == Admitted(10)
        assert "".join(event.text for event in events[0][1:-1]) == "ab"
        assert events[0][-1] == Finished(pb.FINISH_REASON_STOP, "c", 3, 0, 2)
        assert one.num_tokens == 2
        assert events[1][1:] == [Delta("x"), Finished(pb.FINISH_REASON_LENGTH, "", 3, 0, 2)]
        assert engine.num_streams == 1
        assert engine.cancels == []
        assert client.num_active == 0

    run(story)


def test_leaving_cancels() -> None:
    """Leaving the block early sends one Cancel; late events of that request are dropped."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()):
            sent = (await until(lambda: engine.submits))[0]
        await until(lambda: engine.cancels == [sent.stream])
        await engine.say(delta(sent.stream, "late"))
        async with client.submit(submit()) as other:
            await until(lambda: len(engine.submits) == 2)
            await engine.say(finished(engine.submits[1].stream))
            assert isinstance(await other.next(), Finished)
        assert engine.cancels == [sent.stream]

    run(story)


def test_cancelled_task_cancels_its_request() -> None:
    """A task that is cancelled while it waits tells the worker."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async def read() -> None:
            async with client.submit(submit()) as generation:
                await generation.next()

        task = asyncio.create_task(read())
        await until(lambda: engine.submits)
        task.cancel()
        await until(lambda: engine.cancels)

    run(story)


def test_refusal_is_raised() -> None:
    """A refusal keeps its code, message and field."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            sent = (await until(lambda: engine.submits))[0]
            await engine.say(refused(sent.stream, pb.REFUSAL_CODE_KV_LIMIT, "max_tokens"))
            with pytest.raises(Refused) as caught:
                await generation.next()
        assert (caught.value.code, str(caught.value), caught.value.field) == (
            pb.REFUSAL_CODE_KV_LIMIT,
            "no",
            "max_tokens",
        )

    run(story)


@pytest.mark.parametrize("reason", [pb.FINISH_REASON_ERROR, pb.FINISH_REASON_CANCELLED, pb.FINISH_REASON_UNSPECIFIED])
def test_end_that_is_no_success_is_raised(reason: int) -> None:
    """An error of the worker's comes after the text that was already there."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            sent = (await until(lambda: engine.submits))[0]
            await engine.say(delta(sent.stream, "a"), finished(sent.stream, reason))
            assert await generation.next() == Delta("a")
            with pytest.raises(GenerationFailed):
                await generation.next()

    run(story)


def test_broken_stream_fails_each_request_and_is_opened_again() -> None:
    """Every request on a broken stream ends with an error; new ones are refused until the next stream stands."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        generations = [client.submit(submit()) for _ in range(3)]
        await until(lambda: len(engine.submits) == 3)
        engine.break_stream()
        for generation in generations:
            with pytest.raises(GenerationFailed, match="broken by the test"):
                await generation.next()
        with pytest.raises(WorkerUnavailable):
            client.submit(submit())
        await until(client.connected.is_set)
        async with client.submit(submit()) as generation:
            await until(lambda: len(engine.submits) == 4)
            await engine.say(finished(engine.submits[3].stream))
            assert isinstance(await generation.next(), Finished)
        assert engine.num_streams == 2

    run(story)


def test_slow_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unread deltas are joined; more than the mailbox holds cancels the request, and no other."""
    monkeypatch.setattr(module, "MAX_UNREAD", 100)

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as slow, client.submit(submit()) as other:
            await until(lambda: len(engine.submits) == 2)
            first, second = (sent.stream for sent in engine.submits)
            for _ in range(11):
                await engine.say(delta(first, "0123456789"), delta(second, "x"))
            await until(lambda: engine.cancels == [first])
            assert await slow.next() == Delta("0123456789" * 11)
            with pytest.raises(SlowConsumer):
                await slow.next()
            await engine.say(finished(second))
            assert await other.next() == Delta("x" * 11)

    run(story)


def test_waiting_ends_in_time() -> None:
    """`next` with a time returns None when nothing comes, and the event when it does."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            assert await generation.next(0.01) is None
            sent = (await until(lambda: engine.submits))[0]
            await engine.say(admitted(sent.stream, 7))
            assert await generation.next(10) == Admitted(7)

    run(story)


def test_stop_fails_what_runs() -> None:
    """Closing the client ends its requests."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        generation = client.submit(submit())
        await client.stop()
        with pytest.raises(GenerationFailed):
            await generation.next()

    run(story)
