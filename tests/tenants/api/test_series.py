"""The time series over HTTP: for operators, in bounded answers, and clear about what cannot be asked."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tenants.contracts import TenantView
from tenants.reports import InterferencePair, TenantCounters
from tenants.services.keys import create_management_key
from tenants.services.series import record
from tests.tenants.conftest import ACTOR
from tests.tenants.services.test_series import bucket, reading

PATHS = ("series/tenants/", "series/pressure/", "interference/", "fairness/")
NOW = time.time() // 600 * 600 - 600  # on a step of every width that is used here


def moment(at: float) -> str:
    """A time as the API takes it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(start: float, end: float) -> str:
    """A range as a query."""
    return f"?from={moment(start)}&to={moment(end)}"


def gained(service: float, **more: int) -> TenantCounters:
    """What counters gained."""
    return TenantCounters(service=service, **more)


def served(tenant: TenantView, service: float, **more: Any) -> Any:
    """One tenant's reading."""
    return reading(tenant.id, gained=gained(service), **more)


def test_a_tenant_over_time(make_tenant: Callable[..., TenantView], operator: Any) -> None:
    """A point for each ten seconds, what it holds summed over workers; idle steps have none."""
    whale, minnow = make_tenant("whale"), make_tenant("minnow")
    record(bucket(NOW, served(whale, 10.0, kv_bytes=100.0), served(minnow, 1.0)), term=1)
    record(bucket(NOW, served(whale, 5.0, kv_bytes=50.0), worker_id="w-1"), term=1)
    record(bucket(NOW + 30, served(whale, 7.0)), term=1)
    answer = operator.get(f"series/tenants/{span(NOW, NOW + 60)}&tenant=whale").json()
    assert (answer["step_seconds"], answer["num_tenants"]) == (10, 1)
    (line,) = answer["tenants"]
    assert line["tenant"] == "whale"
    assert [point["at"] for point in line["points"]] == [moment(NOW), moment(NOW + 30)]
    first = line["points"][0]
    assert (first["kv_bytes"], first["service"], first["kv_peak_bytes"], first["running"]) == (150.0, 15.0, 400, 2.0)
    everyone = operator.get(f"series/tenants/{span(NOW, NOW + 60)}").json()
    assert [line["tenant"] for line in everyone["tenants"]] == ["whale", "minnow"]


def test_the_end_of_a_range_is_not_in_it(tenant: TenantView, operator: Any) -> None:
    """`from` is; so ranges side by side count nothing twice."""
    for at in (NOW, NOW + 10):
        record(bucket(at, served(tenant, 1.0)), term=1)
    (line,) = operator.get(f"series/tenants/{span(NOW, NOW + 10)}&tenant=acme").json()["tenants"]
    assert [point["at"] for point in line["points"]] == [moment(NOW)]


def test_long_ranges_have_coarse_steps(tenant: TenantView, operator: Any) -> None:
    """Means over each step are weighed by what they cover, gains are summed."""
    record(bucket(NOW, served(tenant, 1.0, kv_bytes=100.0), covered=10.0), term=1)
    record(bucket(NOW + 20, served(tenant, 2.0, kv_bytes=400.0), covered=5.0), term=1)
    answer = operator.get(f"series/tenants/{span(NOW - 3600 * 5, NOW + 3600)}&tenant=acme").json()
    assert answer["step_seconds"] == 60
    (point,) = answer["tenants"][0]["points"]
    assert (point["kv_bytes"], point["service"]) == (pytest.approx(200.0), 3.0)


def test_a_tenant_without_samples_has_an_empty_line(tenant: TenantView, operator: Any) -> None:
    """It exists; there is nothing to show."""
    answer = operator.get("series/tenants/?tenant=acme").json()
    assert answer["tenants"] == [{"tenant": "acme", "points": []}]
    assert operator.get("series/tenants/").json()["tenants"] == []


def test_pressure_is_told_worker_by_worker(operator: Any) -> None:
    """With its parts."""
    for worker in ("w-0", "w-1"):
        record(bucket(NOW, worker_id=worker), term=1)
    answer = operator.get(f"series/pressure/{span(NOW, NOW + 10)}").json()
    assert [line["worker_id"] for line in answer["workers"]] == ["w-0", "w-1"]
    (point,) = answer["workers"][0]["points"]
    assert (point["score"], point["score_peak"], point["pool_use"], point["swap"]) == (0.5, 0.75, 0.25, 0.0)


def test_who_cost_whom_what(make_tenant: Callable[..., TenantView], operator: Any) -> None:
    """Sums over the range and all workers, the dearest first; tenants by their slugs, groups by their names."""
    whale, minnow = make_tenant("whale"), make_tenant("minnow")
    cheap = InterferencePair(by=whale.id, of="group:bank", cached_blocks=2)
    dear = InterferencePair(by=minnow.id, of=whale.id, num_preemptions=1, recomputed_tokens=40)
    for at, worker in ((NOW, "w-0"), (NOW + 10, "w-0"), (NOW, "w-1"), (NOW + 1000, "w-0")):
        record(bucket(at, worker_id=worker, interference=(cheap, dear)), term=1)
    answer = operator.get(f"interference/{span(NOW, NOW + 60)}").json()
    assert answer["num_pairs"] == 2
    assert answer["pairs"] == [
        {
            "by": "minnow",
            "of": "whale",
            "cached_blocks": 0,
            "num_preemptions": 3,
            "recomputed_tokens": 120,
            "swapped_bytes": 0,
        },
        {
            "by": "whale",
            "of": "group:bank",
            "cached_blocks": 6,
            "num_preemptions": 0,
            "recomputed_tokens": 0,
            "swapped_bytes": 0,
        },
    ]
    ours = operator.get(f"interference/{span(NOW, NOW + 60)}&tenant=minnow").json()
    assert [pair["by"] for pair in ours["pairs"]] == ["minnow"]


def test_fairness_is_by_weight_over_those_who_wanted_something(
    make_tenant: Callable[..., TenantView], operator: Any
) -> None:
    """Twice the weight, twice the service is even; who waited in vain counts, who was idle has no row."""
    whale, minnow, carp = make_tenant("whale"), make_tenant("minnow"), make_tenant("carp")
    record(bucket(NOW, served(whale, 20.0, weight=2.0), served(minnow, 10.0)), term=1)
    record(bucket(NOW + 10, served(minnow, 10.0), served(carp, 0.0, queued=3.0, running=0.0)), term=1)
    answer = operator.get(f"fairness/{span(NOW, NOW + 60)}").json()
    assert [point["jain"] for point in answer["points"]] == [pytest.approx(1.0), pytest.approx(0.5)]
    assert [point["num_tenants"] for point in answer["points"]] == [2, 2]
    assert answer["jain"] == pytest.approx(30.0**2 / (3 * (10.0**2 + 20.0**2)))
    assert [(line["tenant"], line["share"], line["waited"]) for line in answer["tenants"]] == [
        ("minnow", 20.0, False),
        ("whale", 10.0, False),
        ("carp", 0.0, True),
    ]
    assert [point["share"] for point in answer["tenants"][1]["points"]] == [10.0]
    assert operator.get(f"fairness/{span(NOW - 600, NOW - 300)}").json()["jain"] is None


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z", "to"),
        ("?from=2020-01-02T00:00:00Z&to=2020-01-01T00:00:00Z", "from"),
        ("?from=2020-01-02T00:00:00Z&to=2020-01-02T00:00:00Z", "from"),
        ("?from=2020-01-02T00:00:00Z", "from"),
        ("?from=yesterday", "from"),
        ("?from=2020-01-02T00:00:00", "from"),
        ("?to=99999-01-01T00:00:00Z", "to"),
        ("?to=0001-01-01T00:00:00Z", "to"),
        ("?since=2020-01-02T00:00:00Z", "since"),
    ],
)
def test_a_bad_range_is_a_400_that_names_the_field(operator: Any, path: str, query: str, param: str) -> None:
    """With the reason, whichever view it is."""
    response = operator.get(path + query)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert len(error["message"]) > 10


@pytest.mark.parametrize("path", ["series/tenants/", "interference/"])
def test_an_unknown_tenant_is_a_404(operator: Any, path: str) -> None:
    """As everywhere."""
    assert operator.get(f"{path}?tenant=nobody").status_code == 404
    assert operator.get(f"{path}?tenant=No%20slug").status_code == 400


@pytest.mark.parametrize("path", PATHS)
def test_only_operators_read_it(tenant: TenantView, with_key: Callable[[str], Any], client: Any, path: str) -> None:
    """An owner sees neither others' use nor who took what from whom."""
    key = create_management_key(name="k", role="owner", tenant_id=tenant.id, actor=ACTOR).secret
    assert with_key(key).get(path).status_code == 403
    assert client.get(f"/api/v1/{path}").status_code == 401
