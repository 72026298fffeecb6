"""Scores of tokens and prompts, and embeddings, as a request's reader sees them."""

from collections.abc import Sequence

import pytest

from engine.protocol import pb
from gateway.workers import generation as module
from gateway.workers.client import WorkerClient
from gateway.workers.errors import GenerationFailed, SlowConsumer
from gateway.workers.generation import (
    Admitted,
    Delta,
    Event,
    Finished,
    Generation,
    OutputFinished,
    PromptScores,
    TokenScore,
)
from tests.gateway.wire.scripted import ScriptedEngine, admitted, delta, finished, output_finished, until
from tests.gateway.workers.test_client import run

END = Finished(pb.FINISH_REASON_STOP, "", 3, 0, 2)


def submit(n: int = 1, **fields: object) -> pb.Submit:
    """Return a request that asks for scores."""
    sampling = pb.Sampling(logprobs=2, prompt_logprobs=1)
    return pb.Submit(
        request_id="r",
        tenant="t",
        token_ids=[1, 2, 3],
        n=n,
        sampling=sampling,
        **fields,  # type: ignore[arg-type]
    )


def score(token: int) -> TokenScore:
    """Return a token's score, of numbers that float32 holds."""
    return TokenScore(-0.5 * token, ((token, -0.25), (token + 1, -1.5)))


def sent(one: TokenScore) -> pb.TokenScore:
    """Return a score as a worker sends it."""
    return pb.TokenScore(
        logprob=one.logprob, top_ids=[token for token, _ in one.top], top_logprobs=[value for _, value in one.top]
    )


def scored(text: str, tokens: Sequence[int], index: int = 0) -> pb.Event:
    """Return a delta with scores."""
    scores = [sent(score(token)) for token in tokens]
    return pb.Event(stream=1, index=index, delta=pb.Delta(token_ids=tokens, text=text, scores=scores))


def seen(text: str, tokens: Sequence[int], index: int = 0) -> Delta:
    """Return the same as a reader sees it."""
    return Delta(text, index, tuple(tokens), tuple(score(token) for token in tokens))


def prompt(*tokens: int) -> pb.Event:
    """Return scores of a prompt."""
    return pb.Event(stream=1, prompt_scores=pb.PromptScores(scores=[sent(score(token)) for token in tokens]))


async def read(generation: Generation) -> list[Event]:
    """Return all events to the end."""
    return [event async for event in generation]


def test_each_step_is_told_with_its_scores() -> None:
    """A token whose text is held back is told at once, its text with a later one; plain deltas carry no tokens."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            await until(lambda: engine.submits)
            for event, told in (
                (admitted(1), Admitted(10)),
                (scored("a", [7]), seen("a", [7])),
                (scored("", [8]), seen("", [8])),
                (scored("bc", [9]), seen("bc", [9])),
                (delta(1, "d"), Delta("d")),
                (finished(1), END),
            ):
                await engine.say(event)
                assert await generation.next(10) == told
            assert generation.num_tokens == 4

    run(story)


def test_what_a_slow_reader_left_is_joined() -> None:
    """Text, tokens and scores of an output come as one; its end follows, with no text of its own."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit(2)) as generation:
            await until(lambda: engine.submits)
            await engine.say(scored("a", [7]), scored("x", [1], 1), scored("", [8]), scored("b", [9, 10]))
            await engine.say(output_finished(1, 0, "c"), output_finished(1, 1, reason=pb.FINISH_REASON_LENGTH))
            await engine.say(finished(1))
            await until(lambda: generation.over)
            assert await read(generation) == [
                seen("abc", [7, 8, 9, 10]),
                OutputFinished(pb.FINISH_REASON_STOP, "", 0),
                seen("x", [1], 1),
                OutputFinished(pb.FINISH_REASON_LENGTH, "", 1),
                END,
            ]

    run(story)


def test_deltas_of_both_kinds_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text without scores before, between and behind those with scores; what has been read leaves the mailbox empty."""
    monkeypatch.setattr(module, "MAX_UNREAD", 200)

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            await until(lambda: engine.submits)
            for _ in range(20):
                await engine.say(delta(1, "a"), scored("b", [7]), delta(1, "c"), scored("d", [8]), delta(1, "e"))
                await until(lambda: generation.num_tokens % 5 == 0 and generation.pending)
                assert await generation.next(10) == seen("abcde", [7, 8])
            await engine.say(delta(1, "f"), finished(1))
            assert await generation.next(10) == Delta("f")
            assert await generation.next(10) == END

    run(story)


def test_an_end_that_comes_alone_keeps_its_text() -> None:
    """Where all scores had been read, the end says what was held back, as without scores."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit(2)) as generation:
            await until(lambda: engine.submits)
            await engine.say(scored("a", [7]))
            assert await generation.next(10) == seen("a", [7])
            await engine.say(output_finished(1, 0, "b"))
            assert await generation.next(10) == OutputFinished(pb.FINISH_REASON_STOP, "b", 0)

    run(story)


def test_many_are_joined_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event holds so many scores that reading it holds others up; nothing is lost or turned round."""
    monkeypatch.setattr(module, "_JOINED_SCORES", 3)

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            await until(lambda: engine.submits)
            await engine.say(*(scored(str(token), [token]) for token in range(8)), finished(1))
            await until(lambda: generation.over)
            events = await read(generation)
        deltas = [event for event in events if isinstance(event, Delta)]
        assert [len(one.tokens) for one in deltas] == [3, 3, 2]
        assert "".join(one.text for one in deltas) == "01234567"
        assert [token for one in deltas for token in one.tokens] == list(range(8))
        assert [one for part in deltas for one in part.scores] == [score(token) for token in range(8)]
        assert events[-1] == END

    run(story)


def test_scores_count_as_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that leaves scores unread is too slow, though there is no text; one that reads them is not."""
    monkeypatch.setattr(module, "MAX_UNREAD", 200)

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            await until(lambda: engine.submits)
            for token in range(20):
                await engine.say(scored("", [token]))
                assert await generation.next(10) == seen("", [token])
            await engine.say(*(scored("", [token]) for token in range(20)))
            await until(lambda: engine.cancels == [1])
            with pytest.raises(SlowConsumer):
                await read(generation)

    run(story)


def test_the_prompts_scores_are_one_event() -> None:
    """However many pieces they came in, they are read whole, before the first delta and not before the last piece."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            await until(lambda: engine.submits)
            await engine.say(admitted(1), prompt(4, 5))
            assert await generation.next(10) == Admitted(10)
            assert not generation.pending
            await engine.say(prompt(6), scored("a", [7]), finished(1))
            await until(lambda: generation.over)
            assert await read(generation) == [
                PromptScores((score(4), score(5), score(6))),
                seen("a", [7]),
                END,
            ]

    run(story)


def test_a_failure_comes_after_what_was_told() -> None:
    """Scores that had come are read before the error."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            await until(lambda: engine.submits)
            await engine.say(prompt(4), scored("a", [7]), finished(1, pb.FINISH_REASON_ERROR))
            await until(lambda: generation.over)
            assert await generation.next() == PromptScores((score(4),))
            assert await generation.next() == seen("a", [7])
            with pytest.raises(GenerationFailed):
                await generation.next()

    run(story)


def test_a_part_of_the_prompts_scores_is_not_told() -> None:
    """A request that fails before its first delta may lack some: they are no whole, and the failure is all there is."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit()) as generation:
            await until(lambda: engine.submits)
            await engine.say(admitted(1), prompt(4), finished(1, reason=pb.FINISH_REASON_ERROR))
            assert await generation.next() == Admitted(10)
            with pytest.raises(GenerationFailed):
                await generation.next()

    run(story)


def test_an_embedding_is_part_of_the_end() -> None:
    """It is told with the counts, and there is none otherwise."""

    async def story(engine: ScriptedEngine, client: WorkerClient) -> None:
        async with client.submit(submit(embed=True)) as generation:
            await until(lambda: engine.submits)
            usage = pb.Usage(prompt_tokens=3)
            end = pb.Finished(reason=pb.FINISH_REASON_STOP, usage=usage, embedding=[0.5, -2.0])
            await engine.say(admitted(1, 1), pb.Event(stream=1, finished=end))
            assert await generation.next(10) == Admitted(1)
            assert await generation.next(10) == Finished(pb.FINISH_REASON_STOP, "", 3, 0, 0, (0.5, -2.0))

    run(story)
