"""The line "saved → sent → applied on 1/1 workers in 38 ms → settled" of one version, as operators see it."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from tenants.contracts import PolicyAcks

LATE_SECONDS = 3.0  # a version that is not everywhere by then is shown with the workers that it waits for


def acks_line(request: HttpRequest, found: PolicyAcks, url: str) -> HttpResponse:
    """Return the line; it asks at `url`, to which the version and a slash are added, until it is done."""
    waited = (timezone.now() - found.changed_at).total_seconds()
    late = [ack.worker_id for ack in found.workers if ack.ms is None] if waited > LATE_SECONDS else []
    return render(request, "parts/acks.html", {"acks": found, "acks_url": url, "late": late})
