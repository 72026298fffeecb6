"""The form of keys, and their digest. Pure: no database, no settings.

    tg_live_<id>_<secret><checksum>     API key
    tg_op_...                           management key of an operator
    tg_adm_...                          management key of one tenant

id 12, secret 32, checksum 6 characters of [0-9A-Za-z]. The checksum (CRC-32 of all before it) lets a client or a
secret scanner tell a mistyped key from a real one without asking anybody; it protects nothing.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from typing import Literal, NamedTuple

from tenants.errors import PepperMissing

KeyKind = Literal["live", "op", "adm"]

ID_LENGTH = 12
SECRET_LENGTH = 32
CHECKSUM_LENGTH = 6
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORM = re.compile(
    rf"tg_(live|op|adm)_([0-9A-Za-z]{{{ID_LENGTH}}})_([0-9A-Za-z]{{{SECRET_LENGTH}}})([0-9A-Za-z]{{{CHECKSUM_LENGTH}}})"
)


class ParsedKey(NamedTuple):
    """A well-formed key taken apart; that it is well-formed says nothing of whether it exists."""

    kind: KeyKind
    key_id: str


def new_key(kind: KeyKind) -> str:
    """Return a fresh raw key with 190 random bits of secret."""
    return _assemble(kind, _random(ID_LENGTH), _random(SECRET_LENGTH))


def parse_key(raw: str) -> ParsedKey | None:
    """Return the key's kind and id, or None where form or checksum is wrong."""
    match = _FORM.fullmatch(raw)
    if match is None or checksum(raw[:-CHECKSUM_LENGTH]) != match[4]:
        return None
    kind: KeyKind = "live" if match[1] == "live" else "op" if match[1] == "op" else "adm"
    return ParsedKey(kind, match[2])


def key_digest(raw: str, pepper: str) -> str:
    """Return what is stored of a key: HMAC-SHA256 under the pepper, hex.

    Raises:
        PepperMissing: the pepper is empty, so that a stolen table could be searched by anybody.
    """
    if not pepper:
        raise PepperMissing("KEY_PEPPER is not set: keys can be neither made nor verified")
    return hmac.new(pepper.encode(), raw.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def checksum(text: str) -> str:
    """Return six base-62 digits of the CRC-32 of `text`, which is ASCII."""
    value = zlib.crc32(text.encode("ascii"))
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def _assemble(kind: KeyKind, key_id: str, secret: str) -> str:
    body = f"tg_{kind}_{key_id}_{secret}"
    return body + checksum(body)


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
