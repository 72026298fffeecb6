"""`python -m engine.front.probe`: exit status 0 when this machine's worker serves; for container health checks.

Reads the worker's own environment. Over TLS it asks less, since the certificate names the address that others dial: a
finished handshake counts.
"""

import ssl
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.config import EngineConfig
from engine.front.address import is_wildcard

TIMEOUT_SECONDS = 3.0


def probe(config: EngineConfig) -> str:
    """Return why the worker does not serve, or an empty string."""
    address = _local(config.address)
    if config.tls_cert:
        host, _, port = address.rpartition(":")
        try:
            ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=TIMEOUT_SECONDS)
        except OSError as error:
            return f"no TLS at {address}: {error}"
        return ""
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(),
                timeout=TIMEOUT_SECONDS,
                metadata=(("authorization", f"Bearer {config.token}"),),
            )
        except grpc.RpcError as error:
            return f"no answer at {address}: {error.code().name}"
    serving = health_pb2.HealthCheckResponse.SERVING
    return "" if answer.status == serving else "the core is not ready"


def _local(address: str) -> str:
    """Return the address as this machine dials it."""
    return f"127.0.0.1:{address.rpartition(':')[2]}" if is_wildcard(address) else address


if __name__ == "__main__":
    reason = probe(EngineConfig.from_env())
    if reason:
        sys.exit(f"engine: {reason}")
