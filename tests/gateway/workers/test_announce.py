"""Workers announce themselves over HTTP; whatever is wrong with an announcement is named."""

import json
from typing import Any

import pytest
from django.db import OperationalError
from django.http import HttpResponse
from django.test import Client

from gateway.config import config
from gateway.workers import announce as view
from tenants import selectors

PATH = "/api/v1/workers/announce/"
CARD: dict[str, Any] = {
    "worker_id": "w-1",
    "address": "10.0.0.7:7070",
    "model": "tiny",
    "digest": "ab" * 32,
    "kv_bytes": 1 << 30,
    "block_bytes": 1 << 16,
    "max_context": 2048,
}


def post(body: Any, token: str | None = None) -> HttpResponse:
    """Announce; `token` None: the right one."""
    bearer = config().engine_token if token is None else token
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = Client().post(PATH, raw, content_type="application/json", headers=headers)
    assert isinstance(response, HttpResponse)
    return response


@pytest.mark.django_db
def test_an_announcement_makes_a_live_worker() -> None:
    """After it the worker is listed with what it said; a second one is a heartbeat."""
    assert post(CARD).status_code == 200
    assert post(CARD | {"address": "unix:/run/engine.sock"}).status_code == 200
    [worker] = selectors.live_workers()
    assert (worker.worker_id, worker.address, worker.kv_bytes) == ("w-1", "unix:/run/engine.sock", 1 << 30)


@pytest.mark.django_db
@pytest.mark.parametrize("token", ["", "wrong", "ö"])
def test_without_the_token_nothing_happens(token: str) -> None:
    """A missing or wrong token is a 401 that says what to send."""
    response = post(CARD, token)
    assert response.status_code == 401
    assert "Authorization: Bearer" in json.loads(response.content)["error"]["message"]
    assert response["WWW-Authenticate"] == "Bearer"
    assert selectors.live_workers() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", ""),
        ("worker_id", 7),
        ("worker_id", "a" * 101),
        ("worker_id", "a\u0000b"),
        ("address", "10.0.0.7"),
        ("address", "10.0.0.7:0"),
        ("address", "10.0.0.7:70000"),
        ("address", "http://10.0.0.7:7070"),
        ("address", "unix:relative.sock"),
        ("model", None),
        ("digest", 1.5),
        ("kv_bytes", 0),
        ("kv_bytes", -1),
        ("kv_bytes", "512MiB"),
        ("kv_bytes", 1 << 63),
        ("block_bytes", True),
        ("max_context", 1 << 40),
        ("max_context", 12.5),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    """Each field has its rules, and a 400 names the one that broke them."""
    response = post(CARD | {field: value})
    assert response.status_code == 400
    assert json.loads(response.content)["error"]["param"] == field
    assert selectors.live_workers() == []


@pytest.mark.django_db
@pytest.mark.parametrize("field", sorted(CARD))
def test_a_missing_field_is_named(field: str) -> None:
    """All fields are needed."""
    response = post({name: value for name, value in CARD.items() if name != field})
    assert response.status_code == 400
    assert json.loads(response.content)["error"]["param"] == field


@pytest.mark.django_db
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"worker_id": "\xed\xa0\x80"}'])
def test_what_is_no_announcement_is_a_400(body: bytes) -> None:
    """A body that is no JSON object is refused with a reason."""
    response = post(body)
    assert response.status_code == 400
    assert json.loads(response.content)["error"]["message"]


@pytest.mark.django_db
def test_unknown_fields_are_ignored() -> None:
    """A newer worker says more than this control plane knows."""
    assert post(CARD | {"fabric": "later"}).status_code == 200


@pytest.mark.django_db
def test_a_body_that_is_too_large_is_refused() -> None:
    """Nobody fills the memory with an announcement."""
    assert post(CARD | {"more": "x" * view.MAX_BODY_BYTES}).status_code == 413


def test_a_database_that_is_away_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is told to try again."""

    def away(**_: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(view.workers, "announce", away)
    response = post(CARD)
    assert response.status_code == 503
    assert int(response["Retry-After"]) > 0


def test_only_post_is_answered() -> None:
    """Reading workers is the management API's."""
    assert Client().get(PATH).status_code == 405
