"""Runs in one SQLite file: WAL with full flushes, so that what was acknowledged survives power loss.

One connection writes and another reads, each behind its own lock, so that reading does not wait for a flush.
An append is one transaction: add the rows if the head stands where the append believes, move the head, take the letters.
The rows of all runs stand one behind the other as they came, each pointing at the one before it in its run: an append to an owned
run writes the end of that table and the head, and touches no index; only a change of status, owner or epoch does.
"""

# ruff: noqa: S608 (the columns of a head stand in one place)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import apsw

from holdfast._clock import Clock
from holdfast.errors import StoreDamaged, StoreError
from holdfast.store import (
    INSIDE,
    Append,
    Aside,
    Ceiling,
    Draft,
    Drawn,
    Enrolled,
    Finding,
    Head,
    Hold,
    Letter,
    Pulse,
    Query,
    Removal,
    Repair,
    Room,
    Row,
    Shedding,
    Stale,
    Swept,
    Tombstone,
)
from holdfast.stores import _sqlite_blobs as blobs
from holdfast.stores._blob_files import BlobFiles
from holdfast.stores._live_files import LiveFiles
from holdfast.stores._meters import moved_on, turn_meter
from holdfast.stores._os_errors import os_errors
from holdfast.stores._owners import OwnerLocks
from holdfast.stores._sqlite_aside import found_head, found_rows, move, moved
from holdfast.stores._sqlite_check import findings, pages, sealed, unsealed
from holdfast.stores._sqlite_examined import damaged_pages, examined, pages_examined
from holdfast.stores._sqlite_file import BUSY_LIMIT_MS, additions, is_missing, prepare
from holdfast.stores._sqlite_line import Line
from holdfast.stores._sqlite_pruned import buried, compacted, forgotten, gaps, measured, removed, rewritten

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
ROWS = """
    WITH RECURSIVE back (place) AS (
        SELECT last FROM runs WHERE run_id = ?1
        UNION ALL
        SELECT abs(before) & 68719476735 FROM journal JOIN back USING (place)
        WHERE run_id = ?1 AND abs(before) & 68719476735 < place AND seq > ?2 + 1
    ) SELECT seq, epoch, at_us, kind, step_id, body, value, args, digest FROM back CROSS JOIN journal USING (place)
    WHERE run_id = ?1 AND seq > ?2
"""
"""From the last record backwards to that behind a seq; where a pointer is damaged, that ends early, and the rows are looked for singly."""
LETTERS = "SELECT letter_id, run_id, at_us, kind, body FROM letters WHERE run_id = ?"
RESTING = f"SELECT {FIELDS} FROM runs INDEXED BY runs_resting WHERE owner IS NULL AND status = ?"
OWNED = f"SELECT {FIELDS} FROM runs INDEXED BY runs_owned WHERE owner IS NOT NULL"
BEHIND = f"SELECT {FIELDS} FROM runs WHERE run_id > ?"
DUE = f"SELECT {FIELDS} FROM runs INDEXED BY runs_due WHERE owner IS NULL AND wake_us <= ?"
OTHERS = {
    field: f"SELECT count(*) FROM runs INDEXED BY runs_owned WHERE owner IS NOT NULL AND {field} = ? AND run_id <> ? "
    f"AND instr(tags, '{INSIDE}') = 0"
    for field in ("queue", "agent", "lane")
}
LANE_IN_LINE = (
    "SELECT 1 FROM runs INDEXED BY runs_lane WHERE owner IS NULL AND status = 'queued' AND lane <> '' AND lane = ? AND queue = ? LIMIT 1"
)
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


DAMAGED = "damaged"
"""The kind of a letter that is not what was posted."""
UNSOUND = "the pages of the database are damaged, so nothing was changed. Keep a copy of all its files and restore a backup"


def planned(path: str | Path) -> str:
    """The URL of the store that opening would make at `path`; empty where something is there."""
    there = Path(path).expanduser().absolute()
    return f"sqlite:///{there}" if is_missing(there, f"sqlite:///{there}") else ""


class SqliteStore:
    """Runs in the SQLite file at `path`, created if it is missing."""

    inline = True

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self.url = f"sqlite:///{self.path}"
        prepare(self.path, self.url)
        self._writer = Line(self.path, self.url, "BEGIN IMMEDIATE")
        self._reader = Line(self.path, self.url, "BEGIN")
        self._locks = OwnerLocks(self.path.with_name(f"{self.path.name}.owners"))
        self._live = LiveFiles(self.path.with_name(f"{self.path.name}.live"), self._rests)
        self._blobs = BlobFiles(self.path.with_name(f"{self.path.name}.blobs"))
        with self._reader.transaction() as cursor:  # whatever is wrong with the file is said now, not at the first append
            complete = not additions(cursor)
        if not complete:
            with self._writer.transaction() as cursor:
                for addition in additions(cursor):  # looked at again: somebody else may have been faster
                    cursor.execute(addition)
        self._live.sweep()

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        line = self._writer
        cursor = line.begin(BUSY_LIMIT_MS if wait else 0)
        try:
            answers = [_append(cursor, batch[0], self._blobs)] if len(batch) == 1 else [_append(cursor, one, self._blobs) for one in batch]
        except BaseException as error:
            line.end(error)
            raise
        line.end(None)
        return answers

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        return self.rows_after(run_id, 0)

    def rows_after(self, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
        with self._reader.transaction() as cursor:
            head = _head(cursor, run_id)
            if head is None:
                return None
            rows, last = _walked(cursor, run_id, seq), _number(head.seq)
            if seq + len(rows) == last or seq > last > 0 or seq + len(rows) + gaps(cursor, run_id, seq) == last:
                return head, rows
            return head, [row for _, row in found_rows(cursor, run_id) if not seq or _number(row.seq) > seq]

    def head(self, run_id: str) -> Head | None:
        with self._reader.transaction() as cursor:
            return _head(cursor, run_id)

    def heads(self, query: Query) -> list[Head]:
        with self._reader.transaction() as cursor:
            if query.due_by_us is not None or query.addressed:
                return _to_wake(cursor, query)
            if query.queue is not None:
                return _in_turn(cursor, query)
            if query.after is not None:
                return _behind(cursor, query, query.after)
            found = _owned(cursor, query)
            for status in query.statuses or [row[0] for row in cursor.execute(STATUSES)]:
                found += _resting(cursor, query, status)
        found.sort(key=lambda head: (-head.updated_us, head.run_id))
        return found[query.offset : query.offset + query.limit]

    def draw(self, drafts: Sequence[Draft], *, at_us: int) -> Drawn:
        names = [draft.meter for draft in drafts]
        with self._writer.transaction() as cursor:
            stood = [cursor.execute("SELECT stands_us FROM meters WHERE meter = ?", (name,)).get or 0 for name in names]
            drawn, stand = moved_on(stood, drafts, at_us)
            if stand != stood:
                moved = "INSERT INTO meters VALUES (?1, ?2) ON CONFLICT DO UPDATE SET stands_us = ?2"
                cursor.executemany(moved, zip(names, stand, strict=True))
            return drawn

    def give_back(self, draft: Draft, at_us: int) -> None:
        with self._writer.transaction() as cursor:
            values = (draft.step_us, draft.meter, at_us + draft.within_us)
            cursor.execute("UPDATE meters SET stands_us = stands_us - ? WHERE meter = ? AND stands_us = ?", values)

    def turn(self, queue: str, lane: str, *, step_us: int, at_us: int) -> int:
        meter = turn_meter(queue, lane)
        with self._writer.transaction() as cursor:
            in_line = cursor.execute(LANE_IN_LINE, (lane, queue)).get is not None
            stands_us = cursor.execute("SELECT stands_us FROM meters WHERE meter = ?", (meter,)).get or 0
            turn_us = max(stands_us, at_us) if in_line else at_us
            cursor.execute("INSERT INTO meters VALUES (?1, ?2) ON CONFLICT DO UPDATE SET stands_us = ?2", (meter, turn_us + step_us))
            return int(turn_us)

    def stands(self, meter: str, at_us: int) -> int:
        with self._writer.transaction() as cursor:
            cursor.execute("INSERT INTO meters VALUES (?, ?) ON CONFLICT DO NOTHING", (meter, at_us))
            return int(cursor.execute("SELECT stands_us FROM meters WHERE meter = ?", (meter,)).get)

    def advance(self, meter: str, to_us: int) -> None:
        with self._writer.transaction() as cursor:
            cursor.execute("INSERT INTO meters VALUES (?1, ?2) ON CONFLICT DO UPDATE SET stands_us = max(stands_us, ?2)", (meter, to_us))

    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        with self._writer.transaction() as cursor:
            values = (run_id, at_us, kind, sealed(run_id, kind, body, at_us))
            cursor.execute("INSERT INTO letters (run_id, at_us, kind, body) VALUES (?, ?, ?, ?)", values)
            return cursor.connection.last_insert_rowid()

    def letters(self, run_ids: Sequence[str]) -> list[Letter]:
        found: list[Letter] = []
        with self._reader.transaction() as cursor:
            for run_id in set(run_ids):
                found += [_opened(Letter._make(row)) for row in cursor.execute(LETTERS, (run_id,))]
        return sorted(found)

    def enroll(self, owner: str) -> None:
        with os_errors(self.url):
            self._locks.hold(owner)
        try:
            with self._writer.transaction() as cursor:
                cursor.execute("INSERT INTO owners (owner, beat) VALUES (?, 1)", (owner,))
        except StoreError:
            self._locks.release(owner)
            raise

    def renew(self, owner: str) -> None:
        with self._writer.transaction() as cursor:
            cursor.execute("UPDATE owners SET beat = beat + 1 WHERE owner = ?", (owner,))
        self._live.sweep()

    def retire(self, owner: str) -> None:
        with self._writer.transaction() as cursor:
            cursor.execute("DELETE FROM owners WHERE owner = ?", (owner,))
        with os_errors(self.url):
            self._locks.release(owner)

    def introduce(self, owner: str, about: bytes) -> None:
        with self._writer.transaction() as cursor:
            cursor.execute("UPDATE owners SET about = ? WHERE owner = ?", (about, owner))

    def owners(self) -> list[Enrolled]:
        with self._reader.transaction() as cursor:
            found = [Enrolled(*row) for row in cursor.execute("SELECT owner, beat, about FROM owners ORDER BY owner")]
        with os_errors(self.url):
            return [one._replace(dead=self._locks.proves_dead(one.owner)) for one in found]

    def hold_back(self, what: str, about: bytes) -> None:
        with self._writer.transaction() as cursor:
            cursor.execute("INSERT INTO holds VALUES (?1, ?2) ON CONFLICT DO UPDATE SET about = ?2", (what, about))

    def release(self, what: str) -> bool:
        with self._writer.transaction() as cursor:
            return cursor.execute("DELETE FROM holds WHERE what = ? RETURNING 1", (what,)).get is not None

    def held_back(self) -> list[Hold]:
        with self._reader.transaction() as cursor:
            return [Hold._make(row) for row in cursor.execute("SELECT what, about FROM holds ORDER BY what")]

    def pulse(self, owner: str) -> Pulse | None:
        with self._reader.transaction() as cursor:
            beat = cursor.execute("SELECT beat FROM owners WHERE owner = ?", (owner,)).get
        with os_errors(self.url):
            return None if beat is None else Pulse(beat, dead=self._locks.proves_dead(owner))

    def check(self) -> list[str]:
        self._reader.refuse_if_gone()
        with closing(Line(self.path, self.url, "BEGIN")) as line:
            try:
                with line.transaction() as cursor:
                    return findings(cursor)
            except StoreDamaged as error:
                return [error.reason]

    def examine(self, clock: Clock) -> list[Finding]:
        return [*examined(self._writer, self._reader, self.path, self.url, clock), *self._pages_examined()]

    def _pages_examined(self) -> list[Finding]:
        """Whether the file is whole, as far as SQLite sees; read beside all who write."""
        with closing(Line(self.path, self.url, "BEGIN")) as line:
            try:
                with line.transaction() as cursor:
                    return [pages_examined(cursor)]
            except StoreDamaged as error:
                return [damaged_pages(error.reason)]

    def found(self, run_id: str) -> tuple[Head | None, list[Row]]:
        with self._reader.transaction() as cursor:
            return found_head(cursor, run_id), [row for _, row in found_rows(cursor, run_id)]

    def set_aside(self, repair: Repair) -> bool:
        with self._reader.transaction() as cursor:
            sound = not pages(cursor)
        with self._writer.transaction() as cursor:
            if not sound:
                cursor.execute("REINDEX")
            lacks = repair.refs and blobs.missing(cursor, self._blobs, repair.run_id, repair.refs)
            went_in = not lacks and move(cursor, repair)
            if went_in and repair.refs:
                blobs.refer(cursor, repair.run_id, repair.refs)
            if not sound and (problems := pages(cursor)):
                raise StoreDamaged(self.url, f"{UNSOUND} ({problems[0]})")
            return went_in

    def aside(self, run_id: str) -> list[Aside]:
        with self._reader.transaction() as cursor:
            return list(moved(cursor, run_id))

    def publish(self, run_id: str, payload: bytes) -> None:
        self._live.publish(run_id, payload)

    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        return self._live.published(run_id, after)

    def _rests(self, run_id: str) -> bool:
        head = self.head(run_id)
        return head is None or head.owner is None

    def remove(self, removals: Sequence[Removal]) -> list[bool]:
        with self._writer.transaction() as cursor:
            return [removed(cursor, one) for one in removals]

    def shed(self, shedding: Shedding) -> bool:
        with self._writer.transaction() as cursor:
            if not rewritten(cursor, shedding.found, shedding.rows, shedding.drops):
                return False
            stale = _append(cursor, shedding.append, self._blobs)
            assert stale is None, "the head was the one that was found"
            return True

    def tombstone(self, run_id: str) -> Tombstone | None:
        with self._reader.transaction() as cursor:
            return buried(cursor, run_id)

    def forget(self, before_us: int) -> int:
        with self._writer.transaction() as cursor:
            return forgotten(cursor, before_us)

    def room(self) -> Room:
        with self._reader.transaction() as cursor:
            return measured(cursor)

    def compact(self) -> None:
        self._writer.refuse_if_gone()
        compacted(self.path, self.url)

    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        with os_errors(self.url), self._blobs.write(chunks) as written:
            if parts:
                with self._writer.transaction() as cursor:
                    blobs.join(cursor, self._blobs, written, parts, at_us)
            elif not self._touched(written.digest, at_us, written.size):
                self._blobs.place(written, at_us)
            return written.digest

    def touch_blob(self, digest: str, *, at_us: int) -> bool:
        with os_errors(self.url):
            return self._touched(digest, at_us)

    def _touched(self, digest: str, at_us: int, size: int | None = None) -> bool:
        """Under the lock, so that a sweep that has found the blob to be old is over, or sees that it is not."""
        if not self._blobs.has(digest):
            return False
        with self._writer.transaction():
            return self._blobs.touch(digest, at_us, size)

    def open_blob(self, digest: str) -> BinaryIO | None:
        with os_errors(self.url):
            return self._blobs.open(digest)

    def blob_refs(self, run_id: str) -> list[str]:
        with self._reader.transaction() as cursor:
            return blobs.listed(cursor, blobs.REFS, run_id)

    def blob_parts(self, digest: str) -> list[str]:
        with self._reader.transaction() as cursor:
            return blobs.listed(cursor, blobs.PARTS, digest)

    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        with os_errors(self.url), self._writer.transaction() as cursor:
            return blobs.sweep(cursor, self._blobs, before_us, dry_run=dry_run)

    def close(self) -> None:
        self._live.close()
        self._writer.close()
        self._reader.close()
        self._locks.close()


def _append(cursor: apsw.Cursor, one: Append, files: BlobFiles) -> Stale | None:
    run_id, epoch, seq, rows, head, takes, refs, ceilings, goes_on = one
    if refs and (missing := blobs.missing(cursor, files, run_id, refs)):
        now = _head(cursor, run_id)
        return Stale(now, missing if (epoch, seq) == ((now.epoch, now.seq) if now else (0, 0)) else ())
    if ceilings and (full := [ceiling for ceiling in ceilings if _is_reached(cursor, ceiling, run_id)]):
        now = _head(cursor, run_id)
        return Stale(now, full=full if (epoch, seq) == ((now.epoch, now.seq) if now else (0, 0)) else ())
    if epoch == seq == 0:
        cursor.execute(CREATE, head)
        if cursor.connection.changes() == 0:
            return Stale(_head(cursor, run_id))
        epoch, seq = head.epoch, head.seq
    cursor.execute(ADD_FIRST, (*rows[0], run_id, epoch, seq))
    if cursor.connection.changes() == 0:
        return Stale(_head(cursor, run_id))
    for row in rows[1:]:
        cursor.execute(ADD_NEXT, (run_id, *row))
    if goes_on:
        cursor.execute(GO_ON, (head[5], head[6], head[9], run_id))
    else:
        _move_head(cursor, head)
    for letter_id in takes:
        cursor.execute(TAKE, (letter_id, run_id))
    if refs:
        blobs.refer(cursor, run_id, refs)
    return None


def _move_head(cursor: apsw.Cursor, head: Head) -> None:
    cursor.execute(ADVANCE, (*head[5:7], *head[8:13], head.run_id, *head[1:5], head.wake_us, *head[13:]))
    if cursor.connection.changes() == 0:
        cursor.execute(REPLACE, (*head[1:], head.run_id))


def _is_reached(cursor: apsw.Cursor, ceiling: Ceiling, run_id: str) -> bool:
    field, value, most = ceiling
    return bool(cursor.execute(OTHERS[field], (value, run_id)).get >= most)


def _head(cursor: apsw.Cursor, run_id: str) -> Head | None:
    for row in cursor.execute(HEAD, (run_id,)):
        return Head._make(row)
    return None


def _number(found: object) -> int:
    """A seq, or -1 where damage made something else of it."""
    return found if isinstance(found, int) else -1


def _walked(cursor: apsw.Cursor, run_id: str, seq: int) -> list[Row]:
    """The rows behind `seq` that can be reached from the head, the first first; none where text is none any more."""
    try:
        return [Row._make(row) for row in cursor.execute(ROWS, (run_id, seq))][::-1]
    except UnicodeDecodeError:
        return []


def _opened(kept: Letter) -> Letter:
    """The letter as it was posted; one that is damaged is of a kind that nobody acts on."""
    body = unsealed(kept.run_id, kept.kind, kept.body, kept.at_us)
    return kept._replace(kind=DAMAGED) if body is None else kept._replace(body=body)


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
