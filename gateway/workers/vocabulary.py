"""The tokens of a model one by one: the bytes that each adds to a text, and how it reads alone."""

import json
from collections.abc import Callable
from typing import NamedTuple

from tokenizers import Tokenizer

_ANCHOR = "a"  # a token before the one in question, so that no decoder takes its leading space for the text's first


class Token(NamedTuple):
    """One token."""

    text: str  # as `transformers` decodes it; U+FFFD stands for bytes that are no whole character
    data: bytes  # what it is; the tokens of a text join to the text's UTF-8
    shown: bytes  # what of that an output's text has: nothing of a special token

    @property
    def is_whole(self) -> bool:
        """Whether it ends where a character ends, and begins where one begins."""
        return self.text.encode() == self.data


class Vocabulary:
    """Looks tokens up, and remembers those that were asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().items()
        self._special = {token.content: number for number, token in added if token.special}
        self._special_ids = frozenset(self._special.values())
        self._bytes_of = _reader(tokenizer)
        self._known: dict[int, Token] = {}

    def __getitem__(self, token_id: int) -> Token:
        """Return a token; one that the tokenizer doesn't know, such as a row that only pads the model, is empty."""
        token = self._known.get(token_id)
        if token is None:
            token = self._known[token_id] = self._look_up(token_id)
        return token

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token that is written so; None: there is none."""
        return self._special.get(text)

    def _look_up(self, token_id: int) -> Token:
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return Token("", b"", b"")
        data = self._bytes_of(piece)
        return Token(data.decode("utf-8", "replace"), data, b"" if token_id in self._special_ids else data)


def _reader(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """Return what turns a token as the tokenizer writes it into bytes."""
    decoder = tokenizer.decoder
    if decoder is None:
        return lambda piece: piece.encode()
    kinds = _kinds(json.loads(decoder.__getstate__()))
    if "ByteLevel" in kinds:
        table = _byte_level()
        return lambda piece: _from_table(piece, table)
    start = len(decoder.decode([_ANCHOR]))

    def in_context(piece: str) -> bytes:
        if "ByteFallback" in kinds and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        return str(decoder.decode([_ANCHOR, piece]))[start:].encode()

    return in_context


def _kinds(decoder: dict[str, object]) -> set[str]:
    """Return the types of a decoder and of its parts, as `tokenizer.json` names them."""
    parts = decoder.get("decoders", [])
    assert isinstance(parts, list)
    return {str(decoder["type"])}.union(*(_kinds(part) for part in parts))


def _from_table(piece: str, table: dict[str, int]) -> bytes:
    try:
        return bytes([table[character] for character in piece])
    except KeyError:  # an added token, which is written as it is
        return piece.encode()


def _byte_level() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for (GPT-2, `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + number): byte for number, byte in enumerate(others)}
