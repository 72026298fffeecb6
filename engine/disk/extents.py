"""The files that hold the slabs: extents of a fixed number of slots, preallocated, read and written past the cache.

    slabs-000000   slot | slot | …        slot n lies in extent n // per_extent
    slabs-000001   slot | slot

A slot is one slab, rounded up to whole pages. What lies in a slot says nothing of itself: the index knows whose it is
and how to tell that it is whole (engine/disk/seal.py). Reads and writes are direct (`O_DIRECT`) from and to aligned
buffers of ours: a cache that holds gigabytes of slabs takes memory from L2, which keeps the same blocks better. A file
system without direct I/O is advised to drop what it has cached.
"""

import errno
import mmap
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from engine.disk.files import FULL, Files, sync_folder

PAGE = 4096
_NAME = re.compile(r"slabs-(\d{6,})")
_STALE = "stale-"
EXTENT_BYTES = 64 << 20  # of a file, at least
_MOST_EXTENTS = 256  # open files of a large store
_ZEROS = 4 << 20  # bytes at once when whole files are overwritten


class TornSlab(Exception):
    """A slot ends before its slab does."""


def stride_of(slot_bytes: int) -> int:
    """Return the bytes that a slab takes on the disk."""
    return -(-slot_bytes // PAGE) * PAGE


def slots_of_an_extent(stride: int, total_bytes: int, extent_bytes: int) -> int:
    """Choose how many slots each extent of a new store has."""
    return max(1, max(extent_bytes, total_bytes // _MOST_EXTENTS) // stride)


class Buffer:
    """Memory of one thread that one slot is read to or written from, aligned, with a page to spare behind it."""

    def __init__(self, stride: int) -> None:
        self.memory = memoryview(mmap.mmap(-1, stride + PAGE))
        self.slot = self.memory[:stride]

    def clear(self) -> None:
        """Keep nothing of what was in it: that may be erased by now."""
        np.frombuffer(self.memory, dtype=np.uint8).fill(0)


class Extents:
    """The open extents of a store. One thread makes and removes them, any number read and write slots."""

    def __init__(self, folder: Path, stride: int, per_extent: int, files: Files) -> None:
        self.stride, self.per_extent = stride, per_extent
        self._folder, self._files = folder, files
        self._open: dict[int, int] = {}  # file descriptors
        self._direct = True

    def __contains__(self, extent: object) -> bool:
        return extent in self._open

    def path(self, extent: int) -> Path:
        """Say where an extent lies."""
        return self._folder / f"slabs-{extent:06}"

    def on_disk(self) -> set[int]:
        """Return the numbers of all extents in the folder, known or not."""
        matches = [_NAME.fullmatch(path.name) for path in self._folder.iterdir()]
        return {int(match[1]) for match in matches if match is not None}

    def stale(self, extents: Iterable[int]) -> list[tuple[Path, int]]:
        """Free the names of extents that are no part of the store; return all such files, and their bytes."""
        for extent in extents:
            self.path(extent).rename(self._folder / f"{_STALE}{secrets.token_hex(8)}")
        return [(path, path.lstat().st_size) for path in sorted(self._folder.glob(f"{_STALE}*"))]

    def attach(self, extent: int, num_slots: int) -> int | None:
        """Open an extent that was made before, to its full length again.

        Returns:
            How many slots it had on the disk; None: it is no file any more, or has no room for its length.
        """
        try:
            file = self._open_file(self.path(extent), os.O_RDWR)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return None
            raise
        try:
            size = os.fstat(file).st_size
            if size < num_slots * self.stride:
                self._files.allocate(file, num_slots * self.stride)
        except OSError as error:
            os.close(file)
            if error.errno in FULL:
                return None
            raise
        self._open[extent] = file
        return min(num_slots, size // self.stride)

    def make(self, extent: int, num_slots: int) -> None:
        """Make an extent, with all its room.

        Raises:
            OSError: no room, or a broken disk; nothing is left of it then.
        """
        path = self.path(extent)
        file = self._open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._files.allocate(file, num_slots * self.stride)
            os.fsync(file)
            sync_folder(self._folder)
        except BaseException:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._open[extent] = file

    def read(self, slot: int, into: memoryview) -> None:
        """Read a slot whole.

        Raises:
            TornSlab: the file ends before it.
            OSError: the disk failed.
        """
        file, offset = self._place(slot)
        while into:
            count = self._files.read(file, into, offset)
            if count <= 0:
                raise TornSlab
            offset, into = offset + count, into[count:]

    def write(self, slot: int, data: memoryview) -> None:
        """Write a slot whole; it is on the disk after `sync`."""
        file, offset = self._place(slot)
        while data:
            count = self._files.write(file, data, offset)
            offset, data = offset + count, data[count:]

    def sync(self, slots: Iterable[int]) -> None:
        """Wait until what was written to these slots is on the disk itself."""
        for extent in sorted({slot // self.per_extent for slot in slots}):
            self._files.sync(self._open[extent])
            if not self._direct:
                os.posix_fadvise(self._open[extent], 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close all files; no thread may read or write any more."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _place(self, slot: int) -> tuple[int, int]:
        extent, index = divmod(slot, self.per_extent)
        file = self._open.get(extent)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "the extent is not open", str(self.path(extent)))
        return file, index * self.stride

    def _open_file(self, path: Path, flags: int) -> int:
        if self._direct:
            try:
                return self._files.open(path, flags | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = False
                flags &= ~os.O_EXCL  # some make the file before they refuse
        return self._files.open(path, flags)


def erase_pieces(path: Path, files: Files) -> Iterator[None]:
    """Overwrite a file with zeros, on the disk itself, and remove it; yield after each piece of it."""
    if path.is_symlink():
        path.unlink()
        return
    try:
        file = files.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        size, zeros, offset = os.fstat(file).st_size, memoryview(bytes(_ZEROS)), 0
        while offset < size:
            offset += files.write(file, zeros[: min(_ZEROS, size - offset)], offset)
            files.sync(file)
            yield
    finally:
        os.close(file)
    path.unlink(missing_ok=True)


def erase_file(path: Path, files: Files) -> None:
    """Overwrite a file with zeros, on the disk itself, and remove it."""
    for _ in erase_pieces(path, files):
        pass
