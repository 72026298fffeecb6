"""Items as clients send them: an SDK's dump of one that it was told, with its empty fields, is one."""

from typing import Any

import pytest

from gateway.api.errors import BadRequest
from gateway.realtime.items import MAX_PARTS, item_object, read_item

EMPTY = {"audio": None, "transcript": None}


def message(role: str, *parts: Any) -> dict[str, Any]:
    """Return a message of these parts."""
    return {"type": "message", "id": "item_1", "role": role, "content": list(parts)}


@pytest.mark.parametrize(
    ("role", "part", "empty"),
    [
        ("user", {"type": "input_text", "text": "x"}, EMPTY | {"image_url": None, "detail": None}),
        ("assistant", {"type": "output_text", "text": "x"}, EMPTY),
    ],
    ids=["user", "assistant"],
)
def test_empty_fields_of_a_part(role: str, part: dict[str, Any], empty: dict[str, None]) -> None:
    """They are taken when null, and named when not."""
    assert item_object(read_item(message(role, part | empty), "item"))["content"] == [part]
    for name in empty:
        with pytest.raises(BadRequest) as caught:
            read_item(message(role, part | {name: "x"}), "item")
        assert caught.value.param == f"item.content[0].{name}"


def test_parts_are_bounded() -> None:
    """A message of more parts than anybody writes is refused by name."""
    parts = [{"type": "input_text", "text": "x"}] * (MAX_PARTS + 1)
    read_item(message("user", *parts[1:]), "item")
    with pytest.raises(BadRequest) as caught:
        read_item(message("user", *parts), "item")
    assert caught.value.param == "item.content"
