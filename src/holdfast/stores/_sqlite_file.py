"""The database file of a SQLite store: created whole, recognised before it is touched, opened as promised.

A new store is built under a temporary name and linked to its own, so at that name there is either nothing or all of it.
A file that is already there is judged by its first bytes, before SQLite sees it: what is not ours is left byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import closing
from pathlib import Path

import apsw

from holdfast.errors import StoreBusy, StoreDamaged, StoreError, StoreFailed, StoreForeign, StoreFull, StoreNewer, StoreReadOnly
from holdfast.stores._file_system import NETWORK
from holdfast.stores._file_system import file_system as file_system  # noqa: PLC0414 (it is looked for here too)
from holdfast.stores._os_errors import FAILED, FULL, READ_ONLY, os_errors, refuse_nowhere, refuse_unwritable

APPLICATION_ID = 0x486F6C64
"""`Hold`, at byte 68 of every database of ours."""

FORMAT = 2
"""Version of the file. Since 2 a store has tails: who does not know them would take a run over without its last records."""

BUSY_LIMIT_MS = 10_000
"""How long a normal operation waits for the lock of another process or thread."""

META_SEAL = "seal"

ADDED, SHARED, TAILS = (
    Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("sqlite_added.sql", "sqlite_shared.sql", "sqlite_tails.sql")
)
"""What the first stores were built without; whoever opens one adds it."""
WITHOUT = [
    ("runs_due", "", ADDED), ("pruned", "", ADDED), ("aside_heads", "", ADDED), ("runs", "queue", SHARED), ("owners", "tail", TAILS),
]  # fmt: skip
"""By which table, index or column that is not there it is seen."""

MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100


def prepare(path: Path, url: str) -> None:
    """Make sure that a database of ours stands at `path`, or raise what stands there instead."""
    with os_errors(url):
        refuse_nowhere(path.parent, url)
        path.parent.mkdir(mode=0o700, exist_ok=True)  # one folder at the most: a path that was mistyped is not built up
        _refuse_network(path, url)
        if not path.exists():
            refuse_unwritable(path.parent, url)
            _create(path, url)
        _recognise(path, url)
        refuse_unwritable(path.parent, url)
        refuse_unwritable(path, url)


def is_missing(path: Path, url: str) -> bool:
    """Whether nothing stands at `path`; where nothing could be made there either, that is raised. Nothing is created."""
    with os_errors(url):
        if path.exists():
            return False
        there = refuse_nowhere(path.parent, url)
        _refuse_network(path, url)
        refuse_unwritable(there, url)
    return True


def connect(path: Path, url: str, patience_ms: int) -> apsw.Connection:
    """A connection that has what the promises rest on, or none at all."""
    connection = None
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(patience_ms)
        _assert_format(connection, url)
        _assert_durable(connection, url)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, apsw.Error):
            raise from_sqlite(error, url) from error
        raise
    return connection


def from_sqlite(error: apsw.Error | UnicodeDecodeError, url: str) -> StoreError:
    """What SQLite says, as one of our errors; text that is none can only be damage."""
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
        return StoreFull(url, f"{_NO_GROWTH} ({error})")
    for kinds, ours, advice in _ADVICE:
        if isinstance(error, kinds):
            return ours(url, f"{advice} ({error})")
    return StoreFailed(url, f"{FAILED} ({type(error).__name__}: {error})")


_NO_GROWTH = (
    "the shared memory beside the log cannot grow, most likely because there is no room left; what was acknowledged before is safe. "
    "Free some space, or see to the disk, then run again"
)
_BUSY = "somebody else holds the write lock; nothing was written. Try again, or end the program that keeps the database locked"
KEEP_A_COPY = "Keep a copy of all its files, then look with `holdfast check --all`; where it says no more than this, restore a backup"
_DAMAGED = f"the database is damaged. {KEEP_A_COPY}"
_ADVICE: list[tuple[tuple[type[Exception], ...], type[StoreError], str]] = [
    ((apsw.BusyError, apsw.LockedError), StoreBusy, _BUSY),
    ((apsw.FullError,), StoreFull, FULL),
    ((apsw.ReadOnlyError, apsw.PermissionsError), StoreReadOnly, READ_ONLY),
    ((apsw.CorruptError, apsw.NotADBError, apsw.ConstraintError, UnicodeDecodeError), StoreDamaged, _DAMAGED),
]


def _create(path: Path, url: str) -> None:
    name = str(path.with_name(f".{path.name}.{secrets.token_hex(8)}.new"))
    try:
        os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        _build(name, url)
        _flush(name)
        os.link(name, path)
        _flush(str(path.parent))
    except FileExistsError:
        return
    finally:
        Path(name).unlink(missing_ok=True)


def build(connection: apsw.Connection) -> None:
    """The schema of a new store, and what it says of itself."""
    about = {"format": str(FORMAT), "store_id": secrets.token_hex(16)}
    connection.execute("BEGIN")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(Path(__file__).with_name("sqlite.sql").read_text(encoding="utf-8"))
    for addition in (ADDED, SHARED, TAILS):
        connection.execute(addition)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", [*about.items(), (META_SEAL, meta_seal(about))])
    connection.execute("COMMIT")


def additions(cursor: apsw.Cursor) -> list[str]:
    """What a store was built without, in order."""
    there = {name: str(sql) for name, sql in cursor.execute("SELECT name, sql FROM sqlite_schema")}
    return list(dict.fromkeys(addition for name, column, addition in WITHOUT if column not in there.get(name, "") or name not in there))


def bring_up_to_date(cursor: apsw.Cursor) -> None:
    """Add what a store was built without, unless somebody else was faster."""
    for addition in additions(cursor):
        cursor.execute(addition)
    about = dict(cursor.execute("SELECT key, value FROM meta"))
    whole = meta_seal(about) == about.get(META_SEAL)
    about["format"] = str(FORMAT)
    cursor.execute("UPDATE meta SET value = ? WHERE key = 'format'", (about["format"],))
    if whole:  # what was damaged before is not to look as if it were not
        cursor.execute("UPDATE meta SET value = ? WHERE key = ?", (meta_seal(about), META_SEAL))


def meta_seal(about: dict[str, str]) -> str:
    """What tells whether a store still says of itself what was written."""
    return hashlib.sha256(f"{about['format']}\0{about['store_id']}".encode()).hexdigest()


def _build(name: str, url: str) -> None:
    try:
        with closing(apsw.Connection(name, flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
            build(connection)
            connection.execute("PRAGMA journal_mode = wal")
    except apsw.Error as error:
        raise from_sqlite(error, url) from error


def _flush(name: str) -> None:
    fd = os.open(name, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _recognise(path: Path, url: str) -> None:
    if not path.is_file():
        raise StoreForeign(url, "this is not a file; it was left as it is. Name a path of its own for the store")
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise StoreForeign(url, _WAS_ONE if path.with_name(f"{path.name}.owners").exists() else _NO_DATABASE)
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StoreForeign(url, "this database belongs to another program; it was left as it is. Name another path")


_NO_DATABASE = (
    "this file is not a database; it was left as it is. Name another path, or move the file away; but if it was a store, restore a backup: "
    "in a new one every run would begin anew, and do everything once more"
)
_WAS_ONE = (
    "this file is not a database any more, though a store has stood here; it was left as it is. Keep a copy of all its files and restore a "
    "backup: in a new store every run would begin anew, and do everything once more"
)


def _refuse_network(path: Path, url: str) -> None:
    kind = file_system(path.parent)
    if kind in NETWORK:
        reason = f"it is on a network file system ({kind}), where acknowledged steps can be lost; it was not opened"
        raise StoreFailed(url, f"{reason}. Name a path on a local disk")


def _assert_format(connection: apsw.Connection, url: str) -> None:
    try:
        found = int(connection.execute("SELECT value FROM meta WHERE key = 'format'").get)
    except (apsw.SQLError, TypeError, ValueError) as error:
        raise StoreDamaged(url, f"{_DAMAGED} (it does not say which format it has)") from error
    if found < 1:
        raise StoreDamaged(url, f"{_DAMAGED} (it says that it has format {found}, which there never was)")
    if found > FORMAT:
        reason = f"it has format {found}, and this Holdfast knows {FORMAT}; nothing was changed"
        raise StoreNewer(url, f"{reason}. Install the newer Holdfast that wrote it")


def _assert_durable(connection: apsw.Connection, url: str) -> None:
    mode = connection.execute("PRAGMA journal_mode = wal").get
    connection.execute("PRAGMA synchronous = full")
    level = connection.execute("PRAGMA synchronous").get
    if (mode, level) != ("wal", 2):
        reason = f"WAL with full flushes cannot be had here (journal_mode {mode}, synchronous {level}); it is not used"
        raise StoreFailed(url, f"{reason}. Name a path on a local disk")
