"""The model of `/tokenize` and `/detokenize`, which may be left out, and encodings of their body."""

from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from gateway.api.errors import BadRequest
from gateway.api.tokens import only_name
from gateway.workers.registry import WorkerRegistry
from tests.gateway.api.test_running import grant
from tests.gateway.wire.stack import Stack, TenantInTest

BODIES = {"/tokenize": {"prompt": "hello"}, "/detokenize": {"tokens": [5, 6]}}


@pytest.mark.parametrize("path", BODIES)
def test_the_only_model_need_not_be_named(stack: Stack, tenant: TenantInTest, path: str) -> None:
    """A key for one model asks as a server of one model is asked, and is answered the same as by name."""
    with stack.http(tenant.key(models=["tiny"])) as client:
        bare = client.post(path, json=BODIES[path])
        named = client.post(path, json=BODIES[path] | {"model": "tiny"})
    assert bare.status_code == 200
    assert bare.json() == named.json()


def test_messages_need_no_model_either(stack: Stack, tenant: TenantInTest) -> None:
    """A conversation is rendered by that model's template."""
    body = {"messages": [{"role": "user", "content": "hello"}]}
    with stack.http(tenant.key(models=["tiny"])) as client:
        bare = client.post("/tokenize", json=body)
        named = client.post("/tokenize", json=body | {"model": "tiny"})
    assert bare.status_code == 200
    assert bare.json() == named.json()


def test_one_of_two_encodings_is_seen(stack: Stack, tenant: TenantInTest) -> None:
    """A body's encodings may come in several headers or in one: any that is served by none is refused."""
    for headers in (
        [("Content-Encoding", "identity"), ("Content-Encoding", "gzip")],
        [("Content-Encoding", "identity, gzip")],
    ):
        auth = ("Authorization", f"Bearer {tenant.key()}")
        answer = httpx.post(f"{stack.url}/tokenize", content=b"\x1f\x8b", headers=[auth, *headers], timeout=60)
        assert answer.status_code == 415


def test_of_several_models_one_must_be_named() -> None:
    """A key that may use several is told which; one that is confined to one of them need not name it."""
    registry = cast(WorkerRegistry, SimpleNamespace(names=lambda: {"b", "a", "c"}))
    with pytest.raises(BadRequest, match="one of a, b, c") as caught:
        only_name(registry, grant())
    assert (caught.value.param, caught.value.error_code) == ("model", "missing_field")
    assert only_name(registry, grant("b")) == "b"
