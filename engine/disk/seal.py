"""What proves that a slab is whole and the one that was asked for: a checksum, or a tenant's encryption.

    Plain    CRC-32 over owner, key and bytes. It is there for torn and flipped slabs, not against a forger.
    Secret   AES-256-GCM with owner and key as associated data. Another owner's secret, another key or a flipped bit
             opens nothing.

Every slab has a key of its own, HMAC-SHA256(secret, salt), and a nonce of its own, both drawn at random: 224 bits that
never come twice, however many workers share the tenant's secret, and whatever was restored from a backup. A counter
would have to be shared and to survive; plain random nonces under one key would bound how much a tenant may write.

Measured for slabs of 368,640 bytes: CRC-32 7 GB/s, AES-GCM 22, BLAKE2b 1.4, SHA-256 2.1 (instructions for it and all);
all of them without the interpreter's lock. `cryptography` is loaded for the first secret.
"""

import hmac
import os
import zlib
from typing import Protocol

import numpy as np

from engine.memory.eviction.base import BlockKey

SECRET_BYTES = 32
_SALT, _NONCE, _TAG = 16, 12, 16
_PROOF = _SALT + _NONCE + _TAG
_SLAB, _RECORD, _NAME, _CHECK = b"tollgate.slab.1", b"tollgate.record.1", b"tollgate.name.1", b"tollgate.check.1"


class Sealer(Protocol):
    """How one owner's slabs and records lie on the disk. Any thread may use it."""

    @property
    def check(self) -> bytes:
        """Tell equal sealers from others after a restart, without a way back to the secret."""
        ...

    def seal(self, key: BlockKey, memory: memoryview, stored: memoryview) -> bytes:
        """Put into `stored` what is to lie on the disk, with room behind it that may be written to; return its proof.

        Args:
            key: of the block.
            memory: its bytes.
            stored: at least a page more than those.
        """
        ...

    def open(self, key: BlockKey, proof: bytes, stored: memoryview, into: memoryview) -> bool:
        """Put a block into `into`; False: `stored` is not what was sealed, and `into` holds nothing of use."""
        ...

    def name(self, session: str) -> bytes:
        """Return what a session's record is kept under."""
        ...

    def seal_record(self, session: str, record: bytes) -> bytes:
        """Return what is to be kept of a session."""
        ...

    def open_record(self, name: bytes, stored: bytes) -> tuple[str, bytes] | None:
        """Return a session and its record; None: this is not what was sealed."""
        ...


class Plain:
    """Checksums alone."""

    check = b""

    def __init__(self, owner: str) -> None:
        self._owner = _framed(owner)

    def seal(self, key: BlockKey, memory: memoryview, stored: memoryview) -> bytes:
        """Copy, then sum up the copy: it cannot change any more."""
        copy(memory, stored[: len(memory)])
        return self._sum(key, stored[: len(memory)])

    def open(self, key: BlockKey, proof: bytes, stored: memoryview, into: memoryview) -> bool:
        """Copy what is whole."""
        if self._sum(key, stored[: len(into)]) != proof:
            return False
        copy(stored[: len(into)], into)
        return True

    def name(self, session: str) -> bytes:
        """Return it as it is."""
        return session.encode()

    def seal_record(self, session: str, record: bytes) -> bytes:
        """Put the checksum before the record."""
        return self._record_sum(session.encode(), record) + record

    def open_record(self, name: bytes, stored: bytes) -> tuple[str, bytes] | None:
        """Look at the checksum."""
        record = stored[4:]
        return (name.decode(), record) if stored[:4] == self._record_sum(name, record) else None

    def _sum(self, key: BlockKey, data: memoryview) -> bytes:
        return zlib.crc32(data, zlib.crc32(_SLAB + self._owner + key)).to_bytes(4, "little")

    def _record_sum(self, name: bytes, record: bytes) -> bytes:
        return zlib.crc32(record, zlib.crc32(_RECORD + self._owner + _frame(name))).to_bytes(4, "little")


class Secret:
    """AES-GCM under one owner's secret."""

    def __init__(self, owner: str, secret: bytes) -> None:
        """Take a secret of 32 bytes.

        Raises:
            ImportError: `cryptography` is not installed.
            ValueError: the secret has another length.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a disk secret has {SECRET_BYTES} bytes, not {len(secret)}")
        self._cipher, self._invalid = AESGCM, InvalidTag
        self._secret, self._owner = secret, _framed(owner)
        self.check = self._derive(_CHECK + self._owner)[:16]

    def seal(self, key: BlockKey, memory: memoryview, stored: memoryview) -> bytes:
        """Encrypt; the tag goes into the proof."""
        salt, nonce, size = os.urandom(_SALT), os.urandom(_NONCE), len(memory)
        whole = stored[: size + _TAG]
        self._cipher(self._derive(_SLAB + salt)).encrypt_into(nonce, memory, _SLAB + self._owner + key, whole)
        proof = salt + nonce + whole[size:].tobytes()
        whole[size:] = bytes(_TAG)
        return proof

    def open(self, key: BlockKey, proof: bytes, stored: memoryview, into: memoryview) -> bool:
        """Decrypt if the tag is right."""
        if len(proof) != _PROOF:
            return False
        salt, nonce, size = proof[:_SALT], proof[_SALT : _SALT + _NONCE], len(into)
        whole = stored[: size + _TAG]
        whole[size:] = proof[-_TAG:]
        try:
            self._cipher(self._derive(_SLAB + salt)).decrypt_into(nonce, whole, _SLAB + self._owner + key, into)
        except self._invalid:
            return False
        return True

    def name(self, session: str) -> bytes:
        """Return a name that tells nothing without the secret."""
        return self._derive(_NAME + self._owner + session.encode())

    def seal_record(self, session: str, record: bytes) -> bytes:
        """Encrypt the session's name with its record."""
        salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
        plain = _framed(session) + record
        about = _RECORD + self._owner + self.name(session)
        return salt + nonce + self._cipher(self._derive(_RECORD + salt)).encrypt(nonce, plain, about)

    def open_record(self, name: bytes, stored: bytes) -> tuple[str, bytes] | None:
        """Decrypt if the tag is right."""
        if len(stored) < _PROOF:
            return None
        salt, nonce, rest = stored[:_SALT], stored[_SALT : _SALT + _NONCE], stored[_SALT + _NONCE :]
        try:
            plain = self._cipher(self._derive(_RECORD + salt)).decrypt(nonce, rest, _RECORD + self._owner + name)
        except self._invalid:
            return None
        end = 4 + int.from_bytes(plain[:4], "little")
        return plain[4:end].decode(), plain[end:]

    def _derive(self, about: bytes) -> bytes:
        return hmac.digest(self._secret, about, "sha256")


def make_sealer(owner: str, secret: bytes) -> Sealer:
    """Return an owner's sealer; see `Secret` for the errors."""
    return Secret(owner, secret) if secret else Plain(owner)


def copy(source: memoryview, target: memoryview) -> None:
    """Copy without the interpreter's lock."""
    np.copyto(np.frombuffer(target, dtype=np.uint8), np.frombuffer(source, dtype=np.uint8))


def _framed(text: str) -> bytes:
    return _frame(text.encode())


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data
