"""A request's story: a tenant's key streams tokens from our own engine, and the ledger knows what it cost."""

import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from websockets.sync.client import connect

from tests.product import RunningProduct, wait_for

pytestmark = pytest.mark.flow

HELLO = [{"role": "user", "content": "hello world, how are you today?"}]


def test_a_request_from_key_to_ledger(product: RunningProduct) -> None:
    """The SDK streams with a tenant's key; stream, whole answer and socket say the same; each is in the ledger."""
    serve = product.serve
    minnow = serve["tenants"]["minnow"]
    with OpenAI(base_url=serve["base_url"], api_key=minnow["api_key"], max_retries=0) as client:
        model = client.models.list().data[0].id
        assert model == serve["model"]
        options = {"model": model, "messages": HELLO, "max_tokens": 24, "temperature": 0}
        whole = client.chat.completions.create(**options, extra_body={"ignore_eos": True})
        chunks = list(
            client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
            )
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 24
    said, response_id = over_websocket(serve["ws_url"], minnow["api_key"], model)
    assert said == text
    ids = {name.replace("chatcmpl-", "req_").replace("resp_", "req_") for name in (whole.id, chunks[0].id, response_id)}
    wait_for(lambda: ids <= ledger(serve, minnow["slug"]).keys(), 90, "three records in the ledger")
    tokens = [ledger(serve, minnow["slug"])[request_id]["completion_tokens"] for request_id in ids]
    assert tokens == [24, 24, 24]
    wrong = OpenAI(base_url=serve["base_url"], api_key=minnow["api_key"][:-1] + "~", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()


def over_websocket(url: str, raw: str, model: str) -> tuple[str, str]:
    """Generate the same over the realtime socket; return the text and the response's id."""
    response = {"model": model, "input": HELLO, "max_output_tokens": 24, "temperature": 0, "ignore_eos": True}
    text = ""
    protocols = ["realtime", f"openai-insecure-api-key.{raw}"]
    with connect(url, subprotocols=protocols, proxy=None, open_timeout=60) as socket:
        socket.send(json.dumps({"type": "response.create", "response": response}))
        while (event := json.loads(socket.recv(timeout=60)))["type"] != "response.done":
            text += event.get("delta", "")
    return text, event["response"]["id"]


def ledger(serve: dict[str, Any], slug: str) -> dict[str, dict[str, Any]]:
    """Return a tenant's newest usage records by request id, as the operator's API shows them."""
    url = serve["base_url"].removesuffix("/v1") + "/api/v1/usage/"
    headers = {"authorization": f"Bearer {serve['operator']['api_key']}"}
    answer = httpx.get(url, params={"tenant": slug}, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return {record["request_id"]: record for record in answer.json()["data"]}
