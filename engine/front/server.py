"""The gRPC service of `engine.proto`, and the server around it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.front.address import claim_socket, dialable, leaves_machine, unix_path
from engine.front.auth import TokenInterceptor
from engine.front.connection import OUTBOX_BYTES, Connection
from engine.front.control import ControlHub
from engine.front.dispatch import Dispatcher
from engine.front.preview import Previewer, PreviewError
from engine.front.sessions import SessionCalls, SessionError
from engine.protocol import pb, rpc

SERVICE_NAME = "tollgate.engine.v1.Engine"
_DESCRIBE_SECONDS = 10.0  # how long Describe waits for a core that is starting
_RECEIVE_BYTES = 64 << 20  # the longest command: a policy snapshot names every tenant
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second listener
    ("grpc.max_receive_message_length", _RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),  # a model card carries the tokenizer, which may have tens of megabytes
    ("grpc.keepalive_time_ms", 10_000),  # a peer that vanished without a word is found out
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

log = structlog.get_logger(part="server")

CommandContext = grpc.aio.ServicerContext[pb.Command, pb.StepEvents]


class Describer(Protocol):
    """Knows the model card once the model is served."""

    async def card(self) -> pb.ModelCard:
        """Return the card, waiting for the first core to be ready."""
        ...


class EngineService(rpc.EngineServicer):
    """Describe, Generate, Control, Preview and the calls about sessions."""

    def __init__(
        self,
        describer: Describer,
        dispatcher: Dispatcher,
        hub: ControlHub,
        previewer: Previewer,
        sessions: SessionCalls,
        *,
        outbox_bytes: int = OUTBOX_BYTES,
    ) -> None:
        self._describer = describer
        self._previewer = previewer
        self._sessions = sessions
        self._dispatcher = dispatcher
        self._hub = hub
        self._connections: set[Connection] = set()
        self._outbox_bytes = outbox_bytes
        self._stopping = False

    async def Describe(  # noqa: N802  # the protocol's name
        self, request: pb.DescribeRequest, context: "grpc.aio.ServicerContext[pb.DescribeRequest, pb.ModelCard]"
    ) -> pb.ModelCard:
        """Return the model card; UNAVAILABLE while the first core is still starting after some seconds."""
        try:
            return await asyncio.wait_for(self._describer.card(), _DESCRIBE_SECONDS)
        except TimeoutError:
            return await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine core is starting: try again soon")

    async def Generate(  # noqa: N802  # the protocol's name
        self, request_iterator: AsyncIterator[pb.Command], context: CommandContext
    ) -> None:
        """Serve one connection until it breaks, or its client is done and has everything."""
        connection = Connection(self._outbox_bytes, self._dispatcher.cut)
        self._connections.add(connection)
        reading = asyncio.create_task(self._read(connection, request_iterator))
        writing = asyncio.create_task(connection.pump(context.write))
        try:
            if self._stopping:
                connection.no_more_commands()
            await self._until_over(connection, reading, writing)
        finally:
            self._connections.discard(connection)
            self._dispatcher.drop(connection)
            reading.cancel()
            writing.cancel()
        if connection.failed.done():
            await context.abort(*connection.failed.result())
        if self._stopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down")

    async def Control(  # noqa: N802  # the protocol's name
        self,
        request_iterator: AsyncIterator[pb.ControlCommand],
        context: "grpc.aio.ServicerContext[pb.ControlCommand, pb.ControlEvent]",
    ) -> None:
        """Serve a controller until a newer one comes."""
        await self._hub.serve(request_iterator, context)

    async def Preview(  # noqa: N802  # the protocol's name
        self, request: pb.PreviewRequest, context: "grpc.aio.ServicerContext[pb.PreviewRequest, pb.PreviewReport]"
    ) -> pb.PreviewReport:
        """Say what proposed limits would have done."""
        try:
            return await self._previewer.preview(request)
        except PreviewError as error:
            return await context.abort(error.code, str(error))

    async def ListSessions(  # noqa: N802  # the protocol's name
        self, request: pb.SessionQuery, context: "grpc.aio.ServicerContext[pb.SessionQuery, pb.SessionPage]"
    ) -> pb.SessionPage:
        """Return a page of a tenant's sessions."""
        try:
            return await self._sessions.list(request)
        except SessionError as error:
            return await context.abort(error.code, str(error))

    async def ChangeSession(  # noqa: N802  # the protocol's name
        self, request: pb.SessionChange, context: "grpc.aio.ServicerContext[pb.SessionChange, pb.Session]"
    ) -> pb.Session:
        """Pin, bring up or erase a session."""
        try:
            return await self._sessions.change(request)
        except SessionError as error:
            return await context.abort(error.code, str(error))

    def stop(self) -> None:
        """End every Generate stream once its events are out, and the Control stream."""
        self._stopping = True
        self._hub.stop()
        for connection in self._connections:
            connection.no_more_commands()

    async def _until_over(
        self, connection: Connection, reading: "asyncio.Task[None]", writing: "asyncio.Task[None]"
    ) -> None:
        """Return when the connection has failed or everything is written; raise what reading or writing raised."""
        waiting: set[asyncio.Future[Any]] = {reading, writing, connection.failed}
        while not (writing.done() or connection.failed.done()):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()

    async def _read(self, connection: Connection, commands: AsyncIterator[pb.Command]) -> None:
        async for command in commands:
            self._command(connection, command)
        connection.no_more_commands()

    def _command(self, connection: Connection, command: pb.Command) -> None:
        match command.WhichOneof("command"):
            case "submit" if command.submit.stream in connection.requests:
                message = f"stream {command.submit.stream} is in use on this connection: number every request anew"
                connection.fail(grpc.StatusCode.INVALID_ARGUMENT, message)
            case "submit":
                self._dispatcher.submit(connection, command.submit)
            case "cancel":
                self._dispatcher.cancel(connection, command.cancel.stream)
            case "prefetch":
                self._sessions.prefetch(command.prefetch)


class Server:
    """Listens on the configured address, with the token check in front of every call."""

    def __init__(self, config: EngineConfig, service: EngineService) -> None:
        """Bind.

        Raises:
            ConfigError: the address is in use or cannot be listened on, or the TLS files cannot be read.
        """
        self._service = service
        self._server = grpc.aio.server(interceptors=[TokenInterceptor(config.token)], options=_OPTIONS)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack it
        rpc.add_EngineServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]  # generated
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._socket = unix_path(config.address)
        if self._socket is not None:
            claim_socket(self._socket)
        self.address = dialable(config.address, self._bind(config))
        if leaves_machine(config.address) and not config.tls_cert:
            log.warning(
                "plain_text", hint="other machines can reach this address: set ENGINE_TLS_CERT and ENGINE_TLS_KEY"
            )

    async def start(self) -> None:
        """Take calls; health says NOT_SERVING until `set_serving`."""
        await self.set_serving(False)
        await self._server.start()
        if self._socket is not None:
            self._socket.chmod(0o600)
        log.info("listening", address=self.address)

    async def set_serving(self, serving: bool) -> None:
        """Set what the health service answers."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)

    async def announce_stop(self) -> None:
        """Let health say NOT_SERVING for good."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """End the streams, then the server; its socket goes with it."""
        self._service.stop()
        await self._server.stop(grace_seconds)
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    def _bind(self, config: EngineConfig) -> int:
        try:
            if not config.tls_cert:
                return self._server.add_insecure_port(config.address)
            pair = (_read_pem("ENGINE_TLS_KEY", config.tls_key), _read_pem("ENGINE_TLS_CERT", config.tls_cert))
            return self._server.add_secure_port(config.address, grpc.ssl_server_credentials([pair]))
        except RuntimeError:
            raise ConfigError(
                f"ENGINE_ADDRESS={config.address!r}: cannot listen there; it is in use or not of this machine"
            ) from None


def _read_pem(setting: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}={path!r}: {error.strerror}") from error
