"""One counter for policies and share groups: whoever reads what is newer than a version misses nothing."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.database import conninfo
from tenants import selectors
from tenants.contracts import POLICY_CHANNEL, Actor, PolicyView, ShareGroupPolicy, TenantView
from tenants.errors import TenantsError
from tenants.models import PolicyVersion
from tenants.services.policy import set_policy
from tenants.services.prefixes import register_prefix, remove_prefix
from tenants.services.share_groups import create_share_group, remove_share_group, update_share_group
from tenants.services.tenants import create_tenant

ACTOR = Actor("system", "tests", "tests")
GROUPS = ("alpha", "beta")
TENANTS = ("one", "two")

Step = tuple[str, str, str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "change", "remove", "detach", "register", "unregister", "join", "leave", "read"]),
        st.sampled_from(GROUPS),
        st.sampled_from(TENANTS),
        st.integers(0, 3),
    ),
    max_size=25,
)


class Reader:
    """Follows policies and groups by what is newer than it knows, as the controller does."""

    def __init__(self) -> None:
        self.since = 0
        self.policies: dict[str, PolicyView] = {}
        self.groups: dict[str, ShareGroupPolicy] = {}

    def read(self) -> None:
        """Catch up: the counter first, so that what changes meanwhile is read again."""
        version = selectors.policy_version()
        self.policies.update(selectors.policies(self.since))
        for group in selectors.share_group_policies(self.since):
            if group.removed:
                self.groups.pop(group.name, None)
            else:
                self.groups[group.name] = group
        self.since = version

    def knows_everything(self) -> bool:
        """Tell whether what was followed is what a full read gives."""
        return self.policies == dict(selectors.policies()) and self.groups == {
            group.name: group for group in selectors.share_group_policies()
        }


def act(step: Step) -> None:
    """Make one change; it may be refused."""
    what, group, slug, n = step
    view = selectors.share_group(group)
    tenant = selectors.tenant(slug)
    policy = selectors.policy(tenant.id) if tenant else None
    assert tenant is not None
    assert policy is not None
    expected = view.version if view and n else 0
    if what == "create":
        create_share_group(name=group, description="", kv_soft_bytes=n, kv_hard_bytes=max(n, 1), actor=ACTOR)
    elif what == "change":
        update_share_group(name=group, expected_version=expected, changes={"kv_hard_bytes": 10 + n}, actor=ACTOR)
    elif what in ("remove", "detach"):
        remove_share_group(name=group, actor=ACTOR, detach=what == "detach")
    elif what == "register":
        register_prefix(group=group, name=f"p{n}", text="x", tenant_id=tenant.id if n else "", actor=ACTOR)
    elif what == "unregister":
        prefix_id = next((prefix.id for prefix in selectors.shared_prefixes(group)), "")
        remove_prefix(group=group, prefix_id=prefix_id, actor=ACTOR)
    elif what in ("join", "leave"):
        name = group if what == "join" else ""
        set_policy(tenant_id=tenant.id, expected_version=policy.version, changes={"share_group": name}, actor=ACTOR)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(STEPS)
def test_following_versions_gives_what_a_full_read_gives(
    make_tenant: Callable[..., TenantView], steps: list[Step]
) -> None:
    """In whatever pieces it is read. A change that is refused leaves no version; one that is made leaves newer ones."""
    with transaction.atomic():
        for slug in TENANTS:
            make_tenant(slug)
        for what in ("create", "join", "register"):
            act((what, "alpha", "one", 1))
        often, seldom = Reader(), Reader()
        for step in steps:
            if step[0] == "read":
                seldom.read()
                continue
            before = selectors.policy_version()
            try:
                act(step)
            except TenantsError:
                assert selectors.policy_version() == before
            else:
                assert selectors.policy_version() > before
            often.read()
            assert often.knows_everything()
        seldom.read()
        assert seldom.knows_everything()
        made = list(PolicyVersion.objects.across_tenants().order_by("version").values_list("version", flat=True))
        assert made == list(range(1, selectors.policy_version() + 1))
        named = {policy.share_group for policy in often.policies.values()} - {""}
        assert named <= set(often.groups)
        transaction.set_rollback(True)


@pytest.mark.django_db(transaction=True)
def test_versions_of_groups_and_policies_are_announced_in_the_order_of_commits(
    in_threads: Callable[..., list[Any]],
) -> None:
    """Writers of all kinds race; a listener hears each version once and in order; who reads meanwhile misses none."""
    for slug in TENANTS:
        create_tenant(slug=slug, name="T", actor=ACTOR)
    kinds = ("create", "join", "register", "change", "unregister", "leave", "detach")
    first = selectors.policy_version()

    def write(group: str, slug: str, shift: int) -> Callable[[], None]:
        def run() -> None:
            for n in range(21):
                try:
                    act((kinds[(n + shift) % len(kinds)], group, slug, 1 + n % 3))
                except TenantsError:
                    continue

        return run

    reader = Reader()
    with psycopg.connect(conninfo(connection.settings_dict), autocommit=True) as listener:
        listener.execute(f"LISTEN {POLICY_CHANNEL}")
        results = in_threads(
            *(
                write(group, slug, shift)
                for shift, (group, slug) in enumerate(zip(GROUPS * 2, TENANTS * 2, strict=True))
            ),
            *[lambda: [reader.read() for _ in range(40)] and None],
        )
        last = selectors.policy_version()
        assert last > first
        heard = [int(note.payload) for note in listener.notifies(timeout=60, stop_after=last - first)]
    assert results == [None] * 5
    assert heard == list(range(first + 1, last + 1))
    reader.read()
    assert reader.knows_everything()
