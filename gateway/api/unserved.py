"""What is asked for in vain: OpenAI's endpoints that aren't served, sockets elsewhere, and paths that lack `/v1`."""

import uuid

from django.urls import Resolver404, resolve
from starlette.types import Receive, Scope, Send

from gateway.api.errors import ApiError, MethodNotAllowed, NotFound, UpgradeRequired

SOCKET_PATH = "/v1/realtime"
OWN_PATHS = ("/api/", "/admin/", "/metrics", "/ws/")  # Django answers them by itself, whether they are there or not
UNSERVED = {  # the beginning of a path below /v1, and what it would be
    "assistants": "Assistants",
    "audio": "Audio",
    "batches": "Batches",
    "chatkit": "ChatKit",
    "containers": "Containers",
    "conversations": "Conversations",
    "evals": "Evals",
    "files": "Files",
    "fine_tuning": "Fine-tuning",
    "images": "Images",
    "moderations": "Moderations",
    "organization": "Administration: use `/api/v1/`, to which the console belongs;",
    "realtime": "Realtime over anything but the websocket `/v1/realtime`",
    "responses/compact": "Compaction of responses",
    "skills": "Skills",
    "threads": "Threads",
    "uploads": "Uploads",
    "vector_stores": "Vector stores",
    "videos": "Videos",
}


def unknown(method: str, path: str) -> ApiError:
    """Return the error for a path of the API that has no endpoint."""
    below = path.removeprefix("/v1/")
    if path == SOCKET_PATH:
        return UpgradeRequired(
            f"{SOCKET_PATH} is a websocket: connect with `Upgrade: websocket`. A proxy in between must pass the "
            "headers `Upgrade` and `Connection` on"
        )
    for beginning, name in UNSERVED.items():
        if path.startswith("/v1/") and f"{below}/".startswith(f"{beginning}/"):
            return NotFound(f"{name} isn't served: {method} {path[:200]}")
    return NotFound(f"Unknown path {method} {path[:200]}")


def not_allowed(method: str, path: str) -> ApiError:
    """Return the error for a path that is there, with other methods."""
    if path == "/v1/responses/compact":  # to the router a response's id
        return unknown(method, path)
    return MethodNotAllowed(f"{method} isn't allowed on {path[:200]}")


def lacks_prefix(scope: Scope) -> bool:
    """Tell whether a request for a path that isn't there was meant for the API: its body or its key looks like it."""
    path: str = scope["path"]
    if path.startswith(OWN_PATHS) or not _is_of_a_program(scope):
        return False
    return not any(map(_is_page, (path, f"{path}/")))


async def refuse_path(scope: Scope, send: Send, base_url: str) -> None:
    """Answer a request that lacks the API's prefix, with the address that it lacks."""
    path = scope["path"][:200]
    error = NotFound(
        f"Unknown path {scope['method']} {path}: the API is below {base_url}/v1, so make that the base_url"
    )
    await _send(error, send, "http.response", [(b"connection", b"close")])  # its body is not read


async def refuse_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a websocket on a path that has none: before the handshake, with a body where the server can send one."""
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    error = NotFound(f"There is no websocket at {scope['path'][:200]}: it is at {SOCKET_PATH}")
    headers = [(b"x-request-id", f"req_{uuid.uuid4().hex}".encode())]
    await _send(error, send, "websocket.http.response", headers)


async def _send(error: ApiError, send: Send, kind: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = error.json()
    about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": f"{kind}.start", "status": error.status, "headers": [*about, *headers]})
    await send({"type": f"{kind}.body", "body": body})


def _is_of_a_program(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return True
        if name == b"content-type" and scope["method"] == "POST" and value.startswith(b"application/json"):
            return True
    return False


def _is_page(path: str) -> bool:
    try:
        resolve(path)
    except Resolver404:
        return False
    return True
