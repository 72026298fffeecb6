"""A model as its worker describes it: what turns messages into token ids, without torch and without a file system."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from engine.protocol import pb
from gateway.workers.vocabulary import Vocabulary

INLINE_CHARACTERS = 64_000  # a longer conversation is rendered in a thread, so that other streams get their turn

Turns = list[dict[str, Any]]  # messages as chat templates take them
Tools = list[dict[str, Any]]


class NoChatTemplate(Exception):
    """The model has no chat form."""


class TemplateRefused(Exception):
    """The model's template does not take these messages; the message is the template's own."""


class TextTooLong(Exception):
    """The text exceeds the model's context, however it is tokenised."""

    def __init__(self, num_characters: int) -> None:
        super().__init__(f"{num_characters} characters are more than the model's context holds")
        self.num_characters = num_characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model, shared by all workers that serve the same digest."""

    name: str
    digest: str
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    eos_token_ids: frozenset[int]
    chat_template: str  # Jinja; empty: no chat form
    special_tokens: dict[str, str]
    vocab_size: int
    max_context: int  # tokens
    longest_token: int  # UTF-8 bytes of one token, at most; 0: unknown
    created: int  # unix seconds when this process first met it
    embedding_size: int = 0  # numbers of an embedding; 0: it makes none, nor does it score prompts

    async def chat_tokens(self, conversation: Turns, tools: Tools | None = None) -> list[int]:
        """Return the token ids of a conversation: those of a chat request, and what a registered chat has of them.

        Args:
            conversation: messages, as templates take them.
            tools: those that the template is to show.

        Raises:
            NoChatTemplate: the model has no chat form.
            TemplateRefused: the template rejects the messages.
            TextTooLong: the text can't fit.
        """
        text = await self.render(conversation, tools)
        return (await self._fitting([text], special=False))[0]  # the template has written the special tokens

    async def text_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of plain prompts: those of a completion, and what a registered text has of them.

        Raises:
            TextTooLong: a text can't fit.
        """
        return await self._fitting(texts, special=True)

    def certainly_too_long(self, text: str) -> bool:
        """Whether `text` exceeds the context even if every token were the longest; spares tokenising a flood."""
        return self.longest_token > 0 and len(text) > self.longest_token * self.max_context

    async def _fitting(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        for text in texts:
            if self.certainly_too_long(text):
                raise TextTooLong(len(text))
        return await self.encode(texts, special=special)

    async def render(self, conversation: Turns, tools: Tools | None = None, *, ready: bool = True) -> str:
        """Return the prompt text of a conversation; `ready`: for the assistant's turn.

        Raises:
            NoChatTemplate: the model has no chat form.
            TemplateRefused: the template rejects the messages, such as two of one role in a row.
        """
        if not self.chat_template:
            raise NoChatTemplate(f"The model `{self.name}` has no chat template: use /v1/completions")
        if sum(map(_size, conversation)) + _size_of(tools) > INLINE_CHARACTERS:
            return await asyncio.to_thread(self._render, conversation, tools, ready)
        return self._render(conversation, tools, ready)

    def _render(self, conversation: Turns, tools: Tools | None, ready: bool) -> str:
        try:
            texts, _ = render_jinja_template(
                conversations=[conversation],
                tools=tools,
                chat_template=self.chat_template,
                add_generation_prompt=ready,
                **self.special_tokens,
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise TemplateRefused(f"The model's chat template does not take these messages: {error}") from error
        return str(texts[0])

    async def encode(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Return the token ids of each text; `special` adds the tokenizer's own (a rendered chat has them already)."""
        encodings = await self.tokenizer.async_encode_batch_fast(list(texts), add_special_tokens=special)
        return [encoding.ids for encoding in encodings]

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens and all."""
        texts = await self.tokenizer.async_decode_batch([list(token_ids)], skip_special_tokens=False)
        return str(texts[0])

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out, as a worker decodes an output."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def model_from_card(card: pb.ModelCard, created: int) -> Model:
    """Build a model from a worker's card; takes a second for a large vocabulary.

    Raises:
        ValueError: the card's tokenizer can't be read.
    """
    try:
        tokenizer = Tokenizer.from_str(card.tokenizer_json.decode())
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"the tokenizer of {card.model} can't be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    longest = 0 if tokenizer.normalizer is not None else max(map(_bytes, tokenizer.get_vocab()), default=0)
    return Model(
        name=card.model,
        digest=card.digest,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer),
        eos_token_ids=frozenset(card.eos_token_ids),
        chat_template=card.chat_template,
        special_tokens=dict(card.special_tokens),
        vocab_size=card.vocab_size,
        max_context=card.max_context_tokens,
        longest_token=longest,
        created=created,
        embedding_size=card.embedding_size,
    )


def _size(turn: Mapping[str, Any]) -> int:
    return len(turn["content"]) + _size_of(turn.get("tool_calls"))


def _size_of(value: Iterable[Any] | None) -> int:
    return len(msgspec.json.encode(value)) if value else 0


def _bytes(token: str) -> int:
    return len(token.encode("utf-8", "surrogatepass"))
