"""`/v1/sessions` and `session_id` through real processes: what a conversation leaves, and what may be done about it."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.workers.session_desk import MOST_AT_ONCE
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

WORDS = "Tell me of the rivers that flow north, and of those that flow south, and of the lakes between them. " * 2


@pytest.fixture
def client(stack: Stack, tenant: TenantInTest) -> Iterator[httpx.Client]:
    """Return a client with a key of a tenant of its own."""
    with stack.http(tenant.key()) as made:
        yield made


def turn(client: httpx.Client, fields: dict[str, Any], *, words: str = WORDS, model: str = "tiny") -> dict[str, Any]:
    """Send one turn and return the answer."""
    body = {"model": model, "prompt": words, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def listed(client: httpx.Client, **query: Any) -> dict[str, Any]:
    """Return a page of the list."""
    answer = client.get("/v1/sessions", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def names(client: httpx.Client) -> list[str]:
    """Return the ids of the newest sessions."""
    return [session["id"] for session in listed(client)["data"]]


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """Return the error of an answer, which has `status`."""
    assert answer.status_code == status, answer.text
    return dict(answer.json()["error"])


def test_a_conversation_is_kept_and_found_again(client: httpx.Client) -> None:
    """Its tokens, turns, tier and times are shown; the next turn takes what is there, whatever names the session."""
    first = turn(client, {"session_id": "chat", "session_ttl": 600})
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    chat = client.get("/v1/sessions/chat").json()
    assert (chat["id"], chat["object"], chat["model"], chat["worker"]) == ("chat", "session", "tiny", "worker-tiny")
    assert chat["num_tokens"] > 0
    assert (chat["num_turns"], chat["pinned"], chat["active"]) == (1, False, False)
    assert chat["tier"] in ("device", "host", "disk")
    assert chat["expires_at"] == pytest.approx(chat["last_used_at"] + 600, abs=1)
    assert chat["missing_workers"] == []
    again = turn(client, {"prompt_cache_key": "chat"}, words=WORDS + first["choices"][0]["text"] + " And the seas?")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    both = client.get("/v1/sessions/chat").json()
    assert both["num_turns"] == 2
    assert both["num_tokens"] >= chat["num_tokens"]
    assert both["last_used_at"] > chat["last_used_at"]


def test_session_id_counts_where_both_are_given(client: httpx.Client) -> None:
    """OpenAI's field alone names a session too."""
    turn(client, {"session_id": "mine", "prompt_cache_key": "theirs"})
    assert names(client) == ["mine"]


def test_the_list_goes_back_page_by_page(client: httpx.Client) -> None:
    """The last used first, each once, over both models' workers."""
    for number in range(5):
        turn(client, {"session_id": f"chat {number}"}, model="plain" if number % 2 else "tiny")
    page = listed(client, limit=2)
    found = [[session["id"] for session in page["data"]]]
    assert page["num_sessions"] == 5
    while page["has_more"]:
        page = listed(client, limit=2, after=page["next_after"])
        found.append([session["id"] for session in page["data"]])
    assert found == [["chat 4", "chat 3"], ["chat 2", "chat 1"], ["chat 0"]]
    assert page["next_after"] is None


def test_a_pinned_session_has_no_end_until_it_is_unpinned(client: httpx.Client) -> None:
    """Each change answers with the session as it then is; prefetching one is allowed at any time."""
    turn(client, {"session_id": "chat"})
    assert client.post("/v1/sessions/chat/pin").json()["expires_at"] is None
    assert client.get("/v1/sessions/chat").json()["pinned"] is True
    assert client.post("/v1/sessions/chat/prefetch").json()["id"] == "chat"
    unpinned = client.post("/v1/sessions/chat/unpin").json()
    assert (unpinned["pinned"], unpinned["expires_at"] is None) == (False, False)


@pytest.mark.parametrize("name", ["chat", "a/b", "a/pin", "pin", "a b?c#d&e", "東京"])
def test_an_erased_session_is_gone(client: httpx.Client, name: str) -> None:
    """Nothing of it is found by the next turn; to erase it again is a 404."""
    path = f"/v1/sessions/{quote(name, safe='')}"
    turn(client, {"session_id": name})
    assert client.get(path).json()["id"] == name
    erased = client.delete(path)
    assert (erased.status_code, erased.json()) == (
        200,
        {"id": name, "object": "session.deleted", "deleted": True, "waiting_for": []},
    )
    assert names(client) == []
    assert turn(client, {})["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    error = refused(client.delete(path), 404)
    assert (error["code"], error["param"]) == ("session_not_found", "session_id")


def test_sessions_are_the_tenants(stack: Stack, tenant: TenantInTest, client: httpx.Client) -> None:
    """Every key of the tenant sees them, no other tenant does; a key of some models sees those models' sessions."""
    turn(client, {"session_id": "chat"})
    turn(client, {"session_id": "plain chat"}, model="plain")
    with stack.http(tenant.key(models=["plain"])) as narrow:
        assert names(narrow) == ["plain chat"]
        assert refused(narrow.get("/v1/sessions/chat"), 404)
        assert refused(narrow.delete("/v1/sessions/chat"), 404)
    with stack.http(tenant.key()) as other_key:
        assert names(other_key) == ["plain chat", "chat"]
    with stack.http(stack.tenant().key()) as stranger:
        assert names(stranger) == []
        for answer in (
            stranger.get("/v1/sessions/chat"),
            stranger.post("/v1/sessions/chat/pin"),
            stranger.delete("/v1/sessions/chat"),
        ):
            refused(answer, 404)
    assert names(client) == ["plain chat", "chat"]


def test_what_is_wrong_is_named(client: httpx.Client) -> None:
    """A parameter, an id or a method that cannot be is a 4xx with a reason."""
    for query in ({"limit": "0"}, {"limit": "101"}, {"limit": "ten"}, {"after": "x"}, {"order": "up"}):
        assert refused(client.get("/v1/sessions", params=query), 400)["param"] == next(iter(query))
    for name in ("%00", "%0A", "x" * 257, ""):
        assert refused(client.get(f"/v1/sessions/{name}"), 400)["param"] == "session_id"
    assert refused(client.get("/v1/sessions/never"), 404)["code"] == "session_not_found"
    assert refused(client.post("/v1/sessions/never/pin"), 404)["code"] == "session_not_found"
    refused(client.post("/v1/sessions/chat/burn"), 405)
    refused(client.post("/v1/sessions"), 405)


def test_a_key_that_may_not_generate_has_no_sessions(stack: Stack, tenant: TenantInTest) -> None:
    """And without a key there is nothing."""
    with stack.http(tenant.key(scopes=["models"])) as models:
        assert refused(models.get("/v1/sessions"), 403)["code"] == "insufficient_scope"
    with stack.http() as nobody:
        for answer in (nobody.get("/v1/sessions"), nobody.delete("/v1/sessions/chat")):
            assert refused(answer, 401)["code"] == "invalid_api_key"


def test_one_tenant_does_not_hold_all_threads(client: httpx.Client) -> None:
    """Of many calls at once some are told to wait, and how long; none fails otherwise."""
    turn(client, {"session_id": "chat"})
    with ThreadPoolExecutor(MOST_AT_ONCE * 8) as threads:
        answers = list(threads.map(lambda _: client.get("/v1/sessions"), range(MOST_AT_ONCE * 16)))
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert any(answer.status_code == 200 for answer in answers)
    assert all("retry-after-ms" in answer.headers for answer in answers if answer.status_code == 429)


def test_without_postgres_nothing_is_half_erased(stack: Stack, client: httpx.Client) -> None:
    """An erasure is written down before it begins: without the store it is a 503, and the session stays."""
    name = f"chat-{uuid.uuid4().hex}"
    turn(client, {"session_id": name})
    with stack.without_postgres():
        answer = client.delete(f"/v1/sessions/{name}")
        error = refused(answer, 503)
        assert error["code"] == "server_is_overloaded"
        assert "retry-after" in answer.headers
    wait_for(lambda: client.get(f"/v1/sessions/{name}").status_code == 200, what="the store's return")
    assert client.delete(f"/v1/sessions/{name}").status_code == 200
