"""Bodies that nobody should send are refused with a reason, and break nothing."""

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.api.exchange import MAX_BODY
from gateway.api.openapi import document
from tests.contract import bodies
from tests.contract.judge import judge

GOOD = bodies.good_bodies("MODEL")
RELAXED = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def fields_of(path: str) -> tuple[str, ...]:
    """Return every field that the document names for a path's body."""
    described = document()
    content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rsplit("/", 1)[1]
    return tuple(described["components"]["schemas"][name]["properties"])


FIELDS = {path: fields_of(path) for path in GOOD}


@pytest.fixture
def good(http: httpx.Client, target: Any) -> dict[str, Any]:
    """Good bodies, that name the product's model."""
    return bodies.good_bodies(target.model)


@pytest.mark.parametrize("path", GOOD)
def test_the_good_ones_are_served(http: httpx.Client, good: dict[str, Any], path: str) -> None:
    """What the others are changed from isn't refused itself."""
    response = http.post(path, json=good[path])
    judge(response)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", GOOD)
@RELAXED
@given(data=st.data())
def test_changed_bodies(http: httpx.Client, good: dict[str, Any], path: str, data: st.DataObject) -> None:
    """A body with other values, fields too many or too few is served, or refused in the error's shape."""
    body = data.draw(bodies.changed(good[path], FIELDS[path]))
    judge(http.post(path, content=bodies.as_bytes(body)))


@pytest.mark.parametrize("path", GOOD)
@RELAXED
@given(data=st.data())
def test_broken_bodies(http: httpx.Client, good: dict[str, Any], path: str, data: st.DataObject) -> None:
    """So is one whose bytes are cut, doubled, turned over or no UTF-8."""
    judge(http.post(path, content=data.draw(bodies.broken(bodies.as_bytes(good[path])))))


@pytest.mark.parametrize("path", GOOD)
@RELAXED
@given(body=st.binary(max_size=400))
def test_random_bytes(http: httpx.Client, path: str, body: bytes) -> None:
    """Random bytes are a 400."""
    response = http.post(path, content=body)
    judge(response)
    assert response.status_code == 400


@pytest.mark.parametrize("name", bodies.HOSTILE)
def test_hostile_bodies(http: httpx.Client, target: Any, name: str) -> None:
    """What is made to cost much is refused, and the process answers others as before."""
    response = http.post("/v1/chat/completions", content=bodies.HOSTILE[name](bodies.chat_head(target.model)))
    judge(response)
    assert 400 <= response.status_code < 500, response.text[:500]
    assert http.get("/v1/models").status_code == 200


@pytest.mark.parametrize("name", bodies.COSTLY)
def test_costly_bodies(http: httpx.Client, target: Any, name: str) -> None:
    """What is costly to keep to is served or refused, and the process answers others as before."""
    judge(http.post("/v1/chat/completions", content=bodies.COSTLY[name](bodies.chat_head(target.model))))
    assert http.get("/v1/models").status_code == 200


@pytest.mark.parametrize("path", GOOD)
def test_a_body_over_the_limit(http: httpx.Client, path: str) -> None:
    """Declared or in pieces without end, it is a 413 before it is all there."""
    declared = http.post(path, content=b" " * (MAX_BODY + 1))
    assert declared.status_code == 413
    judge(declared)
    pieces = http.post(path, content=iter([b" " * (1 << 20)] * 5))
    assert pieces.status_code == 413
