"""`GET /v1/models` and `GET /v1/models/{id}`."""

from typing import Any

from gateway.api.auth import check_model
from gateway.api.chat import authenticate
from gateway.api.errors import ModelNotFound, Overloaded
from gateway.api.exchange import Exchange
from gateway.workers.registry import WorkerRegistry
from tenants.contracts import KeyGrant


async def list_models(exchange: Exchange) -> None:
    """List the models that the key may use."""
    grant = await authenticate(exchange, scope="models")
    names = visible_names(exchange.web.registry, grant)
    await exchange.json({"object": "list", "data": [_card(exchange, name) for name in names]})


async def retrieve_model(exchange: Exchange) -> None:
    """Show one model; a hidden one doesn't exist. While no worker is known, nobody can say which ones do."""
    grant = await authenticate(exchange, scope="models")
    name = exchange.scope["path_params"]["model"]
    check_model(grant, name)
    names = exchange.web.registry.names()
    if not names:
        raise Overloaded("No engine worker is up. Try again in a moment.")
    if name not in names:
        raise ModelNotFound(name)
    await exchange.json(_card(exchange, name))


def visible_names(registry: WorkerRegistry, grant: KeyGrant) -> list[str]:
    """Return the names of the models that a key may use, in order."""
    return sorted(name for name in registry.names() if not grant.models or name in grant.models)


def _card(exchange: Exchange, name: str) -> dict[str, Any]:
    registry = exchange.web.registry
    return {"id": name, "object": "model", "created": registry.created(name), "owned_by": "tollgate"}
