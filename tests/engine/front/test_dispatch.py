"""What the dispatcher makes of a core's steps, one after the other."""

import pytest

from engine import ipc
from engine.errors import ProtocolError
from engine.protocol import pb
from tests.engine.front.conftest import Run
from tests.engine.front.dispatching import Client, Front
from tests.engine.front.output_scripts import END_TOKEN


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


def test_special_tokens_that_are_to_be_shown_have_a_text(front: Front, run: Run) -> None:
    """A special token among `shown_token_ids` is part of the text as it is named; the others are not."""

    async def story() -> None:
        client = Client(front)
        start, end = (front.tokenizer.token_to_id(name) for name in ("<|im_start|>", "<|endoftext|>"))
        handle = client.submit(sampling=pb.Sampling(top_p=1, shown_token_ids=[start]))
        tokens = [*front.encode("a"), end, start, *front.encode("b")]
        front.dispatcher.step([ipc.Output(handle=handle, token_ids=tokens, finish_reason="length")])
        await client.end()
        assert client.of(0)[:2] == (tokens, "a<|im_start|>b")

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
