"""Generate streams over the real front and a scripted core."""

from collections import Counter

import grpc
import pytest

from engine.protocol import pb
from tests.engine.front.client import channel, is_end
from tests.engine.front.conftest import Run, StartWorker, Tokenize
from tests.engine.front.process import WorkerProcess
from tests.engine.front.scripted_core import COUNT, ECHO, FLOOD, HANG, QUEUE, REFUSE


def test_many_requests_share_one_stream(shared_worker: WorkerProcess, run: Run) -> None:
    """Each of 40 requests gets admitted, its own tokens in order, and one end, on one connection."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            numbers = [await stream.submit([COUNT, 5 + index % 7]) for index in range(40)]
            for index, number in enumerate(numbers):
                end = await stream.end(number)
                count = 5 + index % 7
                assert stream.token_ids(number) == [65 + i for i in range(count)]
                assert stream.events[number][0].admitted.max_tokens == 1000
                assert end.finished.reason == pb.FINISH_REASON_LENGTH
                assert end.finished.usage == pb.Usage(prompt_tokens=2, cached_tokens=1, completion_tokens=count)
                assert [is_end(event) for event in stream.events[number]].count(True) == 1

    run(story())


def test_one_message_a_step(shared_worker: WorkerProcess, run: Run) -> None:
    """The deltas of requests that run side by side come in one message per step, at most one a request."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            numbers = [await stream.submit([HANG, 50]) for _ in range(8)]
            for number in numbers:
                await stream.tokens(number, 50)
            for message in stream.messages:
                deltas = Counter(event.stream for event in message.events if event.HasField("delta"))
                assert max(deltas.values(), default=0) <= 1
            assert len(stream.messages) < 8 * 50

    run(story())


def test_stop_string_ends_the_request(shared_worker: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """Text is cut before the stop string, the core is told, and usage counts up to the token that completed it."""

    async def story() -> None:
        text = "one two ENDING three four"
        tokens = tokenize(text)
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            number = await stream.submit([ECHO, 0, *tokens], stop=["ENDING"])
            end = await stream.end(number)
            assert stream.text(number) == "one two "
            assert end.finished.reason == pb.FINISH_REASON_STOP
            used = end.finished.usage.completion_tokens
            assert stream.token_ids(number) == tokens[:used]
            assert len(tokenize("one two ENDIN")) <= used < len(tokens)

    run(story())


def test_stop_string_waits_for_min_tokens(shared_worker: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """One that is complete too early is text like any other; the next one ends the output."""

    async def story() -> None:
        head, text = "one END two ", "one END two END three"
        tokens = tokenize(text)
        least = len(tokenize(head))
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            number = await stream.submit([ECHO, 0, *tokens], stop=["END"], sampling={"min_tokens": least})
            end = await stream.end(number)
            assert stream.text(number) == head
            assert end.finished.reason == pb.FINISH_REASON_STOP
            assert least <= end.finished.usage.completion_tokens < len(tokens)

    run(story())


def test_end_token_is_counted_and_not_shown(shared_worker: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """A stop token id that ends an output counts as generated, and its text is not part of the output."""

    async def story() -> None:
        tokens = tokenize("good morning")
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            number = await stream.submit([ECHO, 0, *tokens, 200], sampling={"stop_token_ids": [200]})
            end = await stream.end(number)
            assert stream.text(number) == "good morning"
            assert end.finished.usage.completion_tokens == len(tokens) + 1

    run(story())


def test_cancel_ends_a_request(shared_worker: WorkerProcess, run: Run) -> None:
    """A cancelled request ends with `cancelled` and what it had; others go on."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            kept, gone = await stream.submit([COUNT, 200]), await stream.submit([HANG, 3])
            await stream.tokens(gone, 3)
            await stream.cancel(gone)
            end = await stream.end(gone)
            assert end.finished.reason == pb.FINISH_REASON_CANCELLED
            assert end.finished.usage.completion_tokens == 3
            assert (await stream.end(kept)).finished.usage.completion_tokens == 200

    run(story())


def test_broken_stream_cancels_its_requests(shared_worker: WorkerProcess, run: Run) -> None:
    """When a connection breaks, its requests end as `cancelled` in the journal and hold nothing in the core."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            control = client.control()
            stream = client.generate()
            for index in range(5):
                await stream.submit([HANG, 2], request_id=f"hang-{index}")
            queued = await stream.submit([QUEUE, 0], request_id="queued")
            for number in range(1, 6):
                await stream.tokens(number, 2)
            assert not stream.events[queued]
            stream.call.cancel()
            records = [await control.usage(f"hang-{index}") for index in range(5)]
            assert {record.finish_reason for record in records} == {pb.FINISH_REASON_CANCELLED}
            assert {(record.prompt_tokens, record.completion_tokens) for record in records} == {(2, 2)}
            assert (await control.usage("queued")).prompt_tokens == 0
            await control.until(lambda event: event.HasField("stats") and event.stats.running + event.stats.queued == 0)

    run(story())


def test_half_closed_stream_gets_everything(shared_worker: WorkerProcess, run: Run) -> None:
    """A client that is done submitting gets every event, then the stream ends with OK."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            number = await stream.submit([COUNT, 30])
            await stream.call.done_writing()
            await stream.end(number)
            assert await stream.call.read() is grpc.aio.EOF
            assert await stream.call.code() == grpc.StatusCode.OK

    run(story())


def test_refusal_of_the_core_leaves_no_usage(shared_worker: WorkerProcess, run: Run) -> None:
    """A refused request gets the core's reason and no usage record."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            control, stream = client.control(), client.generate()
            refused = await stream.submit([REFUSE, 0], request_id="refused")
            end = await stream.end(refused)
            assert end.refused.code == pb.REFUSAL_CODE_KV_LIMIT
            assert (end.refused.message, end.refused.field) == ("needs 9 of 4 bytes", "messages")
            await stream.end(await stream.submit([COUNT, 1], request_id="after"))
            await control.usage("after")
            assert "refused" not in control.records

    run(story())


def test_several_outputs_end_one_by_one(shared_worker: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """Each of four outputs has its own tokens, text and end, the request one admission and one end, and one record."""

    async def story() -> None:
        tokens = tokenize("one two ENDING three")
        async with channel(shared_worker.address) as client:
            stream, control = client.generate(), client.control()
            number = await stream.submit([ECHO, 0, *tokens], request_id="four", n=4, stop=["ENDING"])
            end = await stream.end(number)
            used = end.finished.usage.completion_tokens // 4
            assert used < len(tokens)
            for index in range(4):
                assert stream.of_output(number, index) == (tokens[:used], "one two ", [pb.FINISH_REASON_STOP])
            assert [event.HasField("admitted") for event in stream.events[number]].count(True) == 1
            assert (end.finished.reason, end.finished.text) == (pb.FINISH_REASON_STOP, "")
            record = await control.usage("four")
            assert (record.prompt_tokens, record.completion_tokens) == (2 + len(tokens), 4 * used)
            await control.until(lambda event: event.HasField("stats") and event.stats.running == 0)

    run(story())


def test_best_of_returns_the_best_whole(shared_worker: WorkerProcess, run: Run) -> None:
    """Of five outputs the two likeliest come back, each in one delta, and all five are counted."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            number = await stream.submit([COUNT, 30], n=2, best_of=5)
            end = await stream.end(number)
            kinds = [(event.WhichOneof("kind"), event.index) for event in stream.events[number]]
            assert kinds == [
                ("admitted", 0),
                ("delta", 0),
                ("output_finished", 0),
                ("delta", 1),
                ("output_finished", 1),
                ("finished", 0),
            ]
            assert end.finished.usage.completion_tokens == 150

    run(story())


def test_best_of_one_ends_as_a_single_output(shared_worker: WorkerProcess, run: Run) -> None:
    """Where one output is asked for, the protocol is that of a single one, however many were generated."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            number = await stream.submit([COUNT, 3], best_of=4)
            end = await stream.end(number)
            assert [event.WhichOneof("kind") for event in stream.events[number]] == ["admitted", "delta", "finished"]
            assert end.finished.reason == pb.FINISH_REASON_LENGTH
            assert (stream.token_ids(number), end.finished.usage.completion_tokens) == ([65, 66, 67], 12)

    run(story())


def test_beams_come_at_the_end(shared_worker: WorkerProcess, run: Run) -> None:
    """A search's outputs come whole and in order; its usage is every token that it tried."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            search = pb.BeamSearch(width=4, length_penalty=1.0)
            number = await stream.submit([COUNT, 20], n=3, beam_search=search)
            end = await stream.end(number)
            for index, letter in enumerate("ABC"):
                _, text, ends = stream.of_output(number, index)
                assert (text, ends) == (letter * 20, [pb.FINISH_REASON_LENGTH])
            assert end.finished.usage.completion_tokens == 4 * 20

    run(story())


def test_client_that_leaves_frees_all_outputs(shared_worker: WorkerProcess, run: Run) -> None:
    """A cancel and a broken connection end every output of a request, sampled, ranked or searched; one record each."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            control, stream = client.control(), client.generate()
            asked = {"n": {"n": 4}, "best": {"best_of": 4}, "beams": {"beam_search": pb.BeamSearch(width=4)}}
            cancelled = {
                name: await stream.submit([HANG, 5], request_id=f"cancelled-{name}", **how)
                for name, how in asked.items()
            }
            for number in cancelled.values():
                while not stream.events[number]:
                    await stream.read()
                await stream.cancel(number)
                end = await stream.end(number)
                assert end.finished.reason == pb.FINISH_REASON_CANCELLED
            ended = [
                event.output_finished.reason
                for event in stream.events[cancelled["n"]]
                if event.HasField("output_finished")
            ]
            assert ended == [pb.FINISH_REASON_CANCELLED] * 4
            for name, how in asked.items():
                await stream.submit([HANG, 5], request_id=f"left-{name}", **how)
            await control.until(lambda event: event.HasField("stats") and event.stats.running == 4 + 4 + 1)
            stream.call.cancel()
            for name in asked:
                for how in ("cancelled", "left"):
                    assert (await control.usage(f"{how}-{name}")).finish_reason == pb.FINISH_REASON_CANCELLED
            await control.until(lambda event: event.HasField("stats") and event.stats.running + event.stats.queued == 0)

    run(story())


def test_refusal_ends_all_outputs(shared_worker: WorkerProcess, run: Run) -> None:
    """A request for several outputs is refused once, as a whole."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            number = await stream.submit([REFUSE, 0], n=4)
            await stream.end(number)
            await stream.end(await stream.submit([COUNT, 1]))
            assert [event.WhichOneof("kind") for event in stream.events[number]] == ["refused"]

    run(story())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n": 129}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"beam_search": pb.BeamSearch(width=1)}, "beam_width"),
        ({"beam_search": pb.BeamSearch(width=65)}, "beam_width"),
        ({"beam_search": pb.BeamSearch(width=4), "n": 5}, "beam_width"),
        ({"beam_search": pb.BeamSearch(width=4), "best_of": 2}, "best_of"),
        ({"beam_search": pb.BeamSearch(width=4), "stop": ["x"]}, "stop"),
        ({"beam_search": pb.BeamSearch(width=4, length_penalty=float("nan"))}, "length_penalty"),
        ({"beam_search": pb.BeamSearch(width=4, length_penalty=float("-inf"))}, "length_penalty"),
        ({"stop": ["x" * 4096] * 5}, "stop"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"tenant": ""}, "tenant"),
        ({"namespace": b"short"}, "namespace"),
        ({"token_ids": []}, "prompt"),
        ({"token_ids": [10**6]}, "prompt"),
        ({"sampling": {"temperature": -1.0}}, "temperature"),
        ({"sampling": {"temperature": float("nan")}}, "temperature"),
        ({"sampling": {"min_p": 1.5}}, "min_p"),
        ({"sampling": {"min_p": float("nan")}}, "min_p"),
        ({"sampling": {"frequency_penalty": -2.5}}, "frequency_penalty"),
        ({"sampling": {"presence_penalty": float("inf")}}, "presence_penalty"),
        ({"sampling": {"repetition_penalty": 0.009}}, "repetition_penalty"),
        ({"sampling": {"repetition_penalty": -1.0}}, "repetition_penalty"),
        ({"sampling": {"repetition_penalty": float("nan")}}, "repetition_penalty"),
        ({"sampling": {"logit_bias": {10**6: 1.0}}}, "logit_bias"),
        ({"sampling": {"logit_bias": {3: 101.0}}}, "logit_bias"),
        ({"sampling": {"logit_bias": {3: float("nan")}}}, "logit_bias"),
        ({"sampling": {"logit_bias": dict.fromkeys(range(1025), 1.0)}}, "logit_bias"),
        ({"sampling": {"min_tokens": 9, "max_tokens": 8}}, "min_tokens"),
        ({"sampling": {"stop_token_ids": range(1025)}}, "stop_token_ids"),
        ({"sampling": {"stop_token_ids": [3, 10**6]}}, "stop_token_ids"),
        ({"sampling": {"min_p": 0.1}, "beam_search": pb.BeamSearch(width=4)}, "min_p"),
        ({"sampling": {"min_tokens": 1}, "beam_search": pb.BeamSearch(width=4)}, "min_tokens"),
        ({"sampling": {"logit_bias": {3: 1.0}}, "beam_search": pb.BeamSearch(width=4)}, "logit_bias"),
        ({"sampling": {"frequency_penalty": 1.0}, "beam_search": pb.BeamSearch(width=4)}, "frequency_penalty"),
        ({"sampling": {"presence_penalty": 1.0}, "beam_search": pb.BeamSearch(width=4)}, "presence_penalty"),
        ({"sampling": {"repetition_penalty": 1.1}, "beam_search": pb.BeamSearch(width=4)}, "repetition_penalty"),
        ({"sampling": {"grammar": pb.Grammar(kind=2, text="a")}, "beam_search": pb.BeamSearch(width=4)}, "grammar"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"session": "é" * 200}, "session"),
    ],
)
def test_malformed_submit_is_refused(
    shared_worker: WorkerProcess, run: Run, fields: dict[str, object], field: str
) -> None:
    """What cannot be a request is refused with the field to change, and the stream lives on."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            prompt = fields.pop("token_ids", [COUNT, 1])
            end = await stream.end(await stream.submit(prompt, **fields))  # type: ignore[arg-type]
            assert (end.refused.code, end.refused.field) == (pb.REFUSAL_CODE_INVALID, field)
            assert field in end.refused.message
            assert (await stream.end(await stream.submit([COUNT, 1]))).HasField("finished")

    run(story())


def test_request_id_of_a_running_request_is_refused(shared_worker: WorkerProcess, run: Run) -> None:
    """Two running requests never share an id: it is the key of the usage record."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            await stream.submit([HANG, 1], request_id="same")
            end = await stream.end(await stream.submit([COUNT, 1], request_id="same"))
            assert (end.refused.code, end.refused.field) == (pb.REFUSAL_CODE_INVALID, "request_id")

    run(story())


def test_stream_number_in_use_ends_the_connection(shared_worker: WorkerProcess, run: Run) -> None:
    """A client that gives two running requests one number has lost count: its connection ends with the reason."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            await stream.submit([HANG, 1], stream=7)
            await stream.submit([HANG, 1], stream=7)
            stream.events[7] = []
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stream.call:
                    pass
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "stream 7" in (caught.value.details() or "")

    run(story())


def test_request_that_is_not_read_is_cut_off(make_worker: StartWorker, run: Run) -> None:
    """Of a connection that leaves more unread than it may, the greedy request ends; the small one on it loses nothing,
    and other connections do not notice.
    """
    worker = make_worker(SCRIPTED_OUTBOX_BYTES=str(64 << 10)).start().wait_ready()

    async def story() -> None:
        window = {"http2.bdp_probe": 0, "http2.lookahead_bytes": 65535}
        async with channel(worker.address, **window) as client, channel(worker.address) as other:
            control, reader = other.control(), other.generate()
            stream = client.generate()
            greedy = await stream.submit([FLOOD, 200], request_id="flood")
            small = await stream.submit([COUNT, 300])
            kept = await reader.submit([COUNT, 300])
            record = await control.usage("flood")
            assert record.finish_reason == pb.FINISH_REASON_ERROR
            finished = (await stream.end(greedy)).finished
            assert finished.reason == pb.FINISH_REASON_ERROR
            assert "not read as fast as it came" in finished.detail
            assert record.completion_tokens == finished.usage.completion_tokens > len(stream.token_ids(greedy))
            assert (await stream.end(small)).finished.reason == pb.FINISH_REASON_LENGTH
            assert len(stream.token_ids(small)) == 300
            assert (await reader.end(kept)).finished.usage.completion_tokens == 300

    run(story())
