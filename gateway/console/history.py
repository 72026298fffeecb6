"""The history of a policy on its page: who changed what and when, and the way back to any version."""

from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from gateway.console.access import operator_page
from gateway.console.limits_form import Change
from gateway.console.policy_editor import PolicyEditor, editor_of
from tenants import selectors
from tenants.console.access import actor
from tenants.contracts import PolicyVersionView, TenantView
from tenants.errors import Invalid, StaleVersion
from tenants.models import User
from tenants.services.policy import revert_policy

PAGE_ROWS = 8
DEEDS = {
    "policy.changed": "changed",
    "policy.reverted": "brought back",
    "boost.started": "boost started",
    "boost.ended": "boost ended",
    "kv.erased": "all KV erased",
    "tenant.created": "first version",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One version as the history shows it."""

    made: PolicyVersionView
    deed: str
    changes: list[Change]
    is_current: bool
    url: str  # where going back to it is asked about


@require_safe
@operator_page
def history(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Return the panel, or with `before` the rows that follow."""
    editor = editor_of(slug)
    before = request.GET.get("before", "")
    if not before:
        return render(request, "operator/history.html", shown(editor))
    if not before.isascii() or not before.isdigit() or len(before) > 18:
        raise Http404
    return render(request, "operator/history_rows.html", shown(editor, int(before)))


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page
def revert(request: HttpRequest, operator: User, slug: str, version: int) -> HttpResponse:
    """Ask whether to go back to a version, with all that this changes; on POST do it and return the editor anew."""
    editor = editor_of(slug)
    if request.method != "POST":
        return _question(request, editor, version, is_kept="keep" in request.GET)
    seen = request.POST.get("seen", "")
    try:
        revert_policy(
            tenant_id=editor.tenant.id,
            version=version,
            expected_version=int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 19 else -1,
            actor=actor(operator),
            overcommit="overcommit" in request.POST,
        )
    except StaleVersion:
        return _question(request, editor.reread(), version, status=409, is_changed=True)
    except Invalid as error:
        return _question(request, editor.reread(), version, status=422, error=error)
    answer = editor.reread().saved(request)
    answer["HX-Retarget"], answer["HX-Reswap"] = "#editor", "outerHTML"
    return answer


def shown(editor: PolicyEditor, before: int | None = None) -> dict[str, Any]:
    """Return a page of the history, newest first: what the panel shows."""
    found = selectors.policy_history(editor.tenant.id, before=before, most=PAGE_ROWS + 1)
    older = [*found[1:], None]
    entries = [_entry(editor, made, before_it) for made, before_it in zip(found, older, strict=True)][:PAGE_ROWS]
    return {
        "editor": editor,
        "entries": entries,
        "next_before": entries[-1].made.version if len(found) > PAGE_ROWS else None,
        "history_url": reverse("operator-policy-history", args=[editor.tenant.slug]),
    }


def _entry(editor: PolicyEditor, made: PolicyVersionView, before_it: PolicyVersionView | None) -> Entry:
    return Entry(
        made=made,
        deed=DEEDS.get(made.action, "changed"),
        changes=editor.form().told(before_it.policy, made.policy) if before_it else [],
        is_current=made.version == editor.version,
        url=_url(editor.tenant, made.version),
    )


def _question(
    request: HttpRequest, editor: PolicyEditor, version: int, *, status: int = 200, **more: Any
) -> HttpResponse:
    """Return a version's row with the question below it, or without it where nothing is asked any more."""
    found = selectors.policy_history(editor.tenant.id, before=version + 1, most=2)
    if not found or found[0].version != version:
        raise Http404
    made = found[0]
    return render(
        request,
        "operator/history_row.html",
        {
            "editor": editor,
            "entry": _entry(editor, made, found[1] if len(found) > 1 else None),
            "asks": not more.get("is_kept"),
            "back": editor.form().told(editor.current, made.policy, editor.use_bytes()),
        }
        | more,
        status=status,
    )


def _url(tenant: TenantView, version: int) -> str:
    return reverse("operator-policy-revert", args=[tenant.slug, version])
