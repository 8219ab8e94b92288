"""Which runs of a SQLite store refer to which blobs, and which blobs consist of others: read and written inside its transactions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from holdfast._failpoints import reach
from holdfast.store import Swept
from holdfast.stores._blob_files import BlobFiles, HalfWritten, condemned

TABLES = Path(__file__).with_name("sqlite_blobs.sql").read_text(encoding="utf-8")

EXIST = "SELECT 1 FROM sqlite_schema WHERE name = 'blob_parts'"
REFERRED = "SELECT 1 FROM blob_refs WHERE run_id = ? AND digest = ?"
REFER = "INSERT OR IGNORE INTO blob_refs VALUES (?, ?)"
JOIN = "INSERT OR IGNORE INTO blob_parts VALUES (?, ?)"
REFS = "SELECT digest FROM blob_refs WHERE run_id = ? ORDER BY digest"
FORGET = "DELETE FROM blob_refs WHERE run_id = ?"
PARTS = "SELECT part FROM blob_parts WHERE whole = ? ORDER BY part"
PART = "DELETE FROM blob_parts WHERE whole = ?"


def missing(cursor: apsw.Cursor, files: BlobFiles, run_id: str, refs: Sequence[str]) -> list[str]:
    """What is not there of the blobs that this run did not refer to before."""
    cursor.execute(TABLES)
    return [digest for digest in refs if not files.has(digest) and cursor.execute(REFERRED, (run_id, digest)).get is None]


def refer(cursor: apsw.Cursor, run_id: str, refs: Sequence[str]) -> None:
    """From this transaction on the run refers to these."""
    cursor.executemany(REFER, [(run_id, digest) for digest in refs])


def forget(cursor: apsw.Cursor, run_id: str) -> None:
    """The run is removed in this transaction, and refers to nothing any more."""
    if cursor.execute(EXIST).get is not None:
        cursor.execute(FORGET, (run_id,))


def join(cursor: apsw.Cursor, files: BlobFiles, written: HalfWritten, parts: Sequence[str], at_us: int) -> None:
    """Put a blob in its place together with the word that its parts must stay; the lock keeps a sweep from coming between."""
    for part in parts:
        if not files.has(part):
            raise KeyError(part)
    cursor.execute(TABLES)
    cursor.executemany(JOIN, [(written.digest, part) for part in parts])
    if not files.touch(written.digest, at_us, written.size):
        files.place(written, at_us)


def listed(cursor: apsw.Cursor, sql: str, about: str) -> list[str]:
    """The digests that a query gives, none where nothing was ever referred to."""
    if cursor.execute(EXIST).get is None:
        return []
    return [str(digest) for (digest,) in cursor.execute(sql, (about,))]


def sweep(cursor: apsw.Cursor, files: BlobFiles, before_us: int, *, dry_run: bool) -> Swept:
    """Remove what nobody refers to. Should the process die before the commit, the files are gone and the tables speak of nothing real."""
    known = cursor.execute(EXIST).get is not None
    old = files.older(before_us)
    referred = {str(digest) for (digest,) in cursor.execute("SELECT DISTINCT digest FROM blob_refs")} if known else set()
    pairs = list(cursor.execute("SELECT whole, part FROM blob_parts")) if known else []
    there = {whole for whole in {whole for whole, _ in pairs} if files.has(whole)}
    gone = condemned(old.keys() - referred, [(whole, part) for whole, part in pairs if whole in there])
    reach("sweep.before")
    for digest in () if dry_run else gone:
        files.remove(digest)
        if known:
            cursor.execute(PART, (digest,))
    reach("sweep.after")
    left = files.leftovers(dry_run=dry_run)
    return Swept(len(gone) + len(left), sum(old[digest] for digest in gone) + sum(left))
