"""`/tokenize` and `/detokenize` through a real web process."""

import threading
from typing import Any

import httpx
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.admission.counting import MOST_LARGE
from gateway.api import tokens as module
from tests.engine.tiny_model import CHAT_TEMPLATE, make_tokenizer
from tests.gateway.wire.stack import Stack, TenantInTest

TEXTS = [
    "",
    " ",
    "hello world",
    "  two  spaces\n\n",
    "Straße, 東京 🙂",
    "<|im_start|>user\nx<|im_end|>",
    "\u00e9 and e\u0301",
]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


def post(stack: Stack, raw: str, path: str, **body: Any) -> httpx.Response:
    """Ask."""
    with stack.http(raw) as client:
        return client.post(path, json={"model": "tiny"} | body)


@pytest.mark.parametrize("text", TEXTS, ids=repr)
@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_round_trip(stack: Stack, tenant: TenantInTest, prefix: str, text: str) -> None:
    """Tokens are the tokenizer's own, and detokenised they are the text again, special tokens included."""
    raw = tenant.key()
    answer = post(stack, raw, f"{prefix}/tokenize", prompt=text).json()
    expected = make_tokenizer().encode(text).ids
    assert answer == {"count": len(expected), "max_model_len": 1 << 15, "tokens": expected, "token_strs": None}
    assert post(stack, raw, f"{prefix}/detokenize", tokens=expected).json() == {"prompt": text}


@pytest.mark.parametrize("ready", [True, False, None])
def test_messages(stack: Stack, tenant: TenantInTest, ready: bool | None) -> None:
    """A conversation is rendered by the model's template; what a chat request costs is what this counts."""
    raw = tenant.key()
    answer = post(stack, raw, "/tokenize", messages=MESSAGES, add_generation_prompt=ready).json()
    texts, _ = render_jinja_template(
        conversations=[MESSAGES], chat_template=CHAT_TEMPLATE, add_generation_prompt=ready is not False
    )
    assert answer["tokens"] == make_tokenizer().encode(texts[0]).ids
    if ready is not False:
        chat = post(stack, raw, "/v1/chat/completions", messages=MESSAGES, max_tokens=1).json()
        assert chat["usage"]["prompt_tokens"] == answer["count"]


def test_strings(stack: Stack, tenant: TenantInTest) -> None:
    """The vocabulary's own words are told where they are asked for."""
    answer = post(stack, tenant.key(), "/tokenize", prompt="hello world", return_token_strs=True).json()
    assert answer["token_strs"] == make_tokenizer().encode("hello world").tokens


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x" * (module.MAX_CHARACTERS + 1)}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ("/tokenize", {"messages": MESSAGES, "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/tokenize", {"prompt": "x", "colour": 1}, "colour"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [384]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "skip": True}, "skip"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_is_named(
    stack: Stack, tenant: TenantInTest, path: str, body: dict[str, Any], param: str
) -> None:
    """A wrong field is a 400 that names it."""
    response = post(stack, tenant.key(), path, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_no_chat_form(stack: Stack, tenant: TenantInTest) -> None:
    """A model without a template has no conversation to tokenise, and texts all the same."""
    raw = tenant.key()
    refused = post(stack, raw, "/tokenize", model="plain", messages=MESSAGES)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_chat_template")
    assert post(stack, raw, "/tokenize", model="plain", prompt="hello").json()["max_model_len"] == 2048


def test_access(stack: Stack, tenant: TenantInTest) -> None:
    """A key is needed, and one that may not use the model finds none."""
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert post(stack, "", path, **body).status_code == 401
        hidden = post(stack, tenant.key(models=["plain"]), path, **body)
        assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "model_not_found")
        assert post(stack, tenant.key(scopes=["models"]), path, **body).status_code == 403


def test_nothing_is_metered(stack: Stack) -> None:
    """No worker is asked and no tokens are charged; a call takes none of the requests that generate."""
    tenant = stack.tenant(rpm=1, tpm=60)
    raw = tenant.key()
    assert post(stack, raw, "/tokenize", prompt="hello " * 100).status_code == 200
    assert tenant.usage() == []
    chat = post(stack, raw, "/v1/chat/completions", messages=[MESSAGES[1]], max_tokens=1)
    assert chat.status_code == 200


COUNTING = [
    ("/tokenize", {"prompt": "x"}),
    ("/v1/detokenize", {"tokens": [1]}),
    ("/v1/responses/input_tokens", {"input": "x"}),
]


@pytest.mark.parametrize("whose", ["tenant", "key"])
@pytest.mark.parametrize(("path", "body"), COUNTING)
def test_calls_a_minute_are_limited(stack: Stack, path: str, body: dict[str, Any], whose: str) -> None:
    """All that count tokens share as many a minute as there are requests; what is left of them is told."""
    tenant = stack.tenant(**({"rpm": 1} if whose == "tenant" else {}))
    raw = tenant.key(**({"rpm": 1} if whose == "key" else {}))
    answer = post(stack, raw, path, **body)
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-limit-requests"] == "1"
    assert "x-ratelimit-limit-tokens" not in answer.headers
    for path, body in COUNTING:
        refused = post(stack, raw, path, **body)
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded")
        assert int(refused.headers["retry-after-ms"]) > 0


def test_large_texts_of_one_tenant_are_bounded(stack: Stack, tenant: TenantInTest) -> None:
    """More large texts at once than a tenant may have get 429 and a time to wait; none gets anything else."""
    raw, body = tenant.key(), {"model": "tiny", "prompt": "hello world " * (module.MAX_CHARACTERS // 12)}
    statuses: list[int] = []

    def ask() -> None:
        with stack.http(raw) as client:
            response = client.post("/tokenize", json=body)
            statuses.append(response.status_code)
            assert response.status_code == 200 or "retry-after-ms" in response.headers

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= MOST_LARGE
    assert post(stack, raw, "/tokenize", prompt="hello").status_code == 200
