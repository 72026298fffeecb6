"""`POST /tokenize` and `/detokenize`, also under `/v1`: a text's token ids, and their text, in vLLM's words.

The gateway has the model's tokenizer: no worker is asked, and no tokens are charged. How many there may be is in
`gateway.admission.counting`.
"""

import asyncio
import time
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.api.chat import authenticate
from gateway.api.decode import Off, Reader
from gateway.api.errors import BadRequest, Overloaded
from gateway.api.exchange import Exchange
from gateway.api.functions import Tools
from gateway.api.models import visible_names
from gateway.api.prompt_tokens import check_ids
from gateway.api.running import chat_text, find_model
from gateway.api.sampling import TokenId
from gateway.api.schemas import MAX_MESSAGES, ChatRequest, Message
from gateway.workers.model import Model
from gateway.workers.registry import WorkerRegistry
from tenants.contracts import KeyGrant

MAX_CHARACTERS = 1 << 20  # of a text
MAX_TOKENS = 1 << 19

TOKENIZE_OFF: Off = {
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
}


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /tokenize`: either `prompt`, or `messages` with the `tools` that they may call."""

    model: str | None = None  # the only one that the key may use
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None  # those of the tokenizer: true for a prompt, false for messages
    add_generation_prompt: bool | None = None  # ready for the assistant's turn: true
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""
        if (self.prompt is None) == (self.messages is None):
            raise BadRequest("Send either `prompt` or `messages`", param="prompt")
        if self.messages is None:
            for name in ("tools", "add_generation_prompt"):
                if getattr(self, name) is not None:
                    raise BadRequest(f"`{name}` belongs to `messages`: leave it out", param=name)


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /detokenize`."""

    model: str | None = None  # the only one that the key may use
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]

    def check(self) -> None:
        """Raise BadRequest where a rule is broken that the types don't hold."""


class Tokens(msgspec.Struct):
    """What `/tokenize` answers. `token_strs`: as the tokenizer's vocabulary writes them, where they are asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(msgspec.Struct):
    """What `/detokenize` answers: special tokens are in it."""

    prompt: str


_TOKENIZE = Reader(TokenizeRequest, TOKENIZE_OFF)
_DETOKENIZE = Reader(DetokenizeRequest, {})


async def tokenize(exchange: Exchange) -> None:
    """Answer one `POST /tokenize`."""
    grant = await authenticate(exchange, scope="generate")
    counting = exchange.web.counting
    async with counting.call(grant) as permit:
        request = _TOKENIZE.read(await exchange.body())
        model = _model(exchange, grant, request.model)
        exchange.noted["model"] = model.name
        with counting.turn(grant.tenant_id, _characters(request)):
            answer = await _tokens(request, model)
        exchange.headers += permit.headers(time.monotonic())
        await exchange.json(answer)


async def detokenize(exchange: Exchange) -> None:
    """Answer one `POST /detokenize`."""
    grant = await authenticate(exchange, scope="generate")
    counting = exchange.web.counting
    async with counting.call(grant) as permit:
        request = _DETOKENIZE.read(await exchange.body())
        model = _model(exchange, grant, request.model)
        exchange.noted["model"] = model.name
        check_ids(model, [request.tokens], field="tokens")
        with counting.turn(grant.tenant_id, len(request.tokens)):
            text = await model.decode(request.tokens)
        exchange.headers += permit.headers(time.monotonic())
        await exchange.json(Text(text))


def only_name(registry: WorkerRegistry, grant: KeyGrant) -> str:
    """Return the name of the only model that a key may use.

    Raises:
        BadRequest: there are several; it names them.
        Overloaded: there is none, as while no worker is known.
    """
    names = visible_names(registry, grant)
    if len(names) > 1:
        raise BadRequest(f"`model` is missing: name one of {', '.join(names)}", param="model", code="missing_field")
    if not names:
        raise Overloaded("No engine worker with a model for this key is up. Try again in a moment.")
    return names[0]


def _model(exchange: Exchange, grant: KeyGrant, name: str | None) -> Model:
    return find_model(exchange.web, grant, name if name is not None else only_name(exchange.web.registry, grant))


async def _tokens(request: TokenizeRequest, model: Model) -> Tokens:
    text = request.prompt if request.prompt is not None else await _rendered(request, model)
    if len(text) > MAX_CHARACTERS:
        raise _too_long(request, len(text))
    special = request.add_special_tokens
    if special is None:
        special = request.messages is None
    tokens = (await model.encode([text], special=special))[0]
    strings = None
    if request.return_token_strs:
        strings = await asyncio.to_thread(_strings, model, tokens)  # there may be a million
    return Tokens(len(tokens), model.max_context, tokens, strings)


def _characters(request: TokenizeRequest) -> int:
    """Return how long the text is, before a template adds to it. Raises BadRequest where it is too long."""
    texts = [request.prompt] if request.prompt is not None else [message.text() for message in request.messages or ()]
    characters = sum(map(len, texts))
    if characters > MAX_CHARACTERS:
        raise _too_long(request, characters)
    return characters


def _too_long(request: TokenizeRequest, characters: int) -> BadRequest:
    field = "messages" if request.prompt is None else "prompt"
    return BadRequest(f"`{field}` has {characters} characters: send at most {MAX_CHARACTERS} at once", param=field)


async def _rendered(request: TokenizeRequest, model: Model) -> str:
    assert request.messages is not None
    chat = ChatRequest(model=model.name, messages=request.messages, tools=request.tools)
    chat.check()
    return await chat_text(model, chat, ready=request.add_generation_prompt is not False)


def _strings(model: Model, tokens: list[int]) -> list[str]:
    """Return the vocabulary's words for tokens; each is looked up once."""
    words = {token: str(model.tokenizer.id_to_token(token)) for token in set(tokens)}
    return [words[token] for token in tokens]
