"""How a folder becomes an open store, whatever is found in it.

    lock the folder ─▶ read the index ─▶ open the extents ─▶ trim ─▶ note that it is open
                        │ another store, or spoilt
                        └▶ erase the index, begin a new one; all extents are stale

Stale files (of another store, beyond the ceiling, unknown to the index) are overwritten and removed later, by the
keeper. What the index still names but the disk no longer holds is forgotten.
"""

import errno
import fcntl
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from engine.disk.contents import Contents, SpoiltIndex
from engine.disk.extents import EXTENT_BYTES, Extents, slots_of_an_extent, stride_of
from engine.disk.files import Files, sync_folder
from engine.disk.index import Index, Layout, erase_index
from engine.disk.orders import Opened


class Busy(Exception):
    """Another process has the store open."""


class Place(NamedTuple):
    """Where a store is to be, and what for."""

    folder: Path
    layout: Layout
    total_bytes: int
    extent_bytes: int = EXTENT_BYTES


class OpenFolder:
    """The open files of a store."""

    def __init__(self, place: Place, files: Files) -> None:
        """Open them.

        Raises:
            Busy, OSError, sqlite3.Error
        """
        self.place, self.files = place, files
        self.stale: list[tuple[Path, int]] = []  # files to be erased, and their bytes
        self._lock = _lock(place.folder, files)
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close all files."""
        self.index.close()
        self.extents.close()
        os.close(self._lock)

    def _open(self) -> None:
        stride = stride_of(self.place.layout.slot_bytes)
        per_extent = slots_of_an_extent(stride, self.place.total_bytes, self.place.extent_bytes)
        self.index, contents, per_extent = self._read_index(per_extent)
        self.extents = Extents(self.place.folder, stride, per_extent, self.files)
        try:
            self.opened = self._open_extents(contents)
        except BaseException:
            self.index.close()
            self.extents.close()
            raise

    def _read_index(self, per_extent: int) -> tuple[Index, Contents, int]:
        try:
            return self._try_index(per_extent)
        except SpoiltIndex:
            erase_index(self.place.folder, self.files)
            return self._try_index(per_extent)

    def _try_index(self, per_extent: int) -> tuple[Index, Contents, int]:
        index = Index(self.place.folder, self.files)
        try:
            found = index.begin(self.place.layout, per_extent)
            return index, index.contents(found), found
        except BaseException:
            index.close()
            raise

    def _open_extents(self, contents: Contents) -> Opened:
        extents, per_extent = self.extents, self.extents.per_extent
        on_disk = extents.on_disk()
        chosen = self._choose(contents, on_disk)
        attached = {extent: extents.attach(extent, contents.extents[extent]) for extent in chosen}
        present = {extent: num_slots for extent, num_slots in attached.items() if num_slots is not None}
        self.stale = extents.stale(on_disk - present.keys())
        rows = [row for row in contents.rows if row.slot % per_extent < present.get(row.slot // per_extent, 0)]
        named = {row.slot for row in rows}
        lost = [row.slot for row in contents.rows if row.slot not in named]
        whole = {
            slot: None
            for extent in present
            for slot in range(extent * per_extent, extent * per_extent + contents.extents[extent])
            if slot not in named
        }
        dirty = [slot for slot in contents.dirty if slot in whole] if contents.clean else list(whole)
        with self.index.transaction():
            self.index.remove(lost)
            self.index.remove_extents([extent for extent in contents.extents if extent not in present], per_extent)
            self.index.set_clean(False)
        sync_folder(self.place.folder)
        left = contents._replace(extents={extent: contents.extents[extent] for extent in present}, rows=rows)
        return Opened(left, per_extent, dirty, sum(size for _, size in self.stale))

    def _choose(self, contents: Contents, on_disk: set[int]) -> list[int]:
        """Choose the extents that fit the ceiling: those with the most blocks, among equals the first."""
        room = self.place.total_bytes // self.extents.stride
        num_rows = Counter(row.slot // self.extents.per_extent for row in contents.rows)
        kept = []
        for extent in sorted(on_disk & contents.extents.keys(), key=lambda extent: (-num_rows[extent], extent)):
            if contents.extents[extent] <= room:
                room -= contents.extents[extent]
                kept.append(extent)
        return sorted(kept)


def _lock(folder: Path, files: Files) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    lock = files.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise Busy(f"another process has {folder} open") from error
        raise
    return lock
