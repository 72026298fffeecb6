"""The realtime websocket with the OpenAI Python SDK."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from openai import OpenAI

from tests.sdk.conftest import Dial, dialled
from tests.sdk.place import ENDLESS, Place, SdkTenant

pytestmark = pytest.mark.filterwarnings(
    "ignore:connect\\(\\) must be used as a context manager:DeprecationWarning"
)  # SDK

TURN: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello world"}]}


def wanted(most: int = 12, **more: Any) -> Any:
    """Return what a `response.create` asks for."""
    return {"input": [TURN], "max_output_tokens": most, "temperature": 0, "ignore_eos": True} | more


def until_done(connection: Any) -> tuple[list[Any], Any]:
    """Return the events of a response, and its last object."""
    events = []
    while True:
        event = connection.recv()
        events.append(event)
        if event.type == "response.done":
            return events, event.response


def said(events: list[Any]) -> str:
    """Return the text of a response's deltas."""
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_a_response(client: OpenAI, place: Place) -> None:
    """The session is told, deltas come, and the end has the whole text and usage; HTTP says the same."""
    with client.realtime.connect(model=place.model) as connection:
        assert connection.recv().type == "session.created"
        connection.send({"type": "response.create", "response": wanted()})
        events, done = until_done(connection)
    assert "response.created" in [event.type for event in events]
    assert done.usage.output_tokens == 12
    assert done.usage.total_tokens == done.usage.input_tokens + 12
    assert done.output[0].content[0].text == said(events)
    answer = client.chat.completions.create(
        model=place.model,
        messages=[{"role": "user", "content": "hello world"}],
        max_tokens=12,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert said(events) == answer.choices[0].message.content


def test_events_are_typed(client: OpenAI, place: Place) -> None:
    """Each event parses into the SDK's own class for it, which has what the SDK says it has."""
    with client.realtime.connect(model=place.model) as connection:
        connection.recv()
        connection.response.create(response=wanted(4))
        events, _ = until_done(connection)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert {type(event).__name__ for event in deltas} == {"ResponseTextDeltaEvent"}
    for delta in deltas:
        assert delta.event_id and delta.response_id and delta.item_id
        assert (delta.output_index, delta.content_index) == (0, 0)


def test_several_at_once(client: OpenAI, place: Place) -> None:
    """Two responses run on one connection, each to its own end."""
    with client.realtime.connect(model=place.model) as connection:
        connection.recv()
        for most in (5, 9):
            connection.send({"type": "response.create", "response": wanted(most)})
        ends = [until_done(connection)[1] for _ in range(2)]
    assert sorted(end.usage.output_tokens for end in ends) == [5, 9]


def test_cancel(client: OpenAI, place: Place, home: SdkTenant) -> None:
    """A response that is cancelled says so, and is metered as far as it came."""
    with client.realtime.connect(model=place.model) as connection:
        connection.recv()
        connection.send({"type": "response.create", "response": wanted(ENDLESS)})
        while connection.recv().type != "response.output_text.delta":
            pass
        connection.response.cancel()
        _, done = until_done(connection)
    assert done.status == "cancelled"
    assert home.record(done.id)["finish_reason"] == "cancelled"


def test_leaving_cancels(client: OpenAI, place: Place, home: SdkTenant) -> None:
    """Closing the connection ends what runs on it."""
    with client.realtime.connect(model=place.model) as connection:
        connection.recv()
        connection.send({"type": "response.create", "response": wanted(ENDLESS)})
        while (event := connection.recv()).type != "response.output_text.delta":
            pass
    assert home.record(event.response_id)["finish_reason"] == "cancelled"


def test_an_error_is_an_event(client: OpenAI, place: Place) -> None:
    """What is wrong is told with the client's own event id, and the connection goes on."""
    with client.realtime.connect(model=place.model) as connection:
        connection.recv()
        connection.send({"type": "response.create", "event_id": "mine", "response": wanted(temperature=9)})
        error = connection.recv()
        assert (error.type, error.error.event_id) == ("error", "mine")
        assert error.error.param == "response.temperature"
        connection.send({"type": "response.create", "response": wanted(2)})
        assert until_done(connection)[1].usage.output_tokens == 2


def test_rate_limits_are_told(dial: Dial, place: Place) -> None:
    """Where rates hold, an event says what is left of them."""
    client = dial(api_key=place.tenant(rpm=600, tpm=60_000).key())
    with client.realtime.connect(model=place.model) as connection:
        connection.recv()
        connection.send({"type": "response.create", "response": wanted(2)})
        while (event := connection.recv()).type != "rate_limits.updated":
            assert event.type != "response.done", "the response ended and no limits were told"
    assert {limit.name for limit in event.rate_limits} == {"requests", "tokens"}
    assert all(0 <= limit.remaining <= limit.limit for limit in event.rate_limits)


def test_a_wrong_key(dial: Dial, place: Place) -> None:
    """The handshake is refused."""
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus) as caught, dial(api_key="nonsense").realtime.connect(model=place.model):
        pass
    assert caught.value.response.status_code in (401, 403)


def test_async(place: Place, home_key: str) -> None:
    """The asynchronous client reads the same events."""

    async def read() -> list[str]:
        kinds = []
        async with (
            dialled(place, home_key) as made,
            made.realtime.connect(model=place.model) as connection,
        ):
            await connection.send({"type": "response.create", "response": wanted(3)})
            async for event in connection:
                kinds.append(event.type)
                if event.type == "response.done":
                    break
        return kinds

    kinds = async_to_sync(read)()
    assert kinds[0] == "session.created"
    assert kinds[-1] == "response.done"
