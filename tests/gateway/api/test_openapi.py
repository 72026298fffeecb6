"""The OpenAPI document of `/v1`: valid, complete, and what the pages in docs/api say too."""

import re
from typing import Any

import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from gateway.api import openapi
from gateway.api.app import build
from gateway.api.operations import OPERATIONS
from gateway.config import GatewayConfig
from tests.gateway.wire.stack import Stack
from tests.product import ROOT

PAGES = {
    "/v1/chat/completions": "chat.md",
    "/v1/completions": "completions.md",
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The document."""
    return openapi.document()


def test_it_is_valid(document: dict[str, Any]) -> None:
    """It is OpenAPI 3.1, and its schemas are JSON schemas."""
    OpenAPIV31SpecValidator(document).validate()


def test_it_has_every_route(tmp_path: Any) -> None:
    """No path of `/v1` is missing, no method, and nothing is described that isn't there."""
    app = build(GatewayConfig(), tmp_path)
    routes = {
        (method, re.sub(r"\{(\w+):path\}", r"{\1}", route.path))
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith("/v1/")
        for method in route.methods or ()
        if method != "HEAD"
    }
    described = {(operation.method, operation.path) for operation in OPERATIONS}
    assert described == routes - {("GET", "/v1/openapi.json")}


def test_every_operation_is_named_and_tells_its_errors(document: dict[str, Any]) -> None:
    """Each has a name of its own, words, and the errors that any request can meet."""
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        assert {"401", "403", "500", "503"} <= set(operation["responses"])
        if "requestBody" in operation:
            assert {"400", "408", "413", "415"} <= set(operation["responses"])


def test_every_struct_says_what_it_is(document: dict[str, Any]) -> None:
    """Each component has a description, and no reference leads nowhere."""
    schemas = document["components"]["schemas"]
    assert all(schema.get("description") for schema in schemas.values())
    told = set(re.findall(r'"#/components/schemas/([^"]+)"', msgspec.json.encode(document).decode()))
    assert told == set(schemas)


@pytest.mark.parametrize(("path", "page"), PAGES.items())
def test_every_field_is_on_its_page(document: dict[str, Any], path: str, page: str) -> None:
    """The page in docs/api names each field that the document has."""
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    fields = document["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[1]]["properties"]
    words = set(re.findall(r"`([a-z_]+)(?:[.\[:][^`]*)?`", (ROOT / "docs" / "api" / page).read_text(encoding="utf-8")))
    assert set(fields) - words == set()


def test_it_is_served_without_a_key(stack: Stack, document: dict[str, Any]) -> None:
    """The document is what the code says, and holds nothing that a key would protect."""
    with stack.http() as client:
        answer = client.get("/v1/openapi.json")
        page = client.get("/api/docs/v1/")
    assert answer.status_code == 200
    assert answer.headers["x-request-id"]
    assert answer.json() == msgspec.json.decode(msgspec.json.encode(document))
    assert page.status_code == 200
    assert "/v1/openapi.json" in page.text
