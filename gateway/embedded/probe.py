"""Ask the running product over HTTP whether it is ready."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_SECONDS = 5


def get_json(url: str, *, key: str = "") -> Any | None:
    """Return the JSON of a 200 answer, or None while there is none."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  # our own http address
            body = answer.read()
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return None
    try:
        return json.loads(body)
    except ValueError:
        return None


def is_ready(base_url: str) -> bool:
    """Say whether web answers `/readyz` with 200."""
    request = urllib.request.Request(f"{base_url}/readyz")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def listed_models(base_url: str, key: str) -> list[str]:
    """Return the ids of `/v1/models` as the owner of `key` sees them."""
    answer = get_json(f"{base_url}/v1/models", key=key)
    data = answer.get("data", []) if isinstance(answer, dict) else []
    return [str(model["id"]) for model in data if isinstance(model, dict) and "id" in model]
