"""Tenants, people and keys for the domain's tests."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from tenants.contracts import Actor, TenantView, WorkerAnnouncement, WorkerView
from tenants.models import User
from tenants.services.keys import create_management_key
from tenants.services.members import set_member
from tenants.services.tenants import create_tenant
from tenants.services.workers import announce

ACTOR = Actor("system", "tests", "tests")


@pytest.fixture(autouse=True)
def _quick_passwords(settings: Any) -> None:
    """Hash passwords cheaply: Argon2 is meant to be slow, and is Django's to test."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def actor() -> Actor:
    """Return who makes the tests' changes."""
    return ACTOR


@pytest.fixture
def make_tenant(db: None) -> Callable[..., TenantView]:
    """Return a maker of tenants."""

    def make(slug: str = "acme", **more: Any) -> TenantView:
        return create_tenant(slug=slug, name=slug.capitalize(), actor=ACTOR, **more)

    return make


@pytest.fixture
def tenant(make_tenant: Callable[..., TenantView]) -> TenantView:
    """Return a tenant named acme."""
    return make_tenant()


@pytest.fixture
def make_user(db: None) -> Callable[..., User]:
    """Return a maker of users; with a tenant and a role, of members. Nobody can sign in with a password as them."""

    def make(email: str, tenant: TenantView | None = None, role: str = "", **fields: Any) -> User:
        user = User.objects.create_user(email, **fields)
        if tenant is not None:
            set_member(tenant_id=tenant.id, email=email, role=role, by_role="operator", actor=ACTOR)
        return user

    return make


@pytest.fixture
def make_worker(db: None) -> Callable[..., WorkerView]:
    """Return a maker of live workers."""

    def make(worker_id: str = "worker-0", **more: Any) -> WorkerView:
        card: dict[str, Any] = {
            "address": f"unix:/run/{worker_id}.sock",
            "model": "tiny",
            "digest": "d" * 64,
            "kv_bytes": 1 << 30,
            "block_bytes": 1 << 14,
            "max_context": 2048,
        }
        return announce(announcement=WorkerAnnouncement(worker_id=worker_id, **card | more))

    return make


@dataclass
class Api:
    """A client of the management API: with a key, or with a person's session."""

    client: Client = field(default_factory=Client)
    headers: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send `body` as JSON (bytes as they are) to a path below `/api/v1/` and return the response."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.client.generic(
            method, f"/api/v1/{path}", data, content_type="application/json", headers={**self.headers, **headers}
        )

    def get(self, path: str, **headers: str) -> Any:
        """Send a GET."""
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """Send a POST."""
        return self.call("POST", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Any:
        """Send a PATCH."""
        return self.call("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        """Send a DELETE."""
        return self.call("DELETE", path, **headers)


@pytest.fixture
def with_key() -> Callable[[str], Api]:
    """Return a maker of clients that present a key."""
    return lambda raw: Api(headers={"Authorization": f"Bearer {raw}"})


@pytest.fixture
def signed_in() -> Callable[[User], Api]:
    """Return a maker of clients with a session; CSRF is not asked of them, see `test_access` for that."""

    def make(user: User) -> Api:
        api = Api()
        api.client.force_login(user)
        return api

    return make


@pytest.fixture
def operator(db: None, with_key: Callable[[str], Api]) -> Api:
    """Return a client with an operator's key."""
    return with_key(create_management_key(name="tests", role="operator", actor=ACTOR).secret)


@pytest.fixture
def in_threads() -> Callable[..., list[Any]]:
    """Return a runner that starts all calls at once, each in a thread with its own connection, and returns what came.

    An exception is returned in place of a result.
    """

    def run(*calls: Callable[[], Any]) -> list[Any]:
        barrier = threading.Barrier(len(calls))
        results: list[Any] = [None] * len(calls)

        def one(n: int) -> None:
            try:
                barrier.wait(30)
                results[n] = calls[n]()
            except BaseException as error:  # noqa: BLE001  # handed to the test, which looks at it
                results[n] = error
            finally:
                connection.close()

        threads = [threading.Thread(target=one, args=(n,)) for n in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a call hangs"
        return results

    return run
