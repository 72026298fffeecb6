"""Registering and removing prefixes."""

import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from tenants import selectors
from tenants.contracts import Actor, PrefixMessage, SharedPrefixView, TenantView
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import AuditEvent, OutboxEvent, SharedPrefix
from tenants.rules.prefixes import MOST_OF_TENANT, MOST_PREFIXES, contents
from tenants.services.policy import set_policy
from tenants.services.prefixes import register_prefix, remove_prefix
from tenants.services.share_groups import create_share_group, remove_share_group
from tenants.services.tenants import update_tenant
from tests.tenants.services.locks import wait_until_somebody_waits_for_a_lock

ACTOR = Actor("system", "tests", "tests")
OWNER = Actor("user", "7", "ada@example.com")
CHAT = (PrefixMessage("system", "Be brief.\n"), PrefixMessage("user", " Hello "))


@pytest.fixture
def group(db: None) -> str:
    """Return the name of a share group."""
    return make_group()


def make_group(name: str = "docs") -> str:
    """Create a share group."""
    return create_share_group(name=name, description="", kv_soft_bytes=0, kv_hard_bytes=1 << 20, actor=ACTOR).name


def put(tenant: TenantView, group: str) -> None:
    """Make a tenant a member, or with "" no member any more."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    set_policy(tenant_id=tenant.id, expected_version=policy.version, changes={"share_group": group}, actor=ACTOR)


def register(name: str, group: str = "docs", **more: Any) -> SharedPrefixView:
    """Register a short text."""
    return register_prefix(group=group, name=name, **{"text": "Once upon a time", "actor": ACTOR} | more)


def test_a_prefix_is_there_to_the_character_with_a_version_of_the_group(group: str) -> None:
    """What was returned is what every reader gets; the group's new version says where it is in force."""
    chat = register_prefix(group=group, name="Support", messages=CHAT, actor=ACTOR)
    text = register("A story", text="\tOnce é\r\n")
    assert (chat.messages, chat.text, chat.num_bytes) == (CHAT, "", 17)
    assert (text.messages, text.text, text.num_bytes) == ((), "\tOnce é\r\n", 10)
    assert selectors.shared_prefixes(group) == [text, chat]
    (pushed,) = selectors.share_group_policies()
    assert (pushed.prefixes, pushed.version) == ((text, chat), text.version)
    assert (chat.version + 1, text.version) == (text.version, selectors.policy_version())
    acks = selectors.policy_acks(chat.version)
    assert acks is not None
    assert (acks.tenant_id, acks.share_group) == ("", group)


def test_contents_never_reach_audit_or_outbox(group: str, tenant: TenantView) -> None:
    """Names, sizes and digests do, in the trail of the tenant whose owner did it."""
    put(tenant, group)
    made = register_prefix(group=group, name="Support", messages=CHAT, tenant_id=tenant.id, actor=OWNER)
    remove_prefix(group=group, prefix_id=made.id, actor=ACTOR)
    added, gone = AuditEvent.objects.for_tenant(tenant.id).order_by("-id")[:2][::-1]
    expected = {"group": group, "name": "Support", "num_bytes": 17, "sha256": contents(CHAT, "").sha256}
    assert (added.action, added.before, added.after) == ("prefix.registered", None, expected)
    assert (gone.action, gone.before, gone.after) == ("prefix.removed", expected, None)
    assert (added.target_id, added.actor_label, gone.actor_label) == (made.id, "ada@example.com", "tests")
    trail = [
        *AuditEvent.objects.across_tenants().values("before", "after"),
        *OutboxEvent.objects.across_tenants().values("payload"),
    ]
    assert "Be brief" not in json.dumps(trail)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", {"name": ""}),
        ("name", {"name": None}),
        ("messages", {"text": ""}),
        ("messages.0.role", {"text": "", "messages": [{"role": "tool", "content": "x"}]}),
        ("text", {"text": "a\0"}),
        ("text", {"text": "\ud800"}),
        ("text", {"text": "x" * ((256 << 10) + 1)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_named_and_nothing_is_registered(group: str, field: str, values: dict[str, Any]) -> None:
    """No version is used up."""
    start = selectors.policy_version()
    with pytest.raises(Invalid) as caught:
        register_prefix(**{"group": group, "name": "p", "text": "x", "actor": ACTOR} | values)
    assert caught.value.field == field
    assert (selectors.shared_prefixes(group), selectors.policy_version()) == ([], start)


def test_a_name_is_unique_in_its_group_and_free_after_removal(group: str) -> None:
    """Another group may have the same; a removed prefix gives its name back."""
    made = register("p")
    with pytest.raises(Conflict, match="'p'"):
        register(" p ")
    make_group("other")
    register("p", "other")
    remove_prefix(group=group, prefix_id=made.id, actor=ACTOR)
    again = register("p")
    assert again.id != made.id
    assert [prefix.id for prefix in selectors.shared_prefixes(group)] == [again.id]


def test_a_full_group_takes_no_more(group: str) -> None:
    """64 prefixes; after one has gone there is room for one."""
    made = [register(f"p{n:02}") for n in range(MOST_PREFIXES)]
    with pytest.raises(Conflict, match="64"):
        register("one more")
    remove_prefix(group=group, prefix_id=made[5].id, actor=ACTOR)
    register("one more")
    view = selectors.share_group(group)
    assert view is not None
    assert view.num_prefixes == MOST_PREFIXES == len(selectors.share_group_policies()[0].prefixes)


def test_a_tenant_registers_at_most_its_quota(group: str, make_tenant: Callable[..., TenantView]) -> None:
    """A quarter of the group; the error names quota and fix. Neither another member nor an operator is held up by it.

    What counts is what the tenant registered and is there: not what it has removed, nor what it has in another group.
    """
    greedy, other = make_tenant("greedy"), make_tenant("other")
    make_group("elsewhere")
    put(greedy, "elsewhere")
    register("p", "elsewhere", tenant_id=greedy.id)
    for tenant in (greedy, other):
        put(tenant, group)
    made = [register(f"p{n:02}", tenant_id=greedy.id) for n in range(MOST_OF_TENANT)]
    start = selectors.policy_version()
    with pytest.raises(Conflict, match=r"16 of the share group's 64 .* remove one of its own"):
        register("one more", tenant_id=greedy.id)
    assert selectors.policy_version() == start
    register("theirs", tenant_id=other.id)
    register("operators")
    remove_prefix(group=group, prefix_id=made[3].id, tenant_id=greedy.id, actor=OWNER)
    register("one more", tenant_id=greedy.id)
    assert len(selectors.shared_prefixes(group)) == MOST_OF_TENANT + 2


def test_a_quota_outlives_a_membership(group: str, tenant: TenantView) -> None:
    """What a tenant left behind counts when it comes back: leaving and joining is no way around."""
    put(tenant, group)
    for n in range(MOST_OF_TENANT):
        register(f"p{n}", tenant_id=tenant.id)
    put(tenant, "")
    put(tenant, group)
    with pytest.raises(Conflict, match="16"):
        register("one more", tenant_id=tenant.id)


def test_a_member_of_a_full_group_learns_who_can_make_room(group: str, tenant: TenantView) -> None:
    """It may have nothing of its own to remove."""
    put(tenant, group)
    for n in range(MOST_PREFIXES):
        register(f"p{n}")
    with pytest.raises(Conflict, match="operator"):
        register("one more", tenant_id=tenant.id)


def test_an_owner_removes_only_what_his_tenant_registered(group: str, make_tenant: Callable[..., TenantView]) -> None:
    """Not another member's, not an operator's; an operator removes any."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    put(mine, group)
    put(theirs, group)
    made = {
        "mine": register("one", tenant_id=mine.id),
        "theirs": register("two", tenant_id=theirs.id),
        "operators": register("three"),
    }
    assert (made["mine"].tenant_id, made["mine"].tenant_slug) == (mine.id, "mine")
    for whose in ("theirs", "operators"):
        with pytest.raises(Forbidden, match="operator"):
            remove_prefix(group=group, prefix_id=made[whose].id, tenant_id=mine.id, actor=OWNER)
    remove_prefix(group=group, prefix_id=made["mine"].id, tenant_id=mine.id, actor=OWNER)
    remove_prefix(group=group, prefix_id=made["theirs"].id, actor=ACTOR)
    assert [prefix.name for prefix in selectors.shared_prefixes(group)] == ["three"]


@pytest.mark.parametrize("prefix_id", [uuid.uuid4(), "", "x", None, 7, "\0"])
def test_an_unknown_prefix_is_not_found(group: str, prefix_id: Any) -> None:
    """Whatever stands for its id; also one of another group."""
    elsewhere = register("p", make_group("other"))
    for missing in (prefix_id, elsewhere.id):
        with pytest.raises(NotFound):
            remove_prefix(group=group, prefix_id=missing, actor=ACTOR)
    assert len(selectors.shared_prefixes("other")) == 1


def test_a_tenant_that_is_no_member_registers_and_removes_nothing(
    group: str, make_tenant: Callable[..., TenantView]
) -> None:
    """One that never was, one that was put into another group, one that left: what it registered stays with the group.

    Back in the group it may remove it again.
    """
    stranger, member = make_tenant("stranger"), make_tenant("member")
    make_group("other")
    put(member, group)
    made = register("p", tenant_id=member.id)
    for tenant, place in ((stranger, ""), (member, "other"), (member, "")):
        put(tenant, place)
        with pytest.raises(Conflict, match="no member"):
            register("q", tenant_id=tenant.id)
        with pytest.raises(Conflict, match="no member"):
            remove_prefix(group=group, prefix_id=made.id, tenant_id=tenant.id, actor=OWNER)
        assert selectors.shared_prefixes(group) == [made]
    put(member, group)
    remove_prefix(group=group, prefix_id=made.id, tenant_id=member.id, actor=OWNER)
    assert selectors.shared_prefixes(group) == []


def test_what_a_suspended_tenant_registered_stays(group: str, tenant: TenantView) -> None:
    """Other members rely on it."""
    put(tenant, group)
    made = register("p", tenant_id=tenant.id)
    update_tenant(tenant_id=tenant.id, changes={"status": "suspended"}, actor=ACTOR)
    assert selectors.share_group_policies()[0].prefixes == (made,)


def test_members_see_what_is_shared_and_not_who_the_others_are(
    group: str, make_tenant: Callable[..., TenantView]
) -> None:
    """A tenant's people are not shown another tenant's name nor the address of whoever registered for it."""
    mine, theirs = make_tenant("mine"), make_tenant("theirs")
    put(mine, group)
    put(theirs, group)
    register("mine", tenant_id=mine.id, actor=OWNER)
    register("operators", text="shared")
    register("theirs", tenant_id=theirs.id, actor=Actor("user", "8", "bob@example.com"))
    seen = selectors.shared_prefixes(group, seen_by=mine.id)
    assert [(prefix.tenant_slug, prefix.created_by) for prefix in seen] == [
        ("mine", "ada@example.com"),
        ("", ""),
        ("", ""),
    ]
    assert [prefix.text for prefix in seen] == [prefix.text for prefix in selectors.shared_prefixes(group)]
    assert "bob@example.com" not in repr(seen)


@pytest.mark.django_db(transaction=True)
def test_a_race_never_overfills_a_group(in_threads: Callable[..., list[Any]]) -> None:
    """Twelve register at once where four fit: four do."""
    make_group()
    for n in range(MOST_PREFIXES - 4):
        register(f"p{n}")
    results = in_threads(*(lambda n=n: register(f"racer {n}") for n in range(12)))
    assert sum(isinstance(result, SharedPrefixView) for result in results) == 4
    assert sum(isinstance(result, Conflict) for result in results) == 8
    assert len(selectors.shared_prefixes("docs")) == MOST_PREFIXES


@pytest.mark.django_db(transaction=True)
def test_a_race_never_exceeds_a_quota(
    make_tenant: Callable[..., TenantView], in_threads: Callable[..., list[Any]]
) -> None:
    """Twelve of a tenant's people register at once where four fit, and as many of an operator's: four and all do."""
    make_group()
    member = make_tenant("member")
    put(member, "docs")
    for n in range(MOST_OF_TENANT - 4):
        register(f"p{n}", tenant_id=member.id)
    racers = [*(lambda n=n: register(f"racer {n}", tenant_id=member.id) for n in range(12))]
    operators = [*(lambda n=n: register(f"operator {n}") for n in range(12))]
    results = in_threads(*racers, *operators)
    assert [sum(isinstance(one, SharedPrefixView) for one in part) for part in (results[:12], results[12:])] == [4, 12]
    assert sum(isinstance(result, Conflict) for result in results) == 8
    theirs = [prefix for prefix in selectors.shared_prefixes("docs") if prefix.tenant_id == member.id]
    assert len(theirs) == MOST_OF_TENANT


@pytest.mark.django_db(transaction=True)
def test_of_registrations_of_one_name_exactly_one_wins(in_threads: Callable[..., list[Any]]) -> None:
    """The others are told that it is taken; no error of the database comes through."""
    make_group()
    results = in_threads(*[lambda: register("p")] * 6)
    assert sum(isinstance(result, SharedPrefixView) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 5


@pytest.mark.django_db(transaction=True)
def test_of_removers_of_one_prefix_exactly_one_wins(in_threads: Callable[..., list[Any]]) -> None:
    """The others find nothing, and no version and no audit row is written for nothing."""
    make_group()
    made = register("p")
    results = in_threads(*[lambda: remove_prefix(group="docs", prefix_id=made.id, actor=ACTOR)] * 6)
    assert results.count(None) == 1
    assert sum(isinstance(result, NotFound) for result in results) == 5
    assert selectors.policy_version() == made.version + 1
    assert AuditEvent.objects.across_tenants().filter(action="prefix.removed").count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("comes_back", [False, True], ids=["gone", "used again"])
def test_a_registration_that_waits_for_a_removal_finds_what_is_there_then(comes_back: bool) -> None:
    """It waits behind whoever removes the group, and lands in the new group of that name or nowhere."""
    make_group()
    done: list[Any] = []

    def late() -> None:
        try:
            done.append(register("late"))
        except NotFound as error:
            done.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=late)
    with transaction.atomic():
        remove_share_group(name="docs", actor=ACTOR)
        if comes_back:
            make_group()
        thread.start()
        wait_until_somebody_waits_for_a_lock()
    thread.join(30)
    assert isinstance(done[0], SharedPrefixView if comes_back else NotFound)
    assert SharedPrefix.objects.for_group("docs").count() == comes_back
