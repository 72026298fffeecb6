"""`GET /metrics`, for Prometheus: with an operator's management key as bearer token, or an operator's session."""

from collections.abc import Iterable
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from gateway.metrics.requests import counted
from gateway.metrics.workers import WorkerMetrics
from tenants import selectors
from tenants.api.view import ManagementView
from tenants.console.readings import readings


class AnyForm(BaseContentNegotiation):
    """Let the page choose its form: Prometheus asks for types that are no renderer's. Errors are JSON."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        """Return the one parser."""
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Return JSON."""
        return JSONRenderer(), JSONRenderer.media_type


class MetricsPage(ManagementView):
    """What web processes have counted and what workers told last."""

    content_negotiation_class = AnyForm

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        """Return all metrics, in the text format or OpenMetrics. Operators only."""
        self.operators_only()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        now = readings()
        fleet = CollectorRegistry()
        fleet.register(WorkerMetrics(now.workers, {one.id: one.slug for one in selectors.tenants()}, now.missing))
        body = encode(_Joined(counted(), fleet))
        return HttpResponse(body, content_type=content_type, headers={"Cache-Control": "no-store"})


class _Joined(CollectorRegistry):
    """Several registries, read as one."""

    def __init__(self, *registries: CollectorRegistry) -> None:
        super().__init__()
        self._registries = registries

    def collect(self) -> Any:
        """Yield the families of each."""
        for registry in self._registries:
            yield from registry.collect()
