"""A gateway that fails first: it refuses a number of requests as the gateway itself would, then passes on.

    http://127.0.0.1:PORT/<fault>/<times>/<name>/v1      `name`: whose requests are counted, one a test
    http://127.0.0.1:PORT/seen/<name>                    what has come, as JSON

Faults: `overloaded`, `limited`, `failed` and `never` answer with the gateway's own errors; `cut` closes the connection,
`silent` says nothing until the client has left.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from gateway.api.errors import ApiError, Overloaded, RateLimited, WorkerFailed

WAIT_SECONDS = 0.02  # that a refused client is told to wait
ERRORS: dict[str, Callable[[], ApiError]] = {
    "overloaded": lambda: Overloaded("No engine worker is up.", wait_seconds=WAIT_SECONDS),
    "limited": lambda: RateLimited("Rate limit reached.", wait_seconds=WAIT_SECONDS),
    "failed": lambda: WorkerFailed("The worker failed while it generated."),
    "never": lambda: RateLimited("It can never fit.", wait_seconds=None),
}
_KEPT = ("authorization", "content-type", "accept", "idempotency-key")


@dataclass
class Seen:
    """What has come under one name: the headers of each request that this suite looks at."""

    requests: list[dict[str, str]] = field(default_factory=list)


class Faulty(ThreadingHTTPServer):
    """The server. `target`: the gateway's host and port."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.seen: dict[str, Seen] = defaultdict(Seen)
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def base_url(self, fault: str, times: int, name: str) -> str:
        """Return what an SDK takes to meet `fault` so many `times`."""
        return f"{self.url}/{fault}/{times}/{name}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faulty

    def do_GET(self) -> None:
        """Answer what a test asks about, else as any request."""
        if self.path.startswith("/seen/"):
            with self.server.lock:
                seen = self.server.seen[self.path.removeprefix("/seen/")].requests
                self._answer(200, [], json.dumps(seen).encode())
            return
        self._serve()

    def do_POST(self) -> None:
        """Answer a request."""
        self._serve()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        _, fault, times, name, path = self.path.split("/", 4)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {key.lower(): value for key, value in self.headers.items()}
        with self.server.lock:
            requests = self.server.seen[name].requests
            requests.append(headers)
            is_over = len(requests) > int(times)
        if is_over:
            self._pass_on(f"/{path}", body, {key: value for key, value in headers.items() if key in _KEPT})
        elif fault in ERRORS:
            error = ERRORS[fault]()
            named = [(key.decode(), value.decode()) for key, value in error.headers]
            self._answer(error.status, [*named, ("x-request-id", "req_faulty")], error.json())
        else:
            self.close_connection = True
            if fault == "silent":
                self.rfile.read(1)  # returns when the client has left

    def _pass_on(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        connection = HTTPConnection(self.server.target, timeout=120)
        try:
            connection.request(self.command, path, body, headers)
            answer = connection.getresponse()
            kept = [(key, value) for key, value in answer.getheaders() if key.lower().startswith(("x-", "retry-"))]
            self._answer(answer.status, kept, answer.read(), answer.headers["content-type"])
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        for key, value in [*headers, ("content-type", kind), ("content-length", str(len(body)))]:
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def faulty(base_url: str) -> Iterator[Faulty]:
    """Run one before the gateway at `base_url`."""
    server = Faulty(urlsplit(base_url).netloc)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
