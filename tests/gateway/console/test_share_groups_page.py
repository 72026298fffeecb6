"""The operator's share groups: the list, and how a group is made."""

from collections.abc import Callable

import msgspec
import pytest
import redis
from django.conf import settings
from django.test import Client

from tenants import selectors
from tenants.contracts import ShareGroupView, TenantView
from tenants.models import User
from tenants.reports import STATS_KEY, ShareGroupUse, TenantUse, WorkerStats

LIST = "/operator/share-groups/"
NEW = "/operator/new-share-group/"
FIELDS = {
    "name": "support",
    "description": "Help desks",
    "kv_soft_bytes": "8",
    "kv_soft_bytes_unit": "MiB",
    "kv_hard_bytes": "32",
    "kv_hard_bytes_unit": "MiB",
}


@pytest.fixture
def console(operator: User, signed_in: Callable[[User], Client]) -> Client:
    """Return the operator's client."""
    return signed_in(operator)


@pytest.mark.parametrize("path", [LIST, NEW, "/operator/share-group-rows/"])
def test_operators_only(
    path: str, tenant: TenantView, member: Callable[[str], User], signed_in: Callable[[User], Client]
) -> None:
    """To an owner of a tenant these pages are not there; a signed-out reader is asked to sign in."""
    assert signed_in(member("owner")).get(path).status_code == 404
    assert Client().get(path).headers["Location"].startswith("/sign-in/?next=")


def test_owner_makes_no_group(
    tenant: TenantView, member: Callable[[str], User], signed_in: Callable[[User], Client]
) -> None:
    """An owner of a tenant cannot make a group by posting what the form would."""
    assert signed_in(member("owner")).post(NEW, FIELDS).status_code == 404
    assert selectors.share_groups() == []


def test_nothing_yet(console: Client) -> None:
    """Without groups the page says what one is and offers the first step."""
    page = console.get(LIST).content.decode()
    assert "No share groups yet" in page
    assert "Make the first group" in page


def test_group_is_made_and_followed(console: Client) -> None:
    """A group is made as the form says, the line of acks starts, and the list beside it has the group."""
    page = console.post(NEW, FIELDS).content.decode()
    (group,) = selectors.share_groups()
    assert (group.name, group.description) == ("support", "Help desks")
    assert (group.kv_soft_bytes, group.kv_hard_bytes) == (8 << 20, 32 << 20)
    assert f'data-version="{group.version}"' in page
    assert 'hx-swap-oob="true"' in page
    assert 'href="/operator/share-groups/support/"' in page
    assert "0/0" in console.get(f"/operator/share-groups/support/acks/{group.version}/").content.decode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "Give the group a name"),
        ({"name": "Support"}, "1 to 40 characters of a-z"),
        ({"name": "../admin"}, "1 to 40 characters of a-z"),
        ({"name": "<script>alert(1)</script>"}, "1 to 40 characters of a-z"),
        ({"name": "x" * 41}, "at most 40"),
        ({"name": "taken"}, "choose another name"),
        ({"description": "x" * 501}, "at most 500"),
        ({"description": "a\x07b"}, "control characters"),
        ({"kv_soft_bytes": "33"}, "above the hard limit"),
        ({"kv_hard_bytes": "0", "kv_soft_bytes": "0"}, "shares nothing"),
        ({"kv_hard_bytes": "lots"}, "Write a number"),
        ({"kv_soft_bytes": "1000", "kv_hard_bytes": "1000"}, "does not fit"),
    ],
)
def test_bad_fields(
    console: Client, worker: str, group: Callable[..., ShareGroupView], changes: dict[str, str], words: str
) -> None:
    """A bad field is told in the form, whose other values stay, and no group is made."""
    group("taken")
    answer = console.post(NEW, FIELDS | changes)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert words in page
    assert "<script>alert" not in page
    assert [one.name for one in selectors.share_groups()] == ["taken"]


def test_guarantee_is_held_against_the_pool_before(console: Client, worker: str) -> None:
    """What the guarantees would add up to is told while the form is filled in, and makes nothing."""
    page = console.post(
        f"{NEW}guarantees/", FIELDS | {"kv_soft_bytes": "1000", "kv_hard_bytes": "1000"}
    ).content.decode()
    hidden = 'data-part="overcommit" hidden'
    assert "Does not fit" in page
    assert hidden not in " ".join(page.split())
    assert hidden in " ".join(console.post(f"{NEW}guarantees/", FIELDS).content.decode().split())
    assert selectors.share_groups() == []


def test_use_is_neutral_and_what_is_cached_is_faded(
    console: Client, tenant: TenantView, worker: str, group: Callable[..., ShareGroupView], join: Callable[[str], None]
) -> None:
    """A group's use, cached part, limits, members and number of prefixes are in its row, in no tenant's colour."""
    group("support", soft=64 << 20, hard=256 << 20)
    join("support")
    put_stats(worker, groups=(share_use("support", 128 << 20, cached=32 << 20),))
    page = console.get(LIST).content.decode()
    assert "uses 128 MiB, of it 32 MiB only cached, soft limit 64 MiB, hard limit 256 MiB" in page
    assert '<rect class="cached" y="6" height="10" x="37.5%" width="12.5%" />' in page
    assert 'class="limit shared"' in page
    assert 'data-use="group:support"' in page
    assert 'href="/operator/tenants/acme/policy/"' in page


def test_pool_has_shared_memory_and_what_is_cached(
    console: Client, tenant: TenantView, worker: str, group: Callable[..., ShareGroupView]
) -> None:
    """In the bar of the pool the groups follow the tenants, and each part ends with what is only cached."""
    group("support")
    use = TenantUse(
        tenant_id=tenant.id,
        kv_bytes=256 << 20,
        kv_cached_bytes=64 << 20,
        kv_peak_bytes=0,
        running=0,
        queued=0,
        output_tokens_per_second=0.0,
    )
    put_stats(worker, tenants=(use,), groups=(share_use("support", 128 << 20, cached=128 << 20),))
    page = console.get("/operator/tenants/").content.decode()
    mine, shared = page.split(f'data-account="tenant:{tenant.id}"')[1].split('data-account="group:support"')
    assert '<rect class="used" y="6" height="18" x="0.0%" width="25.0%" />' in mine
    assert '<rect class="cached" y="6" height="18" x="18.75%" width="6.25%" />' in mine
    assert '<rect class="twill" y="6" height="18" x="25.0%" width="12.5%" />' in shared
    assert '<rect class="cached" y="6" height="18" x="25.0%" width="12.5%" />' in shared


def share_use(name: str, kv_bytes: int, cached: int = 0) -> ShareGroupUse:
    """Return a group's use of one worker."""
    return ShareGroupUse(
        name=name, kv_bytes=kv_bytes, kv_peak_bytes=kv_bytes, kv_cached_bytes=cached, num_prefixes=1, prefix_tokens=16
    )


def put_stats(worker: str, tenants: tuple[TenantUse, ...] = (), groups: tuple[ShareGroupUse, ...] = ()) -> None:
    """Leave a worker's statistics where the controller would, of a pool of 1 GiB."""
    stats = WorkerStats(
        worker_id=worker,
        at=0.0,
        core_ready=True,
        applied_version=1,
        blocks_total=1 << 14,
        blocks_free=1 << 13,
        block_bytes=1 << 16,
        running=0,
        queued=0,
        prompt_tokens_per_second=0.0,
        output_tokens_per_second=0.0,
        num_preemptions=0,
        tenants=tenants,
        share_groups=groups,
    )
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(STATS_KEY.format(worker_id=worker), msgspec.json.encode(stats), ex=30)
