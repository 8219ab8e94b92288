"""An append to a SQLite store, inside a transaction: add the rows if the head stands where it is believed to, and move the head."""

# ruff: noqa: S608 (the columns of a head stand in one place)

from __future__ import annotations

from collections.abc import Sequence

import apsw

from holdfast.store import INSIDE, Append, Ceiling, Head, Row, Stale
from holdfast.stores import _sqlite_blobs as blobs
from holdfast.stores._blob_files import BlobFiles

FIELDS = ", ".join(Head._fields)
CREATE = (
    f"INSERT INTO runs ({FIELDS}, last) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, 0 "
    "WHERE NOT EXISTS (SELECT 1 FROM pruned WHERE run_id = ?1) ON CONFLICT DO NOTHING"
)
ADVANCE = (
    "UPDATE runs SET seq = ?, digest = ?, created_us = ?, updated_us = ?, tags = ?, usd = ?, note = ?, "
    "last = last_insert_rowid() WHERE run_id = ? AND agent = ? AND status = ? AND owner IS ? AND epoch = ? AND wake_us IS ? AND queue = ? "
    "AND turn = ? AND lane = ?"
)
"""Names no column that is in an index but `updated_us`: naming it would open the index, and rewrite it even where the value stays."""
GO_ON = "UPDATE runs SET seq = ?, digest = ?, updated_us = ?, last = last_insert_rowid() WHERE run_id = ?"
REPLACE = (
    "UPDATE runs SET agent = ?, status = ?, owner = ?, epoch = ?, seq = ?, digest = ?, wake_us = ?, created_us = ?, updated_us = ?, "
    "tags = ?, usd = ?, note = ?, queue = ?, turn = ?, lane = ?, last = last_insert_rowid() WHERE run_id = ?"
)
ADD_FIRST = (
    "INSERT INTO journal SELECT run_id, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, last FROM runs WHERE run_id = ? AND epoch = ? AND seq = ?"
)
"""The fence: nothing is added where the head stands elsewhere."""
ADD_NEXT = "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, last_insert_rowid())"
TAKE = "DELETE FROM letters WHERE letter_id = ? AND run_id = ?"

HEAD = f"SELECT {FIELDS} FROM runs WHERE run_id = ?"
OTHERS = {
    field: f"SELECT count(*) FROM runs INDEXED BY runs_owned WHERE owner IS NOT NULL AND {field} = ? AND run_id <> ? "
    f"AND instr(tags, '{INSIDE}') = 0"
    for field in ("queue", "agent", "lane")
}


def append(cursor: apsw.Cursor, one: Append, files: BlobFiles) -> Stale | None:
    """Write what one run wants to write at once; `Stale`, with nothing written, where it is refused."""
    run_id, epoch, seq, rows, head, takes, refs, ceilings, goes_on = one
    if refs and (missing := blobs.missing(cursor, files, run_id, refs)):
        now = head_of(cursor, run_id)
        return Stale(now, missing if (epoch, seq) == ((now.epoch, now.seq) if now else (0, 0)) else ())
    if ceilings and (full := [ceiling for ceiling in ceilings if _is_reached(cursor, ceiling, run_id)]):
        now = head_of(cursor, run_id)
        return Stale(now, full=full if (epoch, seq) == ((now.epoch, now.seq) if now else (0, 0)) else ())
    if epoch == seq == 0:
        cursor.execute(CREATE, head)
        if cursor.connection.changes() == 0:
            return Stale(head_of(cursor, run_id))
        epoch, seq = head.epoch, head.seq
    if not add_rows(cursor, run_id, epoch, seq, rows):
        return Stale(head_of(cursor, run_id))
    if goes_on:
        cursor.execute(GO_ON, (head[5], head[6], head[9], run_id))
    else:
        _move_head(cursor, head)
    for letter_id in takes:
        cursor.execute(TAKE, (letter_id, run_id))
    if refs:
        blobs.refer(cursor, run_id, refs)
    return None


def add_rows(cursor: apsw.Cursor, run_id: str, epoch: int, seq: int, rows: Sequence[Row]) -> bool:
    """Add rows behind `seq`; False, with nothing added, where the head stands elsewhere."""
    cursor.execute(ADD_FIRST, (*rows[0], run_id, epoch, seq))
    if cursor.connection.changes() == 0:
        return False
    if len(rows) > 1:
        cursor.executemany(ADD_NEXT, [(run_id, *row) for row in rows[1:]])
    return True


def _move_head(cursor: apsw.Cursor, head: Head) -> None:
    cursor.execute(ADVANCE, (*head[5:7], *head[8:13], head.run_id, *head[1:5], head.wake_us, *head[13:]))
    if cursor.connection.changes() == 0:
        cursor.execute(REPLACE, (*head[1:], head.run_id))


def _is_reached(cursor: apsw.Cursor, ceiling: Ceiling, run_id: str) -> bool:
    field, value, most = ceiling
    return bool(cursor.execute(OTHERS[field], (value, run_id)).get >= most)


def head_of(cursor: apsw.Cursor, run_id: str) -> Head | None:
    """The head of a run."""
    for row in cursor.execute(HEAD, (run_id,)):
        return Head._make(row)
    return None
