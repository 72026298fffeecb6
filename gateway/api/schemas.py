"""What a request may say, strictly: a field that is unknown, or set to what isn't served, is refused by name.

Three kinds of fields:
  served       typed in the Structs below
  harmless     accepted and without effect on the output: `user`, `metadata`, `store: false`, ...
  at default   of OpenAI's surface, not served; accepted at the value that means "off" (`_CHAT_OFF`, `_COMPLETION_OFF`)
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.decode import Off, convert, decode_json
from gateway.api.errors import BadRequest
from gateway.api.sampling import MAX_OUTPUTS, MAX_UINT32, Generating, TokenCount, TokenId

MAX_MESSAGES = 2048  # a template walks them in Python, on the event loop
MAX_PROMPTS = 128
MAX_CANDIDATES = 1024  # outputs that one request generates, over all its prompts

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


class ChatRequest(Generating, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenCount | None = None

    @property
    def limit(self) -> int:
        """Tokens of output asked for; 0: as many as limits allow."""
        return self.max_completion_tokens or self.max_tokens or 0

    @property
    def limit_field(self) -> str:
        """The field that says `limit`."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        super().check()
        for index, message in enumerate(self.messages):
            if message.content is None and message.role != "assistant":
                raise BadRequest(
                    f"`messages[{index}].content` is missing: write a text", param=f"messages[{index}].content"
                )
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise BadRequest(
                "`max_tokens` and `max_completion_tokens` disagree: send `max_completion_tokens` alone",
                param="max_completion_tokens",
            )

    def conversation(self) -> list[dict[str, str]]:
        """Return the messages as a chat template takes them; `developer` is today's name of `system`."""
        turns = []
        for message in self.messages:
            turn = {"role": "system" if message.role == "developer" else message.role, "content": message.text()}
            if message.name is not None:
                turn["name"] = message.name
            turns.append(turn)
        return turns


class CompletionRequest(Generating, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`. `prompt`: a text, texts, token ids, or lists of token ids."""

    prompt: str | list[str | int | list[TokenId]]
    best_of: Annotated[int, Meta(ge=1, le=MAX_OUTPUTS)] | None = None

    @property
    def limit(self) -> int:
        """Tokens of output asked for; OpenAI's default for this surface is 16."""
        return self.max_tokens or 16

    @property
    def limit_field(self) -> str:
        """The field that says `limit`, or an empty string where nobody asked for it."""
        return "max_tokens" if self.max_tokens else ""

    @property
    def num_candidates(self) -> int:
        """As on both surfaces; `best_of` are generated at once, and the `n` best come back."""
        return max(super().num_candidates, self.best_of or 0)

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        super().check()
        if self.best_of is None or self.best_of == self.num_outputs:
            return
        if self.best_of < self.num_outputs:
            raise BadRequest(
                f"`best_of` is {self.best_of} and `n` {self.num_outputs}: raise `best_of`, of which the best `n` come "
                "back",
                param="best_of",
            )
        if self.use_beam_search:
            raise BadRequest(
                "`best_of` can't be combined with `use_beam_search`: set `beam_width` instead", param="best_of"
            )
        if self.stream:
            raise BadRequest(
                "`best_of` above `n` can't be streamed, because the best are known at the end alone: leave out "
                "`stream`, or set `best_of` to `n`",
                param="best_of",
            )

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
        if not ids and len(items) * self.num_candidates > MAX_CANDIDATES:
            raise BadRequest(
                f"`prompt` has {len(items)} entries and each generates {self.num_candidates} outputs: one request "
                f"generates at most {MAX_CANDIDATES}. Send fewer prompts, or lower `n`, `best_of` or `beam_width`",
                param="prompt",
            )
        if ids:
            if any(not 0 <= token <= MAX_UINT32 for token in ids):
                raise BadRequest("`prompt` has a token id that is negative or too large", param="prompt")
            return [ids]
        return texts or lists


_SHARED_OFF: Off = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
}
_CHAT_OFF: Off = {
    **_SHARED_OFF,
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
_COMPLETION_OFF: Off = {
    **_SHARED_OFF,
    "echo": (False,),
    "logprobs": (),
    "suffix": (),
}


def parse_chat(body: bytes | bytearray) -> ChatRequest:
    """Read a chat request.

    Raises:
        BadRequest: names the field and the fix.
    """
    return convert(decode_json(body), ChatRequest, _CHAT_OFF)


def parse_completion(body: bytes | bytearray) -> CompletionRequest:
    """Read a completion request.

    Raises:
        BadRequest: names the field and the fix.
    """
    return convert(decode_json(body), CompletionRequest, _COMPLETION_OFF)
