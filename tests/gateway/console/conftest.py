"""An operator, tenants and their people, and a browser-like client for each."""

import uuid
from collections.abc import Callable

import pytest
from django.test import Client

from tenants import selectors
from tenants.contracts import Actor, ShareGroupView, TenantView, WorkerAnnouncement
from tenants.models import User
from tenants.services.members import set_member
from tenants.services.policy import set_policy
from tenants.services.share_groups import create_share_group
from tenants.services.tenants import create_tenant
from tenants.services.workers import announce

ACTOR = Actor("system", "tests", "tests")
PASSWORD = "a long enough password"


@pytest.fixture
def operator(db: None) -> User:
    """Return an operator who signs in with PASSWORD."""
    return User.objects.create_user("operator@example.com", PASSWORD, is_staff=True)


@pytest.fixture
def tenant(db: None) -> TenantView:
    """Return a tenant named Acme: 64 MiB guaranteed, 256 MiB at most."""
    return create_tenant(slug="acme", name="Acme", actor=ACTOR, policy={"kv_soft_bytes": 64 << 20})


@pytest.fixture
def member(tenant: TenantView) -> Callable[[str], User]:
    """Return a maker of members of Acme by role."""

    def make(role: str) -> User:
        user = User.objects.create_user(f"{role}@example.com", PASSWORD)
        set_member(tenant_id=tenant.id, email=user.email, role=role, by_role="operator", actor=ACTOR)
        return user

    return make


@pytest.fixture
def worker(db: None) -> str:
    """Announce a worker with a pool of 1 GiB and return its id, which no other test uses."""
    card = WorkerAnnouncement(
        worker_id=f"worker-{uuid.uuid4()}",
        address="unix:/nowhere",
        model="tiny",
        digest="",
        kv_bytes=1 << 30,
        block_bytes=1 << 16,
        max_context=2048,
    )
    return announce(announcement=card).worker_id


@pytest.fixture
def group(db: None) -> Callable[..., ShareGroupView]:
    """Return a maker of share groups: 8 MiB guaranteed, 32 MiB at most."""

    def make(name: str, soft: int = 8 << 20, hard: int = 32 << 20) -> ShareGroupView:
        return create_share_group(
            name=name, description="Help desks", kv_soft_bytes=soft, kv_hard_bytes=hard, actor=ACTOR
        )

    return make


@pytest.fixture
def join(tenant: TenantView) -> Callable[[str], None]:
    """Return what puts Acme into a share group."""

    def put(name: str) -> None:
        policy = selectors.policy(tenant.id)
        assert policy is not None
        set_policy(tenant_id=tenant.id, expected_version=policy.version, changes={"share_group": name}, actor=ACTOR)

    return put


@pytest.fixture
def signed_in() -> Callable[[User], Client]:
    """Return a maker of clients that are signed in."""

    def make(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return make
