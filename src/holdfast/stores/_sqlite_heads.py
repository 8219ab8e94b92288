"""Lists of heads in a SQLite store, none of which reads a journal, nor more heads than it must."""

# ruff: noqa: S608 (the columns of a head stand in one place)

from __future__ import annotations

import apsw

from holdfast.store import Head, Query
from holdfast.stores._sqlite_append import FIELDS

RESTING = f"SELECT {FIELDS} FROM runs INDEXED BY runs_resting WHERE owner IS NULL AND status = ?"
OWNED = f"SELECT {FIELDS} FROM runs INDEXED BY runs_owned WHERE owner IS NOT NULL"
BEHIND = f"SELECT {FIELDS} FROM runs WHERE run_id > ?"
DUE = f"SELECT {FIELDS} FROM runs INDEXED BY runs_due WHERE owner IS NULL AND wake_us <= ?"
IN_TURN = f"SELECT {FIELDS} FROM runs INDEXED BY runs_turn WHERE owner IS NULL AND status = ? AND queue = ?"
ADDRESSED = (
    f"SELECT {FIELDS} FROM (SELECT DISTINCT run_id FROM letters INDEXED BY letters_run WHERE run_id > ?) "
    "CROSS JOIN runs USING (run_id) WHERE owner IS NULL"
)
"""From the letters to the heads, never the other way: letters that nobody took are few."""
TAGGED = "EXISTS (SELECT 1 FROM json_each(tags) WHERE key = ? AND value = ?)"
STATUSES = """
    WITH RECURSIVE found (status) AS (
        SELECT min(status) FROM runs WHERE owner IS NULL
        UNION ALL
        SELECT (SELECT min(status) FROM runs WHERE owner IS NULL AND status > found.status) FROM found WHERE found.status IS NOT NULL
    ) SELECT status FROM found WHERE status IS NOT NULL
"""
"""One jump through the index per status, instead of reading it all."""


def listed(cursor: apsw.Cursor, query: Query) -> list[Head]:
    """The heads that match; those that come newest first are not sorted yet, nor cut to what was asked for."""
    if query.due_by_us is not None or query.addressed:
        return _to_wake(cursor, query)
    if query.queue is not None:
        return _in_turn(cursor, query)
    if query.after is not None:
        return _behind(cursor, query, query.after)
    found = _owned(cursor, query)
    for status in query.statuses or [row[0] for row in cursor.execute(STATUSES)]:
        found += _resting(cursor, query, status)
    return found


def is_newest_first(query: Query) -> bool:
    """Whether that is the order in which heads are asked for."""
    return query.due_by_us is None and not query.addressed and query.queue is None and query.after is None


def _owned(cursor: apsw.Cursor, query: Query) -> list[Head]:
    sql, values = _narrowed(OWNED, query)
    found = (Head._make(row) for row in cursor.execute(sql, values))
    return [head for head in found if not query.statuses or head.status in query.statuses]


def _resting(cursor: apsw.Cursor, query: Query, status: str) -> list[Head]:
    sql, values = _narrowed(RESTING, query)
    sql += " ORDER BY updated_us DESC, run_id LIMIT ?"
    return [Head._make(row) for row in cursor.execute(sql, (status, *values, query.offset + query.limit))]


def _behind(cursor: apsw.Cursor, query: Query, after: str) -> list[Head]:
    sql, values = _narrowed(BEHIND, query)
    if query.statuses:
        sql += f" AND status IN ({', '.join('?' * len(query.statuses))})"
    sql += " ORDER BY run_id LIMIT ? OFFSET ?"
    return [Head._make(row) for row in cursor.execute(sql, (after, *values, *query.statuses, query.limit, query.offset))]


def _to_wake(cursor: apsw.Cursor, query: Query) -> list[Head]:
    due = query.due_by_us is not None
    sql, values = _further(*_narrowed(DUE if due else ADDRESSED, query), query, "wake_us")
    if due and query.queue is not None:
        sql, values = f"{sql} AND queue = ?", [*values, query.queue]
    if query.statuses:
        sql += f" AND status IN ({', '.join('?' * len(query.statuses))})"
    sql += f" ORDER BY {'wake_us, run_id' if due else 'run_id'} LIMIT ? OFFSET ?"
    first = query.due_by_us if due else query.after or ""
    return [Head._make(row) for row in cursor.execute(sql, (first, *values, *query.statuses, query.limit, query.offset))]


def _in_turn(cursor: apsw.Cursor, query: Query) -> list[Head]:
    sql, values = _further(*_narrowed(IN_TURN, query), query, "turn")
    sql += " ORDER BY turn, run_id LIMIT ? OFFSET ?"
    (status,) = query.statuses
    return [Head._make(row) for row in cursor.execute(sql, (status, query.queue, *values, query.limit, query.offset))]


def _further(sql: str, values: list[str | int], query: Query, place: str) -> tuple[str, list[str | int]]:
    """From behind a place on, and without some lanes."""
    if query.behind is not None:
        sql, values = f"{sql} AND ({place}, run_id) > (?, ?)", [*values, *query.behind]
    if query.not_lanes:
        sql, values = f"{sql} AND lane NOT IN ({', '.join('?' * len(query.not_lanes))})", [*values, *query.not_lanes]
    return sql, values


def _narrowed(sql: str, query: Query) -> tuple[str, list[str | int]]:
    values: list[str | int] = []
    if query.agent is not None:
        sql += " AND agent = ?"
        values.append(query.agent)
    if query.owner is not None:
        sql += " AND owner = ?"
        values.append(query.owner)
    if query.idle_before_us is not None:
        sql += " AND updated_us < ?"
        values.append(query.idle_before_us)
    for tag in query.tags:
        sql += f" AND {TAGGED}"
        values.extend(tag)
    return sql, values
