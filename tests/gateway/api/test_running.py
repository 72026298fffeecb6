"""Which model a request means, and what is said while that isn't known."""

import asyncio
from typing import Any, cast

import pytest

from gateway.api.errors import ModelNotFound, Overloaded
from gateway.api.running import find_model
from gateway.web import Web
from gateway.workers.registry import WorkerRegistry
from tenants.contracts import KeyGrant, PolicyView, WorkerView


def grant(*models: str) -> KeyGrant:
    """Return a key's grant."""
    policy = PolicyView(
        version=1,
        weight=1.0,
        kv_soft_bytes=0,
        kv_hard_bytes=1 << 28,
        max_running=32,
        max_queued=256,
        rpm=0,
        tpm=0,
        max_context=8192,
        max_output=4096,
        priority="standard",
    )
    return KeyGrant(
        key_id="k",
        tenant_id="t",
        tenant_slug="minnow",
        project_id="p",
        namespace=b"n",
        models=models,
        expires_at=0.0,
        ip_ranges=(),
        rpm=0,
        tpm=0,
        policy=policy,
    )


def looked_for(name: str, views: list[WorkerView], *models: str) -> None:
    """Look for a model in a registry that has read `views`; no worker is there to be connected to."""

    async def read() -> list[WorkerView]:
        return views

    async def story() -> None:
        registry = WorkerRegistry(read, token="t")
        nothing = cast(Any, None)
        web = Web(
            keys=nothing,
            registry=registry,
            admission=nothing,
            buffers=nothing,
            counting=nothing,
            drain=nothing,
            reads=nothing,
            sessions=nothing,
            responses=nothing,
            kept=nothing,
            sockets=nothing,
            metrics=nothing,
        )
        await registry.refresh()
        try:
            find_model(web, grant(*models), name)
        finally:
            await registry.close()

    asyncio.run(story())


def test_before_any_worker_is_known_no_model_is_said_to_be_missing() -> None:
    """A process that has just started answers 503, which SDKs try again, and not a final 404."""
    with pytest.raises(Overloaded) as caught:
        looked_for("tiny", [])
    assert dict(caught.value.headers)[b"retry-after"]


def test_a_hidden_model_is_missing_whatever_is_known() -> None:
    """What a key may not see does not exist, also while no worker is known."""
    with pytest.raises(ModelNotFound):
        looked_for("tiny", [], "other")
