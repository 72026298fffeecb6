"""The story of a worker that an operator drains, through real processes.

operator ──POST drain──▶ web ──NOTIFY──▶ controller ──Drain──▶ engine; every web process leaves it out
a running stream ends by itself; a new request is a 503 that says to come back, until the worker takes requests again
"""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.product import RunningProduct, wait_for

pytestmark = pytest.mark.flow


@pytest.fixture
def operator(product: RunningProduct) -> Iterator[httpx.Client]:
    """Return an operator's client of the management API; at the end no worker drains."""
    headers = {"authorization": f"Bearer {product.serve['operator']['api_key']}"}
    origin = product.serve["base_url"].removesuffix("/v1")
    with httpx.Client(base_url=f"{origin}/api/v1", headers=headers, timeout=60) as client:
        yield client
        drain(client, False)


def drain(operator: httpx.Client, draining: bool) -> None:
    """Let every worker drain, or take requests again."""
    for worker in operator.get("/workers/").raise_for_status().json()["data"]:
        operator.post(f"/workers/{worker['id']}/drain/", json={"draining": draining}).raise_for_status()


def test_a_drained_worker_finishes_what_it_has(product: RunningProduct, operator: httpx.Client) -> None:
    """Its stream goes on to the end, new requests are told to come back, and are served when it is over."""
    key, model = product.serve["tenants"]["minnow"]["api_key"], product.serve["model"]
    client = openai.OpenAI(base_url=product.serve["base_url"], api_key=key, max_retries=0)

    def refusal() -> openai.InternalServerError | None:
        try:
            client.completions.create(model=model, prompt="hello", max_tokens=1)
        except openai.InternalServerError as error:
            return error
        return None

    extra = {"ignore_eos": True}
    with client.completions.create(
        model=model,
        prompt="hello",
        max_tokens=1500,
        stream=True,
        extra_body=extra,
        stream_options={"include_usage": True},
    ) as stream:
        next(iter(stream))
        drain(operator, True)
        wait_for(refusal, 90, "new requests to be told to come back")
        chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 1500
    refused = refusal()
    assert refused is not None
    assert (refused.status_code, refused.code) == (503, "server_is_overloaded")
    assert refused.response.headers["retry-after"]
    drain(operator, False)
    wait_for(lambda: refusal() is None, 90, "requests to be served again")
