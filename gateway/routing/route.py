"""Send a request to a worker, and to another one while none has taken it."""

import time
from types import TracebackType
from typing import Self

from engine.protocol import pb
from gateway.metrics.requests import RequestWatch
from gateway.routing.choose import affinity, choose
from gateway.workers.client import WorkerClient
from gateway.workers.errors import GenerationFailed, Refused, WorkerError, WorkerUnavailable
from gateway.workers.generation import Admitted, Delta, Event, Finished, Generation, tells_at_the_end
from gateway.workers.model import Model
from gateway.workers.registry import WorkerRegistry

LAG_SECONDS = 30.0

_ELSEWHERE = (pb.REFUSAL_CODE_DRAINING, pb.REFUSAL_CODE_UNAVAILABLE)


class Routed:
    """One request over the workers of its model; reads like a `Generation`.

    Until a worker has admitted it, a worker that drains, starts or breaks is left for the next one. Each try has a
    request id of its own, because a worker's journal may hold a record of the last try.

    A session's request goes first to the worker that keeps the session, and from one whose queue is full to the next:
    elsewhere it computes again what it had, which is better than a refusal.

    A request names the policy version that its worker must have applied. When that version doesn't come in time (the
    controller is away), the request goes on under the worker's last policy, and for LAG_SECONDS the next ones do so
    without the wait.

    Raises:
        WorkerUnavailable: at construction, when no worker of the model is connected.
    """

    def __init__(
        self, registry: WorkerRegistry, model: Model, submit: pb.Submit, watch: RequestWatch | None = None
    ) -> None:
        """Send the request.

        Args:
            registry: the workers.
            model: whose they are to be.
            submit: the request.
            watch: counts what becomes of it.
        """
        self._registry = registry
        self._watch = watch
        self._model = model
        self._submit = submit
        self._session = affinity(submit.tenant, submit.session)
        self._request_id = submit.request_id
        self._tried: frozenset[str] = frozenset()
        self._tries = 0
        self._worker_id = ""
        self._client: WorkerClient | None = None
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
    def pending(self) -> bool:
        """Whether `next` returns, or raises, without a wait."""
        return self._generation is not None and self._generation.pending

    @property
    def used_tokens(self) -> int:
        """Tokens of prompt and output that count against limits so far; 0 until a worker has taken the request."""
        if self._finished is not None:
            return self._finished.prompt_tokens + self._finished.completion_tokens
        if not self._taken or self._generation is None:
            return 0
        return len(self._submit.token_ids) + self._generation.num_tokens

    @property
    def uncounted(self) -> bool:
        """Whether a worker has generated what it would have told at an end that has not come."""
        return self._taken and self._finished is None and tells_at_the_end(self._submit)

    async def next(self, seconds: float | None = None) -> Event | None:
        """Return the next event, None when `seconds` pass without one. Raises as `Generation.next`."""
        while True:
            assert self._generation is not None
            try:
                event = await self._generation.next(seconds)
            except (Refused, GenerationFailed) as error:
                if self._taken or not self._may_go_on(error):
                    self._note(error)
                    raise
                self._send(error)
                continue
            except Exception as error:
                self._note(error)
                raise
            self._taken = self._taken or isinstance(event, Admitted | Delta)
            if isinstance(event, Finished):
                self._finished = event
                if self._watch is not None:
                    self._watch.finished(event)
            return event

    def cancel(self) -> None:
        """Stop the request on its worker."""
        if self._generation is not None:
            self._generation.cancel()
        if self._watch is not None:
            self._watch.left()

    def fail(self, error: Exception) -> None:
        """End the request with `error`; no other worker is tried."""
        if self._generation is not None:
            self._generation.fail(error)

    def _note(self, error: Exception) -> None:
        if self._watch is not None:
            self._watch.failed(error)

    def _may_go_on(self, error: Refused | GenerationFailed) -> bool:
        """Say whether another try makes sense, and prepare it."""
        if isinstance(error, GenerationFailed) or error.code in _ELSEWHERE:
            return True
        if error.code == pb.REFUSAL_CODE_QUEUE_FULL and self._session:
            return True
        if error.code == pb.REFUSAL_CODE_NO_POLICY and self._submit.policy_version and self._client is not None:
            self._client.lags_until = time.monotonic() + LAG_SECONDS
            self._tried -= {self._worker_id}
            return True
        return False

    def _send(self, error: WorkerError) -> None:
        """Submit to the next worker; raise `error` when there is none left."""
        while candidate := choose(self._registry.candidates(self._model), self._tried, self._session):
            self._tried |= {candidate.worker_id}
            self._worker_id = candidate.worker_id
            self._client = self._registry.client(candidate.worker_id)
            self._tries += 1
            self._submit.request_id = self._request_id if self._tries == 1 else f"{self._request_id}.{self._tries}"
            try:
                if self._client is not None:
                    if time.monotonic() < self._client.lags_until:
                        self._submit.policy_version = 0
                    on_tokens = None if self._watch is None else self._watch.tokens
                    self._generation = self._client.submit(self._submit, on_tokens)
                    return
            except WorkerUnavailable as unavailable:
                error = unavailable
        self._note(error)
        raise error
