"""Scores and embeddings as they leave the front: with their tokens, cut where a stop string cuts, and at the end."""

import asyncio
from collections.abc import Sequence

import pytest

from engine import ipc
from engine.protocol import pb
from tests.engine.front.conftest import Run
from tests.engine.front.dispatching import Client, Front

Score = tuple[float, list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def telling(front: Front) -> None:
    """The model tells everything."""
    front.dispatcher.embedding_size = 3


def news(handle: int, token_ids: Sequence[int], first: int = 0, *, num_top: int = 2, **fields: object) -> ipc.Output:
    """Return what a step did for an output whose `n`-th token has the log-probability `-n`."""
    places = range(first, first + len(token_ids))
    return ipc.Output(
        handle=handle,
        token_ids=list(token_ids),
        logprobs=[-float(place) for place in places],
        top=[[(place + rank, -0.5 * rank) for rank in range(num_top)] for place in places] if num_top else [],
        **fields,  # type: ignore[arg-type]
    )


def scores_of(events: Sequence[pb.Event], index: int = 0) -> list[Score]:
    """Return all scores of an output's tokens, in order."""
    scores = [score for event in events if event.index == index for score in event.delta.scores]
    return [told(score) for score in scores]


def told(score: pb.TokenScore) -> Score:
    """Return a score as plain numbers."""
    return score.logprob, list(zip(score.top_ids, score.top_logprobs, strict=True))


def expected(count: int, num_top: int = 2) -> list[Score]:
    """Return what `news` says of the first tokens."""
    return [(-float(place), [(place + rank, -0.5 * rank) for rank in range(num_top)]) for place in range(count)]


async def finish(front: Front, client: Client) -> list[pb.Event]:
    """Wait for the end and return all events."""
    await client.end()
    await asyncio.wait_for(front.dispatcher.idle.wait(), 60)
    return client.events


@pytest.mark.parametrize("num_top", [0, 2])
def test_scores_leave_with_their_tokens(front: Front, run: Run, num_top: int) -> None:
    """One for each token, also for one whose text is held back; none where nobody asks."""

    async def story() -> None:
        client, quiet = Client(front), Client(front)
        handle = client.submit(sampling=pb.Sampling(top_p=1.0, logprobs=num_top, stop=["zz"]))
        other = quiet.submit(sampling=pb.Sampling(top_p=1.0))
        tokens = front.encode("ab z")
        for place, token in enumerate(tokens):
            front.dispatcher.step([news(handle, [token], place, num_top=num_top), news(other, [token], num_top=0)])
        front.dispatcher.step([ipc.Output(handle=one, finish_reason="length") for one in (handle, other)])
        events = await finish(front, client)
        assert scores_of(events) == expected(len(tokens), num_top)
        assert all(len(one.delta.scores) == len(one.delta.token_ids) for one in events)
        assert "".join(one.delta.text + one.finished.text for one in events) == "ab z"
        assert scores_of(await finish(front, quiet)) == []

    run(story())


def test_a_stop_string_cuts_scores_and_tokens_alike(front: Front, run: Run) -> None:
    """What was generated behind it in the same step has neither token nor score."""

    async def story() -> None:
        client = Client(front)
        handle = client.submit(sampling=pb.Sampling(top_p=1.0, logprobs=2, stop=["b"]))
        tokens = front.encode("aabaa")
        front.dispatcher.step([news(handle, tokens)])
        events = await finish(front, client)
        assert scores_of(events) == expected(3)
        assert client.tokens() == 3
        assert (await client.record()).completion_tokens == 3

    run(story())


def test_the_prompts_come_before_the_first_delta(front: Front, run: Run) -> None:
    """In the pieces in which they were computed, in order."""

    async def story() -> None:
        client = Client(front)
        handle = client.submit(sampling=pb.Sampling(top_p=1.0, prompt_logprobs=1))
        first: list[Score] = [(-1.0, [(4, -0.5)])]
        second: list[Score] = [(-2.0, [(5, -0.25)])]
        front.dispatcher.step([ipc.Output(handle=handle, admitted_max_tokens=4, prompt_scores=first)])
        front.dispatcher.step([ipc.Output(handle=handle, prompt_scores=second)])
        front.dispatcher.step([ipc.Output(handle=handle, token_ids=[5], finish_reason="length")])
        events = await finish(front, client)
        kinds = [event.WhichOneof("kind") for event in events]
        assert kinds == ["admitted", "prompt_scores", "prompt_scores", "delta", "finished"]
        assert [told(one) for event in events for one in event.prompt_scores.scores] == first + second

    run(story())


@pytest.mark.parametrize("num_top", [0, 2])
def test_the_best_outputs_have_their_own(front: Front, run: Run, num_top: int) -> None:
    """`best_of`: whole at the end, each output's with its tokens, best first; none where they only rank."""

    async def story() -> None:
        client, quiet = Client(front), Client(front)
        tokens = front.encode("abcd")
        sampling = pb.Sampling(top_p=1.0, logprobs=num_top)
        handle = client.submit(n=2, best_of=3, sampling=sampling)
        other = quiet.submit(n=2, best_of=3)
        for one in (handle, other):
            for index, count in ((0, 4), (1, 2), (2, 3)):  # the shorter, the better by mean
                front.dispatcher.step([news(one, tokens[:count], num_top=num_top, index=index, finish_reason="length")])
        events = await finish(front, client)
        assert client.of(0)[0] == tokens[:2] and client.of(1)[0] == tokens[:3]
        assert scores_of(events, 0) == expected(2, num_top)
        assert scores_of(events, 1) == expected(3, num_top)
        assert not any(event.delta.scores for event in await finish(front, quiet))

    run(story())


def test_a_long_best_output_leaves_in_parts(front: Front, run: Run) -> None:
    """Thousands of tokens with their scores are several events, which join to the whole."""

    async def story() -> None:
        client = Client(front)
        tokens = front.encode("abcd") * 700
        handle = client.submit(best_of=2, sampling=pb.Sampling(top_p=1.0, logprobs=2))
        front.dispatcher.step([news(handle, tokens, index=1, finish_reason="length")])
        front.dispatcher.step([news(handle, tokens[:1], 9000, finish_reason="length")])  # the worse
        events = await finish(front, client)
        deltas = [event.delta for event in events if event.HasField("delta")]
        assert len(deltas) > 1 and all(len(one.scores) == len(one.token_ids) for one in deltas)
        assert client.of(0)[0] == tokens
        assert "".join(one.text for one in deltas) == "abcd" * 700

    run(story())


def test_beams_have_theirs_with_the_end(front: Front, run: Run) -> None:
    """The core sends hypotheses whole, and so they leave."""

    async def story() -> None:
        client, quiet = Client(front), Client(front)
        search = pb.BeamSearch(width=2, length_penalty=1.0)
        tokens = front.encode("abc")
        handle = client.submit(n=2, beam_search=search, sampling=pb.Sampling(top_p=1.0, logprobs=2))
        other = quiet.submit(n=2, beam_search=search)
        for one in (handle, other):
            front.dispatcher.step(
                [
                    news(one, tokens, index=index, unseen_tokens=6, finish_reason="length", num_top=2)
                    for index in range(2)
                ]
            )
        events = await finish(front, client)
        assert scores_of(events, 0) == scores_of(events, 1) == expected(3)
        assert not any(event.delta.scores for event in await finish(front, quiet))

    run(story())


def test_an_embedding_comes_with_the_end(front: Front, run: Run) -> None:
    """A request to embed has no delta; its record says how long its prompt was, and that nothing was generated."""

    async def story() -> None:
        client = Client(front)
        handle = client.submit(embed=True)
        front.dispatcher.step([ipc.Output(handle=handle, admitted_max_tokens=1)])
        front.dispatcher.step([ipc.Output(handle=handle, finish_reason="stop", embedding=[0.5, -1.0, 2.0])])
        events = await finish(front, client)
        assert [event.WhichOneof("kind") for event in events] == ["admitted", "finished"]
        finished = events[-1].finished
        assert list(finished.embedding) == [0.5, -1.0, 2.0]
        assert finished.reason == pb.FINISH_REASON_STOP
        assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (3, 0)
        record = await client.record()
        assert (record.prompt_tokens, record.completion_tokens) == (3, 0)
        assert record.finish_reason == pb.FINISH_REASON_STOP

    run(story())


def test_a_prompt_is_scored_where_nothing_is_generated(front: Front, run: Run) -> None:
    """A request to embed may ask for the scores of its prompt, which is how a prompt is scored alone."""

    async def story() -> None:
        client = Client(front)
        handle = client.submit(embed=True, sampling=pb.Sampling(top_p=1.0, prompt_logprobs=1))
        scores: list[Score] = [(-1.0, [(4, -0.5)]), (-2.0, [(5, -0.25)])]
        front.dispatcher.step([ipc.Output(handle=handle, admitted_max_tokens=1, prompt_scores=scores)])
        front.dispatcher.step([ipc.Output(handle=handle, finish_reason="stop", embedding=[0.5])])
        events = await finish(front, client)
        assert [event.WhichOneof("kind") for event in events] == ["admitted", "prompt_scores", "finished"]
        assert [told(one) for event in events for one in event.prompt_scores.scores] == scores
        assert (await client.record()).completion_tokens == 0

    run(story())


def test_an_end_without_an_embedding_is_a_failure(front: Front, run: Run) -> None:
    """A deadline that passes is no answer; the reason is told."""

    async def story() -> None:
        client = Client(front)
        handle = client.submit(embed=True)
        front.dispatcher.step([ipc.Output(handle=handle, finish_reason="length", message="The deadline passed.")])
        events = await finish(front, client)
        finished = events[-1].finished
        assert finished.reason == pb.FINISH_REASON_ERROR
        assert finished.detail == "The deadline passed." and not finished.embedding

    run(story())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"beam_search": pb.BeamSearch(width=2)}, "beam_width"),
        ({"sampling": pb.Sampling(top_p=1.0, grammar=pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="a"))}, "grammar"),
        ({"sampling": pb.Sampling(top_p=1.0, logprobs=1)}, "logprobs"),
    ],
)
def test_what_makes_no_sense_with_an_embedding_is_refused(
    front: Front, run: Run, fields: dict[str, object], field: str
) -> None:
    """The refusal names the field."""

    async def story() -> None:
        client = Client(front)
        refuse(front, client, embed=True, **fields)
        (event,) = await finish(front, client)
        assert event.refused.code == pb.REFUSAL_CODE_INVALID
        assert event.refused.field == field

    run(story())


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"embed": True}, "embed"), ({"sampling": pb.Sampling(top_p=1.0, prompt_logprobs=0)}, "prompt_logprobs")],
)
def test_a_model_that_tells_no_hidden_states(front: Front, run: Run, fields: dict[str, object], field: str) -> None:
    """It embeds nothing and scores no prompt, and says so; what it generates it scores all the same."""
    front.dispatcher.embedding_size = 0

    async def story() -> None:
        client, other = Client(front), Client(front)
        refuse(front, client, **fields)
        (event,) = await finish(front, client)
        assert (event.refused.code, event.refused.field) == (pb.REFUSAL_CODE_INVALID, field)
        handle = other.submit(sampling=pb.Sampling(top_p=1.0, logprobs=2))
        front.dispatcher.step([news(handle, [5], finish_reason="length")])
        assert scores_of(await finish(front, other)) == expected(1)

    run(story())


def refuse(front: Front, client: Client, **fields: object) -> None:
    """Submit what the core never gets."""
    submit = pb.Submit(
        stream=1,
        request_id=client.request_id,
        tenant="minnow",
        namespace=bytes(32),
        token_ids=[5, 6, 7],
        **fields,  # type: ignore[arg-type]
    )
    num_sent = len(front.sent)
    front.dispatcher.submit(client.connection, submit)
    assert len(front.sent) == num_sent
