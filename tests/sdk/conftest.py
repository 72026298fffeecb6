"""Fixtures of both SDKs' suites: they meet one product, the one of the stories in tests/flows."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.product import ROOT, RunningProduct
from tests.sdk.faulty import Faulty, faulty
from tests.sdk.place import ROOM, Place, SdkTenant

HERE = ROOT / "tests" / "sdk"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all of it to the worker of xdist that has the product."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("product"))


@pytest.fixture(scope="session")
def proxy(product: RunningProduct) -> Iterator[Faulty]:
    """A gateway that fails first."""
    with faulty(product.serve["base_url"]) as running:
        yield running


@pytest.fixture(scope="session")
def place(product: RunningProduct, proxy: Faulty) -> Iterator[Place]:
    """The product as the suites see it."""
    made = Place(product, proxy.url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def home(place: Place) -> SdkTenant:
    """A tenant of this suite's own, whose usage the tests look up, with room for what they cut off."""
    return place.tenant(**ROOM)


@pytest.fixture(scope="session")
def home_key(home: SdkTenant) -> str:
    """A key of that tenant."""
    return home.key()


Dial = Callable[..., OpenAI]


@pytest.fixture
def dial(place: Place, home_key: str) -> Iterator[Dial]:
    """Return a function that makes a client; without arguments, one that may do everything and never tries again."""
    made: list[OpenAI] = []

    def client(**options: Any) -> OpenAI:
        defaults = {"base_url": place.base_url, "api_key": home_key, "max_retries": 0, "timeout": 120}
        made.append(OpenAI(**(defaults | options)))
        return made[-1]

    yield client
    for one in made:
        one.close()


@pytest.fixture
def client(dial: Dial) -> OpenAI:
    """A client that may do everything and never tries again."""
    return dial()


@pytest.fixture
def name() -> str:
    """A name that no other test has: of a session, or of requests that are counted."""
    return f"sdk-{uuid.uuid4().hex}"


@asynccontextmanager
async def dialled(place: Place, key: str, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    """Make the asynchronous client."""
    defaults = {"base_url": place.base_url, "api_key": key, "max_retries": 0, "timeout": 120}
    async with AsyncOpenAI(**(defaults | options)) as made:
        yield made
