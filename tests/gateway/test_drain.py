"""A web process that is told to stop, and what it is made of."""

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.gateway.wire.stack import ROOT, Process, Stack, TenantInTest, is_ready, wait_for

HELLO = [{"role": "user", "content": "hello"}]
SHORT = {"model": "tiny", "messages": HELLO, "max_tokens": 600, "ignore_eos": True, "stream": True}
ENDLESS = SHORT | {"max_tokens": 30_000}  # it is cut off long before its end


class Reader(threading.Thread):
    """Reads one stream in a thread."""

    def __init__(self, url: str, raw: str, body: dict[str, Any]) -> None:
        super().__init__()
        self._request = (url, raw, body)
        self.began = threading.Event()
        self.text = ""
        self.start()
        assert self.began.wait(60)

    def run(self) -> None:
        """Read to the end."""
        url, raw, body = self._request
        headers = {"authorization": f"Bearer {raw}"}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60) as response:
            for part in response.iter_text():
                self.text += part
                self.began.set()


def test_streams_finish_before_the_end(stack: Stack, tenant: TenantInTest) -> None:
    """After SIGTERM a stream and a websocket response run to their ends, the socket is closed with 1012."""
    process, port = stack.start_web(DRAIN_SECONDS="90")
    raw = tenant.key()
    protocols = ["realtime", f"openai-insecure-api-key.{raw}"]
    with connect(
        f"ws://127.0.0.1:{port}/v1/realtime", subprotocols=protocols, proxy=None, open_timeout=60
    ) as websocket:
        response = {"model": "tiny", "input": "hello", "max_output_tokens": 600, "ignore_eos": True}
        websocket.send(json.dumps({"type": "response.create", "response": response}))
        reader = Reader(f"http://127.0.0.1:{port}", raw, SHORT)
        process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(port), 90, "no new connections")
        kinds = []
        while kinds[-1:] != ["response.done"]:
            kinds.append(json.loads(websocket.recv(timeout=60))["type"])
        assert json.loads(websocket.recv(timeout=60))["type"] == "rate_limits.updated"
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(timeout=60)
    reader.join(60)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason.split(":")[0]) == (1012, "restart")
    assert reader.text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in reader.text
    process.stop()


def test_what_takes_too_long_is_ended(stack: Stack, tenant: TenantInTest) -> None:
    """A stream that outlives the time gets an error event and [DONE]; nothing stays running."""
    process, port = stack.start_web(DRAIN_SECONDS="0")
    reader = Reader(f"http://127.0.0.1:{port}", tenant.key(), ENDLESS)
    process.popen.send_signal(signal.SIGTERM)
    reader.join(60)
    frames = reader.text.split("\n\n")
    assert frames[-2] == "data: [DONE]"
    assert json.loads(frames[-3].removeprefix("data: "))["error"]["code"] == "server_is_overloaded"
    process.stop()
    record = wait_for(tenant.usage)[0]
    assert record["finish_reason"] == "cancelled"


def test_a_second_signal_ends_streams_at_once(stack: Stack, tenant: TenantInTest) -> None:
    """Whoever is in a hurry signals twice: streams get their error event, and the process ends."""
    process, port = stack.start_web(DRAIN_SECONDS="60")
    reader = Reader(f"http://127.0.0.1:{port}", tenant.key(), ENDLESS)
    process.popen.send_signal(signal.SIGTERM)
    wait_for(lambda: refuses(port), 90, "no new connections")
    process.popen.send_signal(signal.SIGINT)
    reader.join(60)
    frames = reader.text.split("\n\n")
    assert frames[-2] == "data: [DONE]"
    assert json.loads(frames[-3].removeprefix("data: "))["error"]["code"] == "server_is_overloaded"
    process.stop()


def test_killed_web_process_leaves_nothing(stack: Stack, tenant: TenantInTest) -> None:
    """After kill -9 the worker ends the process's requests, and the ledger has what they generated."""
    process, port = stack.start_web()
    readers = [httpx.Client(timeout=60), httpx.Client(timeout=60)]
    for client in readers:
        body = ENDLESS
        headers = {"authorization": f"Bearer {tenant.key()}"}
        request = client.build_request(
            "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers
        )
        next(client.send(request, stream=True).iter_text())
    process.popen.kill()
    process.popen.wait()
    records = wait_for(lambda: len(tenant.usage()) == 2 and tenant.usage())
    assert {record["finish_reason"] for record in records} == {"cancelled"}
    for client in readers:
        client.close()


def refuses(port: int) -> bool:
    """Say whether nobody listens."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            return False
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it closed with our connection still unanswered
        return True


def test_inherited_listening_socket(stack: Stack, tenant: TenantInTest) -> None:
    """Served from an inherited socket, the process knows its callers' addresses and sends tokens without delay."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "gateway.asgi:application", "--fd", "0", "--lifespan", "on"]
        process = Process("web-inherited", command, stack.env, stack.folder, stdin=listener)
        try:
            wait_for(lambda: is_ready(port, process), 150)
            headers = {"authorization": f"Bearer {tenant.key(ip_ranges=['127.0.0.1/32'])}"}
            assert httpx.get(f"http://127.0.0.1:{port}/v1/models", headers=headers, timeout=60).status_code == 200
            assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        finally:
            process.stop()


def test_no_torch_and_little_memory(stack: Stack, tenant: TenantInTest) -> None:
    """A web process that has served every surface has no torch in it and stays within 250 MB."""
    process, port = stack.start_web()  # its own: what others have sent to a shared one may be large
    try:
        client = stack.openai(tenant.key(), base_url=f"http://127.0.0.1:{port}/v1")
        client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
        client.completions.create(model="plain", prompt="hello", max_tokens=4)
        client.responses.create(model="tiny", input="hello", max_output_tokens=4)
        client.embeddings.create(model="tiny", input="hello")
        httpx.get(f"http://127.0.0.1:{port}/sign-in/", timeout=60)
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.stop()
    assert "libtorch" not in maps
    assert "/torch/" not in maps
    resident_kb = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert resident_kb < 250 * 1000


def test_importing_the_application_loads_no_torch(stack: Stack) -> None:
    """`gateway.asgi` and all it imports are free of torch."""
    code = "import sys, gateway.asgi; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=stack.env, check=True)
