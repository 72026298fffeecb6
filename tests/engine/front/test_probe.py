"""The container's health check tells a serving worker from one that is not there, not ready, or not ours."""

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.front.probe import probe
from tests.engine.front.process import TOKEN, WorkerProcess


def test_a_ready_worker_passes(shared_worker: WorkerProcess) -> None:
    """No reason is given when the core is ready."""
    assert probe(EngineConfig(address=shared_worker.address, token=TOKEN)) == ""


@pytest.mark.parametrize("address", ["unix:{folder}/engine.sock", "127.0.0.1:1", "0.0.0.0:1"])
def test_nobody_listening_is_named(folder: Path, address: str) -> None:
    """The reason names the address as it was dialled."""
    address = address.format(folder=folder)
    assert address.replace("0.0.0.0", "127.0.0.1") in probe(EngineConfig(address=address, token=TOKEN))


def test_a_wrong_token_fails(shared_worker: WorkerProcess) -> None:
    """A worker that does not know the token does not count as ours."""
    assert "UNAUTHENTICATED" in probe(EngineConfig(address=shared_worker.address, token="another"))


def test_a_missing_certificate_handshake_fails() -> None:
    """With TLS set, a port without TLS is not healthy."""
    config = EngineConfig(address="127.0.0.1:1", token=TOKEN, tls_cert="cert.pem", tls_key="key.pem")
    assert "no TLS" in probe(config)
