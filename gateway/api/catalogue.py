"""The tables of docs/api/errors.md, made of the classes in `gateway.api.errors`.

python -m gateway.api.catalogue docs/api/errors.md      writes them anew between the page's two marks
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.api.errors import ApiError

BEGIN = "<!-- made of gateway/api/errors.py: python -m gateway.api.catalogue docs/api/errors.md -->"
END = "<!-- made until here -->"

_SDK_CLASSES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
_RETRIED = (408, 409, 429)  # and all from 500 on


def kinds(base: type[ApiError] = ApiError) -> list[type[ApiError]]:
    """Return every error of `/v1`, by status; of one status the general one first."""
    found = [kind for child in base.__subclasses__() for kind in (child, *kinds(child))]
    return sorted(found, key=lambda kind: kind.status)


def codes_of(kind: type[ApiError]) -> tuple[str | None, ...]:
    """Return every code that an error of this class may carry, its own first; None: it has none of its own."""
    return kind.code, *kind.codes


def sdk_class(status: int) -> str:
    """Return the name of the exception that both OpenAI SDKs raise for a status; Python's, where they differ."""
    return _SDK_CLASSES.get(status, "InternalServerError" if status >= 500 else "APIStatusError")


def is_retried(status: int) -> bool:
    """Tell whether the OpenAI SDKs send a request again by themselves that was answered so."""
    return status in _RETRIED or status >= 500


def tables() -> str:
    """Return the catalogue in Markdown."""
    return "\n".join((*_kinds_table(), "", *_codes_table()))


def renewed(page: str) -> str:
    """Return the page with its tables written anew.

    Raises:
        ValueError: the marks are missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page lacks the marks between which the tables stand")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def when(kind: type[ApiError]) -> str:
    """Return when an error comes: the first line of its docstring."""
    return (kind.__doc__ or "").partition("\n")[0]


def _kinds_table() -> Iterator[str]:
    yield "| status | `code` | when | what to do | SDK exception | SDKs try again |"
    yield "|---|---|---|---|---|---|"
    for kind in kinds():
        code = f"`{kind.code}`" if kind.code else "null"
        again = "yes" if is_retried(kind.status) else "no"
        yield f"| {kind.status} | {code} | {when(kind)} | {kind.fix} | `{sdk_class(kind.status)}` | {again} |"


def _codes_table() -> Iterator[str]:
    yield "Codes that say more than the status's own:"
    yield ""
    yield "| `code` | status | meaning |"
    yield "|---|---|---|"
    for kind in kinds():
        for code, meaning in kind.codes.items():
            yield f"| `{code}` | {kind.status} | {meaning} |"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
