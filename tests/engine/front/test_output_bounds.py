"""How much of results and outputs the front holds, and what becomes of more."""

import asyncio

import grpc
import pytest

from engine import ipc
from engine.front.connection import OUTBOX_BYTES, Connection, Whole
from engine.front.dispatch import MAX_OUTPUTS, MAX_TENANT_OUTPUTS
from engine.protocol import pb
from tests.engine.front.conftest import Run
from tests.engine.front.dispatching import DEADLINE_SECONDS, Client, Front


@pytest.mark.parametrize("search", [False, True], ids=["best_of", "beams"])
def test_large_result_leaves_piece_by_piece(front: Front, run: Run, search: bool) -> None:
    """A result larger than what a connection may leave unread arrives whole, and steps of others do not wait for it."""
    count, length = 64, 20_000

    async def story() -> None:
        client = Client(front)
        writing, waiting = asyncio.Event(), asyncio.Event()
        messages: list[pb.StepEvents] = []

        async def write(message: pb.StepEvents) -> None:
            messages.append(message)
            if any(event.HasField("delta") for event in message.events):
                writing.set()
                await waiting.wait()

        client._pump.cancel()
        client._pump = asyncio.create_task(client.connection.pump(write))
        fields = {"beam_search": pb.BeamSearch(width=count)} if search else {"best_of": count + 1}
        handle = client.submit(n=count, sampling=pb.Sampling(top_p=1), **fields)
        text = front.encode("a") * length
        front.dispatcher.step(
            [
                ipc.Output(handle=handle, index=index, token_ids=text, logprobs=[0.0] * length, finish_reason="length")
                for index in range(count + (not search))
            ]
        )
        await asyncio.wait_for(writing.wait(), DEADLINE_SECONDS)
        client.connection.post(pb.Event(stream=2, admitted=pb.Admitted(max_tokens=1)))  # of another request
        await asyncio.sleep(0)
        position = len(messages)
        assert 1 in client.connection.requests  # its number is in use until its end has left
        waiting.set()
        await client.end()
        assert messages[position].events[0].stream == 2
        deltas = [event for message in messages for event in message.events if event.HasField("delta")]
        assert sum(len(event.delta.token_ids) for event in deltas) == count * length
        assert sum(len(event.delta.text) for event in deltas) == count * length
        assert max(message.ByteSize() for message in messages) < OUTBOX_BYTES // 8
        assert not client.connection.failed.done()
        assert messages[-1].events[-1].HasField("finished")

    run(story())


def test_results_that_nobody_reads_end_the_connection(run: Run) -> None:
    """One result may have any size; more of them behind it than a connection may leave unread end it."""

    async def story() -> None:
        connection = Connection(OUTBOX_BYTES)
        for stream in range(1, 4):
            assert not connection.failed.done()
            connection.post_whole(Whole(stream, iter(()), 200 << 20))
        assert connection.failed.result()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        read = Connection(OUTBOX_BYTES)
        read.no_more_commands()
        written: list[int] = []

        async def write(message: pb.StepEvents) -> None:
            written.append(message.events[0].stream)

        for stream in range(1, 4):
            read.post_whole(Whole(stream, iter([pb.Event(stream=stream)] * 2), 200 << 20))
            await read.pump(write)
        assert (written, read.failed.done()) == ([1, 1, 2, 2, 3, 3], False)

    run(story())


def test_outputs_of_all_requests_are_bounded(front: Front, run: Run) -> None:
    """One tenant holds a number of outputs, however they are spread over requests; all tenants together hold more.

    A refusal says nothing of others' requests. There is room again as requests end.
    """

    async def refusal(tenant: str) -> pb.Refused:
        late = Client(front)
        submit = pb.Submit(stream=1, request_id=late.request_id, tenant=tenant, namespace=bytes(32), token_ids=[5])
        front.dispatcher.submit(late.connection, submit)
        await late.end()
        return late.events[0].refused

    async def story() -> None:
        share = MAX_TENANT_OUTPUTS // 128
        clients = [Client(front) for _ in range(MAX_OUTPUTS // 128)]
        for client in clients[:share]:
            client.submit(n=128)
        assert (await refusal("minnow")).code == pb.REFUSAL_CODE_QUEUE_FULL
        for client in clients[share:]:
            client.submit(n=128, tenant="whale")
        full = await refusal("carp")
        assert full.code == pb.REFUSAL_CODE_UNAVAILABLE
        assert not any(character.isdigit() for character in full.message)
        await clients[0].leave()
        again = Client(front)
        again.submit(n=128)
        for client in (*clients[1:], again):
            await client.leave()
        front.sent.clear()

    run(story())
