"""Place unix sockets: their paths hold 107 bytes at most, and only we may enter their folder."""

import hashlib
import os
import shutil
from pathlib import Path

from gateway.embedded.errors import EmbeddedError

LONGEST_PATH_BYTES = 107  # sun_path of Linux, less its closing zero
LONGEST_NAME = "postgres/.s.PGSQL.5432.lock"  # the longest name that any of our processes makes below the folder


def socket_folder(var_dir: Path) -> Path:
    """Make and return the folder of this instance's sockets: `var/run`, or one below /tmp where that is too long.

    Raises:
        EmbeddedError: someone else owns the folder below /tmp.
    """
    folder = var_dir / "run"
    if len(os.fsencode(folder / LONGEST_NAME)) > LONGEST_PATH_BYTES:
        tag = hashlib.sha256(os.fsencode(var_dir)).hexdigest()[:12]
        folder = Path("/tmp") / f"tollgate-{os.geteuid()}-{tag}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.geteuid() or folder.is_symlink():
        raise EmbeddedError(f"{folder} belongs to someone else: remove it or set TOLLGATE_VAR to a shorter path")
    folder.chmod(0o711)
    return folder


def clear_sockets(folder: Path) -> None:
    """Remove what a dead instance left in `folder`: sockets and their lock files. Call it under the instance lock."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_socket() or path.name.endswith(".lock"):
            path.unlink()


def remove_socket_folder(folder: Path, var_dir: Path) -> None:
    """Remove `folder` where it lies outside `var_dir`."""
    if not folder.is_relative_to(var_dir):
        shutil.rmtree(folder, ignore_errors=True)
