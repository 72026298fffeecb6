"""Read a JSON body: bounded in size and depth, whatever the client sends."""

import io
from collections.abc import Mapping
from typing import IO, Any

from rest_framework import status
from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import JSONParser

MOST_BYTES = 256 << 10  # far above any body of this API but a registered prefix


class BodyTooLarge(APIException):
    """The body is larger than any body of this endpoint."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "body_too_large"

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"The body is larger than {most_bytes} bytes.")


class JsonParser(JSONParser):
    """`JSONParser` that neither buffers without end nor recurses without end."""

    most_bytes = MOST_BYTES

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the parsed body.

        Raises:
            ParseError: it is no JSON.
            BodyTooLarge: it has more than `most_bytes`.
        """
        body = stream.read(self.most_bytes + 1)
        if len(body) > self.most_bytes:
            raise BodyTooLarge(self.most_bytes)
        try:
            return super().parse(io.BytesIO(body), media_type, dict(parser_context or {}))
        except RecursionError as error:
            raise ParseError("JSON parse error - nested too deeply") from error


class PrefixParser(JsonParser):
    """Takes a registered prefix of the largest size, with the escapes that JSON writers make of other scripts."""

    most_bytes = 1 << 20  # `gateway.bodies` takes no more
