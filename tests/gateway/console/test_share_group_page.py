"""One share group's page: its limits, conflicts, prefixes, members and end."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis
from django.conf import settings
from django.test import Client
from django.utils import timezone

from gateway.console.share_group_form import limits
from tenants import selectors
from tenants.contracts import SharedPrefixView, ShareGroupView, TenantView
from tenants.models import User
from tenants.reports import PREFIXES_KEY, PrefixReading
from tenants.services.prefixes import register_prefix
from tenants.services.share_groups import update_share_group
from tenants.services.workers import mark_applied, mark_settled
from tests.gateway.console.conftest import ACTOR

PAGE = "/operator/share-groups/support/"
PREFIXES = f"{PAGE}prefixes/"

Make = Callable[..., ShareGroupView]


@pytest.fixture
def console(operator: User, signed_in: Callable[[User], Client]) -> Client:
    """Return the operator's client."""
    return signed_in(operator)


@pytest.fixture
def support(group: Make) -> ShareGroupView:
    """Return a group named support."""
    return group("support")


def current() -> ShareGroupView:
    """Return the group as it now is."""
    found = selectors.share_group("support")
    assert found is not None
    return found


def form(group: ShareGroupView, **changes: str) -> dict[str, str]:
    """Return what a browser posts: all fields as the page wrote them, but for `changes`."""
    base = msgspec.json.encode(limits(group)).decode()
    data = {"base": base, "description": group.description}
    for name in ("kv_soft_bytes", "kv_hard_bytes"):
        data[name], data[f"{name}_unit"] = str(getattr(group, name) >> 20), "MiB"
    return data | changes


def registered(
    name: str = "assistant", *, group: str = "support", text: str = "Once upon a time", tenant_id: str = ""
) -> SharedPrefixView:
    """Register a prefix."""
    return register_prefix(group=group, name=name, text=text, tenant_id=tenant_id, actor=ACTOR)


def chat(**changes: Any) -> dict[str, Any]:
    """Return what a browser posts to register a chat."""
    return {"name": "assistant", "kind": "chat", "system": "Be kind.", "text": ""} | changes


@pytest.mark.parametrize(
    "path", ["", "acks/1/", "remove/", "prefixes/list/", "prefixes/new/", "prefixes/{id}/", "prefixes/{id}/?text"]
)
def test_operators_only(
    path: str,
    support: ShareGroupView,
    tenant: TenantView,
    join: Callable[[str], None],
    member: Callable[[str], User],
    signed_in: Callable[[User], Client],
) -> None:
    """To the owner of a member tenant the operator's page is not there; a signed-out reader is asked to sign in."""
    join("support")
    path = PAGE + path.format(id=registered().id)
    assert signed_in(member("owner")).get(path).status_code == 404
    assert Client().get(path).headers["Location"].startswith("/sign-in/?next=")


@pytest.mark.parametrize("path", ["", "effect/", "remove/", "prefixes/new/", "prefixes/{id}/remove/"])
def test_owner_changes_nothing_here(
    path: str,
    support: ShareGroupView,
    tenant: TenantView,
    join: Callable[[str], None],
    member: Callable[[str], User],
    signed_in: Callable[[User], Client],
) -> None:
    """What an owner posts to the operator's page is a 404 that changes nothing."""
    join("support")
    prefix = registered()
    before = current()
    data = form(before, kv_hard_bytes="1") | chat(name="other") | {"version": str(before.version), "members": "acme"}
    assert signed_in(member("owner")).post(PAGE + path.format(id=prefix.id), data).status_code == 404
    assert current() == before


def test_unknown_group(console: Client) -> None:
    """A name that names no group is a 404, its parts too."""
    for path in ("", "remove/", "prefixes/list/", "prefixes/new/", "acks/1/"):
        assert console.get(PAGE + path).status_code == 404


# ---------------------------------------------------------------- limits


def test_an_open_page_leads_to_the_list_when_the_group_is_gone(console: Client) -> None:
    """A part that asks for itself anew leads away from what is no more; what is posted there is still a 404."""
    answer = console.get(f"{PREFIXES}list/", headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (200, "/operator/share-groups/")
    assert console.post(f"{PREFIXES}new/", {}, headers={"HX-Request": "true"}).status_code == 404


def test_change_is_saved_and_followed(console: Client, support: ShareGroupView, worker: str) -> None:
    """A lower hard limit is saved under a new version, and its line of acks is of this group alone."""
    page = console.post(PAGE, form(support, kv_hard_bytes="16")).content.decode()
    after = current()
    assert (after.kv_hard_bytes, after.version > support.version) == (16 << 20, True)
    assert f'data-version="{after.version}"' in page
    acks = f"{PAGE}acks/{after.version}/"
    assert 'data-part="workers">0/1<' in console.get(acks).content.decode()
    mark_applied(worker_id=worker, version=after.version, applied_at=timezone.now())
    mark_settled(worker_id=worker, version=after.version, settled_at=timezone.now())
    assert 'data-done="true"' in console.get(acks).content.decode()
    assert console.get(acks.replace("support", "other")).status_code == 404


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_hard_bytes": "16"}, "Lower hard limit to 16 MiB"),
        ({"kv_soft_bytes": "4"}, "Lower guaranteed KV to 4 MiB"),
        ({"description": "Desks <b>"}, "Save description"),
        ({"description": "", "kv_hard_bytes": "64"}, "Apply 2 changes"),
        ({}, "Nothing to apply"),
    ],
)
def test_button_says_what_happens(
    console: Client, support: ShareGroupView, changes: dict[str, str], words: str
) -> None:
    """The effect is told, and the button named by it, without anything being changed."""
    page = console.post(f"{PAGE}effect/", form(support, **changes)).content.decode()
    assert words in page
    assert "<b>" not in page
    assert current() == support


def test_guarantees_against_the_pool(console: Client, tenant: TenantView, support: ShareGroupView, worker: str) -> None:
    """Guarantees of tenants and groups count together; one that does not fit is told before, and refused."""
    wanted = form(support, kv_soft_bytes="900", kv_hard_bytes="900")  # 64 MiB are Acme's, the low watermark is 921.6
    page = console.post(f"{PAGE}effect/", wanted).content.decode()
    assert "Does not fit" in page
    assert "disabled" in page
    answer = console.post(PAGE, wanted)
    assert answer.status_code == 422
    assert "does not fit" in answer.content.decode()
    assert current() == support


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_soft_bytes": "33"}, "above the hard limit"),
        ({"kv_hard_bytes": "0", "kv_soft_bytes": "0"}, "shares nothing"),
        ({"kv_hard_bytes": "NaN"}, "Write a number"),
        ({"kv_hard_bytes_unit": "parsec"}, "Select a valid choice"),
        ({"description": "x" * 501}, "at most 500"),
        ({"base": "{}"}, "reload the page"),
        ({"base": "\x00\ufffd"}, "Null characters"),
    ],
)
def test_bad_values_change_nothing(
    console: Client, support: ShareGroupView, changes: dict[str, str], words: str
) -> None:
    """A bad value is a 422 that says what to write; the group stays, and the effect says the same."""
    answer = console.post(PAGE, form(support, **changes))
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert console.post(f"{PAGE}effect/", form(support, **changes)).status_code == 200
    assert current() == support


def test_conflict_keeps_both(console: Client, support: ShareGroupView) -> None:
    """Two operators edit at once: the second sees what the first did, and their own change on top, unsaved."""
    update_share_group(
        name="support", expected_version=support.version, changes={"kv_hard_bytes": 64 << 20}, actor=ACTOR
    )
    answer = console.post(PAGE, form(support, description="Desks"))
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "Hard limit: 32 MiB → <strong>64 MiB</strong>" in page
    assert "Save description" in page
    assert current().description == support.description
    assert console.post(PAGE, form(current(), description="Desks")).status_code == 200
    assert (current().description, current().kv_hard_bytes) == ("Desks", 64 << 20)


def test_a_prefix_registered_meanwhile_is_no_conflict(console: Client, support: ShareGroupView) -> None:
    """A group's version moves with its prefixes too: that takes nothing from what the editor showed."""
    registered()
    assert console.post(PAGE, form(support, kv_hard_bytes="16")).status_code == 200
    assert current().kv_hard_bytes == 16 << 20


# ---------------------------------------------------------------- prefixes


def test_nothing_yet(console: Client, support: ShareGroupView) -> None:
    """Without prefixes and members the page says what they are and offers the first steps."""
    page = console.get(PAGE).content.decode()
    assert "Register the first prefix" in page
    assert "No tenant shares in this group yet" in page


def test_what_a_prefix_is_to_each_model(
    console: Client, tenant: TenantView, support: ShareGroupView, join: Callable[[str], None], worker: str
) -> None:
    """The row says who registered the prefix, its size, and what of it is shared with which model, or why not."""
    join("support")
    mine, theirs = registered(name="<i>mine", text="x" * 1500), registered(name="theirs", tenant_id=tenant.id)
    assert console.get(PAGE).content.decode().count("on its way") == 2
    put_readings(
        worker,
        PrefixReading(prefix_id=mine.id, model="tiny", num_tokens=1204, shared_tokens=1200),
        PrefixReading(prefix_id=theirs.id, model="tiny", num_tokens=3, shared_tokens=0, problem="Too <b>short</b>."),
    )
    page = console.get(f"{PREFIXES}list/").content.decode()
    assert "1\u2009200" in page
    assert "1\u2009204" in page
    assert "1.46" in page  # KiB
    assert "Too &lt;b&gt;short&lt;/b&gt;." in page
    assert "&lt;i&gt;mine" in page
    assert ("<i>" in page or "<b>" in page) is False
    assert "Acme" in page
    assert "on its way" not in page
    assert 'data-pending=""' in page


def test_chat_is_registered_exactly(console: Client, support: ShareGroupView) -> None:
    """A browser's CR LF become LF, spaces stay; empty messages go, and the others keep their order and roles."""
    data = chat(
        system=" Be kind.\r\n\r\nBe brief. \r\n", role=["user", "assistant", "user"], content=["Hi\r\n", "", "There?"]
    )
    page = console.post(f"{PREFIXES}new/", data).content.decode()
    (prefix,) = selectors.shared_prefixes("support")
    assert [(message.role, message.content) for message in prefix.messages] == [
        ("system", " Be kind.\n\nBe brief. \n"),
        ("user", "Hi\n"),
        ("user", "There?"),
    ]
    assert (prefix.tenant_id, prefix.created_by) == ("", "operator@example.com")
    assert f'data-version="{prefix.version}"' in page
    assert "1 of at most 64" in page
    assert "Be kind" not in page


def test_text_is_registered_exactly(console: Client, support: ShareGroupView) -> None:
    """Of the two kinds only the one that was chosen is taken."""
    data = chat(kind="text", system="left over", role=["user"], content=["left over"], text="\r\n Once\r\n")
    assert console.post(f"{PREFIXES}new/", data).status_code == 200
    (prefix,) = selectors.shared_prefixes("support")
    assert (prefix.text, prefix.messages) == ("\n Once\n", ())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "Give the prefix a name"),
        ({"name": "x" * 81}, "at most 80"),
        ({"name": "a\x07b"}, "control characters"),
        ({"name": "taken"}, "already: choose another name"),
        ({"system": ""}, "Write it, or add a message."),
        ({"system": "\x00"}, "Null characters are not allowed"),
        ({"system": "x" * (256 << 10), "role": ["user"], "content": ["y"]}, "at most 256 KiB"),
        ({"role": ["tool"], "content": ["x"]}, "from the system, the user or the assistant"),
        ({"role": ["user"] * 64, "content": ["x"] * 64}, "at most 64; there are 65"),
        ({"kind": "text"}, "Write what the prompts begin with."),
        ({"kind": "text", "text": "é" * (200 << 10)}, "This is 400 KiB; a prefix has at most 256 KiB"),
        ({"kind": "poem"}, "Select a valid choice"),
    ],
)
def test_bad_prefixes(console: Client, support: ShareGroupView, changes: dict[str, Any], words: str) -> None:
    """What is wrong is told at its field, what was written stays in the form, and nothing is registered."""
    registered(name="taken")
    answer = console.post(f"{PREFIXES}new/", chat(**changes))
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert [prefix.name for prefix in selectors.shared_prefixes("support")] == ["taken"]


def test_what_was_written_stays_as_text(console: Client, support: ShareGroupView) -> None:
    """A refused form gives back its messages, and what looks like markup is text."""
    hostile = "</textarea><script>alert(1)</script>"
    data = chat(name="", system=hostile, role=["assistant"], content=[hostile])
    page = console.post(f"{PREFIXES}new/", data).content.decode()
    assert page.count("&lt;/textarea&gt;&lt;script&gt;alert(1)") == 2
    assert "<script>" not in page
    assert '<option value="assistant" selected>' in page


def test_text_is_shown_when_asked_for(console: Client, support: ShareGroupView) -> None:
    """The list has no contents; a row that is asked has them, as text."""
    prefix = registered(text="</pre><script>alert(1)</script>")
    assert "alert(1)" not in console.get(PAGE).content.decode()
    page = console.get(f"{PREFIXES}{prefix.id}/?text").content.decode()
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in page
    assert 'aria-expanded="true"' in page


def test_removing_asks_once_and_names_the_prefix(
    console: Client, tenant: TenantView, support: ShareGroupView, join: Callable[[str], None]
) -> None:
    """The row turns into a question with the prefix's name; an operator removes also what a tenant registered."""
    join("support")
    prefix = registered(name="<b>theirs", tenant_id=tenant.id)
    path = f"{PREFIXES}{prefix.id}/"
    assert "Remove “&lt;b&gt;theirs”?" in console.get(f"{path}?remove").content.decode()
    assert len(selectors.shared_prefixes("support")) == 1
    page = console.post(f"{path}remove/").content.decode()
    assert "is removed" in page
    assert f'data-version="{current().version}"' in page
    assert selectors.shared_prefixes("support") == []
    assert console.post(f"{path}remove/").status_code == 404
    assert console.get(path).status_code == 404


def test_prefix_of_another_group_is_not_here(console: Client, support: ShareGroupView, group: Make) -> None:
    """A prefix's id of another group is a 404 under this group's address, and stays."""
    group("law")
    prefix = registered(group="law")
    assert console.get(f"{PREFIXES}{prefix.id}/?text").status_code == 404
    assert console.post(f"{PREFIXES}{prefix.id}/remove/").status_code == 404
    assert console.get(f"{PREFIXES}not-an-id/").status_code == 404
    assert len(selectors.shared_prefixes("law")) == 1


# ---------------------------------------------------------------- its end


def test_removal_names_the_tenants(
    console: Client, tenant: TenantView, support: ShareGroupView, join: Callable[[str], None]
) -> None:
    """The question names whom it detaches; the answer removes the group, and the list says so once."""
    join("support")
    registered()
    question = console.get(f"{PAGE}remove/").content.decode()
    assert "Remove “support”?" in question
    assert "<strong>Acme</strong>" in question
    answer = console.post(f"{PAGE}remove/", {"version": str(current().version), "members": "acme"})
    assert answer.headers["HX-Redirect"] == "/operator/share-groups/"
    assert selectors.share_group("support") is None
    policy = selectors.policy(tenant.id)
    assert policy is not None
    assert policy.share_group == ""
    page = console.get("/operator/share-groups/").content.decode()
    assert "The share group “support” is removed" in page
    assert "saved" in page
    assert "is removed" not in console.get("/operator/share-groups/").content.decode()


def test_removal_asks_again_when_a_tenant_has_joined(
    console: Client, tenant: TenantView, support: ShareGroupView, join: Callable[[str], None]
) -> None:
    """Nobody is detached who was not named: what has changed since the question is asked about once more."""
    asked = {"version": str(support.version), "members": ""}
    join("support")
    answer = console.post(f"{PAGE}remove/", asked)
    assert answer.status_code == 409
    assert "has changed since you were asked" in answer.content.decode()
    assert "<strong>Acme</strong>" in answer.content.decode()
    assert current().tenants == ("acme",)


def put_readings(worker: str, *readings: PrefixReading) -> None:
    """Leave what prefixes are to a worker's model where the controller would."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(PREFIXES_KEY.format(worker_id=worker), msgspec.json.encode(readings), ex=30)
