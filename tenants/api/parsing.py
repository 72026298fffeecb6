"""Read a JSON body: bounded in size and depth, whatever the client sends."""

import io
from collections.abc import Mapping
from typing import IO, Any

from rest_framework import status
from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import JSONParser

MOST_BYTES = 256 << 10  # far above any body of this API


class BodyTooLarge(APIException):
    """The body is larger than any body of this API."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = f"The body is larger than {MOST_BYTES} bytes."
    default_code = "body_too_large"


class JsonParser(JSONParser):
    """`JSONParser` that neither buffers without end nor recurses without end."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the parsed body.

        Raises:
            ParseError: it is no JSON.
            BodyTooLarge: it has more than `MOST_BYTES`.
        """
        body = stream.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise BodyTooLarge
        try:
            return super().parse(io.BytesIO(body), media_type, dict(parser_context or {}))
        except RecursionError as error:
            raise ParseError("JSON parse error - nested too deeply") from error
