"""What a registered prefix may be: the beginning of a chat, or of a prompt."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from tenants.contracts import PrefixMessage
from tenants.errors import Invalid
from tenants.rules import values

MOST_PREFIXES = 64  # of a group
MOST_OF_TENANT = MOST_PREFIXES // 4  # of them that one member registered: nobody takes all of what is there for all
MOST_MESSAGES = 64
MOST_BYTES = 256 << 10  # UTF-8, of the text or of all messages' contents

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is registered: either messages or a text. `sha256` is what audit and outbox name it by."""

    messages: tuple[PrefixMessage, ...]
    text: str
    num_bytes: int
    sha256: str  # hex


def name(value: object) -> str:
    """Return a prefix's name, 1 to 80 characters."""
    return values.text("name", value, longest=80)


def contents(messages: object, text: object) -> Contents:
    """Return what is to be registered, whatever types a caller sent.

    Nothing is stripped or normalised: a request shares a prefix only if it begins with exactly these characters.

    Raises:
        Invalid: names the field and the fix; it never repeats the contents.
    """
    checked_messages, checked_text = _messages(messages), _text("text", text, shortest=0)
    if bool(checked_messages) == bool(checked_text):
        raise Invalid("messages", "register either messages (the beginning of a chat) or text (of a prompt), not both")
    num_bytes = sum(len(part.encode()) for part in (checked_text, *(message.content for message in checked_messages)))
    if num_bytes > MOST_BYTES:
        field = "messages" if checked_messages else "text"
        raise Invalid(field, f"{field} must hold at most {MOST_BYTES} bytes of UTF-8 in all; there are {num_bytes}")
    whole = checked_text or json.dumps([[message.role, message.content] for message in checked_messages])
    return Contents(
        messages=checked_messages,
        text=checked_text,
        num_bytes=num_bytes,
        sha256=hashlib.sha256(whole.encode()).hexdigest(),
    )


def _messages(value: object) -> tuple[PrefixMessage, ...]:
    if not isinstance(value, list | tuple):
        raise Invalid("messages", "messages must be a list of {role, content}")
    if len(value) > MOST_MESSAGES:
        raise Invalid("messages", f"messages must hold at most {MOST_MESSAGES}; there are {len(value)}")
    return tuple(_message(f"messages.{n}", entry) for n, entry in enumerate(value))


def _message(path: str, value: object) -> PrefixMessage:
    if isinstance(value, PrefixMessage):
        value = {"role": value.role, "content": value.content}
    if not isinstance(value, Mapping):
        raise Invalid(path, f"{path} must be an object with role and content")
    unknown = sorted(str(key) for key in value if key not in ("role", "content"))
    if unknown:
        raise Invalid(
            f"{path}.{unknown[0]}", f"{path}: there is no field {unknown[0][:40]!r}; there are role and content"
        )
    role = values.choice(f"{path}.role", value.get("role"), ROLES)
    content = _text(f"{path}.content", value.get("content"))
    return PrefixMessage(role=cast(Literal["system", "user", "assistant"], role), content=content)


def _text(field: str, value: object, *, shortest: int = 1) -> str:
    if not isinstance(value, str):
        raise Invalid(field, f"{field} must be a string")
    if len(value) < shortest:
        raise Invalid(field, f"{field} must not be empty")
    if "\0" in value:
        raise Invalid(field, f"{field} must not hold NUL characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Invalid(field, f"{field} must be valid Unicode: it holds half of a surrogate pair") from error
    return value
