"""TLS before the gateway, as any deployment has it: the npm package opens its websockets with `wss` alone."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Secured:
    """Where the gateway is behind TLS, and the certificate to trust, in PEM."""

    base_url: str
    certificate: str


@contextlib.contextmanager
def behind_tls(base_url: str, folder: Path) -> Iterator[Secured]:
    """End TLS before the gateway at `base_url`; the certificate is kept in `folder`."""
    target = urlsplit(base_url)
    assert target.hostname is not None and target.port is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(folder))
    loop = asyncio.new_event_loop()
    proxy = _Proxy(target.hostname, target.port)
    server = loop.run_until_complete(asyncio.start_server(proxy.serve, _HOST, 0, ssl=context))
    port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield Secured(f"https://{_HOST}:{port}/v1", (folder / "certificate.pem").read_text())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(proxy.close(server))
        loop.close()


class _Proxy:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection's bytes on, both ways, until either side ends."""
        there, back = await asyncio.open_connection(*self._target)
        tasks = [asyncio.create_task(_pump(reader, back)), asyncio.create_task(_pump(there, writer))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in (writer, back):
            one.close()

    async def close(self, server: asyncio.Server) -> None:
        """End what is still open."""
        server.close()
        for task in [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this host that signs itself; return the paths of it and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tollgate test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(_HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return folder / "certificate.pem", folder / "key.pem"
