"""Django's routes. `/v1` (the OpenAI surface), `/static` and health are served beside Django, see `gateway.asgi`."""

from django.urls import include, path, register_converter
from drf_spectacular.views import SpectacularSwaggerView

from gateway.console import tables
from gateway.metrics.page import MetricsPage
from gateway.workers import sessions_api
from gateway.workers.announce import announce
from gateway.workers.preview_api import PolicyPreview

register_converter(sessions_api.SessionIdConverter, "session")
of_session = "api/v1/tenants/<slug:slug>/sessions/<session:session_id>/"

urlpatterns = [
    path("api/v1/workers/announce/", announce, name="workers-announce"),
    path("api/v1/tenants/<slug:slug>/policy/preview/", PolicyPreview.as_view()),
    path("metrics", MetricsPage.as_view(), name="metrics"),
    path("api/v1/tenants/<slug:slug>/kv/", sessions_api.TenantKv.as_view()),
    path("api/v1/tenants/<slug:slug>/sessions/", sessions_api.SessionListing.as_view()),
    path(f"{of_session}pin/", sessions_api.SessionPin.as_view()),
    path(f"{of_session}unpin/", sessions_api.SessionUnpin.as_view()),
    path(f"{of_session}prefetch/", sessions_api.SessionPrefetch.as_view()),
    path(of_session, sessions_api.SessionDetail.as_view()),
    path("api/docs/v1/", SpectacularSwaggerView.as_view(url="/v1/openapi.json", title="Tollgate API"), name="v1-docs"),
    path("api/", include("tenants.api.urls")),
    path("admin/", include(tables.routes())),
    path("", include("gateway.console.urls")),
]
