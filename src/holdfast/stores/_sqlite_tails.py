"""The tails of a SQLite store: what runs that go on record stands there first, and goes into the database in larger pieces.

A run that goes on adds rows, and nothing else of it changes: for that one write and one flush to the tail of its owner will do.
Everything else is a transaction, which brings what the tail holds into the database before it does what it is for.

- The line of an owner says which tail it has. A run whose head names that owner may have its last rows there, and no other run has.
- Whoever changes the head of a run that another process owns closes that one's tail first and brings it in, in the same transaction.
- An owner adds to its tail only for runs whose head it has itself moved, fenced, in or after the transaction that named the tail: so who
  took such a run away has closed it.
- What is brought in a second time is known there, and what was written under an epoch that is over is nothing.
- Who only reads reads the tail first and then the database: what was brought in between, and written over, is in the one or in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from holdfast._failpoints import reach
from holdfast.errors import StoreDamaged
from holdfast.store import Append, Head, Row
from holdfast.stores import _tail_file
from holdfast.stores._os_errors import os_errors, said_by_os
from holdfast.stores._sqlite_append import GO_ON, add_rows
from holdfast.stores._sqlite_file import KEEP_A_COPY
from holdfast.stores._tail_file import Contents, Frame, Tail, TailDamaged, made

TAIL_OF_RUN = "SELECT owner, tail FROM runs JOIN owners USING (owner) WHERE run_id = ? AND tail > 0"
TAIL_OF_OWNER = "SELECT owner, tail FROM owners WHERE owner = ? AND tail > 0"
TAIL_OF_NONE = "SELECT 1 FROM owners WHERE owner = ? AND tail = 0"
TAILS = "SELECT owner, tail FROM owners WHERE tail > 0 ORDER BY owner"
NAME_TAIL = "UPDATE owners SET tail = ? WHERE owner = ?"
IDLE = "SELECT owner, tail FROM owners WHERE tail > 0 AND owner NOT IN (SELECT owner FROM runs WHERE owner IS NOT NULL)"
OWNS = "SELECT 1 FROM runs WHERE owner = ? LIMIT 1"
PRUNED = "SELECT 1 FROM pruned WHERE run_id = ?"
STANDS = "SELECT created_us, epoch, seq, digest FROM runs WHERE run_id = ?"

WANTED_AFTER = 2
"""Appends by one run alone, after which a tail is made: what is shorter is not worth it."""
NOT_NOW = -1000
"""Such appends, more, after which it is tried again where none could be made."""


class Named(NamedTuple):
    """A tail, as the line of its owner names it."""

    owner: str
    number: int


class Kept(NamedTuple):
    """What a tail was read to hold, before the database is; None where it is not there, or is none any more."""

    named: Named
    contents: Contents | None
    path: Path


class Laid(NamedTuple):
    """What the database says of a run, with what the tail of its owner holds laid over it: the head, and the rows that are only there.

    Where something is missing, `lost` says what, and the head stands behind more rows than there are.
    """

    head: Head
    rows: list[Row]
    lost: str = ""


class Misfit(Exception):
    """A frame that neither is known in the database nor follows what is there."""


class Tails:
    """The tails of one store: that of this process, and the way to everybody else's. Whoever calls what writes has the store's seat."""

    def __init__(self, folder: Path, url: str, is_dead: Callable[[str], bool]) -> None:
        self._folder, self._url, self._is_dead = folder, url, is_dead
        self.owner, self._number = "", 0
        self._own: Tail | None = None
        self._known: dict[str, Head] = {}
        self._fresh: Tail | None = None
        self._emptied: list[Path] = []
        self._leaves = False
        self._wanted = 0

    def belong_to(self, owner: str) -> None:
        """From now on this process has a tail in the name of that owner, once it needs one."""
        self.owner, self._wanted = self.owner or owner, 0

    def add(self, one: Append) -> bool | None:
        """Write and flush an append: True once it is there, False, with nothing written, where it must be a transaction.

        None where somebody has closed the tail meanwhile: what was written is in the database after the next transaction, or is nothing.
        """
        run_id, epoch, seq, rows, head, takes, refs, ceilings, goes_on = one
        own, stood = self._own, self._known.get(run_id)
        if own is None or stood is None or stood.seq != seq or stood.epoch != epoch or not goes_on or takes or refs or ceilings:
            return False
        del self._known[run_id]  # until it is there: should this be interrupted, only the database can tell where the run stands
        try:
            if not own.add(made((run_id, stood.created_us, epoch, seq, stood.digest, head.seq, head.digest, head.updated_us, rows))):
                return False
        except OSError as error:
            own.let_go()
            raise said_by_os(error, self._url) from error
        reach("tail.added")
        if own.is_closed():
            return None
        self._known[run_id] = head
        return True

    def settle(self, cursor: apsw.Cursor, appends: Sequence[Append] = (), *, run_ids: Iterable[str] = (), owner: str = "") -> None:
        """Bring in what must be in the database before these are appended, these runs changed, or this owner forgotten."""
        self._put_back()
        moved = [one.run_id for one in appends if self._may_take(one)]
        for run_id in (*run_ids, *(one.run_id for one in appends)):
            self._known.pop(run_id, None)
        found = [_named(cursor, TAIL_OF_RUN, run_id) for run_id in (*run_ids, *moved)]
        for named in dict.fromkeys([*found, _named(cursor, TAIL_OF_OWNER, owner)]):
            if named is not None and named.owner != self.owner:
                self._take_in(cursor, named)
        self._leaves = bool(owner) and owner == self.owner
        self._settle_own(cursor)
        if len(appends) == 1 and appends[0].goes_on and appends[0].head.owner == self.owner:
            self._want(cursor)

    def settled(self, appended: Iterable[Append] = ()) -> None:
        """The transaction is committed, and these are in it."""
        reach("tail.settled")
        own = self._own
        if self._fresh is not None or (own is not None and own.is_let_go()):
            self._known.clear()  # first: what was known before a tail was named is not known to whoever took a run away
            self._own, self._fresh = self._fresh, None
        elif own is not None and own.is_used():
            own.begin_anew()
        if self._leaves:
            self.owner, self._leaves = "", False
        for path in self._emptied:
            with suppress(OSError):  # whoever enrolls some day later sweeps it
                path.unlink(missing_ok=True)
        self._emptied.clear()
        if self._own is not None:
            self._known.update((one.run_id, one.head) for one in appended if one.head.owner == self.owner)

    def is_used(self) -> bool:
        """Whether this process has a tail that is named."""
        return self._own is not None or self._fresh is not None

    def sweep(self, cursor: apsw.Cursor, before_s: float) -> None:
        """Remove what crashes left and nobody needs: tails of dead owners that have no run, and old files that nobody names."""
        for named in [Named._make(found) for found in cursor.execute(IDLE)]:
            if self._is_dead(named.owner):
                self._take_in(cursor, named)
        there = {self._path(named) for named in named_in(cursor)}
        for path in self._folder.glob("*.tail"):
            with suppress(FileNotFoundError):
                if path not in there and path.stat().st_mtime < before_s:
                    self._emptied.append(path)

    def let_go(self) -> None:
        """The store is closed. A file that is left is read by whoever takes the runs over."""
        self._put_back()
        if self._own is not None:
            self._own.let_go()
            self._own = None
            self._known.clear()

    def bring_all_in(self, cursor: apsw.Cursor) -> None:
        """Bring in what all tails hold, as far as they are whole, and leave them to their owners."""
        for named in named_in(cursor):
            if named.owner != self.owner:
                with suppress(StoreDamaged):  # whoever loads a run of that owner is told
                    self._bring_in(cursor, named, self._contents(named))

    def kept(self, named: Named) -> Kept:
        """What a tail holds now."""
        try:
            return Kept(named, self._contents(named), self._path(named))
        except StoreDamaged:
            return Kept(named, None, self._path(named))

    def closed(self, cursor: apsw.Cursor, run_id: str) -> Kept | None:
        """What the tail of a run's owner holds, who adds nothing to it from now on; it stays as it is for its other runs."""
        self._known.pop(run_id, None)
        named = tail_of(cursor, run_id)
        if named is None or named.owner == self.owner:
            return None
        with os_errors(self._url), suppress(FileNotFoundError):
            _tail_file.close(self._path(named))
        return self.kept(named)

    def findings(self, cursor: apsw.Cursor, kept: Iterable[Kept]) -> list[str]:
        """What is wrong with any of them, in plain words."""
        wrong = []
        for one in kept:
            if not is_named(cursor, one.named) or cursor.execute(OWNS, (one.named.owner,)).fetchone() is None:
                continue
            if one.contents is None:
                wrong.append(f"{self._path(one.named)} {_GONE}, and {one.named.owner} has recorded there what it recorded last")
            elif one.contents.broken or _gap(cursor, one.contents):
                wrong.append(f"{self._path(one.named)} is damaged, and {one.named.owner} has recorded there what it recorded last: {_HOLE}")
        return wrong

    def unnamed(self, cursor: apsw.Cursor) -> dict[Path, Contents]:
        """What is in files that nobody names: those of a process that is about to name one are empty."""
        there = sorted(self._folder.glob("*.tail"))
        named = {self._path(one) for one in named_in(cursor)} if there else set()
        found = {}
        for path in there:
            if path not in named:
                with suppress(OSError, TailDamaged):
                    found[path] = _tail_file.contents(path)
        return found

    def refuse_strays(self, cursor: apsw.Cursor, unnamed: dict[Path, Contents]) -> None:
        """Where a file that nobody names holds what the database does not know, the database is not the one that it belongs to."""
        named = {self._path(one) for one in named_in(cursor)}
        for path, held in unnamed.items():
            for frame in held.frames if path not in named else ():
                stands = cursor.execute(STANDS, (frame.run_id,)).fetchone()
                removed = stands is None and cursor.execute(PRUNED, (frame.run_id,)).fetchone() is not None
                if not removed and (stands is None or _is_new(frame, *stands[:3])):
                    raise StoreDamaged(self._url, f"{path} holds records of run {frame.run_id!r} that the database does not have{_STRAY}")

    def _path(self, named: Named) -> Path:
        return self._folder / f"{quote(named.owner, safe='')}.{named.number}.tail"

    def _contents(self, named: Named) -> Contents:
        found = self._read(named, lambda: _tail_file.contents(self._path(named)))
        return found._replace(broken=found.broken and self._is_dead(named.owner))  # of one that lives it may be under way

    def _read(self, named: Named, read: Callable[[], Contents]) -> Contents:
        try:
            return read()
        except (FileNotFoundError, TailDamaged) as error:
            raise self._damaged(named, _GONE) from error
        except OSError as error:
            raise said_by_os(error, self._url) from error

    def _may_take(self, one: Append) -> bool:
        """Whether an append may take a run from somebody who has it: not where it creates one, or goes on with one of this owner's."""
        return not (one.epoch == one.seq == 0) and not (one.goes_on and one.head.owner == self.owner)

    def _take_in(self, cursor: apsw.Cursor, named: Named) -> None:
        """Close somebody's tail and bring it in; from this transaction on its owner has none."""
        path = self._path(named)
        with os_errors(self._url), suppress(FileNotFoundError):
            _tail_file.close(path)
        reach("tail.closed")
        if cursor.execute(OWNS, (named.owner,)).fetchone() is not None:  # otherwise nothing in it is of any use
            self._bring_in(cursor, named, self._contents(named))
        cursor.execute(NAME_TAIL, (0, named.owner))
        self._emptied.append(path)

    def _settle_own(self, cursor: apsw.Cursor) -> None:
        """Bring the own tail in; one that is closed or let go of, or whose owner leaves, ends here, whatever becomes of the transaction."""
        own, named = self._own, Named(self.owner, self._number)
        if own is None:
            return
        if own.is_used() and is_named(cursor, named):  # otherwise somebody else has brought it in, and may have removed it
            self._bring_in(cursor, named, self._read(named, own.contents)._replace(broken=False))  # what it was adding never counted
        if self._leaves or own.is_let_go() or own.is_removed() or own.is_closed():
            own.let_go()
            cursor.execute(NAME_TAIL, (0, self.owner))
            self._emptied.append(own.path)

    def _bring_in(self, cursor: apsw.Cursor, named: Named, held: Contents) -> None:
        try:
            for run_id, frames in _by_run(held.frames).items():
                _add(cursor, run_id, frames)
        except Misfit as error:
            raise self._damaged(named, f"is damaged: {error}") from error
        if held.broken or _gap(cursor, held):
            raise self._damaged(named, f"is damaged: {_HOLE}")

    def _want(self, cursor: apsw.Cursor) -> None:
        """Make a tail, once there is something to gain by it, and name it in this transaction; where that is not possible, do without."""
        self._wanted += 1
        if self._own is not None or self._wanted < WANTED_AFTER:
            return
        self._wanted, self._number = NOT_NOW, self._number + 1
        if cursor.execute(TAIL_OF_NONE, (self.owner,)).fetchone() is None:
            return  # somebody has forgotten this owner, and its tail would be nobody's
        try:
            self._fresh = Tail(self._path(Named(self.owner, self._number)))
        except OSError as error:
            if error.errno is None:
                raise  # not the system's: a signal handler's TimeoutError is one, too
            return
        reach("tail.made")
        cursor.execute(NAME_TAIL, (self._number, self.owner))
        self._wanted = 0

    def _put_back(self) -> None:
        """Undo what a transaction had begun that was not committed, or may not have been: a tail that it named has to be there."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            fresh.let_go()
            self._own = fresh
            self._known.clear()
        self._emptied.clear()

    def _damaged(self, named: Named, what: str) -> StoreDamaged:
        reason = f"{self._path(named)}, which holds what {named.owner} has recorded last, {what}"
        return StoreDamaged(self._url, f"{reason}; nothing was changed. {KEEP_A_COPY}")


_STRAY = (
    ": it was made anew, copied without the log beside it (-wal), or is an older copy; nothing was changed. Put the files back that belong "
    "together; or, to give those records up and have everything in them done once more, move that file away"
)
_GONE = "is missing, or is not what was written"
_HOLE = "a record in it cannot be read"


def tail_of(cursor: apsw.Cursor, run_id: str) -> Named | None:
    """The tail in which the last rows of a run may stand."""
    return _named(cursor, TAIL_OF_RUN, run_id)


def is_named(cursor: apsw.Cursor, named: Named) -> bool:
    """Whether its owner still has this tail."""
    return _named(cursor, TAIL_OF_OWNER, named.owner) == named


def named_in(cursor: apsw.Cursor, owners: Collection[str | None] | None = None) -> list[Named]:
    """All tails, or those of these owners."""
    found = [Named._make(row) for row in cursor.execute(TAILS)]
    return found if owners is None else [named for named in found if named.owner in owners]


def laid_over(cursor: apsw.Cursor, head: Head, kept: Kept | None) -> Laid:
    """Lay what the tail of its owner holds over the head of a run."""
    stands: tuple[object, ...] = head.created_us, head.epoch, head.seq
    if kept is None or head.owner != kept.named.owner or not all(isinstance(each, int) for each in stands):
        return Laid(head, [])
    if kept.contents is None:
        lost = f"what its process recorded last stood in {kept.path}, which {_GONE}. If there is a copy, put it back: a repair gives it up"
        return Laid(_beyond(head), [], lost) if is_named(cursor, kept.named) else Laid(head, [])
    everything = [*((0, frame) for frame in kept.contents.frames), *kept.contents.behind]
    mine = [(gaps, one) for gaps, one in everything if one.run_id == head.run_id and _is_new(one, head.created_us, head.epoch, head.seq)]
    rows = [row for _, frame in mine for row in frame.rows]
    if mine:
        last = mine[-1][1]
        head = head._replace(seq=last.seq, digest=last.digest, updated_us=last.updated_us)
    if kept.contents.broken or _gap(cursor, kept.contents) > (mine[-1][0] if mine else 0):
        return Laid(_beyond(head), rows, f"a record in {kept.path} cannot be read, and may be of this run")
    return Laid(head, rows)


def _beyond(head: Head) -> Head:
    return head._replace(seq=head.seq + 1, digest=b"")


def _gap(cursor: apsw.Cursor, held: Contents) -> int:
    """How many gaps stand before the last frame that the database does not know; none where it knows all that stands behind one."""
    stands = {frame.run_id: cursor.execute(STANDS, (frame.run_id,)).fetchone() for _, frame in held.behind}
    new = [gaps for gaps, frame in held.behind if (found := stands[frame.run_id]) is not None and _is_new(frame, *found[:3])]
    return max(new, default=0)


def _by_run(frames: Iterable[Frame]) -> dict[str, list[Frame]]:
    found: dict[str, list[Frame]] = {}
    for frame in frames:
        found.setdefault(frame.run_id, []).append(frame)
    return found


def _is_new(frame: Frame, created_us: int, epoch: int, seq: int) -> bool:
    """Whether a frame is neither known, nor of an epoch that is over, nor of an earlier life of the run's id."""
    return frame.created_us == created_us and (frame.epoch > epoch or (frame.epoch == epoch and frame.seq > seq))


def _new(frames: Iterable[Frame], created_us: int, epoch: int, seq: int, digest: bytes) -> list[Frame]:
    """Those that follow what stands there, one after the other."""
    found = []
    for frame in frames:
        if _is_new(frame, created_us, epoch, seq):
            if (frame.epoch, frame.stood, frame.before) != (epoch, seq, digest):
                raise Misfit(f"record {frame.rows[0].seq} of run {frame.run_id} does not follow the one before it")
            found.append(frame)
            seq, digest = frame.seq, frame.digest
    return found


def _add(cursor: apsw.Cursor, run_id: str, frames: Sequence[Frame]) -> None:
    stands = cursor.execute(STANDS, (run_id,)).fetchone()
    new = _new(frames, *stands) if stands is not None else []  # a run that was removed had ended, and was whole
    if new:
        first, last = new[0], new[-1]
        added = add_rows(cursor, run_id, first.epoch, first.stood, [row for frame in new for row in frame.rows])
        assert added, "the head was read in this transaction"
        cursor.execute(GO_ON, (last.seq, last.digest, last.updated_us, run_id))


def _named(cursor: apsw.Cursor, sql: str, name: str) -> Named | None:
    found = cursor.execute(sql, (name,)).fetchone() if name else None
    return Named._make(found) if found is not None else None

