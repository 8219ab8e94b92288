"""The runs of a place: where each stands, what its commits hold, and the one way to add a commit (see `_place.py` for layout and fence)."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from holdfast._clock import to_datetime
from holdfast._failpoints import reach
from holdfast.errors import Damaged, StoreBusy, StoreDamaged
from holdfast.store import FORMAT, Append, Head, Row, Stale, Tombstone
from holdfast.stores._place import Place
from holdfast.stores._safe_names import safe, unsafe
from holdfast.stores._sealed import Commit, Unreadable, opened, sealed, with_seal, without_seal

RUNS = "runs/"
SEALED = "sealed-"
GENERATION = re.compile(r"sealed-[0-9]{4,}-[0-9a-f]{16}/?")
"""The folder of a generation; one that a person has copied beside it has another name, and is none."""
NAME = re.compile(r"[0-9]{12,}\.json")
MOST_KNOWN = 20_000
"""Runs of which it is remembered where they stand, so that a look whether they still do is enough."""
MOST_TRIES = 50
"""How often a run is looked for anew that moves to another generation while it is read."""
DAMAGED_STATUS = "blocked"


class Standing(NamedTuple):
    """Where a run stands: in which generation (a folder), by which commit, and what its last commit says."""

    generation: str
    last: str
    head: Head
    taken: Sequence[int] = ()


class Piece(NamedTuple):
    """One commit as it was found; None where it cannot be read, and then `why` says so."""

    name: str
    data: bytes
    commit: Commit | None
    why: str = ""

    def first(self) -> int:
        """The seq that its name tells."""
        return first_seq(self.name)

    def generation(self) -> str:
        """The folder that it is in."""
        return self.name.rpartition("/")[0] + "/"


class Views(Protocol):
    """What people see of a run beside its sealed commits, where there is any. Nothing here ever fails a commit."""

    def mended(self, run_id: str, pieces: Sequence[Piece]) -> list[Piece]:
        """The same, with what views still hold of commits that cannot be read or are not there."""

    def show(self, key: str, name: str, data: bytes, commit: Commit) -> None:
        """A commit went in."""

    def rebuild(self, key: str, commit: Commit) -> None:
        """The run goes on in another generation, which begins with this."""

    def refuse_changed(self, run_id: str, pieces: Sequence[Piece]) -> None:
        """Raise `Damaged` where what people see is not what was recorded, or tells of what is gone; put back what a crash took."""


class Holds(Protocol):
    """How runs refer to blobs."""

    def hold(self, key: str, refs: Sequence[str]) -> list[str]:
        """From here on the run keeps these blobs from being swept; gives those that are not there, and then holds none."""


class Letters(Protocol):
    """What an append needs of letters."""

    def take(self, key: str, letter_ids: Sequence[int]) -> Sequence[int]:
        """Remove letters that an append has taken; gives those that are not gone for good."""


def seq_name(seq: int) -> str:
    """The name of the commit that begins with this seq."""
    return f"{seq:012d}.json"


def first_seq(name: str) -> int:
    """The way back."""
    return int(name.rpartition("/")[2].partition(".")[0])


def new_token() -> str:
    """What makes a commit, or the name of a generation, like no other."""
    return secrets.token_hex(8)


@dataclass(slots=True)
class Runs:
    """All runs of one place."""

    place: Place
    views: Views | None = None
    holds: Holds | None = None
    letters: Letters | None = None
    _known: dict[str, Standing] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # where a run stands

    def all_keys(self) -> list[str]:
        """The safe names of all runs, in no order that means anything."""
        return [name[:-1] for name in self.place.names(RUNS) if name.endswith("/")]

    def run_id(self, key: str) -> str | None:
        """The id of the run with this safe name."""
        found = unsafe(key)
        if found is not None:
            return found
        standing = self.standing_of(key)
        return standing.head.run_id if standing else None

    def standing(self, run_id: str) -> Standing | None:
        """Where a run stands now; None where there is none."""
        return self.standing_of(safe(run_id))

    def standing_of(self, key: str) -> Standing | None:
        """The same, by its safe name."""
        known = self._known.get(key)
        for _ in range(MOST_TRIES):
            known = self._walked(key, known) if known else None
            if known is not None:
                break
            names = self.living(key)
            if not names:
                self.forget(key)
                return None
            known = self._looked_at(key, names)
            if known is not None:
                break
        else:
            raise self._unsteady(key)
        self.remember(key, known)
        return known

    def remember(self, key: str, standing: Standing) -> None:
        """The run stands there, as far as is known."""
        if self._known.get(key) is standing:
            return
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = standing
            while len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def forget(self, key: str) -> None:
        """Look anew next time."""
        with self._lock:
            self._known.pop(key, None)

    def living(self, key: str) -> list[str]:
        """The commits of the generation in which the run lives, in order; none where there is no such run.

        The oldest is looked into first: one is vacated only when the next has begun, so whoever finds it empty finds the run further on,
        or in a generation that is not in the list yet, and the list is another one then.
        """
        before, folders = None, list[str]()
        while folders != before:
            before, folders = folders, [f"{RUNS}{key}/{name}" for name in self.place.names(f"{RUNS}{key}/") if GENERATION.fullmatch(name)]
            found = [(number, names) for number, generation in enumerate(folders) if (names := self._commits(generation))]
            if found:
                number, names = found[-1]
                self._vacate_older(key, folders[:number])
                return [folders[number] + name for name in names]
        return []

    def _vacate_older(self, key: str, folders: Sequence[str]) -> None:
        """Finish turns whose writers died between the beginning of the new generation and the end of the old."""
        for generation in folders:
            names = self._commits(generation)
            last = self.place.read(generation + names[-1]) if names else None
            if last is not None:
                self._finished(key, piece_of(generation + names[-1], last))

    def _commits(self, generation: str) -> list[str]:
        """The names of ours in a folder: a person's tools may have left others."""
        return [name for name in self.place.names(generation) if NAME.fullmatch(name)]

    def _finished(self, key: str, piece: Piece) -> bool:
        """Whether the commit is a turn out of its generation; then that is finished."""
        if piece.commit is None or not piece.commit.turn or piece.first() == 0:
            return False
        self.finish(key, piece.generation(), piece.commit, piece.data)
        return True

    def _walked(self, key: str, known: Standing) -> Standing | None:
        """From where the run stood to where it stands; None where that cannot be followed any more."""
        while True:
            name = known.generation + seq_name(known.head.seq + 1)
            data = self.place.read(name)
            if data is None:
                return known if self.place.has(known.last) else None
            try:
                commit = opened(data)
            except Unreadable:
                return None
            if commit.turn:
                self.finish(key, known.generation, commit, data)
                return None
            known = Standing(known.generation, name, commit.head, commit.taken)

    def _looked_at(self, key: str, names: Sequence[str]) -> Standing | None:
        """Where the last of these commits leaves the run; None where that is elsewhere, or it has gone meanwhile.

        Where it cannot be read, the last one that can, standing at a seq that its records do not reach: it is damaged, and looks it.
        """
        for name in reversed(names):
            data = self.place.read(name)
            if data is None:
                return None
            piece = piece_of(name, data)
            if self._finished(key, piece):
                return None
            if piece.commit is not None:
                head = piece.commit.head if name == names[-1] else piece.commit.head._replace(seq=first_seq(names[-1]), digest=b"")
                return Standing(piece.generation(), names[-1], head, piece.commit.taken)
        return Standing(names[0].rpartition("/")[0] + "/", names[-1], self._unknown(key, names))

    def _unknown(self, key: str, names: Sequence[str]) -> Head:
        """The head of a run of which no commit can be read."""
        try:
            born = self.born(key)
        except StoreDamaged:
            born = {}
        run_id, agent = str(born.get("run", unsafe(key) or key)), str(born.get("agent", ""))
        note = "none of its records can be read"
        return Head(run_id, agent, DAMAGED_STATUS, None, 0, first_seq(names[-1]), b"", None, 0, 0, "{}", 0.0, note)

    def _unsteady(self, key: str) -> StoreBusy:
        return StoreBusy(self.place.url, f"run {key} moves to another generation again and again; nothing was changed. Try again")

    # what its commits hold

    def pieces(self, run_id: str, seq: int = 0) -> list[Piece]:
        """The commits of a run from that with the row behind `seq` on, in order, as they are; none where there is no such run."""
        key = safe(run_id)
        for _ in range(MOST_TRIES):
            names = self.living(key)
            names = names[max((number for number, name in enumerate(names) if first_seq(name) <= seq + 1), default=0) :] if seq else names
            found = [piece_of(name, data) for name, data in zip(names, self.place.fetch(names), strict=True) if data is not None]
            if len(found) == len(names) and not (found and self._finished(key, found[-1])):
                return list(self._filled(found))
        raise self._unsteady(key)

    def _filled(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """The same without gaps: while names are listed, others come, and a later one may be seen without an earlier."""
        expected = 0
        for piece in pieces:
            while expected and piece.first() > expected:
                name = f"{piece.name.rpartition('/')[0]}/{seq_name(expected)}"
                data = self.place.read(name)
                if data is None:
                    break
                between = piece_of(name, data)
                yield between
                expected = between.commit.head.seq + 1 if between.commit else 0
            yield piece
            expected = piece.commit.head.seq + 1 if piece.commit else 0

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        """The head and all rows; `Damaged`, naming the file, where one of them is not what was written."""
        pieces = self.pieces(run_id)
        if pieces:
            self.place.confirm(pieces[-1].name)
        if self.views is not None:
            self.views.refuse_changed(run_id, pieces)
        return self._added_up(run_id, pieces) if pieces else None

    def rows_after(self, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
        """The head and the rows behind a seq."""
        standing = self.standing(run_id)
        if standing is None or standing.head.seq <= seq:
            return standing and (standing.head, [])
        pieces = self.pieces(run_id, seq)
        if not pieces:
            return None
        head, rows = self._added_up(run_id, pieces)
        return head, [row for row in rows if row.seq > seq]

    def _added_up(self, run_id: str, pieces: Sequence[Piece]) -> tuple[Head, list[Row]]:
        rows: list[Row] = []
        head: Head | None = None
        for piece in pieces:
            if piece.commit is None:
                raise Damaged(run_id, max(1, piece.first()), f"{self.path(piece.name)} cannot be read: {piece.why}")
            rows += piece.commit.rows
            head = piece.commit.head
        assert head is not None, "there was a commit at least"
        return head, rows

    def path(self, name: str) -> str:
        """Where a name is, for people."""
        return f"{self.place.url.removeprefix('file://')}/{name}"

    # adding a commit

    def append(self, one: Append) -> Stale | None:
        """Add a commit if the run stands where it believes."""
        run_id, epoch, seq, rows, head, takes, refs = one[:7]
        key = safe(run_id)
        if epoch == seq == 0:
            return self._create(key, one)
        known = self._known.get(key)
        if known is None or refs or (known.head.epoch, known.head.seq) != (epoch, seq):
            known = self.standing_of(key)
            if known is None or (known.head.epoch, known.head.seq) != (epoch, seq):
                return Stale(known and known.head)
        missing = self.held(key, refs)
        if missing:
            return Stale(known.head, missing)
        commit = Commit(rows, head, new_token(), (*known.taken, *takes), refs)
        return None if self.put(key, known.generation, seq + 1, commit) else self._refused(key)

    def put(self, key: str, generation: str, seq: int, commit: Commit) -> bool:
        """Create the commit behind a seq, which is the fence; False where somebody was there first."""
        name, data = generation + seq_name(seq), sealed(commit)
        try:
            created = self.place.create(name, data)
            there = data if created else self.place.read(name)
        except BaseException:
            self.forget(key)
            raise
        if there != data:
            self.forget(key)
            return created is None and self._carried_on(commit)
        if commit.turn:
            self.finish(key, generation, commit, data)
            return True
        taken = self.letters.take(key, commit.taken) if commit.taken and self.letters is not None else commit.taken
        self.remember(key, Standing(generation, name, commit.head, taken))
        if self.views is not None:
            self.views.show(key, name, data, commit)
        return True

    def _carried_on(self, commit: Commit) -> bool:
        """Whether a commit that went in, and whose generation was vacated before that was known, is part of the next one."""
        if commit.turn:
            return False
        rows = [row for piece in self.pieces(commit.head.run_id) if piece.commit for row in piece.commit.rows]
        return all(row in rows for row in commit.rows)

    def _refused(self, key: str) -> Stale:
        now = self.standing_of(key)
        return Stale(now and now.head)

    def held(self, key: str, refs: Sequence[str]) -> list[str]:
        """Refer to these blobs from here on; gives those that are not there."""
        return self.holds.hold(key, refs) if refs and self.holds is not None else []

    def _create(self, key: str, one: Append) -> Stale | None:
        standing = self.standing_of(key)
        if standing is not None or self.place.has(f"pruned/{key}.json"):
            return Stale(standing and standing.head)
        if self.views is not None:
            self.views.refuse_changed(one.run_id, [])
        missing = self.held(key, one.refs)
        if missing:
            return Stale(None, missing)
        generation = self._birth(key, one.head)
        if self.place.has(f"pruned/{key}.json"):  # it lived and was removed since the look above, which may be long ago
            self.place.vacate(f"{RUNS}{key}/")
            return Stale(None)
        commit = Commit(one.rows, one.head, new_token(), tuple(one.takes), one.refs)
        if self.put(key, generation, 1, commit):
            return None
        stale = self._refused(key)
        if stale.head is None and self.born(key).get("generation") == generation.split("/")[-2]:
            reason = f"the sealed commits of run {one.run_id!r} are gone, and {self.path(f'{RUNS}{key}/run.json')} is still there"
            raise StoreDamaged(self.place.url, f"{reason}; nothing was changed. Restore a backup, or move that folder away")
        return stale

    def _birth(self, key: str, head: Head) -> str:
        """The first generation of a run: that which was named first, by whoever it was."""
        for _ in range(MOST_TRIES):
            mine = f"{SEALED}0001-{new_token()}"
            self.place.make(f"{RUNS}{key}/{mine}/")
            about = {
                "format": FORMAT, "run": head.run_id, "agent": head.agent, "created": to_datetime(max(0, head.created_us)).isoformat(),
                "created_us": head.created_us, "generation": mine,
            }  # fmt: skip
            if self.place.create(f"{RUNS}{key}/run.json", with_seal(about)):
                return f"{RUNS}{key}/{mine}/"
            self.place.vacate(f"{RUNS}{key}/{mine}/")
            born = self.born(key)
            if born:
                return f"{RUNS}{key}/{born['generation']}/"
            if self.place.has(f"pruned/{key}.json"):
                return f"{RUNS}{key}/{mine}/"
        raise self._unsteady(key)

    def born(self, key: str) -> dict[str, object]:
        """What is said of a run's birth, or nothing."""
        data = self.place.read(f"{RUNS}{key}/run.json")
        if data is None:
            return {}
        try:
            found = without_seal(data)
        except Unreadable as error:
            where = self.path(f"{RUNS}{key}/run.json")
            raise StoreDamaged(self.place.url, f"{where} is not what was written; nothing was changed") from error
        return found if isinstance(found, dict) else {}

    # turns

    def next_generation(self, key: str, generation: str) -> str:
        """A generation behind this one, with a folder that nobody knows of yet."""
        number = int(generation.rpartition(SEALED)[2][:4]) + 1
        onward = f"{SEALED}{number:04d}-{new_token()}"
        self.place.make(f"{RUNS}{key}/{onward}/")
        return onward

    def _bury(self, key: str, turn: str, grave: Tombstone) -> None:
        """Leave the tombstone and take the rest away; who was stopped in here looks whether another has done it, and perhaps begun anew."""
        self.place.make("pruned/")
        if self.place.has(turn):
            self.place.create(f"pruned/{key}.json", with_seal({"pruned": grave._asdict()}))
        for folder in (f"letters/{key}/", f"{RUNS}{key}/"):
            if self.place.has(turn):
                self.place.vacate(folder)

    def finish(self, key: str, generation: str, commit: Commit, data: bytes) -> None:
        """What follows from a turn; whoever finds it does this, and doing it twice is harmless."""
        self.forget(key)
        reach("turn.before")
        if commit.grave is not None:
            self._bury(key, generation + seq_name(commit.head.seq + 1), commit.grave)
            return
        if commit.aside:
            self.place.make(f"{RUNS}{key}/aside/")
            name = commit.onward.removeprefix(SEALED)
            self.place.create(f"{RUNS}{key}/aside/{name}.json", with_seal({"aside": list(commit.aside)}))
        base = f"{RUNS}{key}/{commit.onward}/{seq_name(0)}"
        if not self.place.create(base, data) and not self.place.has(base):
            return  # others have finished it long since, and the run has gone on from there
        reach("turn.base")
        if self.views is not None:
            self.views.rebuild(key, commit)
        self.place.vacate(generation)
        reach("turn.after")


def piece_of(name: str, data: bytes) -> Piece:
    """A commit as it was found."""
    try:
        return Piece(name, data, opened(data))
    except Unreadable as error:
        return Piece(name, data, None, str(error))
