"""Sessions through the OpenAI Python SDK: an extension that needs no other client."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.sdk.place import Place

LONG = "the tenant holds the block and the block holds the tokens " * 6


@pytest.mark.parametrize("field", ["session_id", "prompt_cache_key"])
def test_a_session_keeps_what_was_said(client: OpenAI, place: Place, name: str, field: str) -> None:
    """The next turn finds the last one's KV, under either name."""
    messages: list[Any] = [{"role": "user", "content": LONG}]
    first = client.chat.completions.create(
        model=place.model, messages=messages, max_tokens=8, extra_body={field: name, "session_ttl": 120}
    )
    messages += [first.choices[0].message, {"role": "user", "content": "go on"}]
    second = client.chat.completions.create(
        model=place.model, messages=messages, max_tokens=2, extra_body={field: name}
    )
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 50
    kept = client.get(f"/sessions/{name}", cast_to=object)
    assert isinstance(kept, dict)
    assert kept["num_turns"] == 2


def test_an_unknown_session(client: OpenAI, name: str) -> None:
    """A session that nobody has is a NotFoundError with a code of its own."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.get(f"/sessions/{name}", cast_to=object)
    assert caught.value.code == "session_not_found"
