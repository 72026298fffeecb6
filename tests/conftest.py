"""What every test may use; each folder's own fixtures lie in its own conftest."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.product import RunningProduct, running_product

settings.register_profile("tests", deadline=None)  # no example is wrong for being slow: the machine may be busy
settings.load_profile("tests")

ON_THE_PRODUCT = ("flow", "browser", "chaos")


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProduct]:
    """The whole product, serving a tiny random checkpoint. Shared: leave tenants' limits as you found them."""
    from tests.engine.tiny_model import make_tiny_model

    folder = tmp_path_factory.mktemp("product")
    model = make_tiny_model(folder / "tiny", max_context=1 << 15)  # room for streams that a test cuts off
    with running_product(folder / "var", {"ENGINE_MODEL": str(model)}) as running:
        yield running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of the whole product to one worker of xdist: they share one product and leave a core to others."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ON_THE_PRODUCT):
            item.add_marker(pytest.mark.xdist_group("product"))
