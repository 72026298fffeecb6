"""Beam search through real processes with the real OpenAI SDK, against that of `transformers`."""

import torch

from tests.engine.tiny_model import make_tokenizer
from tests.gateway.api.test_faults import abort, connect, running
from tests.gateway.api.test_several_outputs import CHAT, LONG, PROMPT, streamed, texts_of, tiny_model
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for


def test_beam_search_finds_what_transformers_finds(stack: Stack, tenant: TenantInTest) -> None:
    """The outputs of a search are those of `transformers`, best first, streamed or not; greedy's is another."""
    client = stack.openai(tenant.key())
    greedy = client.completions.create(**PROMPT, temperature=0).choices[0].text
    search = LONG | {"use_beam_search": True, "beam_width": 4}
    common = PROMPT | {"n": 3, "extra_body": search}
    answer = client.completions.create(**common)
    assert texts_of(answer) == beams_of(stack, "the tenant", width=4, count=3)
    assert texts_of(client.completions.create(**common)) == texts_of(answer)
    assert greedy != answer.choices[0].text
    assert answer.usage.completion_tokens >= 4 * 15
    texts = [""] * 3
    for chunk in client.completions.create(**common, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == texts_of(answer)
    alone = client.completions.create(**PROMPT | {"extra_body": search})
    assert texts_of(alone) == texts_of(answer)[:1]


def beams_of(stack: Stack, prompt: str, *, width: int, count: int) -> list[str]:
    """Return what a beam search of `transformers` over the tiny model gives for 16 tokens."""
    tokenizer = make_tokenizer()
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    found = tiny_model(stack).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=width,
        num_return_sequences=count,
        do_sample=False,
        max_new_tokens=16,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [tokenizer.decode(row[ids.shape[1] :].tolist(), skip_special_tokens=True) for row in found]


def test_beam_search_of_a_chat(stack: Stack, tenant: TenantInTest) -> None:
    """A chat's search gives `n` different answers, streamed with one opening and one end each; `n` is its width."""
    client = stack.openai(tenant.key())
    common = CHAT | {"n": 3, "extra_body": LONG | {"use_beam_search": True}}
    answer = client.chat.completions.create(**common)
    assert len(set(texts_of(answer))) == 3
    texts, reasons, usage = streamed(client, **common)
    assert (texts, reasons) == (texts_of(answer), ["length"] * 3)
    assert usage.completion_tokens == answer.usage.completion_tokens


def test_beam_search_ends_with_a_stop_token(stack: Stack, tenant: TenantInTest) -> None:
    """A beam that meets a stop token has finished, its reason is `stop` and the token is no part of its text."""
    client = stack.openai(tenant.key())
    tokenizer = make_tokenizer()
    free = client.completions.create(**PROMPT | {"extra_body": LONG | {"use_beam_search": True, "beam_width": 3}})
    stop = tokenizer.encode(free.choices[0].text[5:]).ids[1]  # one that it comes by
    fields = LONG | {"use_beam_search": True, "beam_width": 3, "stop_token_ids": [stop], "early_stopping": True}
    answer = client.completions.create(**PROMPT | {"extra_body": fields})
    assert answer.choices[0].finish_reason == "stop"
    assert tokenizer.decode([stop]) not in answer.choices[0].text


def test_client_that_leaves_a_search_cancels_it_and_pays(stack: Stack) -> None:
    """A search whose client goes ends; the ledger has what its beams had generated, its rate what was reserved."""
    tenant = stack.tenant(tpm=24_000)
    raw = tenant.key()
    body = {"model": "tiny", "messages": CHAT["messages"], "max_tokens": 1500, "ignore_eos": True}
    search = body | {"use_beam_search": True, "beam_width": 8}  # some seconds' work
    for turn in range(1, 9):  # on a loaded machine it may end before its client's turn has come
        wait_for(lambda: running(stack, tenant) == 0, 90, "statistics that have left the last turn behind")
        connection = connect(stack, raw, search)
        wait_for(lambda at=turn: running(stack, tenant) or len(tenant.usage()) == at, 90, "the search to run")
        abort(connection)
        records = wait_for(lambda at=turn: tenant.usage() if len(tenant.usage()) == at else [], 90, "its record")
        cancelled = [record for record in records if record["finish_reason"] == "cancelled"]
        if cancelled:
            break
    (record,) = cancelled
    assert 0 < record["completion_tokens"] < 8 * 1500
    wait_for(lambda: running(stack, tenant) == 0, 90, "the end of all beams")
    with stack.http(raw) as client:
        headers = client.post("/v1/chat/completions", json=body | {"max_tokens": 1}).headers
    assert int(headers["x-ratelimit-remaining-tokens"]) < 24_000 - 4000, "a part of it has flowed in again"
