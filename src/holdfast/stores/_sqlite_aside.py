"""The damaged end of a run in a SQLite store: read without relying on pointers, moved aside, and never deleted.

A file whose pages are damaged is a bad place to write to: there the indexes are built anew
first, the whole file must be sound afterwards, and otherwise nothing is changed.
"""

# ruff: noqa: S608 (the columns of a head stand in one place)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from holdfast.store import Aside, Head, Repair, Row

ROW, HEAD = ("place", *Row._fields), (*Head._fields, "last")
MOVED = ("moved_us", "moved_by", "why")
TEXT = frozenset({"run_id", "agent", "status", "owner", "tags", "note", "queue", "turn", "lane", "kind", "step_id", "moved_by", "why"})

FIND_HEAD = "SELECT {} FROM runs WHERE run_id = ?"
FIND_ROWS = "SELECT {} FROM journal WHERE run_id = ?"
KEEP_ROW = "INSERT INTO aside_rows SELECT ?, ?, ?, * FROM journal WHERE place = ?"
KEEP_HEAD = f"INSERT INTO aside_heads ({', '.join((*MOVED, *HEAD))}) SELECT ?, ?, ?, {', '.join(HEAD)} FROM runs WHERE run_id = ?"
DROP_ROW = "DELETE FROM journal WHERE place = ?"
GAP_BITS = 36
"""Behind records that a prune dropped, `before` is negative: how many are gone, then the place in so many bits.

SQL writes it out: the place is `abs(before) & 68719476735`, the number `-before >> 36`.
"""
PART_ROWS = "UPDATE journal SET before = -1 WHERE run_id = ?"
JOIN_ROW = "UPDATE journal SET before = ? WHERE place = ?"
DROP_HEAD = "DELETE FROM runs WHERE run_id = ?"
ADD_HEAD = f"INSERT INTO runs ({', '.join(HEAD)}) VALUES ({', '.join('?' * len(HEAD))})"
ADD_ROW = "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, -1)"
FIND_MOVED = {"row": "SELECT {} FROM aside_rows WHERE run_id = ?", "head": "SELECT {} FROM aside_heads WHERE run_id = ?"}


def found_head(cursor: apsw.Cursor, run_id: str) -> Head | None:
    """The head, whatever its fields hold."""
    heads = [Head._make(row) for row in _whatever(cursor, FIND_HEAD, Head._fields, run_id)]
    return heads[0] if heads else None


def found_rows(cursor: apsw.Cursor, run_id: str) -> list[tuple[int, Row]]:
    """The rows with their places, by seq, whatever their fields hold."""
    rows = [(place, Row._make(row)) for place, *row in _whatever(cursor, FIND_ROWS, ROW, run_id)]
    return sorted(rows, key=lambda found: (_place(found[1]), found[0]))


def move(cursor: apsw.Cursor, repair: Repair) -> bool:
    """Keep what is not good, and put what follows in place; False where the run has moved."""
    if found_head(cursor, repair.run_id) != repair.found:
        return False
    good, why = set(repair.good), (repair.at_us, repair.by, repair.why)
    for place, row in found_rows(cursor, repair.run_id):
        if row in good:
            good.discard(row)
        else:
            cursor.execute(KEEP_ROW, (*why, place))
            cursor.execute(DROP_ROW, (place,))
    cursor.execute(KEEP_HEAD, (*why, repair.run_id))
    cursor.execute(DROP_HEAD, (repair.run_id,))
    cursor.executemany(ADD_ROW, [(repair.run_id, *row) for row in repair.rows])
    cursor.execute(ADD_HEAD, (*repair.head, _joined(cursor, repair.run_id)))
    return True


def _joined(cursor: apsw.Cursor, run_id: str) -> int:
    """Let every record point at the one before it, by a negative number where a prune dropped some between; gives the last place."""
    cursor.execute(PART_ROWS, (run_id,))
    before, seq = 0, 0
    for place, row in found_rows(cursor, run_id):
        cursor.execute(JOIN_ROW, (pointer(before, row.seq - seq - 1), place))
        before, seq = place, row.seq
    return before


def pointer(before: int, dropped: int) -> int:
    """How a record points at the one at `before`, where so many between them are gone."""
    return -((dropped << GAP_BITS) + before) if dropped else before


def moved(cursor: apsw.Cursor, run_id: str) -> Iterator[Aside]:
    """What was moved away, rows before heads."""
    for what, fields in (("row", Row._fields), ("head", Head._fields)):
        for at_us, by, why, *rest in _whatever(cursor, FIND_MOVED[what], (*MOVED, *fields), run_id):
            yield Aside(run_id, at_us, by, why, what, tuple(rest))


def _whatever(cursor: apsw.Cursor, sql: str, columns: Sequence[str], run_id: str) -> list[Any]:
    """The rows as they are; where text is none any more, what can be shown of it, and of other fields that became text only a -1."""
    try:
        return list(cursor.execute(sql.format(", ".join(columns)), (run_id,)))
    except UnicodeDecodeError:
        raw = [f"CAST({name} AS BLOB)" if name in TEXT else f"iif(typeof({name}) = 'text', -1, {name})" for name in columns]
        found = cursor.execute(sql.format(", ".join(raw)), (run_id,))
        return [[_shown(name, part) for name, part in zip(columns, row, strict=True)] for row in found]


def _shown(name: str, part: Any) -> Any:
    return part.decode("utf-8", "replace") if name in TEXT and part is not None else part


def _place(row: Row) -> int:
    seq: object = row.seq
    return seq if isinstance(seq, int) else 0
