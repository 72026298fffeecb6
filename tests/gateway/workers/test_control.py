"""A Control stream opens with a Hello, over a unix socket or TLS, or says in one line why not."""

import asyncio
import datetime
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from engine.protocol import engine_pb2 as pb
from engine.protocol.engine_pb2_grpc import EngineServicer, add_EngineServicer_to_server
from gateway.workers import control
from gateway.workers.client import Dial
from gateway.workers.control import ControlError, open_control


class Worker(EngineServicer):
    """Sends what the test says, then echoes drains as stats steps."""

    def __init__(self, *first: pb.ControlEvent) -> None:
        self.first = first

    async def Control(self, commands: AsyncIterator[pb.ControlCommand], context: Any) -> None:  # noqa: N802
        """Check the token, send the first events, answer each command."""
        if ("authorization", "Bearer secret") not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the worker token is missing or wrong")
        for event in self.first:
            await context.write(event)
        number = 0
        async for _ in commands:
            number += 1
            await context.write(pb.ControlEvent(stats=pb.Stats(step=number)))
            if number == 3:
                return


HELLO = pb.ControlEvent(hello=pb.Hello(worker_id="w", applied_version=3))


@asynccontextmanager
async def serving(worker: Worker, address: str, credentials: Any = None) -> AsyncIterator[str]:
    """Serve on `address`, port 0 for a free one, and give the address to dial."""
    server = grpc.aio.server()
    add_EngineServicer_to_server(worker, server)  # type: ignore[no-untyped-call]  # generated code
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield address.removesuffix(":0") + f":{port}" if address.endswith(":0") else address
    finally:
        await server.stop(0)


async def talk(dial: Dial) -> list[int]:
    """Open a stream, send three commands and return the steps of the answers."""
    async with open_control(dial) as stream:
        assert stream.hello.worker_id == "w"
        for _ in range(3):
            stream.send(pb.ControlCommand(drain=pb.Drain(draining=True)))
        return [event.stats.step async for event in stream.events()]


def test_commands_leave_and_events_arrive_in_order(tmp_path: Path) -> None:
    """A stream over a unix socket carries both ways until the worker ends it; TLS settings don't matter there."""

    async def story() -> None:
        async with serving(Worker(HELLO), f"unix:{tmp_path}/w.sock") as address:
            assert await talk(Dial(address=address, token="secret", ca_file="/nowhere.pem")) == [1, 2, 3]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (pb.ControlEvent(stats=pb.Stats()), "the first event is 'stats'"),
        (None, "no Hello within"),
    ],
)
def test_a_stream_without_hello_is_an_error(
    first: pb.ControlEvent | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that says something else first, or nothing, is not one of ours."""
    monkeypatch.setattr(control, "HELLO_SECONDS", 0.2)

    async def story() -> None:
        async with serving(Worker(*([first] if first else [])), f"unix:{tmp_path}/w.sock") as address:
            with pytest.raises(ControlError, match=reason):
                await talk(Dial(address=address, token="secret"))

    asyncio.run(story())


def test_a_wrong_token_is_an_error(tmp_path: Path) -> None:
    """The worker's own words come through."""

    async def story() -> None:
        async with serving(Worker(HELLO), f"unix:{tmp_path}/w.sock") as address:
            with pytest.raises(ControlError, match="UNAUTHENTICATED: the worker token"):
                await talk(Dial(address=address, token="guess"))

    asyncio.run(story())


def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    """An address without a listener fails at once."""
    with pytest.raises(ControlError, match="UNAVAILABLE"):
        asyncio.run(talk(Dial(address=f"unix:{tmp_path}/w.sock", token="secret")))


def test_tls_checks_who_is_there(tmp_path: Path) -> None:
    """With a CA the worker's certificate must be of that CA; plain text is not spoken."""
    certificate, key = make_certificate()
    (tmp_path / "ca.pem").write_bytes(certificate)
    (tmp_path / "other.pem").write_bytes(make_certificate()[0])
    credentials = grpc.ssl_server_credentials([(key, certificate)])

    async def story() -> None:
        async with serving(Worker(HELLO), "127.0.0.1:0", credentials) as address:
            assert await talk(Dial(address=address, token="secret", ca_file=str(tmp_path / "ca.pem"))) == [1, 2, 3]
            for wrong in (str(tmp_path / "other.pem"), ""):
                with pytest.raises(ControlError, match="UNAVAILABLE"):
                    await talk(Dial(address=address, token="secret", ca_file=wrong))
            with pytest.raises(ControlError, match=r"ENGINE_TLS_CA=.*missing\.pem cannot be read"):
                await talk(Dial(address=address, token="secret", ca_file=str(tmp_path / "missing.pem")))

    asyncio.run(story())


def make_certificate() -> tuple[bytes, bytes]:
    """Return a certificate of 127.0.0.1, signed by itself, and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "worker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private
