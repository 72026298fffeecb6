"""The policy page: the effect before, the change itself, conflicts, and the acks after."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from gateway.console.policy_form import PolicyForm
from tenants import selectors
from tenants.contracts import Actor, PolicyView, ShadowLimits, ShareGroupView, TenantView
from tenants.models import AuditEvent, PolicyVersion, User
from tenants.services.policy import set_policy
from tenants.services.tenants import create_tenant
from tenants.services.workers import mark_applied, mark_settled

PAGE = "/operator/tenants/acme/policy/"
ACTOR = Actor("system", "tests", "tests")


@pytest.fixture
def console(operator: User, tenant: TenantView, signed_in: Callable[[User], Client]) -> Client:
    """Return the operator's client."""
    return signed_in(operator)


def current(tenant: TenantView) -> PolicyView:
    """Return the policy in force."""
    policy = selectors.policy(tenant.id)
    assert policy is not None
    return policy


def form(policy: PolicyView, **changes: str) -> dict[str, str]:
    """Return what a browser posts: all fields as the page wrote them, but for `changes`."""
    data: dict[str, str] = {}
    for name, value in PolicyForm.initial_of(policy).items():
        if name.endswith("_bytes"):
            data[name], data[f"{name}_unit"] = "" if value is None else str(value >> 20), "MiB"
        else:
            data[name] = "" if value is None else str(value)
    return data | changes


def test_change_is_saved_and_followed(console: Client, tenant: TenantView, operator: User) -> None:
    """A lower hard limit is saved under a new version, in the operator's name, and the line of acks starts."""
    before = current(tenant)
    page = console.post(PAGE, form(before, kv_hard_bytes="128")).content.decode()
    after = current(tenant)
    assert (after.kv_hard_bytes, after.version > before.version) == (128 << 20, True)
    assert AuditEvent.objects.for_tenant(tenant.id).order_by("-id").first().actor_label == operator.email  # type: ignore[union-attr]
    assert f'data-version="{after.version}"' in page
    assert "saved" in page


def test_acks(console: Client, tenant: TenantView, worker: str) -> None:
    """The line says on how many workers a version is applied, and after how long, and then when all had settled."""
    version = current(tenant).version
    waiting = console.get(f"{PAGE}acks/{version}/").content.decode()
    assert 'data-part="workers">0/1<' in waiting
    assert 'data-done="false"' in waiting
    mark_applied(worker_id=worker, version=version, applied_at=timezone.now())
    done = console.get(f"{PAGE}acks/{version}/").content.decode()
    assert 'data-part="workers">1/1<' in done
    assert 'data-done="false"' in done
    mark_settled(worker_id=worker, version=version, settled_at=timezone.now())
    settled = console.get(f"{PAGE}acks/{version}/").content.decode()
    assert "settled after" in settled
    assert 'data-done="true"' in settled


def test_late_acks_name_the_worker(console: Client, tenant: TenantView, worker: str) -> None:
    """A version that has waited for long is shown with the workers that it waits for."""
    version = current(tenant).version
    page = f"{PAGE}acks/{version}/"
    assert worker not in console.get(page).content.decode()
    PolicyVersion.objects.for_tenant(tenant.id).update(created_at=timezone.now() - timedelta(seconds=10))
    assert f"Still waiting for {worker}" in console.get(page).content.decode()


def test_no_worker_to_wait_for(console: Client, tenant: TenantView) -> None:
    """Without workers the line says what will happen, and does not go on asking."""
    page = console.get(f"{PAGE}acks/{current(tenant).version}/").content.decode()
    assert "No worker is up" in page
    assert 'data-done="true"' in page


def test_acks_of_another_tenant_are_not_here(console: Client, tenant: TenantView) -> None:
    """A version of another tenant's policy has no line on this tenant's page."""
    other = create_tenant(slug="other", name="Other", actor=ACTOR)
    assert console.get(f"{PAGE}acks/{current(other).version}/").status_code == 404
    assert console.get(f"{PAGE}acks/999999/").status_code == 404


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_hard_bytes": "128"}, "Lower hard limit to 128 MiB"),
        ({"kv_hard_bytes": "1.5", "kv_hard_bytes_unit": "GiB"}, "Raise hard limit to 1.50 GiB"),
        ({"rpm": "600"}, "Limit requests a minute to 600"),
        ({"priority": "batch"}, "Set class to batch"),
        ({"share_group": "support"}, "Join share group support"),
        ({"weight": "2", "max_running": "4"}, "Apply 2 changes"),
        ({}, "Nothing to apply"),
    ],
)
def test_button_says_what_happens(
    console: Client,
    tenant: TenantView,
    group: Callable[..., ShareGroupView],
    changes: dict[str, str],
    words: str,
) -> None:
    """The effect is told, and the button named by it, without anything being changed."""
    group("support")
    before = current(tenant)
    effect = console.post(f"{PAGE}effect/", form(before, **changes)).content.decode()
    assert words in effect
    assert current(tenant) == before


def test_guarantees_against_the_pool(console: Client, tenant: TenantView, worker: str) -> None:
    """A guarantee that does not fit under the low watermark is told before, and refused."""
    before = current(tenant)
    wanted = form(before, kv_soft_bytes="1000", kv_hard_bytes="1000")
    effect = console.post(f"{PAGE}effect/", wanted).content.decode()
    assert "Does not fit" in effect
    assert "disabled" in effect
    assert console.post(PAGE, wanted).status_code == 422
    assert current(tenant) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_soft_bytes": "300"}, "above the hard limit"),
        ({"kv_hard_bytes": "lots"}, "Write a number"),
        ({"kv_hard_bytes": "-1"}, "Write a number"),
        ({"kv_hard_bytes": "NaN"}, "Write a number"),
        ({"kv_hard_bytes": "1e400"}, "Write a number"),
        ({"kv_hard_bytes": "0.3", "kv_hard_bytes_unit": "B"}, "not a whole number of bytes"),
        ({"kv_hard_bytes_unit": "parsec"}, "Select a valid choice"),
        ({"weight": "0"}, "above 0"),
        ({"weight": "nan"}, "Enter a number"),
        ({"max_running": ""}, "required"),
        ({"share_group": "nobody"}, "no longer there"),
        ({"base": "{}"}, "reload the page"),
        ({"base": "\udcff"}, ""),
    ],
)
def test_bad_values_change_nothing(console: Client, tenant: TenantView, changes: dict[str, str], words: str) -> None:
    """A bad value is a 422 that says what to write; the policy stays, and the effect says the same."""
    before = current(tenant)
    data = form(before, **changes)
    if "\udcff" in data["base"]:
        data["base"] = "\x00\ufffd"
    answer = console.post(PAGE, data)
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert console.post(f"{PAGE}effect/", data).status_code == 200
    assert current(tenant) == before


def test_conflict_keeps_both(console: Client, tenant: TenantView) -> None:
    """Two operators edit at once: the second sees what the first did, and their own change on top, unsaved."""
    stale = current(tenant)
    set_policy(tenant_id=tenant.id, expected_version=stale.version, changes={"kv_hard_bytes": 512 << 20}, actor=ACTOR)
    answer = console.post(PAGE, form(stale, max_running="4"))
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "Hard limit: 256 MiB → <strong>512 MiB</strong>" in page
    assert "Lower requests at once to 4" in page
    assert 'name="kv_hard_bytes" value="512"' in page  # theirs is not undone by what the form remembered
    assert current(tenant).max_running == 32
    assert console.post(PAGE, form(current(tenant), max_running="4")).status_code == 200
    assert (current(tenant).max_running, current(tenant).kv_hard_bytes) == (4, 512 << 20)


def test_share_group_is_chosen_and_left(
    console: Client, tenant: TenantView, group: Callable[..., ShareGroupView]
) -> None:
    """The select has every live group and none; what is chosen is saved with the policy, and named when it is left."""
    group("law")
    group("support")
    page = console.get(PAGE).content.decode()
    assert [f'<option value="{name}"' in page for name in ("", "law", "support")] == [True] * 3
    assert console.post(PAGE, form(current(tenant), share_group="support")).status_code == 200
    assert current(tenant).share_group == "support"
    leaving = form(current(tenant), share_group="")
    assert "Leave share group support" in console.post(f"{PAGE}effect/", leaving).content.decode()
    assert console.post(PAGE, leaving).status_code == 200
    assert current(tenant).share_group == ""


def test_conflict_names_a_group_that_was_chosen_meanwhile(
    console: Client, tenant: TenantView, group: Callable[..., ShareGroupView], join: Callable[[str], None]
) -> None:
    """Another operator's choice of group stands in the conflict, and is not undone by what the form remembered."""
    group("support")
    stale = current(tenant)
    join("support")
    answer = console.post(PAGE, form(stale, max_running="4"))
    assert answer.status_code == 409
    assert "Share group: none → <strong>support</strong>" in answer.content.decode()
    assert '<option value="support" selected>' in answer.content.decode()


def test_guarantees_count_share_groups(
    console: Client, tenant: TenantView, worker: str, group: Callable[..., ShareGroupView]
) -> None:
    """What is guaranteed to a share group is not there for a tenant."""
    group("support", soft=600 << 20, hard=600 << 20)
    wanted = form(current(tenant), kv_soft_bytes="400", kv_hard_bytes="400")
    assert "Does not fit" in console.post(f"{PAGE}effect/", wanted).content.decode()
    assert console.post(PAGE, wanted).status_code == 422


def test_unknown_tenant(console: Client) -> None:
    """A slug that names nobody is a 404."""
    assert console.get("/operator/tenants/nobody/policy/").status_code == 404


def test_overcommit_is_asked_for_and_taken(console: Client, tenant: TenantView, worker: str) -> None:
    """With the flag a guarantee beyond the room is ready to apply, says what is left of it, and is saved."""
    wanted = form(current(tenant), kv_soft_bytes="2048", kv_hard_bytes="2048") | {"overcommit": "on"}
    effect = console.post(f"{PAGE}effect/", wanted).content.decode()
    assert "every guarantee keeps 45 %" in effect
    assert "disabled" not in effect
    assert console.post(PAGE, wanted).status_code == 200
    assert current(tenant).kv_soft_bytes == 2 << 30


def test_tiers_are_limited(console: Client, tenant: TenantView) -> None:
    """The ceilings of host memory and disk are edited like any other limit."""
    wanted = form(current(tenant), host_bytes="512", disk_bytes="4096")
    effect = console.post(f"{PAGE}effect/", wanted).content.decode()
    assert "Host memory" in effect
    assert console.post(PAGE, wanted).status_code == 200
    assert (current(tenant).host_bytes, current(tenant).disk_bytes) == (512 << 20, 4 << 30)


@pytest.mark.parametrize(
    ("fields", "action", "shadow"),
    [
        ({"trial_rpm": "60"}, "Try requests a minute of 60", ShadowLimits(rpm=60)),
        ({"trial_kv_hard_bytes": "64"}, "Try hard limit of 64 MiB", ShadowLimits(kv_hard_bytes=64 << 20)),
        ({"trial_max_queued": "0"}, "Try waiting requests of 0", ShadowLimits(max_queued=0)),
        ({"trial_rpm": "60", "trial_tpm": "1"}, "Change 2 trials", ShadowLimits(rpm=60, tpm=1)),
    ],
)
def test_limits_are_put_on_trial(
    fields: dict[str, str], action: str, shadow: ShadowLimits, console: Client, tenant: TenantView
) -> None:
    """A value on trial is saved as such, told by its own name, and emptied ends it."""
    wanted = form(current(tenant), **fields)
    assert action in console.post(f"{PAGE}effect/", wanted).content.decode()
    page = console.post(PAGE, wanted).content.decode()
    assert current(tenant).shadow == shadow
    assert "on trial" in page
    emptied = form(current(tenant), **dict.fromkeys(fields, ""))
    assert console.post(PAGE, emptied).status_code == 200
    assert current(tenant).shadow == ShadowLimits()


@pytest.mark.parametrize("fields", [{"trial_rpm": "0"}, {"trial_kv_hard_bytes": "0"}, {"trial_max_running": "many"}])
def test_bad_trial_changes_nothing(fields: dict[str, str], console: Client, tenant: TenantView) -> None:
    """A value that no limit could have is refused in its place, with the fold open."""
    before = current(tenant)
    answer = console.post(PAGE, form(before, **fields))
    assert answer.status_code == 422
    assert '<details class="fold" open>' in answer.content.decode()
    assert current(tenant) == before


def test_conflict_keeps_both_trials(console: Client, tenant: TenantView) -> None:
    """A trial that another operator began stands beside one's own."""
    stale = current(tenant)
    set_policy(tenant_id=tenant.id, expected_version=stale.version, changes={"shadow": {"tpm": 9}}, actor=ACTOR)
    answer = console.post(PAGE, form(stale, max_running="4"))
    page = " ".join(answer.content.decode().split())
    assert answer.status_code == 409
    assert "Trial of tokens a minute: none → <strong>9</strong>" in page
    assert 'name="trial_tpm" value="9"' in page


def test_part_of_the_page(console: Client, tenant: TenantView) -> None:
    """The editor alone is fetched anew when somebody else has changed the policy."""
    page = console.get(PAGE, {"part": "editor"}).content.decode()
    assert 'id="editor"' in page
    assert "<html" not in page
