"""Runs in one SQLite file: WAL with full flushes, so that what was acknowledged survives power loss.

One connection writes and another reads, each behind its own lock, so that reading does not wait for a flush.
An append is one transaction: add the rows if the head stands where the append believes, move the head, take the letters. That of a
run alone that only goes on is written to a tail instead, and is in the database with the next transaction (`_sqlite_tails`).
The rows of all runs stand one behind the other as they came, each pointing at the one before it in its run: an append to an owned
run writes the end of that table and the head, and touches no index; only a change of status, owner or epoch does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO, Self

import apsw

from holdfast._clock import Clock, SystemClock
from holdfast.errors import Damaged, StoreDamaged, StoreError
from holdfast.store import (
    Append,
    Aside,
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
from holdfast.stores._sqlite_append import append, head_of
from holdfast.stores._sqlite_aside import ADD_ROW, found_head, found_rows, move, moved
from holdfast.stores._sqlite_check import findings, pages, sealed, unsealed
from holdfast.stores._sqlite_examined import damaged_pages, damaged_tail, examined, pages_examined
from holdfast.stores._sqlite_file import additions, bring_up_to_date, is_missing, prepare
from holdfast.stores._sqlite_heads import is_newest_first, listed
from holdfast.stores._sqlite_line import Line
from holdfast.stores._sqlite_pruned import buried, compacted, forgotten, gaps, measured, removed, rewritten
from holdfast.stores._sqlite_tails import Kept, Named, Tails, laid_over, named_in, tail_of

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
LANE_IN_LINE = (
    "SELECT 1 FROM runs INDEXED BY runs_lane WHERE owner IS NULL AND status = 'queued' AND lane <> '' AND lane = ? AND queue = ? LIMIT 1"
)

LEFT_S = 86_400
"""A tail that nobody names and that is older was left by a crash."""
DAMAGED = "damaged"
"""The kind of a letter that is not what was posted."""
UNSOUND = "the pages of the database are damaged, so nothing was changed. Keep a copy of all its files and restore a backup"


def planned(path: str | Path) -> str:
    """The URL of the store that opening would make at `path`; empty where something is there."""
    there = Path(path).expanduser().absolute()
    return f"sqlite:///{there}" if is_missing(there, f"sqlite:///{there}") else ""


def _real(path: Path) -> Path:
    """Where a link leads to, which is where SQLite's log is: so all else stands beside the file. What may not be seen stays."""
    try:
        return path.resolve() if path.is_symlink() else path
    except OSError:
        return path


class SqliteStore:
    """Runs in the SQLite file at `path`, created if it is missing."""

    inline = True

    def __init__(self, path: str | Path) -> None:
        self.path = _real(Path(path).expanduser().absolute())
        self.url = f"sqlite:///{self.path}"
        prepare(self.path, self.url)
        self._writer = Line(self.path, self.url, "BEGIN IMMEDIATE")
        self._reader = Line(self.path, self.url, "BEGIN")
        self._locks = OwnerLocks(self.path.with_name(f"{self.path.name}.owners"))
        self._live = LiveFiles(self.path.with_name(f"{self.path.name}.live"), self._rests)
        self._blobs = BlobFiles(self.path.with_name(f"{self.path.name}.blobs"))
        self._tails = Tails(self.path.with_name(f"{self.path.name}.owners"), self.url, self._locks.proves_dead)
        with self._reader.transaction() as cursor:  # whatever is wrong with the file is said now, not at the first append
            complete = not additions(cursor)
        if not complete:
            with self._writer.transaction() as cursor:
                bring_up_to_date(cursor)
        with self._reader.transaction() as cursor:
            unnamed = self._tails.unnamed(cursor)
        if unnamed:
            with self._reader.transaction() as cursor:
                self._tails.refuse_strays(cursor, unnamed)
        self._live.sweep()

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        patience_ms = self._writer.limit_ms if wait else 0
        if len(batch) == 1 and batch[0].goes_on:
            with self._writer.seated if wait else self._writer.seated_at_once:
                added = self._tails.add(batch[0])
            if added:
                return [None]
            if added is None:  # it may be in somebody else's transaction now: who asked must not be told to try again
                return self._append(batch, self._writer.limit_ms, may_be_there=True)
        return self._append(batch, patience_ms)

    def _append(self, batch: Sequence[Append], patience_ms: int, *, may_be_there: bool = False) -> list[Stale | None]:
        with _Moving(self._writer, self._tails, batch, patience_ms=patience_ms) as moving:
            answers = [append(moving.cursor, one, self._blobs) for one in batch]
            answers = [stale and self._as_it_stands(moving.cursor, stale) for stale in answers]
            if may_be_there:
                answers = [None if _is_there(one, stale) else stale for one, stale in zip(batch, answers, strict=True)]
            moving.gone_in = [one for one, stale in zip(batch, answers, strict=True) if stale is None]
        return answers

    def _as_it_stands(self, cursor: apsw.Cursor, stale: Stale) -> Stale:
        """A refusal that tells of the head with what the tail of its owner holds; nobody else brings anything in meanwhile."""
        named = stale.head and tail_of(cursor, stale.head.run_id)
        if not stale.head or not named or named.owner == self._tails.owner:
            return stale
        return stale._replace(head=laid_over(cursor, stale.head, self._tails.kept(named)).head)

    def _moving(self, *run_ids: str, owner: str = "") -> _Moving:
        """A transaction that changes what these runs are, or forgets this owner."""
        return _Moving(self._writer, self._tails, run_ids=run_ids, owner=owner)

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        return self.rows_after(run_id, 0)

    def rows_after(self, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
        kept = self._kept_of(run_id)
        with self._reader.transaction() as cursor:
            head = head_of(cursor, run_id)
            if head is None:
                return None
            rows, last = _walked(cursor, run_id, seq), _number(head.seq)
            if seq + len(rows) != last and not seq > last > 0 and seq + len(rows) + gaps(cursor, run_id, seq) != last:
                rows = [row for _, row in found_rows(cursor, run_id) if not seq or _number(row.seq) > seq]
            head, more, lost = laid_over(cursor, head, kept)
        if lost:
            raise Damaged(run_id, head.seq, lost)
        return head, [*rows, *(row for row in more if row.seq > seq)] if more else rows

    def head(self, run_id: str) -> Head | None:
        kept = self._kept_of(run_id)
        with self._reader.transaction() as cursor:
            head = head_of(cursor, run_id)
            return None if head is None else laid_over(cursor, head, kept).head

    def heads(self, query: Query) -> list[Head]:
        if query.idle_before_us is not None:
            with self._moving() as moving:  # which runs are idle is for the database to say
                self._tails.bring_all_in(moving.cursor)
        kept: dict[Named, Kept] = {}
        while True:
            with self._reader.transaction() as cursor:
                found = listed(cursor, query)
                unread = [named for named in named_in(cursor, {head.owner for head in found}) if named not in kept]
                if not unread:
                    of = {named.owner: one for named, one in kept.items()}
                    found = [laid_over(cursor, head, of.get(head.owner or "")).head for head in found]
                    break
            kept |= {named: self._tails.kept(named) for named in unread}
        if is_newest_first(query):
            found.sort(key=lambda head: (-head.updated_us, head.run_id))
            found = found[query.offset : query.offset + query.limit]
        return found

    def _kept_of(self, run_id: str) -> Kept | None:
        """What the tail of a run's owner holds, read before the database is."""
        with self._reader.transaction() as cursor:
            named = tail_of(cursor, run_id)
        return None if named is None else self._tails.kept(named)

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
            with os_errors(self.url), self._moving() as moving:
                moving.cursor.execute("INSERT INTO owners (owner, beat) VALUES (?, 1)", (owner,))
                self._tails.sweep(moving.cursor, SystemClock().now_us() / 1e6 - LEFT_S)
        except StoreError:
            self._locks.release(owner)
            raise
        self._tails.belong_to(owner)

    def renew(self, owner: str) -> None:
        with self._writer.transaction() as cursor:
            cursor.execute("UPDATE owners SET beat = beat + 1 WHERE owner = ?", (owner,))
        self._live.sweep()

    def retire(self, owner: str) -> None:
        with self._moving(owner=owner) as moving:
            moving.cursor.execute("DELETE FROM owners WHERE owner = ?", (owner,))
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
                kept = self._all_kept(line)
                with line.transaction() as cursor:
                    return findings(cursor) or self._tails.findings(cursor, kept)
            except StoreDamaged as error:
                return [error.reason]

    def _all_kept(self, line: Line) -> list[Kept]:
        """What all tails hold, read before the database is."""
        with line.transaction() as cursor:
            named = named_in(cursor)
        return [self._tails.kept(one) for one in named]

    def examine(self, clock: Clock) -> list[Finding]:
        return [*examined(self._writer, self._reader, self.path, self.url, clock), *self._pages_examined()]

    def _pages_examined(self) -> list[Finding]:
        """Whether the file is whole, as far as SQLite sees, and the tails; read beside all who write."""
        with closing(Line(self.path, self.url, "BEGIN")) as line:
            try:
                kept = self._all_kept(line)
                with line.transaction() as cursor:
                    return [pages_examined(cursor), *map(damaged_tail, self._tails.findings(cursor, kept))]
            except StoreDamaged as error:
                return [damaged_pages(error.reason)]

    def found(self, run_id: str) -> tuple[Head | None, list[Row]]:
        kept = self._kept_of(run_id)
        with self._reader.transaction() as cursor:
            head, rows = found_head(cursor, run_id), [row for _, row in found_rows(cursor, run_id)]
            if head is None:
                return head, rows
            head, more, _ = laid_over(cursor, head, kept)
            return head, [*rows, *more]

    def set_aside(self, repair: Repair) -> bool:
        run_id = repair.run_id
        with self._reader.transaction() as cursor:
            sound = not pages(cursor)
        with self._moving() as moving:
            cursor = moving.cursor
            if not sound:
                cursor.execute("REINDEX")
            lacks = repair.refs and blobs.missing(cursor, self._blobs, run_id, repair.refs)
            found = self._as_found(cursor, repair)
            went_in = not lacks and found is not None and move(cursor, found)
            if went_in and repair.refs:
                blobs.refer(cursor, run_id, repair.refs)
            if not sound and (problems := pages(cursor)):
                raise StoreDamaged(self.url, f"{UNSOUND} ({problems[0]})")
            return went_in

    def _as_found(self, cursor: apsw.Cursor, repair: Repair) -> Repair | None:
        """The repair of what the database has, with the rows beside it that a tail holds of the run; None where the run has moved."""
        kept, stands = self._tails.closed(cursor, repair.run_id), found_head(cursor, repair.run_id)
        if stands is None:
            return repair
        head, more, _ = laid_over(cursor, stands, kept)
        if head != repair.found:
            return None
        cursor.executemany(ADD_ROW, [(repair.run_id, *row) for row in more])
        return repair._replace(found=stands)

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
        with self._moving(*(one.found.run_id for one in removals)) as moving:
            return [removed(moving.cursor, one) for one in removals]

    def shed(self, shedding: Shedding) -> bool:
        with self._moving(shedding.found.run_id) as moving:
            if not rewritten(moving.cursor, shedding.found, shedding.rows, shedding.drops):
                return False
            stale = append(moving.cursor, shedding.append, self._blobs)
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
        if self._tails.is_used():
            with suppress(StoreError), self._moving(owner=self._tails.owner):  # where that fails, the file stays, and is read
                pass
        self._tails.let_go()
        self._writer.close()
        self._reader.close()
        self._locks.close()


class _Moving:
    """`with` it: a transaction that moves heads. What tails hold of the runs it is about is in the database when it begins."""

    __slots__ = ("_about", "_appends", "_line", "_patience_ms", "_tails", "cursor", "gone_in")

    def __init__(
        self, line: Line, tails: Tails, appends: Sequence[Append] = (), *, run_ids: Sequence[str] = (), owner: str = "",
        patience_ms: int | None = None,
    ) -> None:  # fmt: skip
        self._line, self._tails, self._appends = line, tails, appends
        self._patience_ms = line.limit_ms if patience_ms is None else patience_ms
        self._about = run_ids, owner
        self.gone_in: Sequence[Append] = ()

    def __enter__(self) -> Self:
        self.cursor = self._line.begin(self._patience_ms)
        run_ids, owner = self._about
        try:
            self._tails.settle(self.cursor, self._appends, run_ids=run_ids, owner=owner)
        except BaseException as error:
            self._line.end(error)
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._line.end(error)
            return
        self._line.commit()
        try:
            self._tails.settled(self.gone_in)
        finally:
            self._line.leave()


def _is_there(one: Append, stale: Stale | None) -> bool:
    """Whether an append is refused because it has gone in already, to the byte."""
    stands = None if stale is None else stale.head
    return stands is not None and (stands.epoch, stands.seq, stands.digest) == (one.head.epoch, one.head.seq, one.head.digest)


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
