"""Keeps the tests of one xdist group on one worker: a pytest plugin, loaded by `addopts`.

xdist 3.8 tells its scheduler of a group by what it adds to `Item._nodeid`, which pytest 9.2 doesn't read any more.
Without this `--dist loadgroup` spreads a group over all workers, and each of them starts whatever the group shares.
"""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the group into the ids of items that xdist has named for one."""
    for item in items:
        named = getattr(item, "_nodeid", item.nodeid)
        if named != item.nodeid:
            item._id = item.id.parse(named)
