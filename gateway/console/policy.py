"""The operator's policy page: change limits, see the effect before and the acks after; its history, its boosts."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gateway.console import boost, history
from gateway.console.access import operator_page
from gateway.console.acks import acks_line
from gateway.console.policy_editor import editor_of
from tenants import selectors
from tenants.models import User


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page
def policy(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Show a tenant's policy; on POST change it, if nobody else did since it was read."""
    editor = editor_of(slug)
    if request.method == "POST":
        return editor.answer(request, operator)
    if request.GET.get("part") == "editor":
        return render(request, "operator/editor.html", editor.shown(editor.form()))
    parts = history.shown(editor) | boost.shown(editor)
    return render(request, "operator/policy.html", parts | editor.shown(editor.form()))


@require_POST
@operator_page
def effect(request: HttpRequest, operator: User, slug: str) -> HttpResponse:
    """Return what the form's values would do, without doing it."""
    return editor_of(slug).effect(request)


@require_safe
@operator_page
def acks(request: HttpRequest, operator: User, slug: str, version: int) -> HttpResponse:
    """Return how far a version has come."""
    editor = editor_of(slug)
    found = selectors.policy_acks(version)
    if found is None or found.tenant_id != editor.tenant.id:
        raise Http404
    return acks_line(request, found, editor.acks_url)
