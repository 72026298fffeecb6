"""`workers/`: the fleet, and draining one of it. Operators only."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import selectors
from tenants.api.pagination import Order
from tenants.api.schema import ERRORS, PAGE
from tenants.api.serializers.workers import WorkerAnswer, WorkerDrain, WorkerPage
from tenants.api.view import ManagementView
from tenants.models import Worker
from tenants.services.workers import set_draining

BY_ID = Order(columns=("id",), kinds=(str,), newest_first=False)


class WorkerList(ManagementView):
    """The fleet."""

    @extend_schema(operation_id="workers_list", parameters=PAGE, responses={200: WorkerPage, **ERRORS})
    def get(self, request: Request) -> Response:
        """List workers by id, live or not. Operators only."""
        self.operators_only()
        live = _live()
        return self.page(Worker.objects.all(), BY_ID, lambda row: _shown(row, live))


class WorkerDraining(ManagementView):
    """Whether a worker drains."""

    @extend_schema(operation_id="workers_drain", request=WorkerDrain, responses={200: WorkerAnswer, **ERRORS})
    def post(self, request: Request, worker_id: str) -> Response:
        """Let a worker take no new requests, or take them again; what runs on it goes on. Operators only.

        It lasts until it is undone, over restarts of the worker. `running` and `queued` of its statistics say when
        nothing is left on it.
        """
        self.operators_only()
        body = self.read(WorkerDrain)
        set_draining(worker_id=worker_id, draining=body["draining"], actor=self.caller.actor)
        return Response(_shown(Worker.objects.get(pk=worker_id), _live()))


def _live() -> set[str]:
    return {worker.worker_id for worker in selectors.live_workers()}


def _shown(row: Worker, live: set[str]) -> dict[str, Any]:
    row.live = row.pk in live  # type: ignore[attr-defined]  # shown beside the columns
    return dict(WorkerAnswer(row).data)
