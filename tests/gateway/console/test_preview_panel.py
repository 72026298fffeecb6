"""What a change would have done, as the policy page tells it."""

from collections.abc import Callable

import msgspec
import pytest
from django.template.loader import render_to_string
from django.test import Client

from gateway.console.preview import told
from tenants import selectors
from tenants.contracts import PolicyView, TenantView
from tenants.models import User
from tenants.reports import PreviewFigures, PreviewView, TenantPreviewView, WorkerPreviewView
from tenants.rules.policy import DEFAULT
from tests.gateway.console.test_policy_page import form

PREVIEW = "/operator/tenants/acme/policy/preview/"
BOOST = "/operator/tenants/acme/policy/boost/preview/"
QUIET = PreviewFigures(num_requests=10, prompt_tokens=1000, cached_tokens=500, ttft_p50_seconds=0.1, ttft_p99_seconds=1)


@pytest.fixture
def console(operator: User, tenant: TenantView, signed_in: Callable[[User], Client]) -> Client:
    """Return the operator's client."""
    return signed_in(operator)


def current(tenant: TenantView) -> PolicyView:
    """Return the policy in force."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    return policy


def one(name: str, after: PreviewFigures, before: PreviewFigures = QUIET) -> TenantPreviewView:
    """Return one tenant's preview."""
    return TenantPreviewView(tenant_id=name, slug=name, name=name.title(), colour=1, before=before, after=after)


def view(*tenants: TenantPreviewView, problem: str = "", silent: str = "") -> PreviewView:
    """Return an answer about some tenants."""
    return PreviewView(
        before=DEFAULT,
        after=DEFAULT,
        seconds=900.0,
        num_events=12_345,
        elapsed_seconds=1.5,
        hit_rate_before=0.5,
        hit_rate_after=0.4,
        pressure_before=0.1,
        pressure_after=0.3,
        tenants=tenants,
        workers=(WorkerPreviewView(worker_id="w", problem=silent),),
        problem=problem,
    )


def panel(answer: PreviewView) -> str:
    """Return the panel of an answer as text without runs of space."""
    return " ".join(render_to_string("operator/preview.html", told(answer)).split())


def test_who_gains_and_who_loses() -> None:
    """Changed tenants come first, each with what it would have gained and lost; the rest had the same."""
    worse = msgspec.structs.replace(QUIET, num_preemptions=1, evicted_blocks=40, cached_tokens=300)
    better = msgspec.structs.replace(QUIET, ttft_p99_seconds=0.5)
    page = panel(view(one("acme", QUIET), one("minnow", better), one("whale", worse)))
    assert "<strong>Minnow</strong> would have gained;" in page
    assert "<strong>Whale</strong> would have lost." in page
    assert "▼ 1 more preemption" in page
    assert "▼ 40 more cached blocks evicted" in page
    assert "▼ fewer tokens from cache" in page
    assert "▲ sooner first tokens" in page
    assert page.index('title="Minnow"') < page.index('title="Acme"')
    assert "the same" in page
    assert "12 345" in page


@pytest.mark.parametrize(
    ("after", "before"),
    [
        (msgspec.structs.replace(QUIET, ttft_p99_seconds=1.02), QUIET),
        (msgspec.structs.replace(QUIET, cached_tokens=495), QUIET),
        (PreviewFigures(), PreviewFigures()),
        (
            msgspec.structs.replace(QUIET, ttft_p99_seconds=0.004),
            msgspec.structs.replace(QUIET, ttft_p99_seconds=0.001),
        ),
    ],
)
def test_noise_is_no_gain(after: PreviewFigures, before: PreviewFigures) -> None:
    """What nobody would notice is called the same."""
    assert "Nobody would have noticed." in panel(view(one("acme", after, before)))


def test_a_tenant_that_asked_for_nothing() -> None:
    """An idle tenant is said to be one, without a hit rate."""
    page = panel(view(one("acme", PreviewFigures(), PreviewFigures())))
    assert "asked for nothing" in page
    assert 'title="no reading">–' in page


def test_nothing_to_replay() -> None:
    """An empty trace is told in words."""
    assert "There is nothing to replay yet. The trace is empty." in panel(view(problem="The trace is empty."))


def test_a_worker_without_an_answer_is_named() -> None:
    """Where one of several workers has not answered, the rest is shown without it, and it says so."""
    assert "Without w: it cannot be reached." in panel(view(one("acme", QUIET), silent="it cannot be reached"))


def test_unchanged_and_damaged_forms_ask_nobody(console: Client, tenant: TenantView) -> None:
    """Without a change there is nothing to replay, and with a bad value it says so."""
    policy = current(tenant)
    assert "Change a limit" in console.post(PREVIEW, form(policy)).content.decode()
    assert "Mend the values first" in console.post(PREVIEW, form(policy, kv_hard_bytes="lots")).content.decode()


def test_no_worker(console: Client, tenant: TenantView) -> None:
    """Without a worker the panel says that there is none."""
    answer = console.post(PREVIEW, form(current(tenant), kv_hard_bytes="128"))
    assert answer.status_code == 200
    assert "No worker is live" in answer.content.decode()


def test_worker_that_cannot_be_reached(console: Client, tenant: TenantView, worker: str) -> None:
    """A worker that does not answer is named, with the reason; nothing is changed."""
    before = current(tenant)
    answer = console.post(PREVIEW, form(before, kv_hard_bytes="128")).content.decode()
    assert worker in answer
    assert "cannot be reached" in answer
    assert current(tenant) == before


def test_guarantee_that_does_not_fit(console: Client, tenant: TenantView, worker: str) -> None:
    """What could not be applied is not replayed; overcommit is asked for as by Apply."""
    wanted = form(current(tenant), kv_soft_bytes="2000", kv_hard_bytes="2000")
    assert "does not fit" in console.post(PREVIEW, wanted).content.decode()
    assert "cannot be reached" in console.post(PREVIEW, wanted | {"overcommit": "on"}).content.decode()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Change a limit"),
        ({"max_running": "32"}, "Change a limit"),
        ({"kv_hard_bytes": "lots"}, "Mend the values first"),
        ({"weight": "nan"}, "Mend the values first"),
        ({"kv_soft_bytes": "512"}, "Mend the values first"),
        ({"kv_soft_bytes": "512", "kv_soft_bytes_unit": "MiB"}, "must not be above kv_hard_bytes"),
        ({"max_running": "64"}, "No worker is live"),
        ({"max_running": "64", "lasts": "", "amount": "no number"}, "No worker is live"),
    ],
)
def test_a_boost_that_is_being_written(fields: dict[str, str], words: str, console: Client, tenant: TenantView) -> None:
    """Its limits are replayed before anything else of the form is filled in; nothing is started."""
    before = current(tenant)
    answer = console.post(BOOST, fields)
    assert answer.status_code == 200
    page = answer.content.decode()
    assert words in page
    assert 'id="boost-preview"' in page
    assert (current(tenant), selectors.boost(tenant.id)) == (before, None)


def test_a_boost_whose_guarantee_does_not_fit(console: Client, worker: str) -> None:
    """It is refused as the boost would be, and replayed with overcommit."""
    units = {"kv_soft_bytes_unit": "MiB", "kv_hard_bytes_unit": "MiB"}
    wanted = {"kv_soft_bytes": "2000", "kv_hard_bytes": "2000"} | units
    assert "does not fit" in console.post(BOOST, wanted).content.decode()
    assert "cannot be reached" in console.post(BOOST, wanted | {"overcommit": "on"}).content.decode()


def test_previews_are_for_operators(member: Callable[[str], User], signed_in: Callable[[User], Client]) -> None:
    """To an owner of the tenant neither is there."""
    owner = signed_in(member("owner"))
    assert [owner.post(path, {"max_running": "64"}).status_code for path in (PREVIEW, BOOST)] == [404, 404]
