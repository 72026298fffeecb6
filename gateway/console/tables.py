"""`/admin/`: Django's admin, which shows operators the tables and changes none of them (`tenants.admin`).

Signing in is the console's own, which counts wrong tries; passwords aren't changed here.
"""

from django.contrib import admin
from django.contrib.auth.models import Group
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path
from django.views.decorators.http import require_safe
from django_celery_beat import models as beat

from tenants.console.access import to_sign_in
from tenants.models import User

# Tables that other applications bring, with forms that write past our services.
_FOREIGN = (
    Group,
    beat.ClockedSchedule,
    beat.CrontabSchedule,
    beat.IntervalSchedule,
    beat.PeriodicTask,
    beat.SolarSchedule,
)


def routes() -> list[URLPattern | URLResolver]:
    """Return the routes below `/admin/`."""
    for model in _FOREIGN:
        if admin.site.is_registered(model):
            admin.site.unregister(model)
    admin.site.site_header = admin.site.site_title = "Tollgate: tables"
    admin.site.index_title = "Read only: services write, so that each change leaves an audit row"
    return [
        path("login/", sign_in),
        path("password_change/", nowhere),
        path("password_change/done/", nowhere),
        path("", admin.site.urls),
    ]


@require_safe
def sign_in(request: HttpRequest) -> HttpResponse:
    """Send who isn't signed in to the console's form; to others than operators the tables are not there."""
    if isinstance(request.user, User):
        raise Http404
    return to_sign_in(request)


def nowhere(_request: HttpRequest) -> HttpResponse:
    """Answer for a page that we do without."""
    raise Http404
