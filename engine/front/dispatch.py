"""Requests between connections and core: START HERE for the path of a token.

submit -> check -> meter.begin -> (grammars.judge) -> SubmitFrame -> core
core -> StepFrame -> for each output: detokenise, post -> for each request: count, meter.update
                  -> one message per connection
all outputs ended -> meter.finish -> (journal has it on disk) -> post Finished
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog
from tokenizers import Tokenizer

from engine import ipc
from engine.front.connection import Connection, Stream
from engine.front.grammars import GrammarJudge, check_grammar, grammar_of
from engine.front.live_request import (
    InvalidSubmitError,
    LiveRequest,
    check_submit,
    identity_of,
    num_generated,
    submit_frame,
)
from engine.front.making import outputs_of
from engine.front.meter import IdentityTooLongError, Meter
from engine.front.refusals import refused
from engine.front.table import Counters
from engine.model.folder import ModelFolder
from engine.protocol import pb
from engine.request import FinishReason, RefusalCode

MAX_OUTPUTS = 16384  # outputs of all requests that this worker holds, queued ones included
MAX_TENANT_OUTPUTS = MAX_OUTPUTS // 2  # of them, those of one tenant: whatever its policy says, others get in

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
        self._num_outputs: Counter[str] = Counter()  # of the live requests, by tenant
        self._folder: ModelFolder | None = None
        self._tokenizer: Tokenizer | None = None
        self._grammars: GrammarJudge | None = None
        self._judged: set[int] = set()  # handles of requests whose grammars are being judged: the core has none of them
        self.embedding_size = 0  # of the model, as the core says; 0: it tells no hidden states
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
        self._grammars = GrammarJudge(folder)

    def close(self) -> None:
        """End what helps with requests."""
        if self._grammars is not None:
            self._grammars.close()

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
        if request is None or request.handle not in self._live:
            return
        if request.handle in self._judged:
            self._end(request, FinishReason.CANCELLED, "")
        else:
            self._send(ipc.CancelFrame([request.handle]))

    def drop(self, connection: Connection) -> None:
        """End everything of a connection that is gone."""
        self._stop(connection.requests.values(), FinishReason.CANCELLED, "the client left")

    def cut(self, requests: Sequence[LiveRequest], detail: str) -> None:
        """End requests with an error, of which something was lost; those that are over are to end with it too."""
        over = [request for request in requests if request.handle not in self._live]
        self._stop(requests, FinishReason.ERROR, detail)
        for request in over:
            request.outputs.spoil(detail)

    # ------------------------------------------------------------ from the core

    def step(self, outputs: Sequence[ipc.Output]) -> None:
        """Pass on what one step did; outputs of requests that have ended here are ignored."""
        touched: dict[int, LiveRequest] = {}
        stopped: dict[int, list[int]] = {}  # handles, by the index that the core is to end
        for output in outputs:
            request = self._live.get(output.handle)
            if request is None:
                continue
            touched[output.handle] = request
            if output.refusal_code:
                self._refuse(request, refused(RefusalCode(output.refusal_code), output.message, output.field))
            elif self._take(request, output):
                stopped.setdefault(output.index if request.outputs.num_outputs > 1 else -1, []).append(request.handle)
        for request in touched.values():
            self._count(request)
        for index, handles in stopped.items():
            self._send(ipc.CancelFrame(handles, "stop", index))
        for connection in {request.stream.connection for request in touched.values()}:
            connection.flush()

    def end_all(self, detail: str) -> None:
        """End every request with an error: the core that ran them is gone, or this worker is going."""
        for request in list(self._live.values()):
            self._end(request, FinishReason.ERROR, detail)

    # ------------------------------------------------------------ inside

    def _refusal(self, submit: pb.Submit) -> pb.Refused | None:
        if self.draining:
            return refused(RefusalCode.DRAINING, "this worker is draining: send the request to another one")
        if self.unavailable or self._folder is None:
            return refused(RefusalCode.UNAVAILABLE, f"{self.unavailable or 'the model is loading'}: try again soon")
        if self._meter.failure:
            return refused(RefusalCode.UNAVAILABLE, "this worker cannot store usage: its disk refuses to be written")
        try:
            check_submit(submit, self._folder.vocab_size)
            check_grammar(submit)
        except InvalidSubmitError as error:
            return refused(RefusalCode.INVALID, str(error), error.field)
        if not self.embedding_size and (field := _needs_hidden(submit)):
            return refused(RefusalCode.INVALID, f"this model cannot serve {field}: leave it out", field)
        num_asked = num_generated(submit)
        if self._num_outputs[submit.tenant] + num_asked > MAX_TENANT_OUTPUTS:
            message = f"the tenant's requests on this worker may have {MAX_TENANT_OUTPUTS} outputs: try again soon"
            return refused(RefusalCode.QUEUE_FULL, message)
        if self._num_outputs.total() + num_asked > MAX_OUTPUTS:
            return refused(RefusalCode.UNAVAILABLE, "this worker holds as many outputs as it can: try again soon")
        if submit.request_id in self._request_ids:
            return refused(RefusalCode.INVALID, "request_id is that of a running request: use a new one", "request_id")
        return None

    def _begin(self, connection: Connection, submit: pb.Submit) -> pb.Refused | None:
        assert self._folder is not None and self._tokenizer is not None
        counters = Counters(started_at=time.time())
        try:
            metered = self._meter.begin(identity_of(submit, self._folder.name, self._worker_id), counters)
        except IdentityTooLongError as error:
            return refused(RefusalCode.INVALID, str(error), "request_id")
        except OSError as error:
            log.error("counters_cannot_grow", error=str(error))
            return refused(RefusalCode.UNAVAILABLE, "this worker cannot meter more requests: its disk is full")
        stream = Stream(connection, submit.stream)
        request = LiveRequest(
            handle=self._next_handle,
            stream=stream,
            metered=metered,
            counters=counters,
            outputs=outputs_of(stream, submit, self._folder, self._tokenizer),
            prompt_tokens=len(submit.token_ids),
        )
        self._next_handle += 1
        self._num_outputs[submit.tenant] += request.outputs.num_outputs
        self._live[request.handle] = request
        self._request_ids.add(submit.request_id)
        self.idle.clear()
        connection.requests[submit.stream] = request
        grammar = grammar_of(submit)
        if grammar is None:
            self._send(submit_frame(request.handle, submit))
        else:
            assert self._grammars is not None, "it comes with the model"
            self._judged.add(request.handle)
            self._grammars.judge(submit.tenant, grammar, partial(self._take_verdict, request, submit))
        return None

    def _take_verdict(self, request: LiveRequest, submit: pb.Submit, refused: pb.Refused | None) -> None:
        """Hand a request to the core whose grammar can be followed; it may have ended meanwhile."""
        if request.handle not in self._judged:
            return
        self._judged.discard(request.handle)
        if refused is None:
            self._send(submit_frame(request.handle, submit))
        else:
            self._refuse(request, refused)

    def _take(self, request: LiveRequest, output: ipc.Output) -> bool:
        """Apply one output. Return True when a stop string ended it while the core still runs it."""
        counters = request.counters
        if output.admitted_max_tokens:
            counters.prompt_tokens, counters.cached_tokens = request.prompt_tokens, output.cached_tokens
            request.stream.post(admitted=pb.Admitted(max_tokens=output.admitted_max_tokens))
        counters.queue_seconds = output.queue_seconds or counters.queue_seconds
        return request.outputs.take(output)

    def _count(self, request: LiveRequest) -> None:
        """Store what a request has used after a step, or end it with the last of its outputs."""
        if request.handle not in self._live:  # refused
            return
        request.count()
        if request.outputs.num_open:
            self._meter.update(request.metered, request.counters)
        else:
            self._finish(request)

    def _refuse(self, request: LiveRequest, refused: pb.Refused) -> None:
        self._leave(request)
        self._meter.drop(request.metered)
        request.stream.post(refused=refused)
        request.stream.release()
        self._forget(request)

    def _stop(self, requests: Iterable[LiveRequest], reason: FinishReason, detail: str) -> None:
        """End those that still run, here and in the core."""
        running = [request for request in requests if request.handle in self._live]
        if running:
            self._send(ipc.CancelFrame([request.handle for request in running]))
        for request in running:
            self._end(request, reason, detail)

    def _end(self, request: LiveRequest, reason: FinishReason, detail: str) -> None:
        request.outputs.end(reason, detail)
        request.count()
        self._finish(request)

    def _finish(self, request: LiveRequest) -> None:
        self._leave(request)
        counters = request.counters
        counters.finish_reason = request.outputs.reason
        usage = pb.Usage(
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            completion_tokens=counters.completion_tokens,
        )
        self._meter.finish(request.metered, counters, partial(self._report, request, usage))

    def _report(self, request: LiveRequest, usage: pb.Usage) -> None:
        request.outputs.report(usage)
        self._forget(request)

    def _leave(self, request: LiveRequest) -> None:
        del self._live[request.handle]
        self._judged.discard(request.handle)
        tenant = request.metered.identity.tenant
        self._num_outputs[tenant] -= request.outputs.num_outputs
        if not self._num_outputs[tenant]:
            del self._num_outputs[tenant]

    def _forget(self, request: LiveRequest) -> None:
        self._request_ids.discard(request.metered.identity.request_id)
        if not self._request_ids:
            self.idle.set()


def _needs_hidden(submit: pb.Submit) -> str:
    """Return the field of a request that takes hidden states of all tokens of the prompt; empty: none does."""
    if submit.embed:
        return "embed"
    return "prompt_logprobs" if submit.sampling.HasField("prompt_logprobs") else ""
