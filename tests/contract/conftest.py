"""Fixtures of the tests that ask the product what nobody should: they share the product of the stories."""

from collections.abc import Iterator

import httpx
import pytest

from tests.product import ROOT, RunningProduct
from tests.sdk.place import Place

HERE = ROOT / "tests" / "contract"
POLICY = {"max_output": 4, "max_running": 64}  # whatever is asked for, little is generated


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all of it to the worker of xdist that has the product."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("product"))


@pytest.fixture(scope="session")
def target(product: RunningProduct) -> Iterator[Place]:
    """The product."""
    made = Place(product, "")
    yield made
    made.close()


@pytest.fixture(scope="session")
def stranger_key(target: Place) -> str:
    """A key of a tenant that gets little."""
    return target.tenant(**POLICY).key()


@pytest.fixture(scope="session")
def http(target: Place, stranger_key: str) -> Iterator[httpx.Client]:
    """A client with that key; paths begin with `/v1`."""
    url = target.base_url.removesuffix("/v1")
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {stranger_key}"}, timeout=120) as client:
        yield client
