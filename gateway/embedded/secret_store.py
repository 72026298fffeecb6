"""Secrets of embedded mode: generated once, kept in `var/secrets.json` (0600), the same after a restart."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.embedded.errors import EmbeddedError
from tenants.contracts import DemoAccess


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes and the demo accounts are keyed with."""

    secret_key: str
    key_pepper: str
    engine_token: str
    demo: DemoAccess

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that `env` leaves unset."""
        own = {"SECRET_KEY": self.secret_key, "KEY_PEPPER": self.key_pepper, "ENGINE_TOKEN": self.engine_token}
        return {name: value for name, value in own.items() if not env.get(name)}


def load_secrets(path: Path) -> Secrets:
    """Return the secrets in `path`, or fresh ones that are then in `path`.

    Raises:
        EmbeddedError: the file cannot be read or is not one of ours.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Secrets)
    except FileNotFoundError:
        fresh = _fresh()
    except (OSError, msgspec.DecodeError) as error:
        raise EmbeddedError(f"{path} cannot be read ({error}): mend it, or move it away to get new secrets") from error
    write_private(path, fresh)
    return fresh


def keep_demo(path: Path, demo: DemoAccess) -> None:
    """Put the demo credentials that now work into `path`: a key that was revoked or rotated has a successor.

    Raises:
        EmbeddedError: as `load_secrets`.
    """
    kept = load_secrets(path)
    if kept.demo != demo:
        write_private(path, msgspec.structs.replace(kept, demo=demo))


def write_private(path: Path, content: object) -> None:
    """Replace `path` in one step by a JSON file that only its owner may read."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
        stream.flush()
        os.fsync(descriptor)
    fresh.replace(path)


def _fresh() -> Secrets:
    from tenants.services.demo import new_access

    return Secrets(
        secret_key=secrets.token_urlsafe(48),
        key_pepper=secrets.token_urlsafe(32),
        engine_token=secrets.token_urlsafe(32),
        demo=new_access(),
    )
