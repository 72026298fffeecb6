"""How much of results and outputs the front holds, and what becomes of more."""

import asyncio
from dataclasses import dataclass, field

import grpc
import pytest

from engine import ipc
from engine.front.connection import OUTBOX_BYTES, Connection, Whole
from engine.front.dispatch import MAX_OUTPUTS, MAX_TENANT_OUTPUTS
from engine.protocol import pb
from tests.engine.front.conftest import Run
from tests.engine.front.dispatching import DEADLINE_SECONDS, Client, Front


@dataclass
class Shared:
    """Requests of one connection whose client does not read until it is told to."""

    client: Client
    reads: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.client._pump.cancel()
        self.client._pump = asyncio.create_task(self.client.connection.pump(self._write))

    def submit(self, stream: int, **fields: object) -> int:
        """Submit a request under this number and return its handle."""
        return self.client.submit(stream=stream, request_id=f"{self.client.request_id}-{stream}", **fields)

    async def end(self) -> None:
        """Read everything, and wait until nothing more will come."""
        self.reads.set()
        await self.client.end()

    def end_of(self, stream: int) -> pb.Finished:
        """Return the one end of a request."""
        [end] = [event.finished for event in self.client.ends() if event.stream == stream]
        return end

    def tokens(self, stream: int) -> int:
        """Return how many tokens of a request arrived."""
        return sum(len(event.delta.token_ids) for event in self.client.events if event.stream == stream)

    async def _write(self, message: pb.StepEvents) -> None:
        await self.reads.wait()
        self.client.events += message.events


def _scored(handle: int, token: int, count: int, *, ended: bool = False) -> list[ipc.Output]:
    """Eight outputs of `count` tokens, each with the log-probabilities of twenty likely ones: some 1 KB a token."""
    top = [[(other, -1.0) for other in range(20)]] * count
    return [
        ipc.Output(
            handle=handle,
            index=index,
            token_ids=[token] * count,
            logprobs=[-1.0] * count,
            top=top,
            finish_reason="length" if ended else "",
        )
        for index in range(8)
    ]


@pytest.mark.parametrize("state", ["running", "over", "told"])
def test_greedy_request_ends_and_its_neighbour_goes_on(front: Front, run: Run, state: str) -> None:
    """Who has most waiting on a connection that is not read ends with an error, even if all of it is generated, or its
    end waits with it: nobody takes a part for the whole. Usage counts all, and a small neighbour loses nothing.
    """

    async def story() -> None:
        shared = Shared(Client(front, outbox_bytes=64 << 10))
        scored, plain = pb.Sampling(top_p=1, logprobs=20), pb.Sampling(top_p=1)
        greedy = shared.submit(1, n=8, sampling=scored)
        small = shared.submit(2, tenant="carp", sampling=plain)
        other = shared.submit(3, tenant="carp", n=8, sampling=scored)
        (token,) = front.encode("a")
        front.dispatcher.step([ipc.Output(handle=small, token_ids=[token])])
        count = 44 if state == "told" else 88
        front.dispatcher.step(_scored(greedy, token, count, ended=state != "running"))
        if state == "told":
            async with asyncio.timeout(DEADLINE_SECONDS):
                while 1 in shared.client.connection.requests:  # noqa: ASYNC110  # the front tells nobody
                    await asyncio.sleep(0.001)
            front.dispatcher.step(_scored(other, token, 30))
        assert front.sent == ([ipc.CancelFrame([greedy])] if state == "running" else [])
        front.sent.clear()
        front.dispatcher.step(_scored(other, token, 1, ended=True))
        front.dispatcher.step([ipc.Output(handle=small, token_ids=[token], finish_reason="length")])
        await shared.end()
        assert not shared.client.connection.failed.done()
        end = shared.end_of(1)
        assert (end.reason, end.usage.completion_tokens) == (pb.FINISH_REASON_ERROR, 8 * count)
        assert "ask for fewer log-probabilities" in end.detail
        assert shared.tokens(1) < 8 * count
        for stream in (2, 3):
            assert shared.end_of(stream).reason == pb.FINISH_REASON_LENGTH
            assert shared.tokens(stream) == shared.end_of(stream).usage.completion_tokens
        assert shared.tokens(2) == 2
        assert not front.sent

    run(story())


def test_result_of_a_cut_request_does_not_leave(front: Front, run: Run) -> None:
    """Where scores of its prompt were cut, the outputs of a `best_of` that wait to leave whole are dropped too."""

    async def story() -> None:
        shared = Shared(Client(front, outbox_bytes=64 << 10))
        front.dispatcher.embedding_size = 4
        best = shared.submit(1, best_of=2, sampling=pb.Sampling(top_p=1, prompt_logprobs=20))
        other = shared.submit(2, n=8, sampling=pb.Sampling(top_p=1, logprobs=20))
        (token,) = front.encode("a")
        scores = [(-1.0, [(likely, -1.0) for likely in range(20)])] * 360
        front.dispatcher.step([ipc.Output(handle=other, admitted_max_tokens=99)])  # leaves, and is not read
        await asyncio.sleep(0)
        front.dispatcher.step([ipc.Output(handle=best, prompt_scores=scores)])
        ended = [
            ipc.Output(handle=best, index=index, token_ids=[token] * 5, logprobs=[-1.0] * 5, finish_reason="length")
            for index in range(2)
        ]
        front.dispatcher.step(ended)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not shared.client.connection._wholes:  # noqa: ASYNC110  # the front tells nobody
                await asyncio.sleep(0.001)
        front.dispatcher.step(_scored(other, token, 30, ended=True))
        await shared.end()
        assert shared.end_of(1).reason == pb.FINISH_REASON_ERROR
        assert shared.tokens(1) == 0
        assert (shared.end_of(2).reason, shared.tokens(2)) == (pb.FINISH_REASON_LENGTH, 8 * 30)

    run(story())


def test_connection_that_cutting_does_not_help_fails(run: Run) -> None:
    """Ends cannot be dropped: more of them than may wait end the connection."""

    async def story() -> None:
        connection = Connection(1 << 10, lambda requests, detail: None)
        for stream in range(200):
            connection.post(pb.Event(stream=stream, refused=pb.Refused(message="no")))
        connection.flush()
        assert connection.failed.result()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED

    run(story())


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
        connection = Connection(OUTBOX_BYTES, lambda requests, detail: None)
        for stream in range(1, 4):
            assert not connection.failed.done()
            connection.post_whole(Whole(stream, iter(()), 200 << 20))
        assert connection.failed.result()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        read = Connection(OUTBOX_BYTES, lambda requests, detail: None)
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
