"""What changes a run otherwise than by an append: repairs move its end aside, pruning removes it or makes it smaller.

Each of these locks the head first and compares it with the one that was found, so that who appends meanwhile is either before or behind it.
"""

# ruff: noqa: S608 (the columns of a head stand in one place, and tables are named by constants)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.store import Aside, Head, Removal, Repair, Room, Row, Shedding, Tombstone
from holdfast.stores._postgres_append import BLOBS_STAY, FIELDS, ROW_FIELDS, head_of, referred, row_of, tagged, written
from holdfast.stores._postgres_line import Connection
from holdfast.stores._postgres_text import plain, sql_text

HEAD = f"SELECT {FIELDS} FROM runs WHERE run_id = %b"
LOCKED_HEAD = f"{HEAD} FOR UPDATE"
ROWS = f"SELECT {ROW_FIELDS} FROM journal WHERE run_id = %b AND seq > %b ORDER BY seq"
ADD_ID = "INSERT INTO ids VALUES (%b) ON CONFLICT DO NOTHING"
ADD_HEAD = f"INSERT INTO runs ({FIELDS}, tagged, dropped) VALUES ({', '.join(['%b'] * len(Head._fields))}, %s::text[], %b)"
ADD_ROW = f"INSERT INTO journal (run_id, {ROW_FIELDS}) VALUES (%b, {', '.join(['%b'] * len(Row._fields))})"
KEEP_ROWS = f"""
    INSERT INTO aside_rows (moved_us, moved_by, why, run_id, {ROW_FIELDS})
    SELECT %b::bigint, %b::text, %b::text, run_id, {ROW_FIELDS} FROM journal WHERE run_id = %b AND seq = ANY(%b) ORDER BY seq
"""
KEEP_HEAD = f"""
    INSERT INTO aside_heads (moved_us, moved_by, why, {FIELDS})
    SELECT %b::bigint, %b::text, %b::text, {FIELDS} FROM runs WHERE run_id = %b
"""
DROP_ROWS = "DELETE FROM journal WHERE run_id = %b AND seq = ANY(%b)"
DROP_HEAD = "DELETE FROM runs WHERE run_id = %b"
MOVED = {
    "row": f"SELECT moved_us, moved_by, why, {ROW_FIELDS} FROM aside_rows WHERE run_id = %b ORDER BY place",
    "head": f"SELECT moved_us, moved_by, why, {FIELDS} FROM aside_heads WHERE run_id = %b ORDER BY place",
}
DROP_BETWEEN = "DELETE FROM journal WHERE run_id = %b AND seq BETWEEN %b AND %b"
COUNT_DROPPED = "UPDATE runs SET dropped = dropped + %b WHERE run_id = %b"
HELD = "SELECT (SELECT count(*) FROM journal WHERE run_id = %b) + dropped FROM runs WHERE run_id = %b"
REWRITE = "UPDATE journal SET body = %b, value = %b, args = %b, digest = %b WHERE run_id = %b AND seq = %b"
REMOVED = ("journal", "runs", "letters", "aside_rows", "aside_heads", "blob_refs", "live")
BURY = f"INSERT INTO pruned VALUES ({', '.join(['%b'] * len(Tombstone._fields))}) ON CONFLICT DO NOTHING"
GRAVE = "SELECT * FROM pruned WHERE run_id = %b"
FORGET = "DELETE FROM ids USING (SELECT run_id FROM pruned WHERE pruned_us < %b) AS old WHERE ids.run_id = old.run_id"
FORGET_GRAVES = "DELETE FROM pruned WHERE pruned_us < %b"
SIZE = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace(%b)"


def found_head(connection: Connection, run_id: str, sql: str = HEAD) -> Head | None:
    """The head, if there is one."""
    rows = connection.cursor(binary=True).execute(sql, (sql_text(run_id),)).fetchall()
    return head_of(rows[0]) if rows else None


def found_rows(connection: Connection, run_id: str, behind: int = 0) -> list[Row]:
    """The rows behind a seq."""
    return [row_of(row) for row in connection.cursor(binary=True).execute(ROWS, (sql_text(run_id), behind))]


def moved_aside(connection: Connection, repair: Repair) -> bool:
    """Keep what is not good, and put what follows in place; False where the run has moved."""
    run_id, why = sql_text(repair.run_id), (repair.at_us, sql_text(repair.by), sql_text(repair.why))
    with connection.transaction():
        if repair.refs:  # before the head is locked, as who appends does it
            connection.execute(BLOBS_STAY)
        if found_head(connection, repair.run_id, LOCKED_HEAD) != repair.found or not referred(connection, repair):
            return False
        good = set(repair.good)
        bad = [row.seq for row in found_rows(connection, repair.run_id, -(2**62)) if row not in good]
        connection.execute(KEEP_ROWS, (*why, run_id, bad))
        connection.execute(DROP_ROWS, (run_id, bad))
        connection.execute(KEEP_HEAD, (*why, run_id))
        connection.execute(DROP_HEAD, (run_id,))
        connection.execute(ADD_ID, (run_id,))
        for row in repair.rows:
            connection.execute(ADD_ROW, (run_id, *_kept(row)))
        dropped = repair.head.seq - len(good) - len(repair.rows)
        connection.execute(ADD_HEAD, (*_kept(repair.head), tagged(repair.head.tags), dropped))
        return True


def aside(connection: Connection, run_id: str) -> Iterator[Aside]:
    """What was moved away, rows before heads."""
    for what, sql in MOVED.items():
        for row in connection.cursor(binary=True).execute(sql, (sql_text(run_id),)).fetchall():
            at_us, by, why, *fields = map(plain, row)
            yield Aside(run_id, at_us, by, why, what, tuple(fields))


def removed(connection: Connection, removals: Sequence[Removal]) -> list[bool]:
    """Take whole runs away and leave their tombstones, each if it has not moved."""
    with connection.transaction():
        return [_removed(connection, one) for one in removals]


def shed(connection: Connection, shedding: Shedding) -> bool:
    """Drop rows, put others in place, and append; False where the run has moved."""
    run_id = sql_text(shedding.found.run_id)
    with connection.transaction():
        if found_head(connection, shedding.found.run_id, LOCKED_HEAD) != shedding.found:
            return False
        if shedding.drops != (0, 0):
            gone = connection.execute(DROP_BETWEEN, (run_id, *shedding.drops)).rowcount
            connection.execute(COUNT_DROPPED, (gone, run_id))
        for row in shedding.rows:
            connection.execute(REWRITE, (row.body, row.value, row.args, row.digest, run_id, row.seq))
        (stale,) = written(connection, [shedding.append])
        assert stale is None, "the head was the one that was found"
        return True


def tombstone(connection: Connection, run_id: str) -> Tombstone | None:
    """What stays of a run that was removed."""
    rows = connection.cursor(binary=True).execute(GRAVE, (sql_text(run_id),)).fetchall()
    return Tombstone._make(map(plain, rows[0])) if rows else None


def forgotten(connection: Connection, before_us: int) -> int:
    """Drop old tombstones, and let their ids be used again."""
    with connection.transaction():
        connection.execute(FORGET, (before_us,))
        return connection.execute(FORGET_GRAVES, (before_us,)).rowcount


def measured(connection: Connection, schema: str) -> Room:
    """What the tables take up. How much of that is free PostgreSQL does not say without an extension; it is used before they grow."""
    return Room(connection.execute(SIZE, (schema,)).fetchall()[0][0], 0)


def compacted(connection: Connection) -> None:
    """Build the large tables anew, each behind a lock."""
    for table in ("journal", "runs", "letters", "blob_pieces"):
        connection.execute(f"VACUUM (FULL, ANALYZE) {table}".encode(), prepare=False)


def _removed(connection: Connection, removal: Removal) -> bool:
    run_id = sql_text(removal.found.run_id)
    if found_head(connection, removal.found.run_id, LOCKED_HEAD) != removal.found:
        return False
    if connection.execute(HELD, (run_id, run_id)).fetchall() != [(removal.found.seq,)]:
        return False
    for table in REMOVED:
        connection.execute(f"DELETE FROM {table} WHERE run_id = %b".encode(), (run_id,))
    connection.execute(BURY, _kept(removal.grave))
    return True


def _kept(fields: Sequence[Any]) -> list[Any]:
    return [sql_text(field) if isinstance(field, str) else field for field in fields]
