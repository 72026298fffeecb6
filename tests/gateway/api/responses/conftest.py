"""Clients of `/v1/responses`."""

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from tests.gateway.wire.stack import Stack, TenantInTest


@pytest.fixture
def key(tenant: TenantInTest) -> str:
    """Return a key of a tenant of its own."""
    return tenant.key()


@pytest.fixture
def sdk(stack: Stack, key: str) -> OpenAI:
    """Return OpenAI's SDK."""
    return stack.openai(key)


@pytest.fixture
def client(stack: Stack, key: str) -> Iterator[httpx.Client]:
    """Return a plain client."""
    with stack.http(key) as made:
        yield made
