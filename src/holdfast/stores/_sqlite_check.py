"""Whether a SQLite store is whole: its pages, its schema, what it says of itself, its letters, and who refers to whom.

The rows and heads of a run are not looked at here: they carry a chain of digests of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from functools import cache

import apsw

from holdfast.stores._sqlite_blobs import TABLES as BLOB_TABLES
from holdfast.stores._sqlite_file import META_SEAL, build, meta_seal

SEAL_BYTES = 16
"""What stands before the body of every letter: the beginning of its SHA-256."""

OBJECTS = "SELECT name, type, tbl_name, sql FROM sqlite_schema"
LETTERS = "SELECT letter_id, run_id, at_us, kind, body FROM letters"
ASTRAY = """
    SELECT printf('run %s has %d records in its journal but no head', run_id, count(*))
    FROM journal WHERE run_id NOT IN (SELECT run_id FROM runs) GROUP BY run_id
    UNION ALL
    SELECT printf('the head of run %s stands at %d, its journal ends at %d', run_id, runs.seq, coalesce(ended, 0))
    FROM runs LEFT JOIN (SELECT run_id, max(seq) AS ended FROM journal GROUP BY run_id) USING (run_id) WHERE runs.seq <> coalesce(ended, 0)
    UNION ALL
    SELECT printf('letter %d is addressed to run %s, which is not there', letter_id, run_id)
    FROM letters WHERE run_id NOT IN (SELECT run_id FROM runs)
    UNION ALL
    SELECT printf('run %s belongs to %s, which is not enrolled', run_id, owner)
    FROM runs WHERE owner IS NOT NULL AND owner NOT IN (SELECT owner FROM owners)
"""
POINTERS = """
    SELECT printf('run %s: record %d does not point at the one before it', this.run_id, this.seq)
    FROM journal AS this LEFT JOIN journal AS that ON that.place = abs(this.before) & 68719476735
    WHERE iif(this.seq = 1, this.before <> 0, that.run_id IS NOT this.run_id OR iif(this.before > 0, that.seq IS NOT this.seq - 1,
        this.seq - that.seq - 1 IS NOT -this.before >> 36 OR that.seq >= this.seq - 1))
    UNION ALL
    SELECT printf('run %s: its head does not point at its last record', runs.run_id)
    FROM runs JOIN journal AS ended USING (run_id, seq) WHERE ended.place <> last
"""
NUMBERING = """
    SELECT 'the numbering of letters is damaged: a number could be given twice'
    WHERE EXISTS (SELECT 1 FROM sqlite_sequence WHERE name IS NOT 'letters' OR typeof(seq) <> 'integer')
    OR (SELECT coalesce(max(letter_id), 0) FROM letters) > (SELECT coalesce(max(seq), 0) FROM sqlite_sequence)
"""


def findings(cursor: apsw.Cursor) -> list[str]:
    """What is wrong, in plain words; where the pages or the schema are damaged, what they hold is not looked at."""
    return pages(cursor) or list(_schema(cursor)) or [*_meta(cursor), *_astray(cursor), *_letters(cursor)]


def sealed(run_id: str, kind: str, body: bytes, at_us: int) -> bytes:
    """The body of a letter, with what will tell whether the letter is still what was posted."""
    header = f"{run_id}\0{kind}\0{at_us}\0".encode("utf-8", "surrogatepass")
    return hashlib.sha256(header + body).digest()[:SEAL_BYTES] + body


def unsealed(run_id: str, kind: str, kept: object, at_us: int) -> bytes | None:
    """The body of a letter, or None where it is not what was posted."""
    body = kept[SEAL_BYTES:] if isinstance(kept, bytes) else b""
    return body if sealed(run_id, kind, body, at_us) == kept else None


def pages(cursor: apsw.Cursor) -> list[str]:
    """What SQLite's own check finds."""
    found = [str(row[0]) for row in cursor.execute("PRAGMA integrity_check")]
    return [] if found == ["ok"] else found


def _schema(cursor: apsw.Cursor) -> Iterator[str]:
    """Tables and indexes must be the declared ones; those of blobs are there once there is one."""
    there, wanted = _objects(cursor), _declared()
    for name in sorted(wanted.keys() | there.keys()):
        if there.get(name) != wanted.get(name) and not (name.startswith("blob_") and name not in there):
            yield f"the schema is damaged: {name} is not as it was declared"


def _objects(cursor: apsw.Cursor) -> dict[str, tuple[object, ...]]:
    return {str(name): (*rest, " ".join(str(sql).split())) for name, *rest, sql in cursor.execute(OBJECTS)}


@cache
def _declared() -> dict[str, tuple[object, ...]]:
    with closing(apsw.Connection(":memory:")) as fresh:
        build(fresh)
        fresh.execute(BLOB_TABLES)
        return _objects(fresh.cursor())


def _meta(cursor: apsw.Cursor) -> Iterator[str]:
    """A store from before there was a seal has none; anything else that is not ours cannot be told from damage."""
    kept = dict(cursor.execute("SELECT key, value FROM meta"))
    seal = kept.pop(META_SEAL, None)
    if kept.keys() != {"format", "store_id"} or (seal is not None and seal != meta_seal(kept)):
        yield "what the store says of itself (its format and its id) is damaged"


def _astray(cursor: apsw.Cursor) -> Iterator[str]:
    for sql in (ASTRAY, POINTERS, NUMBERING):
        yield from (str(found) for (found,) in cursor.execute(sql))


def _letters(cursor: apsw.Cursor) -> Iterator[str]:
    for letter_id, run_id, at_us, kind, kept in cursor.execute(LETTERS):
        if unsealed(run_id, kind, kept, at_us) is None:
            yield f"letter {letter_id} to run {run_id} is damaged; it will be ignored"
