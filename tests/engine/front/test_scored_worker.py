"""Scores and embeddings of the whole worker, `python -m engine`, against `transformers`."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.model.folder import read_folder
from engine.protocol import pb
from engine.step import TokenLogprobs
from tests.engine.front.client import Client, GenerateStream, channel
from tests.engine.front.conftest import Run, Tokenize
from tests.engine.front.process import WorkerProcess
from tests.engine.model.checkpoints import assert_logprobs, oracle

TEXT = "a memory that is shared by many is a memory that is never empty; one two three four five six seven"


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> PreTrainedModel:
    """The worker's model in transformers."""
    return oracle(read_folder(tiny_model, name="tiny"))


def measured(scores: list[pb.TokenScore]) -> list[TokenLogprobs]:
    """Return scores as an engine measures them."""
    return [TokenLogprobs(one.logprob, tuple(zip(one.top_ids, one.top_logprobs, strict=True))) for one in scores]


def scores_of(stream: GenerateStream, number: int, index: int = 0) -> list[pb.TokenScore]:
    """Return the scores of an output's tokens."""
    events = [event for event in stream.events[number] if event.index == index]
    return [score for event in events for score in event.delta.scores]


def tokens_of(stream: GenerateStream, number: int, index: int = 0) -> list[int]:
    """Return an output's tokens."""
    events = [event for event in stream.events[number] if event.index == index]
    return [token for event in events for token in event.delta.token_ids]


async def ready(client: Client) -> GenerateStream:
    """Return a stream of a client whose tenant has a policy."""
    await client.use_policy()
    return client.generate()


def test_scores_of_prompt_and_output(
    engine: WorkerProcess, run: Run, tokenize: Tokenize, model: PreTrainedModel
) -> None:
    """Cached or not, alone, of several outputs, of the best and of beams: those of one forward over the text."""
    prompt = tokenize(TEXT)

    async def story() -> None:
        async with channel(engine.address) as client:
            stream = await ready(client)
            sampling = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "logprobs": 3, "prompt_logprobs": 2}
            searched = sampling | {"temperature": 0.0}
            asked = [
                await stream.submit(prompt, sampling=sampling),
                await stream.submit(prompt, sampling=sampling | {"seed": 7}),
                await stream.submit(prompt, n=2, sampling=sampling),
                await stream.submit(prompt, n=2, best_of=4, sampling=sampling),
                await stream.submit(
                    prompt, n=2, beam_search=pb.BeamSearch(width=3, length_penalty=1.0), sampling=searched
                ),
            ]
            for number, count in zip(asked, (1, 1, 2, 2, 2), strict=True):
                end = await stream.end(number)
                assert end.finished.reason == pb.FINISH_REASON_LENGTH
                assert end.finished.usage.cached_tokens == 0
                told = [one for event in stream.events[number] for one in event.prompt_scores.scores]
                assert_logprobs(model, prompt[:1], prompt[1:], measured(told), tolerance=2e-4)
                for index in range(count):
                    token_ids, scores = tokens_of(stream, number, index), scores_of(stream, number, index)
                    assert len(token_ids) == 12
                    assert all(len(one.top_ids) == 3 for one in scores)
                    assert_logprobs(model, prompt, token_ids, measured(scores), tolerance=2e-4)

    run(story())


def test_embeddings(engine: WorkerProcess, run: Run, tokenize: Tokenize, model: PreTrainedModel) -> None:
    """Of many prompts at once, beside streams: the means of the last hidden states. The card says how long they are."""
    prompts = [tokenize(TEXT[:length]) for length in (1, 5, 20, 60, len(TEXT))]

    async def story() -> None:
        async with channel(engine.address) as client:
            assert (await client.describe()).embedding_size == 64
            stream = await ready(client)
            beside = await stream.submit(prompts[2], sampling={"max_tokens": 30, "ignore_eos": True})
            asked = [await stream.submit(prompt, embed=True) for prompt in prompts]
            for number, prompt in zip(asked, prompts, strict=True):
                finished = (await stream.end(number)).finished
                assert finished.reason == pb.FINISH_REASON_STOP
                assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (len(prompt), 0)
                assert [event.WhichOneof("kind") for event in stream.events[number]] == ["admitted", "finished"]
                with torch.inference_mode():
                    states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0]
                found = torch.tensor(list(finished.embedding))
                torch.testing.assert_close(found, states.mean(0), atol=2e-4, rtol=2e-4)
            assert len(tokens_of(stream, beside)) <= 30
            await stream.end(beside)

    run(story())
