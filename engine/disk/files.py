"""The system calls of the threads that do the I/O: the one place where a disk can fail, or be made to."""

import errno
import os
import sqlite3
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # errors that say: no room, nothing is broken


class Files:
    """Calls of the system, as they are. None of them is ever made by the loop's thread."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file of ours; only its owner can read it, and no link is followed."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def allocate(self, file: int, num_bytes: int) -> None:
        """Give a file its room on the disk."""
        os.posix_fallocate(file, 0, num_bytes)

    def read(self, file: int, into: memoryview, offset: int) -> int:
        """Read once; return how many bytes came."""
        return os.preadv(file, [into], offset)

    def write(self, file: int, data: memoryview, offset: int) -> int:
        """Write once; return how many bytes went."""
        return os.pwritev(file, [data], offset)

    def sync(self, file: int) -> None:
        """Wait until what was written is on the disk itself."""
        os.fdatasync(file)

    def connect(self, path: Path) -> sqlite3.Connection:
        """Open a database without waiting for whoever has it open."""
        return sqlite3.connect(path, timeout=0, isolation_level=None)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk itself."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
