"""What a request may say, strictly: a field that is unknown, or set to what isn't served, is refused by name.

Three kinds of fields:
  served       typed in the Structs below
  harmless     accepted and without effect on the output: `user`, `metadata`, `store: false`, ...
  at default   of OpenAI's surface, not served; accepted at the value that means "off" (`_CHAT_OFF`, `_COMPLETION_OFF`)
"""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from gateway.api.errors import BadRequest

MAX_MESSAGES = 2048  # a template walks them in Python, on the event loop
MAX_PROMPTS = 128
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_SESSION_BYTES = 256  # of the worker protocol, UTF-8
_UINT32 = 2**32 - 1

_PATH = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")

TokenCount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=_UINT32)]
Nothing = Annotated[list[object], Meta(max_length=0)]


class TextPart(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """A part of a message; text is the only kind served."""

    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message. The fields from `refusal` on are what an SDK sends back with an assistant's answer, when empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing | None = None
    annotations: Nothing | None = None

    def text(self) -> str:
        """Return the content as one text; parts are joined by line breaks."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is told. `include_obfuscation` pads nothing here and changes nothing."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both surfaces share. `top_k`, `stop_token_ids`, `ignore_eos` and `session_id` are extensions."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=_UINT32)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def session(self) -> str:
        """The session that the request belongs to, or an empty string."""
        return self.session_id or self.prompt_cache_key or ""

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(Sampling, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenCount | None = None

    @property
    def limit(self) -> int:
        """Tokens of output asked for; 0: as many as limits allow."""
        return self.max_completion_tokens or self.max_tokens or 0

    def conversation(self) -> list[dict[str, str]]:
        """Return the messages as a chat template takes them; `developer` is today's name of `system`."""
        turns = []
        for message in self.messages:
            turn = {"role": "system" if message.role == "developer" else message.role, "content": message.text()}
            if message.name is not None:
                turn["name"] = message.name
            turns.append(turn)
        return turns


class CompletionRequest(Sampling, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`. `prompt`: a text, texts, token ids, or lists of token ids."""

    prompt: str | list[str | int | list[TokenId]]

    @property
    def limit(self) -> int:
        """Tokens of output asked for; OpenAI's default for this surface is 16."""
        return self.max_tokens or 16

    def prompts(self) -> list[str] | list[list[int]]:
        """Return one entry a choice, either all texts or all token ids.

        Raises:
            BadRequest: the list is empty, too long or mixed.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        items = self.prompt
        texts = [item for item in items if isinstance(item, str)]
        lists = [item for item in items if isinstance(item, list)]
        ids = [item for item in items if isinstance(item, int)]
        if not items or len(items) not in (len(texts), len(lists), len(ids)):
            raise BadRequest(
                "`prompt` must be a text, a list of texts, a list of token ids or a list of such lists", param="prompt"
            )
        if not ids and len(items) > MAX_PROMPTS:
            raise BadRequest(f"`prompt` has {len(items)} entries: send at most {MAX_PROMPTS} at once", param="prompt")
        if ids:
            if any(not 0 <= token <= _UINT32 for token in ids):
                raise BadRequest("`prompt` has a token id that is negative or too large", param="prompt")
            return [ids]
        return texts or lists


_SHARED_OFF: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
}
_CHAT_OFF: dict[str, tuple[object, ...]] = _SHARED_OFF | {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "prompt_cache_retention": (),
    "moderation": (),
}
_COMPLETION_OFF: dict[str, tuple[object, ...]] = _SHARED_OFF | {
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": (),
}

Request = TypeVar("Request", bound=Sampling)


def parse_chat(body: bytes | bytearray) -> ChatRequest:
    """Read a chat request.

    Raises:
        BadRequest: names the field and the fix.
    """
    request = _parse(body, ChatRequest, _CHAT_OFF)
    for index, message in enumerate(request.messages):
        if message.content is None and message.role != "assistant":
            raise BadRequest(
                f"`messages[{index}].content` is missing: write a text", param=f"messages[{index}].content"
            )
    if request.max_tokens and request.max_completion_tokens and request.max_tokens != request.max_completion_tokens:
        raise BadRequest(
            "`max_tokens` and `max_completion_tokens` disagree: send `max_completion_tokens` alone",
            param="max_completion_tokens",
        )
    return request


def parse_completion(body: bytes | bytearray) -> CompletionRequest:
    """Read a completion request.

    Raises:
        BadRequest: names the field and the fix.
    """
    return _parse(body, CompletionRequest, _COMPLETION_OFF)


def decode_json(body: bytes | bytearray | str) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        BadRequest: not JSON (NaN, bad UTF-8, nesting without end included), or not an object.
    """
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise BadRequest("The JSON is nested too deeply") from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object")
    return value


def convert(value: object, kind: type[Request], off: dict[str, tuple[object, ...]]) -> Request:
    """Build a request of `kind` from decoded JSON; fields in `off` must have one of the listed values, or null.

    Raises:
        BadRequest: names the field and the fix.
    """
    if not isinstance(value, dict):
        raise BadRequest("Expected a JSON object")
    for name, allowed in off.items():
        if value.get(name) is not None and not any(_same(value[name], one) for one in allowed):
            fix = " or ".join(str(msgspec.json.encode(one), "utf-8") for one in allowed)
            raise BadRequest(f"`{name}` isn't supported{f' other than {fix}' if fix else ''}: leave it out", param=name)
    try:
        request = msgspec.convert({key: item for key, item in value.items() if key not in off}, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    _check(request)
    return request


def _parse(body: bytes | bytearray, kind: type[Request], off: dict[str, tuple[object, ...]]) -> Request:
    return convert(decode_json(body), kind, off)


def _same(value: object, allowed: object) -> bool:
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed


def _check(request: Sampling) -> None:
    stops = request.stops
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"`stop` has {len(stops)} entries: send at most {MAX_STOPS}", param="stop")
    if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise BadRequest(f"`stop` takes texts of 1 to {MAX_STOP_CHARACTERS} characters", param="stop")
    for name in ("session_id", "prompt_cache_key"):
        if len((getattr(request, name) or "").encode()) > MAX_SESSION_BYTES:
            raise BadRequest(f"`{name}` is over {MAX_SESSION_BYTES} bytes: send a shorter one", param=name)
    if request.stream_options is not None and not request.stream:
        raise BadRequest("`stream_options` is only allowed when `stream` is true", param="stream_options")


def _explain(text: str) -> BadRequest:
    """Turn msgspec's message, which ends in a path, into one that names the field as the client wrote it."""
    path = ""
    if match := _PATH.search(text):
        path, text = match[1].removeprefix("[...]"), text[: match.start()]
    if match := _UNKNOWN.match(text):
        field = f"{path}.{match[1]}".lstrip(".")
        return BadRequest(
            f"Unknown field `{field[:200]}`: it isn't supported, leave it out", param=field, code="unknown_field"
        )
    if match := _MISSING.match(text):
        field = f"{path}.{match[1]}".lstrip(".")
        return BadRequest(f"`{field}` is missing", param=field, code="missing_field")
    if not path:
        return BadRequest(text)
    return BadRequest(f"`{path}`: {text[:1].lower()}{text[1:]}", param=path)
