"""Tells the control plane that this worker is here: at once until it listens, then every ten seconds.

One thread with the standard library's client, which follows no redirect and uses no proxy: the token goes to the
configured host alone.
"""

import http.client
import json
import ssl
import threading
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import structlog

from engine.errors import ConfigError

PATH = "/api/v1/workers/announce/"
_HEARTBEAT_SECONDS = 10.0
_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 0.2, 5.0
_TIMEOUT_SECONDS = 5.0

log = structlog.get_logger(part="announce")


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What the control plane learns of a worker."""

    worker_id: str
    address: str
    model: str
    digest: str
    kv_bytes: int
    block_bytes: int
    max_context: int


class Announcer:
    """The heartbeat. A failure is logged when it begins and when it ends."""

    def __init__(self, url: str, token: str) -> None:
        """Take the control plane's base address.

        Raises:
            ConfigError: it is no http address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"ENGINE_ANNOUNCE_URL={url!r}: write http://host:port or https://host")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") + PATH
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._stop = threading.Event()
        self._failing = ""
        self._announced = False

    def start(self, announcement: Announcement) -> None:
        """Begin to announce; the thread is a daemon, so an unreachable host never delays the exit."""
        body = json.dumps(asdict(announcement)).encode()
        threading.Thread(target=self._work, args=(body,), name="announce", daemon=True).start()

    def stop(self) -> None:
        """Announce no more."""
        self._stop.set()

    def _work(self, body: bytes) -> None:
        delay = _FIRST_DELAY_SECONDS
        while not self._stop.is_set():
            failure = self._post(body)
            self._note(failure)
            if failure:
                self._stop.wait(delay)
                delay = min(delay * 2, _LAST_DELAY_SECONDS)
            else:
                delay = _FIRST_DELAY_SECONDS
                self._stop.wait(_HEARTBEAT_SECONDS)

    def _post(self, body: bytes) -> str:
        """Send once. Return what failed, or nothing."""
        connection = self._connect()
        try:
            connection.request("POST", self._path, body=body, headers=self._headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        return "" if 200 <= status < 300 else f"the control plane answered {status}"

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_SECONDS, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_SECONDS)

    def _note(self, failure: str) -> None:
        if failure and not self._failing:
            log.warning("announce_failed", host=self._host, error=failure)
        elif not failure and (self._failing or not self._announced):
            log.info("announced", host=self._host)
            self._announced = True
        self._failing = failure
