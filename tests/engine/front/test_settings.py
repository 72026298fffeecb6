"""What a worker says when it cannot start, and what it never loads."""

import http.server
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine.errors import ConfigError
from engine.front.address import check_address, claim_socket
from engine.front.announce import Announcer
from engine.front.link import PATH_MAX_BYTES, link_folder
from engine.protocol import pb, rpc
from tests.engine.front.client import channel
from tests.engine.front.conftest import Run, StartWorker
from tests.engine.front.process import REPOSITORY, TOKEN, WorkerProcess, wait_for
from tests.engine.front.scripted_core import COUNT


def last_line(worker: WorkerProcess) -> str:
    """The last line that a worker wrote."""
    return worker.text().splitlines()[-1]


def test_front_never_loads_torch(worker: WorkerProcess) -> None:
    """Nothing of torch is mapped into the running front, and its modules do not import it."""
    assert "torch" not in Path(f"/proc/{worker.pid}/maps").read_text()
    code = "import sys, engine.__main__, engine.front.worker, engine.front.logs; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ENGINE_TOKEN": ""}, "ENGINE_TOKEN is not set"),
        ({"ENGINE_ADDRESS": "nonsense"}, "ENGINE_ADDRESS='nonsense': write host:port or unix:/path"),
        ({"ENGINE_ADDRESS": "unix:/tmp/" + "x" * 120}, "107 bytes"),
        ({"ENGINE_ADDRESS": "203.0.113.7:1"}, "cannot listen there"),
        ({"ENGINE_ANNOUNCE_URL": "ftp://x"}, "ENGINE_ANNOUNCE_URL"),
        ({"ENGINE_ANNOUNCE_URL": "http://x", "ENGINE_ADDRESS": "0.0.0.0:0"}, "ENGINE_ANNOUNCE_ADDRESS"),
        ({"ENGINE_TLS_CERT": "/none", "ENGINE_TLS_KEY": "/none"}, "ENGINE_TLS_KEY='/none'"),
        ({"ENGINE_TLS_CERT": "/none"}, "go together"),
        ({"ENGINE_STATE_DIR": "/proc/none"}, "cannot be written"),
        ({"ENGINE_MODEL": "/no/such/model"}, "no such folder"),
        ({"ENGINE_KV_BYTES": "many"}, "ENGINE_KV_BYTES='many'"),
        ({"ENGINE_KV_BYTES": "900TiB"}, "the engine core refused its settings"),
        ({"ENGINE_THREADS": "-2"}, "ENGINE_THREADS=-2"),
        ({"ENGINE_MAX_CONTEXT": "-1"}, "ENGINE_MAX_CONTEXT=-1"),
        ({"ENGINE_DRAIN_SECONDS": "-1"}, "ENGINE_DRAIN_SECONDS=-1"),
    ],
)
def test_wrong_setting_is_one_line(make_worker: StartWorker, settings: dict[str, str], says: str) -> None:
    """A wrong setting ends the worker with status 2 and a last line that names it."""
    worker = make_worker(scripted=False, **settings).start()
    assert worker.wait() == 2
    assert last_line(worker).startswith("engine: ")
    assert says in last_line(worker)
    assert "Traceback" not in worker.text()


def test_second_worker_on_one_folder_is_refused(make_worker: StartWorker) -> None:
    """Two workers never share a state folder: the second says so and leaves the first alone."""
    first = make_worker().start().wait_ready()
    second = make_worker(scripted=False, ENGINE_ADDRESS="127.0.0.1:0").start()
    assert second.wait() == 2
    assert "another worker is using it" in last_line(second)
    assert first.terminate() == 0


def test_socket_in_use_is_refused(make_worker: StartWorker, folder: Path) -> None:
    """A socket on which another worker listens is not taken over."""
    first = make_worker().start().wait_ready()
    second = make_worker(scripted=False, ENGINE_STATE_DIR=str(folder / "other")).start()
    assert second.wait() == 2
    assert "another worker is listening there" in last_line(second)
    assert first.terminate() == 0


def test_stale_socket_is_removed_and_a_file_is_not(folder: Path) -> None:
    """What a killed worker left behind makes room; a file that is no socket stays."""
    path = folder / "engine.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(os.fspath(path))
    claim_socket(path)
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        claim_socket(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "[::1]:0", "unix:/run/x.sock", "unix:x.sock", "engine:65535"])
def test_good_addresses(address: str) -> None:
    """Host and port, and socket paths, are taken."""
    check_address(address)


@pytest.mark.parametrize("address", ["", ":1", "host", "host:", "host:70000", "unix:", "unix:/"])
def test_bad_addresses(address: str) -> None:
    """Anything else is refused with the accepted forms."""
    with pytest.raises(ConfigError, match="ENGINE_ADDRESS"):
        check_address(address)


def test_deep_state_folder_links_through_tmp(folder: Path) -> None:
    """A state folder whose path is too long for a socket gets a private folder under /tmp, the same one each time."""
    deep = folder / ("d" * 100)
    deep.mkdir()
    link = link_folder(deep)
    assert link == link_folder(deep) != link_folder(folder)
    assert len(os.fsencode(link)) < PATH_MAX_BYTES - 20
    assert link.stat().st_mode & 0o777 == 0o700
    link.chmod(0o755)
    with pytest.raises(ConfigError, match="private"):
        link_folder(deep)
    link.rmdir()


def test_worker_serves_on_a_port_with_tls(make_worker: StartWorker, folder: Path, run: Run) -> None:
    """With certificate and key the worker speaks TLS alone, on whatever port it was given."""
    request = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout key.pem "
        "-out cert.pem -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(shlex.split(request), cwd=folder, check=True, capture_output=True)
    tls = {"ENGINE_TLS_CERT": str(folder / "cert.pem"), "ENGINE_TLS_KEY": str(folder / "key.pem")}
    worker = make_worker(ENGINE_ADDRESS="localhost:0", **tls).start().wait_ready()
    address = worker.events("listening")[0]["address"]
    credentials = grpc.ssl_channel_credentials((folder / "cert.pem").read_bytes())

    async def story() -> None:
        async with grpc.aio.secure_channel(address, credentials) as secure:
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            card = await rpc.EngineStub(secure).Describe(pb.DescribeRequest(), metadata=metadata)
            assert card.model == "tiny"
        async with channel(address) as client:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.describe()
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE

    run(story())


class ControlPlane(http.server.BaseHTTPRequestHandler):
    """Answers announcements with what the server's `statuses` say, then 200."""

    def do_POST(self) -> None:  # the base class's name
        """Keep the announcement."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.path, self.headers["Authorization"], body))  # type: ignore[attr-defined]
        statuses = self.server.statuses  # type: ignore[attr-defined]
        self.send_response(statuses.pop(0) if statuses else 200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """Say nothing."""


@pytest.fixture
def control_plane() -> Iterator[http.server.ThreadingHTTPServer]:
    """A control plane that fails twice before it takes announcements."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ControlPlane)
    server.received, server.statuses = [], [500, 302]  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_worker_announces_itself_until_it_is_heard(
    make_worker: StartWorker, control_plane: http.server.ThreadingHTTPServer
) -> None:
    """The worker says who and where it is once it is ready, again until a 2xx, and logs the change of state alone."""
    url = f"http://127.0.0.1:{control_plane.server_port}"
    worker = make_worker(ENGINE_ANNOUNCE_URL=url, ENGINE_WORKER_ID="w-7").start().wait_ready()
    wait_for(lambda: worker.events("announced"), "the announcement")
    received = control_plane.received  # type: ignore[attr-defined]
    assert len(received) == 3
    path, authorization, body = received[-1]
    assert (path, authorization) == ("/api/v1/workers/announce/", f"Bearer {TOKEN}")
    digest = body.pop("digest")
    assert len(digest) == 64
    assert body == {
        "worker_id": "w-7",
        "address": worker.address,
        "model": "tiny",
        "kv_bytes": 4096 * 1024,
        "block_bytes": 1024,
        "max_context": 1 << 15,
    }
    assert len(worker.events("announce_failed")) == 1


def test_announce_address_may_differ(make_worker: StartWorker, control_plane: http.server.ThreadingHTTPServer) -> None:
    """What others dial may be another address than the one that the worker listens on."""
    url = f"http://127.0.0.1:{control_plane.server_port}"
    make_worker(ENGINE_ANNOUNCE_URL=url, ENGINE_ANNOUNCE_ADDRESS="engine.internal:7070").start()
    received = control_plane.received  # type: ignore[attr-defined]
    wait_for(lambda: received, "the announcement")
    assert received[0][2]["address"] == "engine.internal:7070"


def test_announcer_refuses_what_is_no_address() -> None:
    """Only http and https addresses are announced to."""
    with pytest.raises(ConfigError, match="ENGINE_ANNOUNCE_URL"):
        Announcer("file:///etc/passwd", "token")


def test_log_has_no_prompt_and_no_token(worker: WorkerProcess, run: Run) -> None:
    """Neither the worker's token nor anything of a request's text is ever written to the log."""

    async def story() -> None:
        async with channel(worker.address) as client:
            stream = client.generate()
            await stream.end(await stream.submit([COUNT, 20], key="key-of-the-client", stop=["stop-of-the-client"]))

    run(story())
    assert worker.terminate() == 0
    for secret in (TOKEN, "key-of-the-client", "stop-of-the-client", "ABCDEF"):
        assert secret not in worker.text()
