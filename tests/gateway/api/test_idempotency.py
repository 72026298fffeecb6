"""Requests that are sent again under their Idempotency-Key: the handlers over plain ASGI, a real Redis behind."""

import asyncio
import dataclasses
import json
import os
import uuid
from typing import Any

import msgspec
import pytest
import redis.asyncio

from engine.protocol import pb
from gateway.api import idempotency, kept
from gateway.api.completions import completions
from gateway.api.exchange import Handler
from gateway.api.kept import KeptAnswers
from gateway.web import Web
from tests.gateway.api import test_waiting
from tests.gateway.api.test_auth import GRANT
from tests.gateway.api.test_waiting import Client, run
from tests.gateway.wire.scripted import ScriptedEngine, admitted, delta, finished, refused, until
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

CHAT: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "a secret question"}]}
TEXT: dict[str, Any] = {"model": "scripted", "prompt": "a secret question"}


@pytest.fixture
def tenant_of_stack(stack: Stack) -> TenantInTest:
    """Return a tenant of the deployment."""
    return stack.tenant()


@pytest.fixture(autouse=True)
def tenant(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the caller be a tenant of its own, whose keys nobody else has used."""
    name = f"tenant-{uuid.uuid4().hex}"
    monkeypatch.setattr(test_waiting, "GRANT", msgspec.structs.replace(GRANT, tenant_id=name))
    return name


def keyed(web: Web, body: dict[str, Any], key: str, handler: Handler | None = None) -> Client:
    """Send a request under a key."""
    handlers = [handler] if handler is not None else []
    return Client(web, body, *handlers, headers=[(b"idempotency-key", key.encode())])


def headers(client: Client) -> dict[bytes, bytes]:
    """Return the headers of an answer."""
    return dict(client.sent[0]["headers"])


def error(client: Client) -> dict[str, Any]:
    """Return the error of an answer."""
    return dict(json.loads(client.body)["error"])


async def serve(engine: ScriptedEngine, client: Client, text: str = "a secret answer") -> None:
    """Let the newest request of the worker generate a text, and its client have it."""
    stream = engine.submits[-1].stream
    await engine.say(admitted(stream), delta(stream, text), finished(stream))
    await client.task


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("body", "handler"), [(CHAT, None), (TEXT, completions)], ids=["chat", "completions"])
def test_same_request_gets_the_same_answer(body: dict[str, Any], handler: Handler | None, streamed: bool) -> None:
    """A request that is sent again is answered byte for byte as before, says so, and asks no worker."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, body | {"stream": streamed}, "k", handler)
        await until(lambda: engine.submits)
        await serve(engine, first)
        again = keyed(web, body | {"stream": streamed}, "k", handler)
        await again.task
        assert len(engine.submits) == 1
        assert (again.status, again.body) == (200, first.body)
        assert headers(again)[b"idempotent-replayed"] == b"true"
        assert b"idempotent-replayed" not in headers(first)
        assert headers(again)[b"content-type"] == headers(first)[b"content-type"]

    run(story)


def test_without_a_key_nothing_is_kept() -> None:
    """It is opt-in: the same request without a key is generated anew."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        for count in (1, 2):
            client = Client(web, CHAT)
            await until(lambda count=count: len(engine.submits) == count)
            await serve(engine, client)

    run(story)


@pytest.mark.parametrize("other", [CHAT | {"max_tokens": 1}, CHAT | {"stream": True}, TEXT])
def test_another_request_under_the_key_is_refused(other: dict[str, Any]) -> None:
    """A key belongs to one path and one body, as at Stripe; it is refused while the first runs, and after it."""
    handler = completions if "prompt" in other else None

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT, "k")
        await until(lambda: engine.submits)
        for turn in range(2):
            refusal = keyed(web, other, "k", handler)
            await refusal.task
            assert (refusal.status, error(refusal)["code"]) == (422, "idempotency_key_reused")
            if not turn:
                await serve(engine, first)

    run(story)


def test_request_that_is_being_served_is_refused_for_a_while() -> None:
    """The same request while the first is on its way is a 409 with a time to wait; then it has the answer."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT, "k")
        await until(lambda: engine.submits)
        again = keyed(web, CHAT, "k")
        await again.task
        assert (again.status, error(again)["code"]) == (409, "idempotency_key_in_use")
        assert headers(again)[b"retry-after"] == b"1"
        await serve(engine, first)
        third = keyed(web, CHAT, "k")
        await third.task
        assert third.body == first.body

    run(story)


def test_refusal_frees_the_key() -> None:
    """Only good answers are kept: after a refusal the same request is tried anew."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT, "k")
        await until(lambda: engine.submits)
        await engine.say(refused(engine.submits[0].stream, pb.REFUSAL_CODE_QUEUE_FULL))
        await first.task
        assert first.status == 429
        again = keyed(web, CHAT, "k")
        await until(lambda: len(engine.submits) == 2)
        await serve(engine, again)
        assert again.status == 200

    run(story)


def test_stream_that_breaks_frees_the_key() -> None:
    """A stream that ends with an error is not kept."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT | {"stream": True}, "k")
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream), delta(stream, "a"), finished(stream, pb.FINISH_REASON_ERROR))
        await first.task
        assert b"worker_failed" in first.body
        again = keyed(web, CHAT | {"stream": True}, "k")
        await until(lambda: len(engine.submits) == 2)
        await serve(engine, again)

    run(story)


@pytest.mark.parametrize("streamed", [True, False])
def test_client_that_leaves_frees_the_key(streamed: bool) -> None:
    """What nobody has waited for is cancelled, and generated anew when it is asked for again."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT | {"stream": streamed}, "k")
        stream = (await until(lambda: engine.submits))[0].stream
        await engine.say(admitted(stream))
        first.leave()
        await first.task
        await until(lambda: engine.cancels == [stream])
        again = keyed(web, CHAT | {"stream": streamed}, "k")
        await until(lambda: len(engine.submits) == 2)
        await serve(engine, again)
        assert again.status == 200

    run(story)


@pytest.mark.parametrize("whose", ["tenant_id", "project_id"])
def test_keys_hold_within_a_project(monkeypatch: pytest.MonkeyPatch, tenant: str, whose: str) -> None:
    """Another tenant's key of the same name, or another project's, is another key, also with another request."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT, "k")
        await until(lambda: engine.submits)
        await serve(engine, first)
        for count, body in ((2, CHAT), (3, CHAT | {"max_tokens": 1})):
            grant = msgspec.structs.replace(GRANT, **{"tenant_id": tenant, whose: uuid.uuid4().hex})
            monkeypatch.setattr(test_waiting, "GRANT", grant)
            other = keyed(web, body, "k")
            await until(lambda count=count: len(engine.submits) == count)
            await serve(engine, other, "another answer")
            assert b"another answer" in other.body

    run(story)


def test_keys_hold_for_all_api_keys_of_a_project(monkeypatch: pytest.MonkeyPatch, tenant: str) -> None:
    """A retry may come with another API key of the project."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT, "k")
        await until(lambda: engine.submits)
        await serve(engine, first)
        monkeypatch.setattr(test_waiting, "GRANT", msgspec.structs.replace(GRANT, tenant_id=tenant, key_id="another"))
        again = keyed(web, CHAT, "k")
        await again.task
        assert again.body == first.body

    run(story)


def test_key_that_may_not_use_the_model_gets_no_answer(monkeypatch: pytest.MonkeyPatch, tenant: str) -> None:
    """An answer is not for an API key of the tenant's that may not use the model."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT, "k")
        await until(lambda: engine.submits)
        await serve(engine, first)
        narrow = msgspec.structs.replace(GRANT, tenant_id=tenant, models=("other",))
        monkeypatch.setattr(test_waiting, "GRANT", narrow)
        again = keyed(web, CHAT, "k")
        await again.task
        assert (again.status, error(again)["code"]) == (404, "model_not_found")

    run(story)


def test_redis_has_no_text(tenant: str) -> None:
    """Neither the request nor the answer nor the key can be read in Redis."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        first = keyed(web, CHAT, "order-4711")
        await until(lambda: engine.submits)
        await serve(engine, first)
        async with redis.asyncio.Redis.from_url(os.environ["REDIS_URL"]) as store:
            names = [name async for name in store.scan_iter(f"*{tenant}*")]
            held = b"".join([await store.dump(name) or b"" for name in names])
            assert names
            for word in (b"secret", b"order-4711", b"chatcmpl"):
                assert word not in held + b"".join(names)
            assert all([0 < await store.ttl(name) <= kept.KEEP_SECONDS for name in names])

    run(story)


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there", "é"])
def test_header_that_is_no_key(key: str) -> None:
    """An empty, long or unprintable key is a 400 that names the header."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = keyed(web, CHAT, key)
        await client.task
        assert (client.status, error(client)["param"]) == (400, "Idempotency-Key")
        assert not engine.submits

    run(story)


def test_without_redis_a_key_is_refused() -> None:
    """What can't be promised is refused with a 503 that can be tried again; a request without a key goes on."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        nowhere = redis.asyncio.Redis(unix_socket_path="/nowhere/redis.sock")
        without = dataclasses.replace(web, kept=KeptAnswers(nowhere))
        client = keyed(without, CHAT, "k")
        await client.task
        assert client.status == 503
        assert headers(client)[b"retry-after"]
        plain = Client(without, CHAT)
        await until(lambda: engine.submits)
        await serve(engine, plain)
        await nowhere.aclose()

    run(story)


@pytest.mark.parametrize("limit", ["MAX_ANSWER", "MAX_OF_TENANT"])
def test_answer_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """One answer, or all of a tenant's, have bounds; what is over them is told, and generated anew the next time."""
    monkeypatch.setattr(kept, limit, 10)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        for count in (1, 2):
            client = keyed(web, CHAT, "k")
            await until(lambda count=count: len(engine.submits) == count)
            await serve(engine, client)
            assert client.status == 200

    run(story)


def test_long_answer_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that outgrows what is recorded goes on, and is not kept."""
    monkeypatch.setattr(idempotency, "MAX_RECORDED", 500)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        for count in (1, 2):
            client = keyed(web, CHAT | {"stream": True}, "k")
            await until(lambda count=count: len(engine.submits) == count)
            await serve(engine, client, "x" * 2000)
            assert client.body.endswith(b"data: [DONE]\n\n")

    run(story)


def test_claim_is_renewed_while_its_request_runs(monkeypatch: pytest.MonkeyPatch, tenant: str) -> None:
    """A request that takes longer than a lease keeps its key; a process that dies would lose it."""
    monkeypatch.setattr(idempotency, "LEASE_SECONDS", 0.03)

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = keyed(web, CHAT, "k")
        await until(lambda: engine.submits)
        async with redis.asyncio.Redis.from_url(os.environ["REDIS_URL"]) as store:
            (name,) = [name async for name in store.scan_iter(f"*{tenant}*")]
            await store.pexpire(name, 60_000)
            for _ in range(10_000):
                if await store.pttl(name) <= kept.LEASE_SECONDS * 1000:
                    break
                await asyncio.sleep(0.005)
            else:
                raise AssertionError("the claim was not renewed")
        await serve(engine, client)

    run(story)


def test_answer_is_paid_for_once(stack: Stack) -> None:
    """Through real processes: one record in the ledger, however often it is asked for."""
    buyer = stack.tenant(rpm=60)
    client = stack.openai(buyer.key())
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    answers = [client.chat.completions.create(**body, extra_headers={"Idempotency-Key": "k"}) for _ in range(3)]
    assert len({answer.id for answer in answers}) == 1
    other = client.chat.completions.create(**body)
    records = wait_for(lambda: found if len(found := buyer.usage()) == 2 else [])
    ids = {record["request_id"].removeprefix("req_") for record in records}
    assert ids == {answers[0].id.removeprefix("chatcmpl-"), other.id.removeprefix("chatcmpl-")}


def test_a_replay_counts_as_a_request(stack: Stack) -> None:
    """It is told what is left of the requests, takes no tokens, and is refused where none is left."""
    buyer = stack.tenant(rpm=2, tpm=60)
    with stack.http(buyer.key()) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        answers = [client.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "k"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert answers[1].headers["x-ratelimit-limit-requests"] == "2"
    assert "x-ratelimit-limit-tokens" not in answers[1].headers
    assert answers[2].json()["error"]["type"] == "requests"


def test_embeddings_and_responses_have_it_too(stack: Stack, tenant_of_stack: TenantInTest) -> None:
    """Every surface that generates or embeds answers a request that is sent again from what it kept."""
    with stack.http(tenant_of_stack.key()) as client:
        for path, fields in (
            ("/v1/embeddings", {"input": "hello"}),
            ("/v1/responses", {"input": "hello", "max_output_tokens": 4}),
        ):
            sent = [client.post(path, json={"model": "tiny"} | fields, headers={"Idempotency-Key": path}) for _ in "ab"]
            assert [answer.status_code for answer in sent] == [200, 200]
            assert sent[0].content == sent[1].content
            assert sent[1].headers["idempotent-replayed"] == "true"
