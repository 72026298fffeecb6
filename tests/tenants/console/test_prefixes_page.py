"""A tenant's registered prefixes: who sees, registers and removes them, and what the page shows."""

from collections.abc import Callable

import msgspec
import pytest
import redis
from django.conf import settings
from django.test import Client

from tenants import selectors
from tenants.contracts import SharedPrefixView, TenantView, WorkerView
from tenants.models import User
from tenants.reports import PREFIXES_KEY, STATS_KEY, PrefixReading, ShareGroupUse, WorkerStats
from tenants.rules.prefixes import MOST_OF_TENANT
from tenants.services.policy import set_policy
from tenants.services.prefixes import register_prefix
from tenants.services.share_groups import create_share_group
from tests.tenants.conftest import ACTOR

PAGE = "/t/acme/prefixes/"
FORM = {"name": "assistant", "kind": "chat", "system": "Be kind.", "text": ""}

MakeUser = Callable[..., User]
MakeTenant = Callable[..., TenantView]


@pytest.fixture
def client_of(tenant: TenantView, make_user: MakeUser) -> Callable[[str], Client]:
    """Return a maker of clients of acme's members by role."""

    def make(role: str) -> Client:
        client = Client()
        client.force_login(make_user(f"{role}@example.com", tenant, role))
        return client

    return make


@pytest.fixture
def support(tenant: TenantView) -> str:
    """Return the name of a share group that acme is in."""
    group = create_share_group(
        name="support", description="Help <b>desks", kv_soft_bytes=1 << 20, kv_hard_bytes=4 << 20, actor=ACTOR
    )
    join(tenant, group.name)
    return group.name


@pytest.fixture
def other(support: str, make_tenant: MakeTenant) -> TenantView:
    """Return another tenant of the group."""
    tenant = make_tenant("rival")
    join(tenant, support)
    return tenant


def join(tenant: TenantView, group: str) -> None:
    """Put a tenant into a share group, or out of the one it is in."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    set_policy(tenant_id=tenant.id, expected_version=policy.version, changes={"share_group": group}, actor=ACTOR)


def registered(name: str, tenant: TenantView | None = None, text: str = "Once upon a time") -> SharedPrefixView:
    """Register a prefix for the group, by a tenant's owner or by an operator."""
    return register_prefix(
        group="support", name=name, text=text, tenant_id=tenant.id if tenant is not None else "", actor=ACTOR
    )


@pytest.mark.parametrize("path", ["", "use/", "list/", "new/", "{id}/", "{id}/?text", "acks/{version}/"])
def test_outsiders_find_nothing(path: str, support: str, make_tenant: MakeTenant, make_user: MakeUser) -> None:
    """A stranger finds nothing at a member's address; one outside the group finds nothing of it at their own."""
    prefix = registered("assistant", text="a secret of the group")
    path = path.format(id=prefix.id, version=prefix.version)
    stranger = Client()
    stranger.force_login(make_user("s@example.com", make_tenant("outside"), "owner"))
    assert stranger.get(PAGE + path).status_code == 404
    own = stranger.get("/t/outside/prefixes/" + path)
    assert own.status_code == (200 if path == "" else 404)
    assert "a secret of the group" not in own.content.decode()
    assert "assistant" not in own.content.decode()
    assert Client().get(PAGE + path).headers["Location"].startswith("/sign-in/")


def test_outsider_registers_and_removes_nothing(support: str, make_tenant: MakeTenant, make_user: MakeUser) -> None:
    """An owner outside the group neither adds to it nor takes from it, at any address."""
    prefix = registered("assistant")
    stranger = Client()
    stranger.force_login(make_user("s@example.com", make_tenant("outside"), "owner"))
    for page in (PAGE, "/t/outside/prefixes/"):
        assert stranger.post(f"{page}new/", FORM | {"name": "other"}).status_code == 404
        assert stranger.post(f"{page}{prefix.id}/remove/").status_code == 404
    assert [one.name for one in selectors.shared_prefixes(support)] == ["assistant"]


def test_without_a_group(client_of: Callable[[str], Client]) -> None:
    """Without a group the page says what will be here and who assigns it."""
    page = client_of("owner").get(PAGE).content.decode()
    assert "Acme is in no share group" in page
    assert "An operator assigns the group" in page
    assert "Register" not in page


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("developer", False), ("admin", True), ("owner", True)])
def test_roles(role: str, may: bool, support: str, tenant: TenantView, client_of: Callable[[str], Client]) -> None:
    """Every member reads, contents included; owners and admins register, and remove what is the tenant's own."""
    prefix = registered("mine", tenant)
    client = client_of(role)
    page = client.get(PAGE).content.decode()
    assert (">Register a prefix<" in page, 'aria-label="Remove mine"' in page) == (may, may)
    assert "Once upon" in client.get(f"{PAGE}{prefix.id}/?text").content.decode()
    assert ("Remove “mine”?" in client.get(f"{PAGE}{prefix.id}/?remove").content.decode()) == may
    assert client.get(f"{PAGE}new/").status_code == (200 if may else 403)
    assert client.post(f"{PAGE}new/", FORM).status_code == (200 if may else 403)
    assert client.post(f"{PAGE}{prefix.id}/remove/").status_code == (200 if may else 403)
    assert [one.name for one in selectors.shared_prefixes(support)] == (["assistant"] if may else ["mine"])


def test_registered_in_the_tenants_name(support: str, tenant: TenantView, client_of: Callable[[str], Client]) -> None:
    """What an owner registers is the tenant's, and its way to the workers can be followed on the tenant's page."""
    client = client_of("owner")
    page = client.post(f"{PAGE}new/", FORM).content.decode()
    (prefix,) = selectors.shared_prefixes(support)
    assert (prefix.tenant_id, prefix.created_by) == (tenant.id, "owner@example.com")
    assert f'hx-get="/t/acme/prefixes/acks/{prefix.version}/"' in page
    assert "saved" in client.get(f"{PAGE}acks/{prefix.version}/").content.decode()
    assert client.get(f"{PAGE}acks/999999/").status_code == 404


def test_others_prefixes_stay(support: str, other: TenantView, client_of: Callable[[str], Client]) -> None:
    """What another member or an operator registered can be read, and not removed; who the other is stays unsaid."""
    theirs, operators = registered("theirs", other), registered("operators")
    client = client_of("owner")
    page = client.get(PAGE).content.decode()
    assert "another member" in page
    assert "operator" in page
    assert "rival" not in page.lower()
    assert 'aria-label="Remove' not in page
    for prefix in (theirs, operators):
        path = f"{PAGE}{prefix.id}/"
        assert "Once upon" in client.get(f"{path}?text").content.decode()
        assert "?</strong>" not in client.get(f"{path}?remove").content.decode()
        assert client.post(f"{path}remove/").status_code == 403
    assert len(selectors.shared_prefixes(support)) == 2


def test_a_tenant_that_leaves_sees_nothing_more(
    support: str, tenant: TenantView, client_of: Callable[[str], Client]
) -> None:
    """With the group the tenant loses its prefixes, its own included, until it is back."""
    prefix = registered("mine", tenant)
    client = client_of("owner")
    join(tenant, "")
    assert "mine" not in client.get(PAGE).content.decode()
    assert client.get(f"{PAGE}{prefix.id}/?text").status_code == 404
    assert client.post(f"{PAGE}{prefix.id}/remove/").status_code == 404
    assert len(selectors.shared_prefixes(support)) == 1


@pytest.mark.parametrize("path", ["use/", "list/", "acks/{version}/"])
def test_an_open_page_is_read_again_when_the_group_is_gone(
    path: str, support: str, tenant: TenantView, client_of: Callable[[str], Client]
) -> None:
    """A part that asks for itself has the whole page read anew, which then says that there is no group."""
    prefix = registered("mine", tenant)
    client = client_of("owner")
    join(tenant, "")
    answer = client.get(PAGE + path.format(version=prefix.version), headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["HX-Refresh"], answer.content) == (200, "true", b"")


def test_what_sharing_saves(
    support: str, make_worker: Callable[..., WorkerView], client_of: Callable[[str], Client]
) -> None:
    """The page adds up what is shared with each model, and draws the group's use, neutral, with what is cached."""
    worker = make_worker()
    one, two = registered("one"), registered("two")
    group = ShareGroupUse(
        name=support, kv_bytes=2 << 20, kv_peak_bytes=0, kv_cached_bytes=1 << 20, num_prefixes=2, prefix_tokens=1216
    )
    readings = (
        PrefixReading(prefix_id=one.id, model=worker.model, num_tokens=1204, shared_tokens=1200),
        PrefixReading(prefix_id=two.id, model=worker.model, num_tokens=20, shared_tokens=16),
    )
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(STATS_KEY.format(worker_id=worker.worker_id), msgspec.json.encode(stats(worker, group)), ex=30)
        client.set(PREFIXES_KEY.format(worker_id=worker.worker_id), msgspec.json.encode(readings), ex=30)
    page = client_of("viewer").get(PAGE).content.decode()
    assert "1\u2009216" in page
    assert "of 2 prefixes" in page
    assert "uses 2 MiB, of it 1 MiB only cached, soft limit 1 MiB, hard limit 4 MiB" in page
    assert 'class="limit shared"' in page
    assert "Help &lt;b&gt;desks" in page
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(STATS_KEY.format(worker_id=worker.worker_id), PREFIXES_KEY.format(worker_id=worker.worker_id))


def test_the_page_says_what_sharing_means(support: str, client_of: Callable[[str], Client]) -> None:
    """Who can read a registered text, and who sees the group's use, is said where it is shown."""
    client = client_of("owner")
    page, form = (client.get(f"{PAGE}{path}").content.decode() for path in ("", "new/"))
    assert "no secret inside the group" in page
    assert "Every member of the group sees this: how much of it is in use and how much only cached." in page
    assert "every member of the group can read" in form
    assert "at most a quarter of the group's 64 prefixes" in form


def test_over_the_quota_the_form_says_what_to_do(
    support: str, tenant: TenantView, client_of: Callable[[str], Client]
) -> None:
    """What was written stays in it."""
    for n in range(MOST_OF_TENANT):
        registered(f"p{n}", tenant)
    refused = client_of("owner").post(f"{PAGE}new/", FORM)
    assert refused.status_code == 422
    assert "remove one of its own first" in refused.content.decode()
    assert "Be kind." in refused.content.decode()


def test_overview_names_the_group(support: str, client_of: Callable[[str], Client]) -> None:
    """The tenant's limits name its group and lead to the prefixes."""
    page = client_of("viewer").get("/t/acme/").content.decode()
    assert f'<a href="{PAGE}">support</a>' in page


def stats(worker: WorkerView, group: ShareGroupUse) -> WorkerStats:
    """Return a worker's statistics in which one group uses memory."""
    return WorkerStats(
        worker_id=worker.worker_id,
        at=0.0,
        core_ready=True,
        applied_version=1,
        blocks_total=1 << 14,
        blocks_free=1 << 13,
        block_bytes=1 << 14,
        running=0,
        queued=0,
        prompt_tokens_per_second=0.0,
        output_tokens_per_second=0.0,
        num_preemptions=0,
        tenants=(),
        share_groups=(group,),
    )
