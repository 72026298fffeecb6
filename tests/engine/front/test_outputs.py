"""Requests with several outputs, in whatever order a core runs them: the dispatcher over a real meter and journal."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine import ipc
from engine.errors import ProtocolError
from engine.front.connection import OUTBOX_BYTES, Connection, Whole
from engine.front.dispatch import MAX_OUTPUTS, MAX_TENANT_OUTPUTS, Dispatcher
from engine.front.journal import Journal
from engine.front.meter import Meter
from engine.front.table import CounterTable
from engine.model.folder import read_folder
from engine.protocol import pb
from tests.engine.front.conftest import Run, short_folder

END_TOKEN = 200
ALPHABET = "ab<> "
DEADLINE_SECONDS = 10


class Front:
    """A dispatcher and its meter, without gRPC and without a core: frames are given and taken by hand."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder = folder
        self.model = read_folder(model, name="tiny")
        self.tokenizer = Tokenizer.from_buffer(self.model.tokenizer_json)
        self.journal = Journal(folder / "journal.sqlite3")
        self.meter = Meter(folder, self.journal)
        self.sent: list[ipc.ToCore] = []
        self.dispatcher = Dispatcher(self.meter, "worker-0", self.sent.append)
        self.dispatcher.serve_model(self.model, self.tokenizer)
        self.dispatcher.unavailable = ""
        self.num_requests = 0

    def encode(self, text: str) -> list[int]:
        """Encode text one character a token."""
        return [token for character in text for token in self.tokenizer.encode(character, add_special_tokens=False).ids]


@pytest.fixture(scope="module")
def front(tiny_model: Path, run: Run) -> Iterator[Front]:
    """One front for all stories."""
    with short_folder() as folder:
        made = Front(tiny_model, folder)

        async def start() -> None:
            made.journal.start()

        run(start())
        yield made
        made.journal.close()
        made.meter.close()


class Client:
    """One connection; what it is told never runs ahead of the counter table."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.connection = Connection(OUTBOX_BYTES)
        self.events: list[pb.Event] = []
        self.request_id = f"request-{front.num_requests}"
        front.num_requests += 1
        self._pump = asyncio.create_task(self.connection.pump(self._write))

    def submit(self, **fields: object) -> int:
        """Submit the one request of this client and return its handle."""
        submit = pb.Submit(
            **{
                "stream": 1,
                "request_id": self.request_id,
                "tenant": "minnow",
                "namespace": bytes(32),
                "token_ids": [5, 6, 7],
                **fields,
            }  # type: ignore[arg-type]
        )
        self.front.dispatcher.submit(self.connection, submit)
        frame = self.front.sent.pop()
        assert isinstance(frame, ipc.SubmitFrame)
        return frame.handle

    def counted(self) -> int | None:
        """Return the completion tokens of the request in the counter table, as another process would find them.

        None: the journal has its record, and the table has none any more.
        """
        table = CounterTable(self.front.folder / "counters")
        try:
            found = [orphan.counters for orphan in table.orphans() if orphan.identity.request_id == self.request_id]
        finally:
            table.close()
        return found[0].completion_tokens if found and found[0] is not None else None

    async def end(self) -> None:
        """Wait until nothing more will come."""
        self.connection.no_more_commands()
        await asyncio.wait_for(self._pump, DEADLINE_SECONDS)

    async def leave(self) -> None:
        """Break the connection."""
        self._pump.cancel()
        await asyncio.wait({self._pump})
        self.front.dispatcher.drop(self.connection)

    async def close(self) -> None:
        """Break the connection and wait until no request is left."""
        await self.leave()
        await asyncio.wait_for(self.front.dispatcher.idle.wait(), DEADLINE_SECONDS)

    async def record(self) -> pb.UsageRecord:
        """Return the one usage record of the request."""
        entries = await self.front.journal.read(0, 1 << 30)
        records = [pb.UsageRecord.FromString(entry.record) for entry in entries]
        (record,) = [record for record in records if record.request_id == self.request_id]
        return record

    def tokens(self) -> int:
        """Return how many tokens the client was told of."""
        return sum(len(event.delta.token_ids) for event in self.events)

    def of(self, index: int) -> tuple[list[int], str, list[int]]:
        """Return tokens, text and ends of one output."""
        events = [event for event in self.events if event.index == index]
        token_ids = [token for event in events for token in event.delta.token_ids]
        text = "".join(event.delta.text + event.output_finished.text for event in events)
        return token_ids, text, [event.output_finished.reason for event in events if event.HasField("output_finished")]

    def ends(self) -> list[pb.Event]:
        """Return the ends of the request."""
        return [event for event in self.events if event.HasField("finished")]

    async def _write(self, message: pb.StepEvents) -> None:
        self.events += message.events


@dataclass
class Script:
    """What the core does for one output: its tokens, and how it ends after the last one."""

    token_ids: list[int]
    reason: str
    logprobs: list[float]
    given: int = 0
    ended: bool = False

    @property
    def news(self) -> bool:
        """Whether the core has something left to do."""
        return not self.ended


@dataclass
class Core:
    """Runs scripts, hears of cancels some steps late, and reports each output's end once."""

    handle: int
    scripts: list[Script]
    delay: int
    cancels: list[tuple[int, ipc.CancelFrame]] = field(default_factory=list)
    step: int = 0
    seen: set[int] = field(default_factory=set)

    def advance(self, indexes: list[int], count: int) -> list[ipc.Output]:
        """Run one step: these outputs get `count` tokens, cancels that have arrived are carried out."""
        self.step += 1
        outputs = [self.cancelled(index, frame.reason) for at, frame in self.cancels for index in self.aimed(at, frame)]
        for index in indexes:
            script = self.scripts[index % len(self.scripts)]
            if script.ended:
                continue
            start, script.given = script.given, min(script.given + count, len(script.token_ids))
            script.ended = script.given == len(script.token_ids)
            outputs.append(
                ipc.Output(
                    handle=self.handle,
                    index=index % len(self.scripts),
                    admitted_max_tokens=0 if self.seen else 99,
                    cached_tokens=0 if self.seen else 2,
                    token_ids=script.token_ids[start : script.given],
                    logprobs=script.logprobs[start : script.given],
                    finish_reason=script.reason if script.ended else "",
                    kv_byte_seconds=float(script.given),
                    num_preemptions=1,
                )
            )
            self.seen.add(index)
        return outputs

    def aimed(self, at: int, frame: ipc.CancelFrame) -> list[int]:
        """Return the running outputs that a cancel ends, once it has arrived."""
        if at + self.delay > self.step:
            return []
        indexes = range(len(self.scripts)) if frame.index < 0 else [frame.index]
        return [index for index in indexes if not self.scripts[index].ended]

    def cancelled(self, index: int, reason: str) -> ipc.Output:
        """End an output."""
        self.scripts[index].ended = True
        return ipc.Output(handle=self.handle, index=index, finish_reason=reason)


@st.composite
def scripts(draw: st.DrawFn, front_encode: dict[str, int]) -> list[Script]:
    """Several outputs over a small alphabet, some with an end token."""
    made = []
    for text in draw(st.lists(st.text(ALPHABET, min_size=1, max_size=12), min_size=2, max_size=5)):
        token_ids = [front_encode[character] for character in text]
        reason = draw(st.sampled_from(["stop", "length"]))
        if draw(st.booleans()):
            token_ids.append(END_TOKEN)
            reason = "stop"
        made.append(Script(token_ids, reason, [draw(st.floats(-9, 0)) for _ in token_ids]))
    return made


def expected(front: Front, script: Script, stops: list[str]) -> tuple[list[int], str, int]:
    """Return what a client gets of an output that runs to its end: tokens, text and reason."""
    shown = script.token_ids[:-1] if script.token_ids[-1] == END_TOKEN else script.token_ids
    text = front.tokenizer.decode(shown)
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return shown[:end], text[: end - max(map(len, complete))], pb.FINISH_REASON_STOP
    reason = pb.FINISH_REASON_STOP if script.reason == "stop" else pb.FINISH_REASON_LENGTH
    return script.token_ids, text, reason


STORIES = {
    "stops": st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3),
    "order": st.lists(
        st.tuples(st.lists(st.integers(0, 4), unique=True, max_size=5), st.integers(1, 3)), min_size=1, max_size=12
    ),
    "delay": st.integers(0, 3),
}


async def play(front: Front, client: Client, core: Core, order: list[tuple[list[int], int]], until: int = 1000) -> None:
    """Give the dispatcher step after step until every output has ended, or `until` steps have been given."""
    turn = 0
    while any(script.news for script in core.scripts) and turn < until:
        indexes, count = order[turn] if turn < len(order) else ([0, 1, 2, 3, 4], 3)
        front.dispatcher.step(core.advance(indexes, count))
        counted = client.counted()
        await asyncio.sleep(0)
        assert counted is None or client.tokens() <= counted
        core.cancels += [(core.step, frame) for frame in front.sent if isinstance(frame, ipc.CancelFrame)]
        front.sent.clear()
        turn += 1


def characters(front: Front) -> dict[str, int]:
    """Return the token of each character of the alphabet."""
    return {character: front.encode(character)[0] for character in ALPHABET}


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


def test_stop_string_in_the_step_of_the_cores_own_end(front: Front, run: Run) -> None:
    """An output that the core ends in the step that completes its stop string is ended once, and nobody is told to."""

    async def story() -> None:
        client = Client(front)
        handle = client.submit(n=2, sampling=pb.Sampling(top_p=1, stop=["b"]))
        a, b = front.encode("ab")
        front.dispatcher.step(
            [
                ipc.Output(handle=handle, admitted_max_tokens=9, token_ids=[a, b], finish_reason="length"),
                ipc.Output(handle=handle, index=1, token_ids=[a, a], finish_reason="length"),
            ]
        )
        await client.end()
        assert not front.sent
        assert client.of(0) == ([a, b], "a", [pb.FINISH_REASON_STOP])
        assert client.of(1) == ([a, a], "aa", [pb.FINISH_REASON_LENGTH])
        assert client.ends()[0].finished.reason == pb.FINISH_REASON_LENGTH

    run(story())


def test_stop_strings_of_several_requests_are_told_by_index(front: Front, run: Run) -> None:
    """Outputs that stop in one step are told to the core by their index, a single output as a whole request."""

    async def story() -> None:
        clients = [Client(front) for _ in range(3)]
        sampling = pb.Sampling(top_p=1, stop=["b"])
        one, two, other = (client.submit(n=n, sampling=sampling) for client, n in zip(clients, (1, 3, 3), strict=True))
        (b,) = front.encode("b")
        front.dispatcher.step(
            [
                ipc.Output(handle=handle, index=index, token_ids=[b])
                for handle, index in ((one, 0), (two, 2), (other, 2), (two, 0))
            ]
        )
        assert front.sent == [
            ipc.CancelFrame([one], "stop", -1),
            ipc.CancelFrame([two, other], "stop", 2),
            ipc.CancelFrame([two], "stop", 0),
        ]
        front.sent.clear()
        for client in clients:
            await client.leave()
        front.sent.clear()

    run(story())


def test_use_is_summed_over_outputs(front: Front, run: Run) -> None:
    """Byte-seconds and preemptions are the sums of each output's latest, also of what comes after a stop string."""

    async def story() -> None:
        client = Client(front)
        handle = client.submit(n=2, sampling=pb.Sampling(top_p=1, stop=["b"]))
        (b,) = front.encode("b")
        step = front.dispatcher.step
        step([ipc.Output(handle=handle, admitted_max_tokens=9, queue_seconds=0.5, token_ids=[5], kv_byte_seconds=1.0)])
        step([ipc.Output(handle=handle, index=1, token_ids=[b], kv_byte_seconds=10.0, num_preemptions=2)])
        step([ipc.Output(handle=handle, index=1, finish_reason="stop", kv_byte_seconds=11.0, num_preemptions=2)])
        step([ipc.Output(handle=handle, token_ids=[5], kv_byte_seconds=4.0, num_preemptions=1)])
        step([ipc.Output(handle=handle, finish_reason="length")])  # says nothing of its use: what it had stays
        await client.end()
        record = await client.record()
        assert (record.kv_device_byte_seconds, record.num_preemptions, record.queue_seconds) == (15.0, 3, 0.5)
        front.sent.clear()

    run(story())


def test_beams_count_as_they_are_searched(front: Front, run: Run) -> None:
    """Tokens of a search count in the step that generates them; its outputs come whole, in the core's order, with the
    text of their tokens but of the one that ended them.
    """

    async def story() -> None:
        client = Client(front)
        sampling = pb.Sampling(stop_token_ids=[END_TOKEN])
        search = pb.BeamSearch(width=4, length_penalty=1.0)
        handle = client.submit(n=2, beam_search=search, sampling=sampling)
        front.dispatcher.step([ipc.Output(handle=handle, admitted_max_tokens=9, unseen_tokens=4)])
        assert client.counted() == 4
        front.dispatcher.step([ipc.Output(handle=handle, unseen_tokens=4)])
        assert client.counted() == 8
        ab = front.encode("ab")
        front.dispatcher.step(
            [
                ipc.Output(
                    handle=handle, unseen_tokens=3, token_ids=[*ab, END_TOKEN], finish_reason="stop", score=-0.5
                ),
                ipc.Output(handle=handle, index=1, token_ids=ab[::-1], finish_reason="length", score=-2.0),
            ]
        )
        await client.end()
        assert client.of(0) == ([*ab, END_TOKEN], "ab", [pb.FINISH_REASON_STOP])
        assert client.of(1) == (ab[::-1], "ba", [pb.FINISH_REASON_LENGTH])
        assert client.ends()[0].finished.usage.completion_tokens == (await client.record()).completion_tokens == 11

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


def test_output_that_nobody_asked_for_is_the_cores_fault(front: Front, run: Run) -> None:
    """A core that speaks of an output beyond `n` has lost count: the link gives it up."""

    async def story() -> None:
        client = Client(front)
        handle = client.submit(n=2)
        with pytest.raises(ProtocolError, match="output 2 of a request with 2"):
            front.dispatcher.step([ipc.Output(handle=handle, index=2, token_ids=[5])])
        await client.close()
        front.sent.clear()

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
