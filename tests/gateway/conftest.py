"""Fixtures of the gateway's tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny_model import make_tiny_model
from tests.gateway.wire.stack import Stack, TenantInTest, running_stack


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of the deployment to one worker of xdist: they share one."""
    for item in items:
        if "shared_stack" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("wire"))


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[Stack]:
    """A deployment with two workers: `tiny`, and `plain`, which has another model and no chat template."""
    with tempfile.TemporaryDirectory(prefix="tollgate-wire-") as name:  # short: it holds unix sockets
        folder = Path(name)
        models = {
            "tiny": make_tiny_model(folder / "model-tiny", seed=1, max_context=1 << 15),
            "plain": make_tiny_model(folder / "model-plain", seed=2, chat_template=False),
        }
        with running_stack(folder, models) as running:
            yield running


@pytest.fixture
def stack(shared_stack: Stack) -> Iterator[Stack]:
    """The deployment; closes the test's clients."""
    yield shared_stack
    shared_stack.close_clients()


@pytest.fixture
def tenant(stack: Stack) -> TenantInTest:
    """A new tenant without rate limits, with room for streams that do not end by themselves while a test runs."""
    return stack.tenant(max_context=1 << 15, max_output=1 << 15)
