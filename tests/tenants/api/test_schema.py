"""The OpenAPI schema and the docs page."""

import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.test import Client
from django.urls import get_resolver
from rest_framework.views import APIView

METHODS = {"get", "post", "patch", "put", "delete"}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Return the schema as it is served."""
    import yaml

    out = StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=out)
    return dict(yaml.safe_load(out.getvalue()))


def test_the_schema_is_valid_and_complete(schema: dict[str, Any]) -> None:
    """The paths that others rely on are in it, each operation with a name, words and its errors."""
    paths = schema["paths"]
    assert {
        "/api/v1/tenants/",
        "/api/v1/tenants/{slug}/",
        "/api/v1/tenants/{slug}/keys/",
        "/api/v1/tenants/{slug}/policy/",
        "/api/v1/tenants/{slug}/prefixes/",
        "/api/v1/tenants/{slug}/prefixes/{prefix_id}/",
        "/api/v1/share-groups/",
        "/api/v1/share-groups/{name}/",
        "/api/v1/share-groups/{name}/prefixes/",
        "/api/v1/share-groups/{name}/prefixes/{prefix_id}/",
        "/api/v1/policy-versions/{version}/acks/",
        "/api/v1/usage/",
        "/api/v1/workers/",
    } <= set(paths)
    operations = [operation for path in paths.values() for name, operation in path.items() if name in METHODS]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["description"]
        assert {"4XX", "5XX"} <= set(operation["responses"]), operation["operationId"]
        assert {"managementKey": []} in operation["security"]


def test_no_view_is_missing(schema: dict[str, Any]) -> None:
    """Every route below /api/v1/ that is a view of the API is described."""
    assert {path for path, _ in views(get_resolver().url_patterns)} == set(schema["paths"])


def views(patterns: list[Any], before: str = "/") -> Iterator[tuple[str, type[APIView]]]:
    """Yield path and class of the views of the management API, as the schema writes paths."""
    for pattern in patterns:
        path = before + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(pattern.pattern))
        if hasattr(pattern, "url_patterns"):
            yield from views(pattern.url_patterns, path)
        elif path.startswith("/api/v1/") and hasattr(pattern.callback, "cls"):
            yield path, pattern.callback.cls


@pytest.mark.parametrize("path", ["tenants/{slug}/policy/", "share-groups/{name}/"])
def test_a_change_of_limits_asks_for_if_match(schema: dict[str, Any], path: str) -> None:
    """A generated client cannot forget it."""
    patch = schema["paths"][f"/api/v1/{path}"]["patch"]
    (header,) = [parameter for parameter in patch["parameters"] if parameter["in"] == "header"]
    assert (header["name"], header["required"]) == ("If-Match", True)


def test_a_prefix_is_described_to_its_messages(schema: dict[str, Any]) -> None:
    """A generated client knows roles and contents, and that the acks of a group's version have no tenant."""
    parts = schema["components"]["schemas"]
    messages = parts["PrefixCreate"]["properties"]["messages"]
    message = parts[messages["items"]["$ref"].rsplit("/", 1)[1]]
    assert set(message["properties"]) == set(message["required"]) == {"role", "content"}
    assert parts["PrefixCreate"]["required"] == ["name"]
    assert parts["AcksAnswer"]["properties"]["tenant_id"]["nullable"] is True


def test_schema_and_docs_are_open_and_load_nothing_from_elsewhere(client: Client, db: None) -> None:
    """The docs page works on a machine without internet: each of its assets is a file of ours."""
    assert client.get("/api/schema/").status_code == 200
    page = client.get("/api/docs/")
    assert page.status_code == 200
    html = page.content.decode()
    assets = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert assets
    for asset in assets:
        assert asset.startswith("/static/")
        assert finders.find(asset.removeprefix("/static/")), asset
    assert not re.search(r"https?://(?!testserver)", html)
