"""Prompts, texts or token ids, as the token ids of a model."""

from collections.abc import Sequence

from gateway.api.errors import BadRequest
from gateway.api.running import text_tokens
from gateway.workers.model import Model


async def token_lists(model: Model, prompts: list[str] | list[list[int]], *, field: str) -> list[list[int]]:
    """Return the token ids of each prompt.

    Raises:
        BadRequest: a token id isn't in the model's vocabulary.
        ContextTooLong: a text can't fit.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts:
        return await text_tokens(model, texts, field=field)
    lists = [prompt for prompt in prompts if isinstance(prompt, list)]
    check_ids(model, lists, field=field)
    return lists


def check_ids(model: Model, lists: Sequence[Sequence[int]], *, field: str) -> None:
    """Raise BadRequest where a token id isn't in the model's vocabulary."""
    if any(max(tokens, default=0) >= model.vocab_size for tokens in lists):
        raise BadRequest(f"`{field}` has a token id outside the model's vocabulary of {model.vocab_size}", param=field)
