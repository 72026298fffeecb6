"""What a request may ask of sampling, through a whole worker: real front, real core, a tiny model."""

from tests.engine.front.client import GenerateStream, channel
from tests.engine.front.conftest import Run, Tokenize
from tests.engine.front.process import WorkerProcess

EOS = 2  # of the tiny model
OFTEN = 77


async def outputs(stream: GenerateStream, prompt: list[int], *asked: dict[str, object]) -> list[list[int]]:
    """Return the tokens of requests that run side by side."""
    numbers = [await stream.submit(prompt, sampling=one) for one in asked]
    for number in numbers:
        assert (await stream.end(number)).HasField("finished")
    return [stream.token_ids(number) for number in numbers]


def test_bias_and_penalties_reach_the_model(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """A bias of 100 makes one token come always, -100 never; a penalty of 2 a time wears a smaller bias down."""
    prompt = tokenize("the tenant holds the block")

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            free = {"temperature": 1.0, "seed": 5, "max_tokens": 24, "ignore_eos": True}
            always, worn, never = await outputs(
                stream,
                prompt,
                free | {"logit_bias": {OFTEN: 100.0}},
                free | {"logit_bias": {OFTEN: 30.0}, "frequency_penalty": 2.0},
                free | {"logit_bias": dict.fromkeys(range(100, 384), -100.0)},
            )
            assert set(always) == {OFTEN}
            assert worn[0] == OFTEN
            assert 5 <= worn.count(OFTEN) < 24
            assert max(never) < 100

    run(story())


def test_min_p_min_tokens_and_repetition(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """min_p 1 is greedy, the end waits for min_tokens, and a repetition penalty counts the prompt's tokens."""
    prompt = tokenize("the block holds the tokens")

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            ends = {"logit_bias": {EOS: 100.0}, "max_tokens": 20}
            greedy, likeliest, at_once, later, plain, penalised = await outputs(
                stream,
                prompt,
                {"max_tokens": 12, "ignore_eos": True},
                {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "min_p": 1.0},
                ends,
                ends | {"min_tokens": 7},
                {"max_tokens": 1, "logit_bias": {prompt[0]: 40.0, OFTEN: 25.0}},
                {"max_tokens": 1, "logit_bias": {prompt[0]: 40.0, OFTEN: 25.0}, "repetition_penalty": 10.0},
            )
            assert likeliest == greedy
            assert at_once == [EOS]
            assert len(later) == 8
            assert later.index(EOS) == 7
            assert (plain, penalised) == ([prompt[0]], [OFTEN])

    run(story())


def test_what_changes_a_choice_changes_no_log_probability(engine: WorkerProcess, run: Run, tokenize: Tokenize) -> None:
    """What is reported of a token that a bias has forced is what the model thinks of it."""
    prompt = tokenize("the block holds the tokens")

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            number = await stream.submit(
                prompt,
                sampling={"max_tokens": 1, "logprobs": 1, "logit_bias": {OFTEN: 100.0}, "repetition_penalty": 2.0},
            )
            plain = await stream.submit(prompt, sampling={"max_tokens": 1, "logprobs": 1})
            await stream.end(number)
            await stream.end(plain)
            scores = [
                [score for event in stream.events[one] for score in event.delta.scores] for one in (number, plain)
            ]
            (forced,), (free,) = scores
            assert stream.token_ids(number) == [OFTEN] != stream.token_ids(plain)
            assert forced.logprob < free.logprob - 1e-3
            assert (forced.top_ids, forced.top_logprobs) == (free.top_ids, free.top_logprobs)

    run(story())
