"""The query of a path, strictly: an unknown parameter is refused by name, as an unknown field is."""

from collections.abc import Sequence
from urllib.parse import parse_qs

from gateway.api.errors import BadRequest
from gateway.api.exchange import Exchange

_MOST = 2**31 - 1
_FLAGS = {"true": True, "false": False}


class Query:
    """What stands behind the question mark; of a parameter that comes twice the last one counts.

    Args:
        exchange: the request.
        names: of the parameters that there are. A list is also written `name[]`, as the SDKs do.

    Raises:
        BadRequest: there is another one.
    """

    def __init__(self, exchange: Exchange, names: Sequence[str]) -> None:
        raw = exchange.scope["query_string"].decode("latin-1")
        try:
            parsed = parse_qs(raw, keep_blank_values=True, max_num_fields=100)
        except ValueError as error:
            raise BadRequest("The query has too many parameters: at most 100") from error
        self._values: dict[str, list[str]] = {}
        for name, values in parsed.items():
            known = name.removesuffix("[]")
            if known not in names:
                listed = ", ".join(f"`{one}`" for one in names)
                raise BadRequest(f"Unknown parameter `{name[:200]}`: there are {listed}", param=name)
            self._values.setdefault(known, []).extend(values)

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return self._values.get(name, [])

    def text(self, name: str) -> str | None:
        """Return a parameter, None where it isn't there."""
        values = self.texts(name)
        return values[-1] if values else None

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """Return one of `choices`. Raises BadRequest for another."""
        value = self.text(name)
        if value is not None and value not in choices:
            raise BadRequest(f"`{name}` must be {' or '.join(f'`{one}`' for one in choices)}", param=name)
        return value

    def flag(self, name: str) -> bool:
        """Return whether a parameter is `true`. Raises BadRequest for what is neither that nor `false`."""
        return _FLAGS[self.choice(name, tuple(_FLAGS)) or "false"]

    def number(self, name: str, *, least: int, most: int = _MOST) -> int | None:
        """Return a whole number. Raises BadRequest for anything else."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()) or len(value) > 10 or not least <= int(value) <= most:
            raise BadRequest(f"`{name}` must be a whole number from {least} to {most}", param=name)
        return int(value)
