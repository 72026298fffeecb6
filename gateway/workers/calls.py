"""Ask several workers the same at once, and take what each says, or why it says nothing. Blocking: for threads.

    ask([(worker, request), ...], "Preview", seconds=12.0) ─▶ [Told(worker, answer, ""), Told(worker, None, "why"), ...]

Generation has streams of its own (`client.py`); this is for what happens now and then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
import structlog

from engine.protocol import rpc
from gateway.config import config
from gateway.workers.client import Dial
from tenants.contracts import WorkerView

_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
]

Answer = TypeVar("Answer")

log = structlog.get_logger("gateway.workers")


@dataclass(frozen=True, slots=True)
class Told(Generic[Answer]):
    """What one worker has said. `problem`: why it has not; `status` is gRPC's name of it."""

    worker: WorkerView
    answer: Answer | None
    problem: str = ""
    status: grpc.StatusCode = grpc.StatusCode.OK


def ask(requests: Sequence[tuple[WorkerView, Any]], method: str, *, seconds: float) -> "list[Told[Any]]":
    """Call `method` of each worker with its request, all at once; return what each has told, in the same order."""
    metadata = (("authorization", f"Bearer {config().engine_token}"),)
    calls: list[tuple[WorkerView, grpc.CallFuture[Any]]] = []
    channels: dict[str, grpc.Channel] = {}
    try:
        for worker, request in requests:
            if worker.address not in channels:
                channels[worker.address] = _open(worker.address)
            stub = rpc.EngineStub(channels[worker.address])  # type: ignore[no-untyped-call]  # generated code
            calls.append((worker, getattr(stub, method).future(request, metadata=metadata, timeout=seconds)))
        return [_told(worker, call, method) for worker, call in calls]
    finally:
        for channel in channels.values():
            channel.close()


def _told(worker: WorkerView, call: "grpc.CallFuture[Any]", method: str) -> "Told[Any]":
    try:
        return Told(worker, call.result())
    except grpc.RpcError:
        status, details = call.code(), call.details() or ""
    if status is not grpc.StatusCode.NOT_FOUND:
        log.warning("worker_unanswered", worker=worker.worker_id, call=method, status=status.name, details=details)
    if status is grpc.StatusCode.UNAVAILABLE:
        return Told(worker, None, "it cannot be reached", status)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Told(worker, None, "it does not answer in time", status)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return Told(worker, None, "it runs an older version, which cannot do this", status)
    return Told(worker, None, details or status.name, status)


def _open(address: str) -> grpc.Channel:
    dial = Dial(address=address, token=config().engine_token, ca_file=config().engine_ca)
    if dial.ca_file and not address.startswith("unix:"):  # a unix socket does not leave the machine
        credentials = grpc.ssl_channel_credentials(Path(dial.ca_file).read_bytes())
        return grpc.secure_channel(address, credentials, options=_OPTIONS)
    return grpc.insecure_channel(address, options=_OPTIONS)
