"""Registered prefixes as token ids: what all requests that go on from one have in common, by a worker's own model.

A tokenizer joins the end of a text with what follows, and a template may end a message differently when another comes
after. So a prefix is tokenised several times, each time with something else behind it, exactly as requests are
(`gateway.workers.model`), and the tokens that lead all of them are kept. A request that goes on in the middle of the
last word may still be tokenised otherwise, and then shares nothing.

This module costs 33 MB of imports; the process that reads it needs it only where prefixes are registered.
"""

import asyncio
import hashlib
from array import array
from bisect import bisect_left
from dataclasses import dataclass

from engine.protocol import pb
from gateway.workers.model import Model, NoChatTemplate, TemplateRefused, TextTooLong
from tenants.contracts import SharedPrefixView

# A letter joins words and brackets, a line break joins line breaks and punctuation, a digit joins numbers.
_CONTINUATIONS = ("a", "\nb", "7")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenised:
    """A prefix by one model. `problem`: why no request can share it, and what to do; it has no ids then."""

    token_ids: "array[int]"
    num_tokens: int  # 0 where a problem came before they could be counted
    problem: str = ""


# Between its removal and the next read of its group.
GONE = Tokenised(token_ids=array("I"), num_tokens=0, problem="It is no longer registered.")


def form_of(card: pb.ModelCard) -> str:
    """Return the name of a card's way to tokenise: equal names, equal tokens.

    The card's own digest is of the weights. Two folders with the same weights may have different chat templates.
    """
    total = hashlib.sha256(card.digest.encode())
    special = [text for pair in sorted(card.special_tokens.items()) for text in pair]
    for field in (card.tokenizer_json, *(text.encode() for text in (card.chat_template, *special))):
        total.update(len(field).to_bytes(8, "big") + field)
    for number in (card.max_context_tokens, card.vocab_size):
        total.update(number.to_bytes(8, "big"))
    return total.hexdigest()


def tokenise(model: Model, prefix: SharedPrefixView) -> Tokenised:
    """Return a prefix's tokens by `model`; blocks, and is meant for a thread."""
    try:
        tokens = asyncio.run(_common_tokens(model, prefix))
    except NoChatTemplate:
        return _unusable(f"{model.name} has no chat template: register the prefix as a text, for /v1/completions.")
    except TemplateRefused as error:
        return _unusable(f"{error}. Register messages in an order that this template takes.")
    except TextTooLong as error:
        return _unusable(_too_long(model, f"{error.num_characters} characters, which is"))
    except Exception as error:  # noqa: BLE001  # tokenizers raises nothing more special
        return _unusable(f"The tokenizer of {model.name} does not take it: {error}. Register another text.")
    if len(tokens) >= model.max_context:
        return _unusable(_too_long(model, f"{len(tokens)} tokens, which is"), num_tokens=len(tokens))
    if max(tokens, default=0) >= model.vocab_size:
        problem = f"It has a token that {model.name} does not know, though its tokenizer does. Register another text."
        return _unusable(problem, num_tokens=len(tokens))
    return Tokenised(token_ids=tokens, num_tokens=len(tokens))


def _unusable(problem: str, *, num_tokens: int = 0) -> Tokenised:
    return Tokenised(token_ids=array("I"), num_tokens=num_tokens, problem=problem)


def _too_long(model: Model, size: str) -> str:
    return f"It has {size} more than {model.name} takes with a request: {model.max_context} tokens. Register less."


async def _common_tokens(model: Model, prefix: SharedPrefixView) -> "array[int]":
    common: array[int] | None = None
    for continuation in _CONTINUATIONS:  # one by one: each takes some hundred bytes a token while it is made
        tokens = array("I", await _tokens(model, prefix, continuation))
        common = tokens if common is None else common[: _num_common(common, tokens)]
    assert common is not None, "there are continuations"
    return common


async def _tokens(model: Model, prefix: SharedPrefixView, continuation: str) -> list[int]:
    if prefix.text:
        return (await model.text_tokens([prefix.text + continuation]))[0]
    conversation = [{"role": message.role, "content": message.content} for message in prefix.messages]
    if conversation[-1]["role"] == "user":
        conversation[-1]["content"] += continuation
    else:
        conversation.append({"role": "user", "content": continuation})
    return await model.chat_tokens(conversation)


def _num_common(one: "array[int]", other: "array[int]") -> int:
    # Whole slices are compared in C: a walk in Python would keep the event loop from its thread.
    return bisect_left(range(min(len(one), len(other))), True, key=lambda at: one[: at + 1] != other[: at + 1])
