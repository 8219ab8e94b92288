"""Giving back room in a SQLite store: whole runs are removed, records are rewritten where they stand, and ids stay taken.

A record that is rewritten keeps its place, so that no pointer moves. Where records go from the middle of a run, the one behind them points
at the one before them and says how many are gone. What is removed leaves free pages, which later records
use; only `compacted` makes the file smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import apsw

from holdfast.store import Head, Removal, Room, Row, Tombstone
from holdfast.stores._sqlite_aside import JOIN_ROW, found_head, pointer
from holdfast.stores._sqlite_blobs import forget as forget_refs
from holdfast.stores._sqlite_file import BUSY_LIMIT_MS, connect, from_sqlite

PLACES = """
    WITH RECURSIVE back (place) AS (
        SELECT last FROM runs WHERE run_id = ?1
        UNION ALL
        SELECT abs(before) & 68719476735 FROM journal JOIN back USING (place) WHERE run_id = ?1 AND abs(before) & 68719476735 < place
    ) SELECT seq, place FROM back CROSS JOIN journal USING (place) WHERE run_id = ?1
"""
GAPS = """
    WITH RECURSIVE back (place) AS (
        SELECT last FROM runs WHERE run_id = ?1
        UNION ALL
        SELECT abs(before) & 68719476735 FROM journal JOIN back USING (place) WHERE run_id = ?1 AND abs(before) & 68719476735 < place
    ) SELECT coalesce(sum(this.seq - max(that.seq, ?2) - 1), 0) FROM back CROSS JOIN journal AS this USING (place)
    JOIN journal AS that ON that.place = abs(this.before) & 68719476735
    WHERE this.run_id = ?1 AND that.run_id = ?1 AND this.before < 0 AND this.seq - that.seq - 1 = -this.before >> 36 AND this.seq > ?2
"""
DROP_ROW = "DELETE FROM journal WHERE place = ?"
DROP_HEAD = "DELETE FROM runs WHERE run_id = ?"
DROP_LETTERS = "DELETE FROM letters WHERE run_id = ?"
DROP_ASIDE = ("DELETE FROM aside_rows WHERE run_id = ?", "DELETE FROM aside_heads WHERE run_id = ?")
BURY = "INSERT OR REPLACE INTO pruned VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
GRAVE = "SELECT * FROM pruned WHERE run_id = ?"
FORGET = "DELETE FROM pruned WHERE pruned_us < ?"
REWRITE = "UPDATE journal SET body = ?, value = ?, args = ?, digest = ? WHERE place = ?"


def removed(cursor: apsw.Cursor, removal: Removal) -> bool:
    """Take a whole run away and leave its tombstone; False where it has moved, or not all of its records can be reached."""
    run_id = removal.found.run_id
    places = _places(cursor, removal.found)
    if places is None:
        return False
    cursor.executemany(DROP_ROW, [(place,) for place in places.values()])
    cursor.execute(DROP_HEAD, (run_id,))
    cursor.execute(DROP_LETTERS, (run_id,))
    for sql in DROP_ASIDE:
        cursor.execute(sql, (run_id,))
    forget_refs(cursor, run_id)
    cursor.execute(BURY, removal.grave)
    return True


def rewritten(cursor: apsw.Cursor, found: Head, rows: Sequence[Row], drops: tuple[int, int]) -> bool:
    """Drop some rows and put others in the place of those with the same seq; False where the run has moved."""
    places = _places(cursor, found)
    if places is None:
        return False
    if drops[0]:
        _dropped(cursor, places, *drops)
    cursor.executemany(REWRITE, [(row.body, row.value, row.args, row.digest, places[row.seq]) for row in rows])
    return True


def gaps(cursor: apsw.Cursor, run_id: str, seq: int) -> int:
    """How many records behind `seq` were dropped from the middle of a run."""
    return int(cursor.execute(GAPS, (run_id, seq)).get)


def _dropped(cursor: apsw.Cursor, places: dict[int, int], first: int, last: int) -> None:
    before, behind = max(seq for seq in places if seq < first), min(seq for seq in places if seq > last)
    cursor.executemany(DROP_ROW, [(place,) for seq, place in places.items() if first <= seq <= last])
    cursor.execute(JOIN_ROW, (pointer(places[before], behind - before - 1), places[behind]))


def buried(cursor: apsw.Cursor, run_id: str) -> Tombstone | None:
    """What stays of a run that was removed."""
    for row in cursor.execute(GRAVE, (run_id,)):
        return Tombstone._make(row)
    return None


def forgotten(cursor: apsw.Cursor, before_us: int) -> int:
    """Drop old tombstones; gives how many."""
    cursor.execute(FORGET, (before_us,))
    return cursor.connection.changes()


def measured(cursor: apsw.Cursor) -> Room:
    """The pages of the file, and those that hold nothing."""
    page, pages, free = (int(cursor.execute(f"PRAGMA {name}").get) for name in ("page_size", "page_count", "freelist_count"))
    return Room(page * pages, page * free)


def compacted(path: Path, url: str) -> None:
    """Build the file anew without its free pages, on a connection of its own; places stay what they are."""
    try:
        with closing(connect(path, url, BUSY_LIMIT_MS)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except apsw.Error as error:
        raise from_sqlite(error, url) from error


def _places(cursor: apsw.Cursor, found: Head) -> dict[int, int] | None:
    """Where each record of a run stands; None where the run is not what was found."""
    if found_head(cursor, found.run_id) != found:
        return None
    places = {int(seq): int(place) for seq, place in cursor.execute(PLACES, (found.run_id,))}
    return places if len(places) == found.seq or len(places) + gaps(cursor, found.run_id, 0) == found.seq else None
