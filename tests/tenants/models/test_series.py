"""The time series' own guard: pairs name two accounts, and a query of them names one."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tenants.errors import NoTenantScope
from tenants.models import InterferenceSample
from tenants.reports import InterferencePair
from tenants.services.series import record
from tests.tenants.models.test_scope import QUERIES
from tests.tenants.services.test_series import AT, bucket

MINE, THEIRS = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_of_pairs_without_an_account_raises(query: Callable[[Any], Any]) -> None:
    """As of any other tenant data."""
    with pytest.raises(NoTenantScope, match="for_tenant"):
        query(InterferenceSample._default_manager)


@pytest.mark.parametrize("nobody", [None, "", "acme", 7, "group:bank"])
def test_a_scope_must_be_a_tenant_id(nobody: Any) -> None:
    """An id that got lost on the way is an error."""
    with pytest.raises(NoTenantScope):
        InterferenceSample.objects.for_tenant(nobody)


def test_a_tenant_finds_the_pairs_that_it_is_part_of(db: None) -> None:
    """Whichever side it is on, and none of others."""
    pairs = (
        InterferencePair(by=str(MINE), of=str(THEIRS), cached_blocks=1),
        InterferencePair(by=str(THEIRS), of=str(MINE), cached_blocks=2),
        InterferencePair(by=str(THEIRS), of="group:bank", cached_blocks=4),
    )
    assert record(bucket(AT, interference=pairs), term=1)
    found = InterferenceSample.objects.for_tenant(MINE)
    assert sorted(pair.cached_blocks for pair in found) == [1, 2]
