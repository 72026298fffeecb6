"""How texts of a tenant lie in the database: compressed, then AES-256-GCM. Pure.

Each sealing has a key of its own, HMAC-SHA256(pepper, owner and salt), and a nonce of its own, so that no amount of
writing wears a key out. Tenant and row are associated data: a sealed text moved to another row, or given to another
tenant, opens nothing. The pepper is in no table; without it a stolen one is noise, and a changed one voids what was
sealed before, as it voids keys.
"""

import hmac
import os
import zlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tenants.errors import PepperMissing

_LABEL = b"tollgate response v1"
_SALT, _NONCE, _TAG = 16, 12, 16
_LEVEL = 1  # of zlib: texts shrink to a third, at 100 MB/s and more


def seal(plain: bytes, *, tenant_id: str, row_id: str, pepper: str) -> bytes:
    """Return what is to be kept of `plain` in a tenant's row.

    Raises:
        PepperMissing: the pepper is empty.
    """
    salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
    about = _about(tenant_id, row_id)
    return salt + nonce + _cipher(salt, tenant_id, pepper).encrypt(nonce, zlib.compress(plain, _LEVEL), about)


def unseal(sealed: bytes | memoryview, *, tenant_id: str, row_id: str, pepper: str) -> bytes | None:
    """Return what was sealed; None: it was not sealed for this row, not with this pepper, or it is damaged.

    Raises:
        PepperMissing: the pepper is empty.
    """
    whole = bytes(sealed)
    if len(whole) < _SALT + _NONCE + _TAG:
        return None
    salt, nonce, rest = whole[:_SALT], whole[_SALT : _SALT + _NONCE], whole[_SALT + _NONCE :]
    try:
        return zlib.decompress(_cipher(salt, tenant_id, pepper).decrypt(nonce, rest, _about(tenant_id, row_id)))
    except InvalidTag:
        return None


def _cipher(salt: bytes, tenant_id: str, pepper: str) -> AESGCM:
    if not pepper:
        raise PepperMissing("KEY_PEPPER is not set: responses can be neither stored nor read")
    return AESGCM(hmac.digest(pepper.encode(), _LABEL + _framed(tenant_id) + salt, "sha256"))


def _about(tenant_id: str, row_id: str) -> bytes:
    return _LABEL + _framed(tenant_id) + _framed(row_id)


def _framed(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4, "big") + data
