"""A prompt as OpenAI's surfaces take it: a text, texts, token ids, or lists of token ids. Pure."""

from typing import cast

from gateway.api.errors import BadRequest
from gateway.api.sampling import MAX_UINT32, TokenId

Prompt = str | list[str | int | list[TokenId]]


def entries(prompt: Prompt, *, field: str, most: int) -> list[str] | list[list[int]]:
    """Return the prompts one by one, either all texts or all token ids.

    Args:
        prompt: as the client sent it.
        field: the client's field that holds it.
        most: how many there may be.

    Raises:
        BadRequest: there is none, there are too many, or texts and token ids are mixed.
    """
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))  # at the speed of C: there may be millions
    if len(kinds) != 1:
        raise BadRequest(
            f"`{field}` must be a text, a list of texts, a list of token ids or a list of such lists", param=field
        )
    if kinds == {int}:
        ids = cast(list[int], prompt)
        if min(ids) < 0 or max(ids) > MAX_UINT32:
            raise BadRequest(f"`{field}` has a token id that is negative or too large", param=field)
        return [ids]
    if len(prompt) > most:
        raise BadRequest(f"`{field}` has {len(prompt)} entries: send at most {most} at once", param=field)
    return cast(list[str] | list[list[int]], prompt)
