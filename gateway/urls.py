"""Django's routes. `/v1` (the OpenAI surface), `/static` and health are served beside Django, see `gateway.asgi`."""

from django.urls import include, path

from gateway.console import tables
from gateway.metrics.page import MetricsPage
from gateway.workers.announce import announce
from gateway.workers.preview_api import PolicyPreview

urlpatterns = [
    path("api/v1/workers/announce/", announce, name="workers-announce"),
    path("api/v1/tenants/<slug:slug>/policy/preview/", PolicyPreview.as_view()),
    path("metrics", MetricsPage.as_view(), name="metrics"),
    path("api/", include("tenants.api.urls")),
    path("admin/", include(tables.routes())),
    path("", include("gateway.console.urls")),
]
