"""The index on disk: which slot holds which block, whose it is and how to prove it. SQLite, used by one thread.

    clean       1 after a close: then only the slots in `dirty` hold bytes of blocks that are gone. Else any slot that
                no row names may, and all of them are overwritten
    slabs       a row is there only while its slot holds the slab whole: it is written after the slab has reached the
                disk (`synchronous=FULL`), and deleted, on the disk too, before the slot is written to again

Nothing that a row says is trusted: a slab's proof covers its key and its owner. Rows that are deleted are overwritten
(`secure_delete`), and `erase_log` leaves nothing of them in the log. The file is open for one process alone.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from engine.disk.contents import Contents, Row, SessionRow, SpoiltIndex, check
from engine.disk.extents import erase_file
from engine.disk.files import Files

FILE_NAME = "index.sqlite"
_FILES = (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", f"{FILE_NAME}-journal")
FORMAT = "1"
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE extents (extent INTEGER PRIMARY KEY, num_slots INTEGER NOT NULL);
CREATE TABLE owners (owner INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, mark BLOB NOT NULL);
CREATE TABLE slabs (
    slot INTEGER PRIMARY KEY, key BLOB NOT NULL, owner INTEGER NOT NULL, proof BLOB NOT NULL,
    last_use REAL NOT NULL, value REAL NOT NULL
);
CREATE TABLE sessions (
    owner INTEGER NOT NULL, name BLOB NOT NULL, record BLOB NOT NULL, PRIMARY KEY (owner, name)
) WITHOUT ROWID;
CREATE TABLE dirty (slot INTEGER PRIMARY KEY);
"""
_SPOILT = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH})


class Layout(NamedTuple):
    """What a store is for. One of another layout is another store."""

    fingerprint: str
    slot_bytes: int


class Index:
    """The open file. Every change is part of a transaction: see `transaction`."""

    def __init__(self, folder: Path, files: Files) -> None:
        """Open the file, or make it.

        Raises:
            SpoiltIndex, sqlite3.Error, OSError
        """
        path = folder / FILE_NAME
        path.touch(0o600)
        with _judged():
            self._db = files.connect(path)
            try:
                self._configure()
            except BaseException:
                self._db.close()
                raise

    def _configure(self) -> None:
        execute = self._db.execute
        execute("PRAGMA locking_mode=EXCLUSIVE")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        execute("PRAGMA secure_delete=ON")
        execute("PRAGMA trusted_schema=OFF")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # ------------------------------------------------------------ beginning

    def begin(self, layout: Layout, per_extent: int) -> int:
        """Make the tables of a new store, or check that they are of this layout; return the slots of an extent.

        Raises:
            SpoiltIndex: it is another store, or none.
        """
        with _judged():
            names = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not names:
                self._make(layout, per_extent)
                return per_extent
            if self._db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise SpoiltIndex("its pages are damaged")
            meta = dict(self._db.execute("SELECT name, value FROM meta"))
            found = (meta.get("format"), meta.get("fingerprint"), meta.get("slot_bytes"))
            if found != (FORMAT, layout.fingerprint, str(layout.slot_bytes)):
                raise SpoiltIndex("it is of another model, block size or version")
            slots = meta.get("per_extent")
            if not (isinstance(slots, str) and slots.isdecimal() and int(slots) > 0):
                raise SpoiltIndex("it does not say how large an extent is")
            return int(slots)

    def _make(self, layout: Layout, per_extent: int) -> None:
        meta = {
            "format": FORMAT,
            "fingerprint": layout.fingerprint,
            "slot_bytes": str(layout.slot_bytes),
            "per_extent": str(per_extent),
            "clean": "1",
        }
        with self.transaction():
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

    def contents(self, per_extent: int) -> Contents:
        """Read all of it.

        Raises:
            SpoiltIndex: something in it makes no sense.
        """
        with _judged():
            execute = self._db.execute
            names = dict(execute("SELECT owner, name FROM owners"))
            contents = Contents(
                clean=execute("SELECT value FROM meta WHERE name = 'clean'").fetchone() == ("1",),
                extents=dict(execute("SELECT extent, num_slots FROM extents")),
                owners=dict(execute("SELECT name, mark FROM owners")),
                rows=[
                    Row(slot, key, names.get(owner, ""), proof, last_use, value)
                    for slot, key, owner, proof, last_use, value in execute("SELECT * FROM slabs")
                ],
                sessions=[
                    SessionRow(names.get(owner, ""), name, record)
                    for owner, name, record in execute("SELECT * FROM sessions")
                ],
                dirty=[slot for (slot,) in execute("SELECT slot FROM dirty")],
            )
            check(contents, per_extent)
            return contents

    # ------------------------------------------------------------ changes

    def transaction(self) -> "_Transaction":
        """Return a context in which all changes are made or none; at its end they are on the disk."""
        return _Transaction(self._db)

    def set_clean(self, clean: bool, dirty: Iterable[int] = ()) -> None:
        """Say whether slots that no row names are known, and which of them hold something still."""
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'clean'", ("1" if clean else "0",))
        self._db.execute("DELETE FROM dirty")
        self._db.executemany("INSERT INTO dirty VALUES (?)", ((slot,) for slot in dirty))

    def add_extent(self, extent: int, num_slots: int) -> None:
        """Note a new extent."""
        self._db.execute("INSERT OR REPLACE INTO extents VALUES (?, ?)", (extent, num_slots))

    def remove_extents(self, extents: Sequence[int], per_extent: int) -> None:
        """Forget extents, and all slabs in them."""
        for extent in extents:
            ends = (extent * per_extent, (extent + 1) * per_extent)
            self._db.execute("DELETE FROM extents WHERE extent = ?", (extent,))
            self._db.execute("DELETE FROM slabs WHERE slot >= ? AND slot < ?", ends)

    def add(self, rows: Iterable[Row]) -> None:
        """Name slabs that are on the disk."""
        self._db.executemany(
            "INSERT INTO slabs SELECT ?, ?, owner, ?, ?, ? FROM owners WHERE name = ?",
            ((row.slot, row.key, row.proof, row.last_use, row.value, row.owner) for row in rows),
        )

    def remove(self, slots: Iterable[int]) -> None:
        """Name slabs no more."""
        self._db.executemany("DELETE FROM slabs WHERE slot = ?", ((slot,) for slot in slots))

    def rank(self, uses: Iterable[tuple[int, float, float]]) -> None:
        """Note when slots were last of use and what they are worth."""
        query = "UPDATE slabs SET last_use = ?, value = ? WHERE slot = ?"
        self._db.executemany(query, ((last_use, value, slot) for slot, last_use, value in uses))

    def set_owner(self, name: str, check: bytes) -> None:
        """Note an owner and how to know its sealer again."""
        query = "INSERT INTO owners (name, mark) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET mark = excluded.mark"
        self._db.execute(query, (name, check))

    def remove_owner(self, name: str) -> None:
        """Forget an owner, its slabs and its sessions."""
        self._db.execute("DELETE FROM slabs WHERE owner = (SELECT owner FROM owners WHERE name = ?)", (name,))
        self._db.execute("DELETE FROM sessions WHERE owner = (SELECT owner FROM owners WHERE name = ?)", (name,))
        self._db.execute("DELETE FROM owners WHERE name = ?", (name,))

    def put_session(self, row: SessionRow) -> None:
        """Keep a session's record in place of the one before."""
        query = "INSERT OR REPLACE INTO sessions SELECT owner, ?, ? FROM owners WHERE name = ?"
        self._db.execute(query, (row.name, row.record, row.owner))

    def remove_session(self, owner: str, name: bytes) -> None:
        """Forget a session."""
        query = "DELETE FROM sessions WHERE name = ? AND owner = (SELECT owner FROM owners WHERE name = ?)"
        self._db.execute(query, (name, owner))

    def erase_log(self) -> None:
        """Move what was committed into the file itself and empty the log, which holds earlier versions of it."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


class _Transaction:
    """BEGIN and COMMIT, or ROLLBACK when something is raised."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._db.execute("COMMIT")
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")


def erase_index(folder: Path, files: Files) -> None:
    """Overwrite and remove the index, log and all."""
    for name in _FILES:
        erase_file(folder / name, files)


@contextmanager
def _judged() -> Iterator[None]:
    """Tell a spoilt file from a failing disk: the first is thrown away, the second may come back."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None or code & 0xFF in _SPOILT:
            raise SpoiltIndex(str(error)) from error
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise SpoiltIndex(f"its values make no sense: {error}") from error
