"""Requests between connections and core: START HERE for the path of a token.

submit -> check -> meter.begin -> SubmitFrame -> core
core -> StepFrame -> for each output: count, detokenise, meter.update, post -> one message per connection
end -> meter.finish -> (journal has it on disk) -> post Finished
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from tokenizers import Tokenizer

from engine import ipc
from engine.front.connection import Connection
from engine.front.detokenize import TextStream
from engine.front.live_request import InvalidSubmitError, LiveRequest, check_submit, identity_of, submit_frame
from engine.front.meter import PB_REASON, IdentityTooLongError, Meter
from engine.front.table import Counters
from engine.model.folder import ModelFolder
from engine.protocol import pb
from engine.request import FinishReason, RefusalCode

MAX_REQUESTS = 16384  # requests that this worker holds, queued ones included

REFUSAL = {
    RefusalCode.INVALID: pb.REFUSAL_CODE_INVALID,
    RefusalCode.CONTEXT_TOO_LONG: pb.REFUSAL_CODE_CONTEXT_TOO_LONG,
    RefusalCode.KV_LIMIT: pb.REFUSAL_CODE_KV_LIMIT,
    RefusalCode.QUEUE_FULL: pb.REFUSAL_CODE_QUEUE_FULL,
    RefusalCode.NO_POLICY: pb.REFUSAL_CODE_NO_POLICY,
    RefusalCode.DRAINING: pb.REFUSAL_CODE_DRAINING,
    RefusalCode.UNAVAILABLE: pb.REFUSAL_CODE_UNAVAILABLE,
}

log = structlog.get_logger(part="requests")


class Dispatcher:
    """Owns the running requests."""

    def __init__(self, meter: Meter, worker_id: str, send: Callable[[ipc.ToCore], None]) -> None:
        self._meter = meter
        self._worker_id = worker_id
        self._send = send
        self._live: dict[int, LiveRequest] = {}
        self._request_ids: set[str] = set()  # of requests in the meter's table
        self._next_handle = 1
        self._folder: ModelFolder | None = None
        self._tokenizer: Tokenizer | None = None
        self.unavailable = "the engine core is starting"  # why submits are refused; empty: they are taken
        self.draining = False
        self.idle = asyncio.Event()  # set while there is no request
        self.idle.set()

    @property
    def num_requests(self) -> int:
        """Requests that run, or whose end is not on disk yet."""
        return len(self._request_ids)

    def serve_model(self, folder: ModelFolder, tokenizer: Tokenizer) -> None:
        """Take requests for this model from now on."""
        self._folder, self._tokenizer = folder, tokenizer

    # ------------------------------------------------------------ from clients

    def submit(self, connection: Connection, submit: pb.Submit) -> None:
        """Hand a request to the core, or post why not."""
        refusal = self._refusal(submit)
        if refusal is None:
            refusal = self._begin(connection, submit)
        if refusal is not None:
            connection.post(pb.Event(stream=submit.stream, refused=refusal))

    def cancel(self, connection: Connection, stream: int) -> None:
        """Ask the core to end a request; a stream that has ended is ignored."""
        request = connection.requests.get(stream)
        if request is not None and request.handle in self._live:
            self._send(ipc.CancelFrame([request.handle]))

    def drop(self, connection: Connection) -> None:
        """End everything of a connection that is gone."""
        gone = [request for request in connection.requests.values() if request.handle in self._live]
        if gone:
            self._send(ipc.CancelFrame([request.handle for request in gone]))
        for request in gone:
            self._end(request, FinishReason.CANCELLED, "the client left")

    # ------------------------------------------------------------ from the core

    def step(self, outputs: Sequence[ipc.Output]) -> None:
        """Pass on what one step did; outputs of requests that have ended here are ignored."""
        connections = set()
        stopped = []
        for output in outputs:
            request = self._live.get(output.handle)
            if request is None:
                continue
            connections.add(request.connection)
            if self._take(request, output):
                stopped.append(request.handle)
        if stopped:
            self._send(ipc.CancelFrame(stopped, "stop"))
        for connection in connections:
            connection.flush()

    def end_all(self, detail: str) -> None:
        """End every request with an error: the core that ran them is gone, or this worker is going."""
        for request in list(self._live.values()):
            self._end(request, FinishReason.ERROR, detail)

    # ------------------------------------------------------------ inside

    def _refusal(self, submit: pb.Submit) -> pb.Refused | None:
        if self.draining:
            return _refused(RefusalCode.DRAINING, "this worker is draining: send the request to another one")
        if self.unavailable or self._folder is None:
            return _refused(RefusalCode.UNAVAILABLE, f"{self.unavailable or 'the model is loading'}: try again soon")
        if self._meter.failure:
            return _refused(RefusalCode.UNAVAILABLE, "this worker cannot store usage: its disk refuses to be written")
        if len(self._live) >= MAX_REQUESTS:
            return _refused(
                RefusalCode.QUEUE_FULL, f"this worker holds {MAX_REQUESTS} requests, its limit: try again soon"
            )
        try:
            check_submit(submit, self._folder.vocab_size)
        except InvalidSubmitError as error:
            return _refused(RefusalCode.INVALID, str(error), error.field)
        if submit.request_id in self._request_ids:
            return _refused(RefusalCode.INVALID, "request_id is that of a running request: use a new one", "request_id")
        return None

    def _begin(self, connection: Connection, submit: pb.Submit) -> pb.Refused | None:
        assert self._folder is not None and self._tokenizer is not None
        counters = Counters(started_at=time.time())
        try:
            metered = self._meter.begin(identity_of(submit, self._folder.name, self._worker_id), counters)
        except IdentityTooLongError as error:
            return _refused(RefusalCode.INVALID, str(error), "request_id")
        except OSError as error:
            log.error("counters_cannot_grow", error=str(error))
            return _refused(RefusalCode.UNAVAILABLE, "this worker cannot meter more requests: its disk is full")
        sampling = submit.sampling
        request = LiveRequest(
            handle=self._next_handle,
            stream=submit.stream,
            connection=connection,
            metered=metered,
            counters=counters,
            text=TextStream(self._tokenizer, sampling.stop),
            prompt_tokens=len(submit.token_ids),
            end_tokens=frozenset(sampling.stop_token_ids).union(
                () if sampling.ignore_eos else self._folder.eos_token_ids
            ),
        )
        self._next_handle += 1
        self._live[request.handle] = request
        self._request_ids.add(submit.request_id)
        self.idle.clear()
        connection.requests[submit.stream] = request
        self._send(submit_frame(request.handle, submit))
        return None

    def _take(self, request: LiveRequest, output: ipc.Output) -> bool:
        """Apply one output. Return True when a stop string ended the request while the core still runs it."""
        if output.refusal_code:
            self._refuse(request, output)
            return False
        counters = request.counters
        if output.admitted_max_tokens:
            counters.prompt_tokens, counters.cached_tokens = request.prompt_tokens, output.cached_tokens
            self._post(request, admitted=pb.Admitted(max_tokens=output.admitted_max_tokens))
        counters.queue_seconds = output.queue_seconds or counters.queue_seconds
        counters.kv_device_byte_seconds = output.kv_byte_seconds or counters.kv_device_byte_seconds
        counters.num_preemptions = output.num_preemptions or counters.num_preemptions
        stopped = bool(output.token_ids) and self._take_tokens(request, output)
        if stopped:
            self._end(request, FinishReason.STOP)
            return not output.finish_reason
        if output.finish_reason:
            self._end(request, FinishReason(output.finish_reason), output.message)
        else:
            counters.finished_at = request.moment()
            self._meter.update(request.metered, counters)
        return False

    def _take_tokens(self, request: LiveRequest, output: ipc.Output) -> bool:
        token_ids = output.token_ids
        counters = request.counters
        if not counters.completion_tokens:
            counters.ttft_seconds = time.monotonic() - request.submitted
        silent = output.finish_reason == FinishReason.STOP and token_ids[-1] in request.end_tokens
        piece = request.text.push(token_ids[:-1] if silent else token_ids)
        num_tokens = piece.num_tokens + (silent and not piece.stopped)
        counters.completion_tokens += num_tokens
        self._post(request, delta=pb.Delta(token_ids=token_ids[:num_tokens], text=piece.text))
        return piece.stopped

    def _post(self, request: LiveRequest, **kind: object) -> None:
        request.connection.post(pb.Event(stream=request.stream, **kind))  # type: ignore[arg-type]  # one field of the oneof

    def _refuse(self, request: LiveRequest, output: ipc.Output) -> None:
        self._live.pop(request.handle)
        self._meter.drop(request.metered)
        self._post(request, refused=_refused(RefusalCode(output.refusal_code), output.message, output.field))
        self._forget(request)

    def _end(self, request: LiveRequest, reason: FinishReason, detail: str = "") -> None:
        self._live.pop(request.handle)
        counters = request.counters
        counters.finish_reason = reason
        counters.finished_at = request.moment()
        finished = pb.Finished(
            reason=PB_REASON[reason],
            text=request.text.flush(),
            usage=pb.Usage(
                prompt_tokens=counters.prompt_tokens,
                cached_tokens=counters.cached_tokens,
                completion_tokens=counters.completion_tokens,
            ),
            detail=detail,
        )
        self._meter.finish(request.metered, counters, partial(self._report, request, finished))

    def _report(self, request: LiveRequest, finished: pb.Finished) -> None:
        self._post(request, finished=finished)
        self._forget(request)

    def _forget(self, request: LiveRequest) -> None:
        request.connection.release(request.stream)
        self._request_ids.discard(request.metered.identity.request_id)
        if not self._request_ids:
            self.idle.set()


def _refused(code: RefusalCode, message: str, field: str = "") -> pb.Refused:
    return pb.Refused(code=REFUSAL[code], message=message, field=field)
