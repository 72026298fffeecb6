"""A short run of what `make fuzz` does for long: cases made of both OpenAPI documents."""

from typing import Any

import httpx
import pytest
from schemathesis import GenerationMode

from gateway.api.openapi import document
from tests.contract.documents import Campaign, closed, lean, named, placed
from tests.product import RunningProduct

CASES = 16  # of an operation of `/v1`
SERVED = 24  # of one that generates, made so that most are served
MANAGED = 4  # of an operation of the management API
OPERATIONS = [f"{method.upper()} {path}" for path, item in document()["paths"].items() for method in item]


@pytest.fixture(scope="module")
def v1(target: Any, stranger_key: str) -> Campaign:
    """The document of `/v1`, as it is served."""
    url = target.base_url.removesuffix("/v1")
    served = httpx.get(f"{url}/v1/openapi.json", timeout=120).json()
    return Campaign(closed(named(served, target.model)), url, {"authorization": f"Bearer {stranger_key}"})


@pytest.mark.parametrize("label", OPERATIONS)
def test_v1_answers_as_its_document_says(v1: Campaign, label: str) -> None:
    """No 5xx; status, headers and body are those of the document; what doesn't fit it is refused."""
    [operation] = [one for one in v1.operations() if one.label == label]
    v1.run(operation, CASES, 7)


@pytest.mark.parametrize("label", [label for label in OPERATIONS if label.startswith("POST") and "{" not in label])
def test_v1_serves_as_its_document_says(target: Any, stranger_key: str, label: str) -> None:
    """Of cases that are mostly served: what is served has the form that the document says."""
    url = target.base_url.removesuffix("/v1")
    served = httpx.get(f"{url}/v1/openapi.json", timeout=120).json()
    headers = {"authorization": f"Bearer {stranger_key}"}
    campaign = Campaign(closed(lean(named(served, target.model))), url, headers, modes=(GenerationMode.POSITIVE,))
    [operation] = [one for one in campaign.operations() if one.label == label]
    campaign.run(operation, SERVED, 7)
    assert campaign.statuses.get(200), campaign.statuses


def test_the_management_api_answers_as_its_document_says(product: RunningProduct, target: Any) -> None:
    """The same, with the key of a tenant's owner: of what changes anything, only that tenant's own can."""
    tenant = target.tenant()
    made = target.manage("POST", f"tenants/{tenant.slug}/management-keys/", {"name": "fuzz", "role": "owner"})
    url = target.base_url.removesuffix("/v1")
    served = httpx.get(f"{url}/api/schema/?format=json", headers={"accept": "application/json"}, timeout=120).json()
    campaign = Campaign(placed(served, tenant.slug), url, {"authorization": f"Bearer {made['secret']}"})
    for operation in campaign.operations():
        campaign.run(operation, MANAGED, 7)
