"""The history of a policy on its page, and the way back."""

from collections.abc import Callable

import pytest
from django.test import Client

from gateway.console.history import PAGE_ROWS
from tenants import selectors
from tenants.contracts import PolicyView, ShareGroupView, TenantView
from tenants.models import User
from tenants.services.policy import set_policy
from tenants.services.share_groups import remove_share_group
from tests.gateway.console.conftest import ACTOR

PAGE = "/operator/tenants/acme/policy/"


@pytest.fixture
def console(operator: User, tenant: TenantView, signed_in: Callable[[User], Client]) -> Client:
    """Return the operator's client."""
    return signed_in(operator)


def current(tenant: TenantView) -> PolicyView:
    """Return the policy in force."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    return policy


def change(tenant: TenantView, **changes: object) -> PolicyView:
    """Change the policy past the page."""
    return set_policy(
        tenant_id=tenant.id, expected_version=current(tenant).version, changes=changes, actor=ACTOR, overcommit=True
    )


def test_versions_are_told_with_what_changed(console: Client, tenant: TenantView) -> None:
    """Each version says who made it and what it changed, the newest first; the one in force cannot be gone back to."""
    first = current(tenant)
    change(tenant, kv_hard_bytes=128 << 20, shadow={"rpm": 60})
    page = " ".join(console.get(PAGE).content.decode().split())
    assert 'hard limit <span class="quiet">256 MiB →</span> 128 MiB' in page
    assert 'trial of requests a minute <span class="quiet">none →</span> 60' in page
    assert "First version" in page
    assert f'aria-label="Go back to version {first.version}"' in page
    assert f'aria-label="Go back to version {current(tenant).version}"' not in page


def test_history_comes_in_pages(console: Client, tenant: TenantView) -> None:
    """A long history ends with the way to earlier versions, and every version is on exactly one page."""
    versions = [current(tenant).version] + [change(tenant, max_running=n).version for n in range(1, PAGE_ROWS + 3)]
    pages = [console.get(f"{PAGE}history/").content.decode()]
    pages.append(console.get(f"{PAGE}history/?before={versions[-PAGE_ROWS]}").content.decode())
    shown = [[version for version in versions if f'id="version-{version}"' in page] for page in pages]
    assert shown == [versions[-PAGE_ROWS:], versions[:-PAGE_ROWS]]
    assert "Earlier versions" in pages[0]
    assert "Earlier versions" not in pages[1]


@pytest.mark.parametrize("before", ["-1", "x", "1" * 40, "²", "1.5"])
def test_bad_place_in_the_history(before: str, console: Client) -> None:
    """A place that this page never gave out is a 404."""
    assert console.get(f"{PAGE}history/", {"before": before}).status_code == 404


def test_revert_asks_once_and_shows_the_difference(console: Client, tenant: TenantView) -> None:
    """The question names what goes back; the answer is the editor with the acks of a new version."""
    first = current(tenant)
    change(tenant, kv_hard_bytes=128 << 20, weight=2.0)
    url = f"{PAGE}revert/{first.version}/"
    question = console.get(url).content.decode()
    assert "Go back to version" in question
    assert "goes back" not in question
    assert current(tenant).kv_hard_bytes == 128 << 20  # asking changes nothing
    answer = console.post(url, {"seen": str(current(tenant).version)})
    after = current(tenant)
    assert (answer.status_code, answer.headers["HX-Retarget"]) == (200, "#editor")
    assert "limits:saved" in answer.headers["HX-Trigger"]
    assert (after.kv_hard_bytes, after.weight, after.version > first.version) == (256 << 20, 1.0, True)
    assert f'data-version="{after.version}"' in answer.content.decode()


@pytest.mark.parametrize("seen", ["1", "", "x", "9" * 30])
def test_revert_of_what_has_moved_on_asks_again(seen: str, console: Client, tenant: TenantView) -> None:
    """The policy changed while the question stood: nothing is done, and the question names the new difference."""
    first = current(tenant)
    change(tenant, max_running=7)
    change(tenant, max_queued=9)
    answer = console.post(f"{PAGE}revert/{first.version}/", {"seen": seen})
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "Somebody changed the policy" in page
    assert "Waiting requests" in page
    assert current(tenant).max_running == 7


def test_revert_that_is_refused_says_why(
    console: Client, tenant: TenantView, group: Callable[..., ShareGroupView], join: Callable[[str], None]
) -> None:
    """A version whose share group is gone cannot come back; the question says so and stays."""
    group("support")
    join("support")
    with_group = current(tenant)
    change(tenant, share_group="")
    remove_share_group(name="support", actor=ACTOR)
    answer = console.post(f"{PAGE}revert/{with_group.version}/", {"seen": str(current(tenant).version)})
    assert answer.status_code == 422
    assert "share_group" in answer.content.decode()
    assert current(tenant).share_group == ""


def test_revert_of_a_guarantee_that_no_longer_fits(console: Client, tenant: TenantView, worker: str) -> None:
    """Where a guarantee would not fit any more the question offers overcommit, and takes it."""
    change(tenant, kv_hard_bytes=4 << 30, kv_soft_bytes=2 << 30)
    big = current(tenant)
    change(tenant, kv_soft_bytes=0)
    url, seen = f"{PAGE}revert/{big.version}/", str(current(tenant).version)
    refused = console.post(url, {"seen": seen})
    assert refused.status_code == 422
    assert 'name="overcommit"' in refused.content.decode()
    assert console.post(url, {"seen": seen, "overcommit": "on"}).status_code == 200
    assert current(tenant).kv_soft_bytes == 2 << 30


def test_nothing_to_bring_back(console: Client, tenant: TenantView) -> None:
    """A version with the values in force says so, and offers no button to go back."""
    first = current(tenant)
    change(tenant, max_running=7)
    change(tenant, max_running=first.max_running)
    question = console.get(f"{PAGE}revert/{first.version}/").content.decode()
    assert "nothing to bring back" in question
    assert 'type="submit"' not in question


@pytest.mark.parametrize("version", ["0", "999999", "9" * 18])
def test_unknown_version(version: str, console: Client) -> None:
    """A version that is not of this tenant's history is a 404, asked about or gone back to."""
    assert console.get(f"{PAGE}revert/{version}/").status_code == 404
    assert console.post(f"{PAGE}revert/{version}/", {"seen": "1"}).status_code == 404
