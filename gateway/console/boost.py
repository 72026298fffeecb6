"""The boost on a policy's page: start one, see how long it still lasts and what it goes back to, end it."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gateway.console.access import operator_page
from gateway.console.boost_form import BoostForm
from gateway.console.limits_editor import TELL_SAVED
from gateway.console.policy_editor import PolicyEditor, editor_of
from gateway.console.policy_form import PolicyForm
from tenants import selectors
from tenants.console.access import actor
from tenants.contracts import BoostView
from tenants.errors import Conflict, Invalid, NotFound, StaleVersion
from tenants.models import User
from tenants.services.boosts import end_boost, start_boost


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One limit of a boost. `is_kept`: somebody wrote it meanwhile, and so it stays."""

    label: str
    before: str
    during: str
    now: str
    is_kept: bool


@require_safe
@operator_page
def boost(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Return the panel: the boost in force, or the way to one."""
    return render(request, "operator/boost.html", shown(editor_of(slug)))


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page
def new(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Show the form; on POST start the boost and return the panel with it in force."""
    editor = editor_of(slug)
    if request.method != "POST":
        return _form(request, editor, BoostForm(current=editor.current))
    form = BoostForm(request.POST, current=editor.current)
    if not form.is_valid():
        return _form(request, editor, form, 422)
    try:
        start_boost(
            tenant_id=editor.tenant.id,
            expected_version=editor.version,
            changes=form.changes(),
            ends_at=form.ends_at(),
            reason=form.cleaned_data["reason"],
            actor=actor(operator),
            overcommit=form.cleaned_data["overcommit"],
        )
    except Invalid as error:
        field = "amount" if error.field == "ends_at" else error.field
        form.add_error(field if field in form.fields else None, error.message)
        is_overcommit = error.field == "kv_soft_bytes" and "overcommit" in error.message
        return _form(request, editor, form, 422, asks_overcommit=is_overcommit)
    except (Conflict, StaleVersion) as error:
        form.add_error(None, f"{error} Look at the policy as it is now, then start the boost again.")
        return _form(request, editor.reread(), form, 409)
    return _changed(request, editor.reread())


@require_POST
@operator_page
def end(request: HttpRequest, operator: User, slug: str, boost_id: uuid.UUID) -> HttpResponse:
    """End the boost now; one that has ended meanwhile is as good."""
    editor = editor_of(slug)
    try:
        ended = end_boost(tenant_id=editor.tenant.id, boost_id=boost_id, actor=actor(operator))
    except NotFound as error:
        raise Http404 from error
    except Conflict:
        return _changed(request, editor.reread(), has_ended=True)
    return _changed(request, editor.reread(), version=ended.ended_version, has_ended=True)


def shown(editor: PolicyEditor) -> dict[str, Any]:
    """Return what the panel shows."""
    boosted = selectors.boost(editor.tenant.id)
    return {
        "editor": editor,
        "boost": boosted,
        "parts": _parts(boosted, editor) if boosted else [],
        "boost_url": reverse("operator-policy-boost", args=[editor.tenant.slug]),
        "new_url": reverse("operator-policy-boost-new", args=[editor.tenant.slug]),
        "preview_url": reverse("operator-policy-boost-preview", args=[editor.tenant.slug]),
        "end_url": reverse("operator-policy-boost-end", args=[editor.tenant.slug, boosted.id]) if boosted else "",
    }


def _parts(boosted: BoostView, editor: PolicyEditor) -> list[Part]:
    return [
        Part(
            label=PolicyForm.labels[name],
            before=PolicyForm.written(name, boosted.before[name]),
            during=PolicyForm.written(name, value),
            now=PolicyForm.written(name, getattr(editor.current, name)),
            is_kept=getattr(editor.current, name) != value,
        )
        for name, value in boosted.changes.items()
    ]


def _changed(
    request: HttpRequest, editor: PolicyEditor, *, version: int | None = None, has_ended: bool = False
) -> HttpResponse:
    """Return the panel after a start or an end, with the acks of its version; the page's other parts hear of it."""
    found = shown(editor)
    started = found["boost"]
    acks = selectors.policy_acks(version or (started.started_version if started and not has_ended else 0))
    answer = render(
        request, "operator/boost.html", found | {"acks": acks, "acks_url": editor.acks_url, "has_ended": has_ended}
    )
    answer["HX-Trigger"] = TELL_SAVED
    return answer


def _form(request: HttpRequest, editor: PolicyEditor, form: BoostForm, status: int = 200, **more: Any) -> HttpResponse:
    return render(request, "operator/boost_form.html", shown(editor) | {"form": form} | more, status=status)
