"""The live workers that this process knows, and the models they serve.

Postgres says which workers live; a connection says what each can do. With Postgres away the last known set serves on,
and a worker that misses from the list (its heartbeats could not be stored) is kept while its connection stands.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from engine.protocol import pb
from gateway.routing.choose import Candidate, choose
from gateway.workers.client import Dial, WorkerClient
from gateway.workers.model import Model, model_from_card
from tenants.contracts import WorkerView

_log = structlog.get_logger("gateway.workers")


class WorkerRegistry:
    """Owns the connections of this process.

    Args:
        read: returns the live workers; any exception leaves the known set as it is.
        token: bearer token of worker calls.
        ca_file: PEM of the workers' authority, or empty.
    """

    def __init__(self, read: Callable[[], Awaitable[Sequence[WorkerView]]], token: str, ca_file: str = "") -> None:
        self._read = read
        self._token = token
        self._ca_file = ca_file
        self._views: dict[str, WorkerView] = {}
        self._clients: dict[str, WorkerClient] = {}
        self._models: dict[str, Model] = {}  # by worker
        self._refreshing = asyncio.Lock()

    @property
    def num_connected(self) -> int:
        """Workers that can be sent requests now."""
        return sum(client.connected.is_set() for client in self._clients.values())

    @property
    def num_active(self) -> int:
        """Requests of this process on all workers."""
        return sum(client.num_active for client in self._clients.values())

    def model(self, name: str, session: bytes = b"") -> Model | None:
        """Return the model of that public name, or None; of several digests that of the worker that `choose` names.

        So all workers of a name serve, and when those of one digest drain, requests go to the others.
        """
        named = {worker_id: model for worker_id, model in self._models.items() if model.name == name}
        models = {model.digest: model for model in named.values()}
        if len(models) > 1:
            every = [candidate for model in models.values() for candidate in self.candidates(model)]
            chosen = choose(every, session=session)
            if chosen is not None:
                return named[chosen.worker_id]
        return next(iter(named.values()), None)

    def names(self) -> set[str]:
        """Return the public names of all models, those whose worker is away for the moment included."""
        described = {model.name for model in self._models.values()}
        return described | {view.model for view in self._views.values()}

    def created(self, name: str) -> int:
        """Return the unix second in which this process first met a model; 0: its worker hasn't answered yet."""
        return min((model.created for model in self._models.values() if model.name == name), default=0)

    def candidates(self, model: Model) -> list[Candidate]:
        """Return the connected workers that serve exactly this model."""
        return [
            Candidate(worker_id=worker_id, num_active=client.num_active)
            for worker_id, client in self._clients.items()
            if client.connected.is_set() and self._serves(worker_id, model)
        ]

    def keepers(self, session: bytes) -> list[tuple[str, WorkerClient]]:
        """Return each model's public name with the connection to the worker that a session's turn would go to."""
        models = {(model.name, model.digest): model for model in self._models.values()}
        found: dict[str, list[Candidate]] = {}
        for model in models.values():
            found.setdefault(model.name, []).extend(self.candidates(model))
        chosen = [(name, choose(candidates, session=session)) for name, candidates in sorted(found.items())]
        return [(name, self._clients[worker.worker_id]) for name, worker in chosen if worker is not None]

    def client(self, worker_id: str) -> WorkerClient | None:
        """Return the connection to a worker."""
        return self._clients.get(worker_id)

    async def refresh(self) -> None:
        """Read the live workers, connect to new ones, drop those gone. Never raises for a store that is away."""
        async with self._refreshing:
            try:
                views = await self._read()
            except Exception as error:  # noqa: BLE001  # whatever keeps the list from us, the known set serves on
                _log.warning("workers_unknown", reason=f"{type(error).__name__}: {error}")
                return
            await self._apply({view.worker_id: view for view in views})

    async def reach(self, seconds: float) -> None:
        """Read the live workers and wait until all of them have answered, at most for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.refresh()
                await asyncio.gather(*(client.connected.wait() for client in self._clients.values()))

    async def close(self) -> None:
        """End all connections."""
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.stop() for client in clients.values()))

    async def _apply(self, views: dict[str, WorkerView]) -> None:
        for worker_id, client in list(self._clients.items()):
            listed = views.get(worker_id)
            moved = listed is not None and listed.address != client.dial.address
            if moved or (listed is None and not client.connected.is_set()):
                await self._drop(worker_id)
            elif listed is None:
                views[worker_id] = self._views[worker_id]
        self._views = views
        for worker_id, view in views.items():
            if worker_id not in self._clients:
                self._connect(worker_id, view)

    def _connect(self, worker_id: str, view: WorkerView) -> None:
        dial = Dial(address=view.address, token=self._token, ca_file=self._ca_file)
        client = self._clients[worker_id] = WorkerClient(dial, partial(self._learn, worker_id))
        client.start()

    async def _drop(self, worker_id: str) -> None:
        client = self._clients.pop(worker_id)
        self._models.pop(worker_id, None)
        await client.stop()

    async def _learn(self, worker_id: str, card: pb.ModelCard) -> None:
        """Take a worker's card; workers of one digest and name share the tokenizer."""
        shared = [m for m in self._models.values() if (m.digest, m.name) == (card.digest, card.model)]
        self._models[worker_id] = (
            shared[0] if shared else await asyncio.to_thread(model_from_card, card, int(time.time()))
        )

    def _serves(self, worker_id: str, model: Model) -> bool:
        own = self._models.get(worker_id)
        view = self._views.get(worker_id)
        draining = view is not None and view.draining
        return own is not None and not draining and (own.name, own.digest) == (model.name, model.digest)
