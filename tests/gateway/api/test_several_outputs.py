"""`n` and `best_of` through real processes with the real OpenAI SDK."""

import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import grpc
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.protocol import pb, rpc
from tests.engine.tiny_model import make_tokenizer
from tests.gateway.api.test_faults import abort, connect, running
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

HELLO = [{"role": "user", "content": "hello world"}]
LONG = {"ignore_eos": True}
CHAT: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 16, "extra_body": LONG}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "the tenant", "max_tokens": 16, "extra_body": LONG}


def texts_of(answer: Any) -> list[str]:
    """Return the texts of a whole answer after checking that its choices are complete and in order."""
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    assert all(choice.finish_reason for choice in answer.choices)
    return [choice.message.content if hasattr(choice, "message") else choice.text for choice in answer.choices]


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[list[str], list[str], Any]:
    """Stream a chat; return texts and reasons by index, and the usage, after checking each choice's frame."""
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    usage = None
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **fields):
        assert usage is None, "the chunk of usage is the last"
        usage = chunk.usage
        for choice in chunk.choices:
            index, delta = choice.index, choice.delta
            assert index not in reasons, "nothing follows the end of a choice"
            assert (delta.role == "assistant") == (index not in texts), "one opening chunk a choice, its first"
            texts[index] += delta.content or ""
            if choice.finish_reason:
                reasons[index] = choice.finish_reason
    assert sorted(texts) == sorted(reasons) == list(range(len(texts)))
    return [texts[index] for index in sorted(texts)], [reasons[index] for index in sorted(reasons)], usage


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_greedy_outputs_are_the_same(stack: Stack, tenant: TenantInTest, n: int) -> None:
    """All choices of a greedy request are those of a single one, streamed or not; the prompt counts once."""
    client = stack.openai(tenant.key())
    alone = client.chat.completions.create(**CHAT, temperature=0)
    answer = client.chat.completions.create(**CHAT, temperature=0, n=n)
    assert texts_of(answer) == texts_of(alone) * n
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert answer.usage.completion_tokens == 16 * n
    texts, reasons, usage = streamed(client, **CHAT, temperature=0, n=n)
    assert (texts, reasons) == (texts_of(answer), ["length"] * n)
    assert (usage.prompt_tokens, usage.completion_tokens) == (alone.usage.prompt_tokens, 16 * n)


def test_seeded_outputs_repeat_and_differ(stack: Stack, tenant: TenantInTest) -> None:
    """One seed gives the same choices again, streamed or not, and each of them another text."""
    client = stack.openai(tenant.key())
    answer = client.chat.completions.create(**CHAT, temperature=1.2, seed=5, n=6)
    texts, _, _ = streamed(client, **CHAT, temperature=1.2, seed=5, n=6)
    assert texts == texts_of(answer)
    assert len(set(texts)) == 6


def test_stop_strings_end_each_output_on_its_own(stack: Stack, tenant: TenantInTest) -> None:
    """Each choice ends before its own first stop string, the others go on to their length."""
    client = stack.openai(tenant.key())
    common = CHAT | {"temperature": 1.2, "seed": 11, "n": 5, "max_tokens": 40}
    whole = texts_of(client.chat.completions.create(**common))
    stop = next(
        text
        for text in (whole[0][at : at + 2] for at in range(4, len(whole[0]) - 2))
        if not all(text in other for other in whole) and "\ufffd" not in text
    )
    expected = [text.split(stop)[0] for text in whole]
    answer = client.chat.completions.create(**common, stop=[stop])
    assert texts_of(answer) == expected
    assert [choice.finish_reason for choice in answer.choices] == [
        "stop" if stop in text else "length" for text in whole
    ]
    texts, reasons, _ = streamed(client, **common, stop=[stop])
    assert texts == expected
    assert reasons == [choice.finish_reason for choice in answer.choices]


@pytest.mark.parametrize("stream", [False, True])
def test_outputs_of_several_prompts_go_prompt_by_prompt(stack: Stack, tenant: TenantInTest, stream: bool) -> None:
    """With several prompts the choices of the first come first; each prompt counts once."""
    client = stack.openai(tenant.key())
    prompts = ["the tenant", "a memory that", "one two three"]
    common = PROMPT | {"temperature": 0}
    alone = [client.completions.create(**common | {"prompt": prompt}) for prompt in prompts]
    expected = [answer.choices[0].text for answer in alone for _ in range(3)]
    if stream:
        texts = [""] * 9
        ended = []
        for chunk in client.completions.create(**common | {"prompt": prompts}, n=3, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
            ended += [choice.index for choice in chunk.choices if choice.finish_reason]
        assert sorted(ended) == list(range(9))
        assert texts == expected
    else:
        answer = client.completions.create(**common | {"prompt": prompts}, n=3)
        assert texts_of(answer) == expected
        assert answer.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
        assert answer.usage.completion_tokens == 9 * 16


def test_best_of_gives_some_of_what_it_generates(stack: Stack, tenant: TenantInTest) -> None:
    """`best_of` returns `n` of its outputs, the same again with the same seed, and usage counts all of them."""
    client = stack.openai(tenant.key())
    common = PROMPT | {"temperature": 1.2, "seed": 3}
    everything = texts_of(client.completions.create(**common, n=6))
    answer = client.completions.create(**common, n=2, best_of=6)
    best = texts_of(answer)
    assert len(set(best)) == 2
    assert set(best) < set(everything)
    assert answer.usage.completion_tokens == 6 * 16
    assert texts_of(client.completions.create(**common, best_of=6)) == best[:1]
    assert texts_of(client.completions.create(**common, n=6, best_of=6)) == everything


def test_best_of_is_best_by_the_model(stack: Stack, tenant: TenantInTest) -> None:
    """What comes back is what the model itself, asked for the probability of each output's tokens, ranks highest."""
    tokenizer = make_tokenizer()
    answer = stack.openai(tenant.key()).completions.create(**PROMPT, temperature=1, seed=3, n=2, best_of=6)
    outputs = generated(stack, tenant, tokenizer.encode("the tenant").ids, n=6, seed=3)
    ranked = sorted(outputs, key=lambda tokens: -mean_logprob(stack, tokenizer.encode("the tenant").ids, tokens))
    assert texts_of(answer) == [tokenizer.decode(tokens) for tokens in ranked[:2]]


def generated(stack: Stack, tenant: TenantInTest, prompt: list[int], *, n: int, seed: int) -> list[list[int]]:
    """Return the token ids that the worker itself samples for 16 tokens."""
    submit = pb.Submit(
        stream=1,
        request_id=uuid.uuid4().hex,
        tenant=tenant.id,
        namespace=b"n" * 32,
        token_ids=prompt,
        sampling=pb.Sampling(max_tokens=16, temperature=1, top_p=1, seed=seed, ignore_eos=True),
        n=n,
    )
    ended = threading.Event()

    def commands() -> Iterator[pb.Command]:
        yield pb.Command(submit=submit)
        ended.wait(60)

    outputs: list[list[int]] = [[] for _ in range(n)]
    with grpc.insecure_channel(stack.workers["tiny"].address) as channel:
        stub = rpc.EngineStub(channel)  # type: ignore[no-untyped-call]
        for step in stub.Generate(commands(), metadata=[("authorization", f"Bearer {stack.env['ENGINE_TOKEN']}")]):
            for event in step.events:
                outputs[event.index] += event.delta.token_ids
                if event.WhichOneof("kind") in ("finished", "refused"):
                    ended.set()
    assert [len(tokens) for tokens in outputs] == [16] * n
    return outputs


def mean_logprob(stack: Stack, prompt: list[int], tokens: list[int]) -> float:
    """Return the mean log-probability that `transformers` gives to each of `tokens` after the prompt."""
    ids = torch.tensor([prompt + tokens])
    with torch.no_grad():
        logprobs = tiny_model(stack)(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return float(logprobs.gather(1, torch.tensor(tokens)[:, None]).mean())


def tiny_model(stack: Stack) -> PreTrainedModel:
    """Return the model that the worker `tiny` serves, in `transformers`' own code."""
    return AutoModelForCausalLM.from_pretrained(stack.folder / "model-tiny", dtype=torch.float32)


def test_best_of_several_prompts(stack: Stack, tenant: TenantInTest) -> None:
    """Each prompt has its own best."""
    client = stack.openai(tenant.key())
    common = PROMPT | {"temperature": 1.2, "seed": 3, "n": 2, "best_of": 4}
    alone = [texts_of(client.completions.create(**common | {"prompt": prompt})) for prompt in ("hello", "one two")]
    both = client.completions.create(**common | {"prompt": ["hello", "one two"]})
    assert texts_of(both) == alone[0] + alone[1]


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_cancels_all_outputs(stack: Stack, tenant: TenantInTest, stream: bool) -> None:
    """One client that goes ends all outputs of its request, and the ledger has one record of what was generated."""
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 1500, "ignore_eos": True, "n": 4, "stream": stream}
    for turn in range(1, 9):  # on a loaded machine it may end before its client's turn has come
        wait_for(lambda: running(stack, tenant) == 0, 90, "statistics that have left the last turn behind")
        connection = connect(stack, tenant.key(), body)
        wait_for(lambda at=turn: running(stack, tenant) or len(tenant.usage()) == at, 90, "the request to run")
        abort(connection)
        records = wait_for(lambda at=turn: tenant.usage() if len(tenant.usage()) == at else [], 90, "its record")
        cancelled = [record for record in records if record["finish_reason"] == "cancelled"]
        if cancelled:
            break
    (record,) = cancelled
    assert record["completion_tokens"] < 4 * 1500
    wait_for(lambda: running(stack, tenant) == 0, 90, "the end of all outputs")


def test_ledger_has_one_record(stack: Stack, tenant: TenantInTest) -> None:
    """A request with several outputs is one record, with the counts that the client was told."""
    with stack.http(tenant.key()) as client:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 6, "ignore_eos": True, "n": 3}
        response = client.post("/v1/chat/completions", json=body)
    (record,) = wait_for(tenant.usage)
    usage = response.json()["usage"]
    assert record["request_id"] == response.headers["x-request-id"]
    assert (record["prompt_tokens"], record["completion_tokens"]) == (usage["prompt_tokens"], 18)


def test_tokens_of_all_outputs_are_reserved_and_settled(stack: Stack) -> None:
    """What `n` outputs may need is taken from the limit beforehand, and what they didn't use comes back."""
    raw = stack.tenant(tpm=4000).key()
    body = {"model": "tiny", "messages": HELLO, "n": 4, "max_tokens": 900, "stop": ["e", "a", "t", " "]}
    with stack.http(raw) as client:
        first = client.post("/v1/chat/completions", json=body)
        left = int(first.headers["x-ratelimit-remaining-tokens"])
        assert left < 4000 - 3 * 900, "told before it is settled; some has flowed in since it was taken"
        used = first.json()["usage"]["total_tokens"]
        assert used < 2000
        again = client.post("/v1/chat/completions", json=body | {"n": 1, "max_tokens": 1})
    assert int(again.headers["x-ratelimit-remaining-tokens"]) > 4000 - used - 100


def test_one_request_whatever_its_outputs(stack: Stack) -> None:
    """`n` outputs are one of the requests that a minute allows."""
    with stack.http(stack.tenant(rpm=3).key()) as client:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 1, "n": 8}
        headers = client.post("/v1/chat/completions", json=body).headers
    assert headers["x-ratelimit-remaining-requests"] == "2"
