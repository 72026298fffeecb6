"""A tenant's sessions page: what it lists, what each role may do, and that its parts never fail for what is gone."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.test import Client

from engine.protocol import pb
from tenants import selectors
from tenants.contracts import TenantView
from tenants.models import SessionErasure, User
from tests.gateway.wire.keeping import Keeper, come, go, keeping

PAGE = "/t/acme/sessions/"
NOON = 1_700_000_000.0
PART = {"HX-Request": "true"}

Member = Callable[[str], User]
SignedIn = Callable[[User], Client]


@pytest.fixture
def one(tenant: TenantView, tmp_path: Path) -> Iterator[Keeper]:
    """Serve a worker that keeps a session of the tenant's."""
    keeper = Keeper("one")
    keeper.keep(tenant.id, "chat & <b>", used=NOON, device_bytes=1 << 20, host_bytes=1 << 20, disk_bytes=2 << 20)
    with keeping(tmp_path, keeper):
        yield keeper


@pytest.fixture
def developer(member: Member, signed_in: SignedIn) -> Client:
    """Return a developer's client."""
    return signed_in(member("developer"))


def text_of(client: Client, path: str) -> str:
    """Return a page as text; it is there."""
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


ID = "chat%20%26%20%3Cb%3E"


def test_a_session_shows_where_it_is(one: Keeper, developer: Client) -> None:
    """Tokens, turns, and how much of it is in which tier, as a bar and in words; any id is shown as what it is."""
    page = text_of(developer, PAGE)
    assert "chat &amp; &lt;b&gt;" in page
    assert "<b>" not in page.replace("</b>", "")
    for words in (">device", ">host", ">disk", "14 Nov 2023"):
        assert words in page
    widths = re.findall(r'<rect class="(device|host|disk)" x="([\d.]+)%" width="([\d.]+)%"', page)
    assert widths == [("device", "0", "16.0"), ("host", "34", "16.0"), ("disk", "68", "32.0")]
    assert 'aria-current="page">Sessions' in re.sub(r"\s+", " ", page).replace('" >', '">')


def test_the_list_refreshes_itself_where_it_is(one: Keeper, tenant: TenantView, developer: Client) -> None:
    """Pages follow by a cursor, which the part that refreshes itself keeps."""
    for number in range(25):
        one.keep(tenant.id, f"s{number:02}", used=NOON - 1 - number)
    page = text_of(developer, PAGE)
    assert page.count('<tbody id="session-') == 20
    (older,) = re.findall(r'href="(/t/acme/sessions/\?cursor=[^"]+)"', page)
    behind = text_of(developer, older)
    assert behind.count('<tbody id="session-') == 6
    (polled,) = re.findall(r'hx-get="(/t/acme/sessions/list/[^"]*)"', behind)
    assert text_of(developer, polled).count('<tbody id="session-') == 6
    assert "Last used first" in text_of(developer, f"{PAGE}?cursor=made-up")


def test_without_sessions(tenant: TenantView, tmp_path: Path, developer: Client) -> None:
    """The page says what will be here and offers the first step; with no worker it says that."""
    assert "No worker is up" in text_of(developer, PAGE)
    with keeping(tmp_path, Keeper("one")):
        page = text_of(developer, PAGE)
    assert "No sessions yet" in page
    assert "Start one in the playground" in page


def test_workers_that_do_not_answer_are_named(one: Keeper, developer: Client) -> None:
    """What is not in the list is said."""
    come("gone")
    go("gone")
    assert "without gone" in text_of(developer, f"{PAGE}list/")


def test_what_is_done_to_a_session(one: Keeper, developer: Client) -> None:
    """Pin, unpin, bring up: each answers with the row as it then is."""
    pinned = developer.post(f"{PAGE}pin/?id={ID}").content.decode()
    assert "◆ pinned" in pinned
    assert "Unpin" in pinned
    assert "◆ pinned" not in developer.post(f"{PAGE}unpin/?id={ID}").content.decode()
    assert "on its way up" in developer.post(f"{PAGE}prefetch/?id={ID}").content.decode()
    assert [action for _, action in one.changes] == [
        pb.SESSION_ACTION_PIN,
        pb.SESSION_ACTION_UNPIN,
        pb.SESSION_ACTION_PREFETCH,
    ]


def test_erasing_asks_once_and_names_the_session(one: Keeper, tenant: TenantView, developer: Client) -> None:
    """The question may be taken back; the answer says what has become of it."""
    asked = text_of(developer, f"{PAGE}one/?id={ID}&erase")
    assert "Erase “chat &amp; &lt;b&gt;”?" in asked
    assert "autofocus" in text_of(developer, f"{PAGE}one/?id={ID}&keep")
    assert "is erased from every tier" in developer.post(f"{PAGE}erase/?id={ID}").content.decode()
    assert one.names() == []
    assert "is no longer kept" in developer.post(f"{PAGE}erase/?id={ID}").content.decode()
    come("gone")
    go("gone")
    assert "will erase it when back" in developer.post(f"{PAGE}erase/?id={ID}").content.decode()
    assert SessionErasure.objects.for_tenant(tenant.id).get().worker_id == "gone"


@pytest.mark.parametrize("name", ["never", "", "%00", "x" * 300])
def test_parts_of_what_is_gone_are_no_errors(one: Keeper, developer: Client, name: str) -> None:
    """Whatever a row's address names, it answers with what stands in its place."""
    answers = [
        developer.get(f"{PAGE}one/?id={name}", headers=PART),
        developer.post(f"{PAGE}pin/?id={name}", headers=PART),
        developer.post(f"{PAGE}erase/?id={name}", headers=PART),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert all("is no longer kept" in answer.content.decode() for answer in answers)
    assert one.names() == ["chat & <b>"]


def test_a_viewer_reads(one: Keeper, member: Member, signed_in: SignedIn) -> None:
    """There is nothing to press, and pressing it anyway changes nothing."""
    viewer = signed_in(member("viewer"))
    page = text_of(viewer, PAGE)
    assert "chat &amp;" in page
    assert "Erase" not in page
    assert "Erase" not in text_of(viewer, f"{PAGE}one/?id={ID}&erase")
    for action in ("pin", "unpin", "prefetch", "erase"):
        assert viewer.post(f"{PAGE}{action}/?id={ID}").status_code == 403
    assert one.changes == []


def test_an_owner_encrypts_the_disk(one: Keeper, tenant: TenantView, member: Member, signed_in: SignedIn) -> None:
    """It asks once, follows the version to the workers, and a page that is out of date changes nothing."""
    owner = signed_in(member("owner"))
    assert "Encrypt the disk of Acme?" in text_of(owner, f"{PAGE}keeping/?ask=encrypt")
    before = selectors.policy(tenant.id)
    assert before is not None
    stale = owner.post(f"{PAGE}keeping/encrypt/", {"seen": "0", "encrypt": "on"}).content.decode()
    assert "changed the policy meanwhile" in stale
    done = owner.post(f"{PAGE}keeping/encrypt/", {"seen": str(before.version), "encrypt": "on"}).content.decode()
    after = selectors.policy(tenant.id)
    assert after is not None
    assert after.encrypt_disk
    assert f'data-version="{after.version}"' in done
    assert "encrypted from now on" in done
    again = owner.post(f"{PAGE}keeping/encrypt/", {"seen": str(before.version), "encrypt": "on"})
    assert "meanwhile" not in again.content.decode()
    assert text_of(owner, f"{PAGE}keeping/acks/{after.version}/")
    off = owner.post(f"{PAGE}keeping/encrypt/", {"seen": str(after.version)}).content.decode()
    assert "no longer encrypted" in off
    assert selectors.policy(tenant.id).encrypt_disk is False  # type: ignore[union-attr]


def test_an_owner_erases_all(one: Keeper, member: Member, signed_in: SignedIn) -> None:
    """The question names the tenant, the answer says what has become of it."""
    owner = signed_in(member("owner"))
    assert "Erase all KV of Acme?" in text_of(owner, f"{PAGE}keeping/?ask=erase")
    come("gone")
    go("gone")
    done = owner.post(f"{PAGE}keeping/erase/").content.decode()
    assert "All KV of Acme is erased where workers answer" in done
    assert "gone erases its part when it is back" in done
    assert one.names() == []


@pytest.mark.parametrize("role", ["viewer", "developer", "admin"])
def test_only_an_owner_does(one: Keeper, member: Member, signed_in: SignedIn, role: str) -> None:
    """Others see how it is kept."""
    client = signed_in(member(role))
    assert "not encrypted on disk" in text_of(client, f"{PAGE}keeping/?ask=erase")
    assert "Erase all" not in text_of(client, f"{PAGE}keeping/?ask=erase")
    for path in ("encrypt", "erase"):
        assert client.post(f"{PAGE}keeping/{path}/", {"encrypt": "on"}).status_code == 403
    assert one.names() == ["chat & <b>"]


def test_strangers_find_nothing(one: Keeper, signed_in: SignedIn, operator: User) -> None:
    """A stranger cannot tell that there is such a page; an operator may see each tenant's."""
    stranger = signed_in(User.objects.create_user("stranger@example.com", "a long enough password"))
    for path in (PAGE, f"{PAGE}list/", f"{PAGE}one/?id={ID}", f"{PAGE}keeping/"):
        assert stranger.get(path).status_code == 404
        assert signed_in(operator).get(path).status_code == 200
