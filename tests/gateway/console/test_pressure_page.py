"""Pressure and interference, for operators."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
import redis
from django.conf import settings
from django.test import Client
from django.utils import timezone

from gateway.console.pressure import in_words
from tenants.contracts import TenantView
from tenants.models import InterferenceSample, User
from tenants.reports import STATS_KEY, InterferencePair, Pressure, WorkerStats
from tenants.services.tenants import create_tenant
from tests.gateway.console.conftest import ACTOR

PAGE = "/operator/pressure/"


@pytest.fixture
def console(operator: User, signed_in: Callable[[User], Client]) -> Client:
    """Return the operator's client."""
    return signed_in(operator)


def took(by: str, of: str, *, tokens: int, ago: timedelta = timedelta(minutes=2), blocks: int = 0) -> None:
    """Write down that one account's need cost another."""
    InterferenceSample.objects.across_tenants().create(
        at=timezone.now() - ago,
        seconds=10,
        worker_id="w",
        by=by,
        of=of,
        cached_blocks=blocks,
        num_preemptions=0,
        recomputed_tokens=tokens,
        swapped_bytes=0,
    )


def text(console: Client, path: str = PAGE) -> str:
    """Return a page without runs of space."""
    return " ".join(console.get(path).content.decode().split())


@pytest.mark.parametrize("path", [PAGE, f"{PAGE}interference/"])
def test_operators_only(
    path: str, tenant: TenantView, member: Callable[[str], User], signed_in: Callable[[User], Client]
) -> None:
    """To an owner of a tenant the page is not there; a signed-out reader is asked to sign in."""
    assert signed_in(member("owner")).get(path).status_code == 404
    assert Client().get(path).headers["Location"].startswith("/sign-in/?next=")


def test_nothing_yet(console: Client) -> None:
    """Without workers and without losses the page says what will be here."""
    page = text(console)
    assert "No worker is up" in page
    assert "Nobody took from anybody" in page


def test_who_took_from_whom(console: Client, tenant: TenantView) -> None:
    """Losses are summed over the range, in plain words and as a matrix with sums, the dearest first."""
    whale = create_tenant(slug="whale", name="Whale", actor=ACTOR)
    took(whale.id, tenant.id, tokens=12_000, blocks=3)
    took(whale.id, tenant.id, tokens=300, ago=timedelta(minutes=3))
    took("group:support", whale.id, tokens=50)
    took(tenant.id, whale.id, tokens=9, ago=timedelta(hours=5))
    page = text(console)
    assert "Whale made Acme compute 12 300 tokens again and took 3 cached blocks from Acme" in page
    assert "shared: support made Whale compute 50 tokens again" in page
    assert page.index("Whale made Acme") < page.index("shared: support made")
    assert '<td class="number sum"><span class="figure" title="12 350">12 350</span></td>' in page
    assert "Acme made Whale" not in page
    assert "Acme made Whale compute 9 tokens again" in text(console, f"{PAGE}?range=24h")


def test_former_tenant(console: Client, tenant: TenantView) -> None:
    """A loss to somebody who is no longer there still has a name."""
    took("00000000-0000-0000-0000-000000000000", tenant.id, tokens=7)
    assert "a former tenant made Acme compute 7 tokens again" in text(console, f"{PAGE}interference/?range=15m")


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (InterferencePair(by="a", of="b", num_preemptions=1), "A had 1 request of B preempted"),
        (
            InterferencePair(by="a", of="b", recomputed_tokens=5, num_preemptions=2, cached_blocks=1),
            "A made B compute 5 tokens again, had 2 requests of B preempted and took 1 cached block from B",
        ),
        (InterferencePair(by="a", of="b", swapped_bytes=3 << 20), "A moved 3 MiB of B to host memory"),
        (InterferencePair(by="a", of="a", recomputed_tokens=5), "A, at its own limits, computed 5 tokens again"),
        (InterferencePair(by="a", of="a", cached_blocks=5), "A, at its own limits, gave up 5 cached blocks"),
        (InterferencePair(by="a", of="b"), "A took nothing"),
    ],
)
def test_words(pair: InterferencePair, words: str) -> None:
    """A pair's counters read as one sentence; an account that its own limits cost something is said to be alone."""
    assert in_words("A", "B" if pair.of == "b" else "A", pair) == words


def test_range_is_chosen_by_the_url(console: Client) -> None:
    """The chosen range is marked, and one that is none is the usual one."""
    for asked, shown, seconds in (("7d", "7 days", "604800"), ("nonsense", "1 h", "3600"), ("<script>", "1 h", "3600")):
        page = text(console, f"{PAGE}?range={asked}")
        assert f'aria-current="true">{shown}</a>' in page
        assert f'data-seconds="{seconds}"' in page
        assert "<script>alert" not in page


def test_names_are_safe_in_the_data_of_the_lines(console: Client) -> None:
    """A tenant's name cannot end the data that the lines take their names from."""
    create_tenant(slug="sly", name="</script><b>", actor=ACTOR)
    assert "</script><b>" not in text(console)


def test_pressure_now(console: Client, worker: str) -> None:
    """A worker's last score and its parts are shown; one that said nothing has none."""
    assert 'title="no reading" data-field="score">–' in text(console)
    stats = WorkerStats(
        worker_id=worker,
        at=0.0,
        core_ready=True,
        applied_version=1,
        blocks_total=1,
        blocks_free=1,
        block_bytes=1,
        running=0,
        queued=0,
        prompt_tokens_per_second=0.0,
        output_tokens_per_second=0.0,
        num_preemptions=0,
        tenants=(),
        pressure=Pressure(score=0.6234, use=1.0),
    )
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(STATS_KEY.format(worker_id=worker), msgspec.json.encode(stats), ex=30)
    page = text(console)
    assert 'title="0.6234" data-field="score">0.62' in page
    assert 'width="62.34%" data-field="gauge"' in page
