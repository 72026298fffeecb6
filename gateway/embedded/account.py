"""Choose the account that Postgres runs under: Postgres refuses to run as root."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from gateway.embedded.errors import EmbeddedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An operating system account; `None` for both ids stands for the present user."""

    uid: int | None = None
    gid: int | None = None

    def own(self, path: Path) -> None:
        """Give `path` (0700) to the account."""
        path.chmod(0o700)
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, path: Path) -> bool:
        """Say whether every parent folder of `path` lets the account pass."""
        return all(self._may_pass(folder) for folder in path.resolve().parents)

    def _may_pass(self, folder: Path) -> bool:
        status = folder.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)

    def tether_options(self, *paths: Path) -> list[str]:
        """Return the options of `tether.py` that run a program under this account with access to `paths`."""
        if self.uid is None:
            return []
        options = ["--user", f"{self.uid}:{self.gid}"]
        if not all(self.can_reach(path) for path in paths):
            options.append("--reach")
        return options


def postgres_account() -> Account:
    """Return the present user, or for root the system's `postgres`, else `nobody`.

    Raises:
        EmbeddedError: root, and the system has neither account.
    """
    if os.geteuid() != 0:
        return Account()
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(uid=entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedError(
        "Postgres does not run as root and there is no account 'nobody': add one or run as another user"
    )
