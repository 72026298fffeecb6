"""The content of `var/serve.json` (DESIGN 3.5): all that a client of the embedded product needs to know."""

from typing import Any

from tenants.contracts import DemoAccess, DemoAccount


def serve_json(url: str, model: str, demo: DemoAccess) -> dict[str, Any]:
    """Return the file's content; `url` has no trailing slash."""
    return {
        "base_url": f"{url}/v1",
        "ws_url": f"{url.replace('http', 'ws', 1)}/v1/realtime",
        "console_url": f"{url}/",
        "model": model,
        "operator": _account(demo.operator),
        "tenants": {slug: _account(account) | {"slug": slug} for slug, account in demo.tenants.items()},
    }


def _account(account: DemoAccount) -> dict[str, str]:
    return {"email": account.email, "password": account.password, "api_key": account.api_key}
