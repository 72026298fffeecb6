"""OpenAI's own realtime client."""

import pytest
from openai import OpenAI

from tests.gateway.wire.stack import Stack, TenantInTest

# The client opens its websocket in a way that the library behind it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")


def test_openai_client(stack: Stack, tenant: TenantInTest) -> None:
    """It connects with a bearer token, sets the session, adds an item, and reads a response in typed events."""
    client = stack.openai(tenant.key())
    text, kinds = "", []
    with client.realtime.connect(model="tiny") as connection:
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 8})
        content = [{"type": "input_text", "text": "hello"}]
        connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})  # type: ignore[typeddict-item]
        connection.response.create()
        for event in connection:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.done":
                break
    assert kinds[:4] == ["session.created", "session.updated", "conversation.item.added", "conversation.item.done"]
    assert "error" not in kinds
    assert event.response.output is not None
    assert event.response.usage is not None
    assert event.response.usage.output_tokens == 8 or event.response.status == "completed"
    part = event.response.output[0].content[0]  # type: ignore[union-attr,index]
    assert part.text == text


def test_error_of_the_client_is_typed(stack: Stack, tenant: TenantInTest) -> None:
    """A refusal reads as the client's error event."""
    client: OpenAI = stack.openai(tenant.key())
    with client.realtime.connect(model="tiny") as connection:
        assert connection.recv().type == "session.created"
        connection.response.create(event_id="mine", response={"max_output_tokens": -5})
        event = connection.recv()
        assert event.type == "error"
        assert event.error.event_id == "mine"
        assert event.error.param == "response.max_output_tokens"
