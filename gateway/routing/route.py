"""Send a request to a worker, and to another one while none has taken it."""

from types import TracebackType
from typing import Self

from engine.protocol import pb
from gateway.routing.choose import choose
from gateway.workers.errors import GenerationFailed, Refused, WorkerError, WorkerUnavailable
from gateway.workers.generation import Admitted, Delta, Event, Finished, Generation
from gateway.workers.model import Model
from gateway.workers.registry import WorkerRegistry

_ELSEWHERE = (pb.REFUSAL_CODE_DRAINING, pb.REFUSAL_CODE_UNAVAILABLE)


class Routed:
    """One request over the workers of its model; reads like a `Generation`.

    Until a worker has admitted it, a worker that drains, starts or breaks is left for the next one. Each try has a
    request id of its own, because a worker's journal may hold a record of the last try.

    Raises:
        WorkerUnavailable: at construction, when no worker of the model is connected.
    """

    def __init__(self, registry: WorkerRegistry, model: Model, submit: pb.Submit) -> None:
        self._registry = registry
        self._model = model
        self._submit = submit
        self._request_id = submit.request_id
        self._tried: frozenset[str] = frozenset()
        self._taken = False
        self._finished: Finished | None = None
        self._generation: Generation | None = None
        self._send(WorkerUnavailable(f"No worker of the model `{model.name}` can be reached just now"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    @property
    def used_tokens(self) -> int:
        """Tokens of prompt and output that count against limits so far; 0 until a worker has taken the request."""
        if self._finished is not None:
            return self._finished.prompt_tokens + self._finished.completion_tokens
        if not self._taken or self._generation is None:
            return 0
        return len(self._submit.token_ids) + self._generation.num_tokens

    async def next(self, seconds: float | None = None) -> Event | None:
        """Return the next event, None when `seconds` pass without one. Raises as `Generation.next`."""
        while True:
            assert self._generation is not None
            try:
                event = await self._generation.next(seconds)
            except (Refused, GenerationFailed) as error:
                if self._taken or (isinstance(error, Refused) and error.code not in _ELSEWHERE):
                    raise
                self._send(error)
                continue
            self._taken = self._taken or isinstance(event, Admitted | Delta)
            if isinstance(event, Finished):
                self._finished = event
            return event

    def cancel(self) -> None:
        """Stop the request on its worker."""
        if self._generation is not None:
            self._generation.cancel()

    def fail(self, error: Exception) -> None:
        """End the request with `error`; no other worker is tried."""
        if self._generation is not None:
            self._generation.fail(error)

    def _send(self, error: WorkerError) -> None:
        """Submit to the next worker; raise `error` when there is none left."""
        while candidate := choose(self._registry.candidates(self._model), self._tried):
            self._tried |= {candidate.worker_id}
            client = self._registry.client(candidate.worker_id)
            tries = len(self._tried)
            self._submit.request_id = self._request_id if tries == 1 else f"{self._request_id}.{tries}"
            try:
                if client is not None:
                    self._generation = client.submit(self._submit)
                    return
            except WorkerUnavailable as unavailable:
                error = unavailable
        raise error
