"""What a request may say, strictly: a field that is unknown, or set to what isn't served, is refused by name.

Three kinds of fields:
  served       typed in the Structs below
  harmless     accepted and without effect on the output: `user`, `metadata`, `store: false`, ...
  at default   of OpenAI's or vLLM's surface, not served; accepted at the value that means "off" (`CHAT_OFF`,
               `COMPLETION_OFF`)
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.decode import Off, Reader
from gateway.api.errors import BadRequest
from gateway.api.functions import ToolCalls, ToolChoice, Tools
from gateway.api.prompts import Prompt, entries
from gateway.api.sampling import MAX_OUTPUTS, Generating, TokenCount, TopCount
from gateway.api.tools.checks import check_calls, check_tools

MAX_MESSAGES = 2048  # a template walks them in Python, on the event loop
MAX_PARTS = 2048  # of one message
MAX_PROMPTS = 128
MAX_CANDIDATES = 1024  # outputs that one request generates, over all its prompts

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

Nothing = Annotated[list[object], Meta(max_length=0)]


class TextPart(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """A part of a message; text is the only kind served."""

    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message. The fields from `refusal` on are what an SDK sends back with an assistant's answer.

    They are empty, but for `parsed`: the SDK's own reading of `content`, of which nothing is made.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    tool_calls: ToolCalls | None = None  # of an assistant's message
    tool_call_id: str | None = None  # of a tool's: the call that it answers
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Nothing | None = None
    parsed: Any = None

    def check(self, path: str) -> None:
        """Raise BadRequest where the message, which stands at `path`, isn't what its role asks for."""
        if self.content is None and self.role != "assistant":
            raise BadRequest(f"`{path}.content` is missing: write a text", param=f"{path}.content")
        if self.role == "tool":
            if not self.tool_call_id:
                raise BadRequest(
                    f"`{path}.tool_call_id` is missing: name the call that this answers", param=f"{path}.tool_call_id"
                )
        elif self.tool_call_id is not None:
            raise BadRequest(
                f"`{path}.tool_call_id` belongs to a message of the role `tool`: leave it out",
                param=f"{path}.tool_call_id",
            )
        for field, given in (("tool_calls", bool(self.tool_calls)), ("parsed", self.parsed is not None)):
            if given and self.role != "assistant":
                raise BadRequest(
                    f"`{path}.{field}` belongs to a message of the role `assistant`: leave it out",
                    param=f"{path}.{field}",
                )

    def turn(self) -> dict[str, Any]:
        """Return the message as a chat template takes it; `developer` is today's name of `system`."""
        turn: dict[str, Any] = {"role": _ROLES[self.role], "content": self.text()}
        if self.name is not None:
            turn["name"] = self.name
        if self.tool_calls:
            turn["tool_calls"] = [call.turn() for call in self.tool_calls]
        if self.tool_call_id is not None:
            turn["tool_call_id"] = self.tool_call_id
        return turn

    def text(self) -> str:
        """Return the content as one text; parts are joined by line breaks."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(Generating, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: TopCount | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def limit(self) -> int:
        """Tokens of output asked for; 0: as many as limits allow."""
        return self.max_completion_tokens or self.max_tokens or 0

    @property
    def limit_field(self) -> str:
        """The field that says `limit`."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def top_scores(self) -> int | None:
        """How many of the likeliest tokens are told beside each token's log-probability; None: not even that."""
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def scores_field(self) -> str:
        """The field that says `top_scores`."""
        return "top_logprobs" if self.top_logprobs else "logprobs"

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        super().check()
        for index, message in enumerate(self.messages):
            message.check(f"messages[{index}]")
        check_calls(self.messages)
        check_tools(self.tools, self.tool_choice)
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise BadRequest(
                "`max_tokens` and `max_completion_tokens` disagree: send `max_completion_tokens` alone",
                param="max_completion_tokens",
            )
        if self.top_logprobs and not self.logprobs:
            raise BadRequest(
                "`top_logprobs` is only allowed when `logprobs` is true: set it, or leave `top_logprobs` out",
                param="top_logprobs",
            )

    def conversation(self) -> list[dict[str, Any]]:
        """Return the messages as a chat template takes them."""
        return [message.turn() for message in self.messages]


class CompletionRequest(Generating, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`. `prompt`: a text, texts, token ids, or lists of token ids."""

    prompt: Prompt
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None  # 0: only what `echo` gives
    best_of: Annotated[int, Meta(ge=1, le=MAX_OUTPUTS)] | None = None
    echo: bool | None = None
    logprobs: TopCount | None = None

    @property
    def limit(self) -> int:
        """Tokens of output asked for; OpenAI's default for this surface is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def limit_field(self) -> str:
        """The field that says `limit`, or an empty string where nobody asked for it."""
        return "max_tokens" if self.max_tokens else ""

    @property
    def num_candidates(self) -> int:
        """As on both surfaces; `best_of` are generated at once, and the `n` best come back."""
        return max(super().num_candidates, self.best_of or 0)

    @property
    def top_scores(self) -> int | None:
        """How many of the likeliest tokens are told beside each token's log-probability; None: not even that."""
        return self.logprobs

    @property
    def only_echoes(self) -> bool:
        """Whether the answer is the prompt alone, to be scored."""
        return self.max_tokens == 0

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        super().check()
        if self.only_echoes:
            self._check_scoring()
        if self.best_of is not None and self.best_of != self.num_outputs:
            self._check_best_of(self.best_of)

    def _check_scoring(self) -> None:
        if not self.echo or self.logprobs is None:
            raise BadRequest(
                "`max_tokens` is 0, which gives only the scores of an echoed prompt: raise it, or set `echo` and "
                "`logprobs`",
                param="max_tokens",
            )
        unfit = {"n": self.num_outputs > 1, "best_of": self.num_candidates > 1} | dict.fromkeys(
            self.format_fields, True
        )
        for name, given in {"use_beam_search": bool(self.use_beam_search), **unfit}.items():
            if given:
                raise BadRequest(f"`{name}` can't be combined with `max_tokens` 0: nothing is generated", param=name)

    def _check_best_of(self, best_of: int) -> None:
        if best_of < self.num_outputs:
            raise BadRequest(
                f"`best_of` is {best_of} and `n` {self.num_outputs}: raise `best_of`, of which the best `n` come back",
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
        prompts = entries(self.prompt, field="prompt", most=MAX_PROMPTS)
        if len(prompts) * self.num_candidates > MAX_CANDIDATES:
            raise BadRequest(
                f"`prompt` has {len(prompts)} entries and each generates {self.num_candidates} outputs: one request "
                f"generates at most {MAX_CANDIDATES}. Send fewer prompts, or lower `n`, `best_of` or `beam_width`",
                param="prompt",
            )
        return prompts


_SHARED_OFF: Off = {
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
}
CHAT_OFF: Off = {
    **_SHARED_OFF,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "store": (False,),
    "verbosity": ("medium",),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "web_search_options": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "moderation": (),
}
COMPLETION_OFF: Off = {
    **_SHARED_OFF,
    "suffix": (),
    "add_special_tokens": (True,),
}
_CHAT = Reader(ChatRequest, CHAT_OFF, long=("messages",))
_COMPLETION = Reader(CompletionRequest, COMPLETION_OFF, long=("prompt",))


def parse_chat(body: bytes | bytearray) -> ChatRequest:
    """Read a chat request.

    Raises:
        BadRequest: names the field and the fix.
    """
    return _CHAT.read(body)


def parse_completion(body: bytes | bytearray) -> CompletionRequest:
    """Read a completion request.

    Raises:
        BadRequest: names the field and the fix.
    """
    return _COMPLETION.read(body)
