"""What people see of a run in a folder of files: its journal, a file per commit, and what the agent knows now.

These are views. The sealed commits beside them are what was recorded, flushed and fenced; a view is written behind its commit, is not
flushed, and never fails it. So a view that is missing, or of which a power loss left only a part, is written again by whoever loads the
run, and one that differs otherwise was changed by hand: that is said, with its path, and what was recorded is still there to put it back.

Views are for people, and so this is the one room of a store that knows what some kinds of records mean; nothing depends on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from holdfast.errors import Damaged, StoreDamaged, StoreError
from holdfast.large.packing import Fetch, Key, Known, Unpacker
from holdfast.store import HandEdit, Row
from holdfast.stores._files_place import FilesPlace
from holdfast.stores._journal_runs import RUNS, Piece, Runs, new_token, seq_name
from holdfast.stores._safe_names import label, safe
from holdfast.stores._sealed import Commit, Unreadable, opened, pretty, row_of, shown, with_seal, without_seal

TOGETHER = 20
"""A commit of more rows than this is shown as a file for each; so is one with which a run comes in, moved, copied or as a fork."""
VIEW = re.compile(r"(\d{6,})-[a-z0-9_.-]+\.json")
NAMED = re.compile(rb'\{"name":"([^"\\]+)"')
STATES = ("state.saved", "state.edited")
TURNING = ("step.edited", "state.edited", "run.accepted", "run.forked", "run.continued")
"""Records behind which the states are others than those that were saved last."""
SHOWN = 60
"""Characters of a value in a message."""
MOST_KNOWN = 1000
"""Runs of which it is remembered what their agents know."""

CHANGED = (
    "{path} is not what was recorded, which is still there. If you edited it: holdfast edit {run_id} --adopt; to put back what was "
    "recorded: holdfast check {run_id} --repair"
)
GONE = (
    "the sealed commits of run {run_id!r} are gone, and {path} still tells of them; nothing was changed. Restore a backup, or move the "
    "folder of that run away"
)


class Knowing(NamedTuple):
    """What the agent of a run knows: each state as a whole, and what later ones may be told as differences from."""

    status: str = ""
    states: Mapping[str, bytes] = {}
    packed: Mapping[Key, Known] = {}


class FileViews:
    """The views of all runs in a place; `fetch` gives the blobs in which large states are."""

    def __init__(self, place: FilesPlace, fetch: Fetch) -> None:
        self._place, self._fetch = place, fetch
        self._knows: dict[str, Knowing] = {}
        self._overlooked: set[str] = set()

    def show(self, key: str, name: str, data: bytes, commit: Commit) -> None:
        for view, content in views_of(_first(name), data, commit):
            self._write(key, view, content)
        with contextlib.suppress(OSError, StoreError):
            self._show_state(key, commit)

    def rebuild(self, key: str, commit: Commit) -> None:
        folder = f"{RUNS}{key}/journal/"
        for name in self._place.names(folder):
            if VIEW.fullmatch(name):
                self._place.remove(folder + name)
        for view, content in views_of(0, b"", commit):
            self._write(key, view, content)
        self._knows.pop(key, None)
        with contextlib.suppress(OSError, StoreError):
            self._write_state(key, commit, self._folded(commit))

    def refuse_changed(self, run_id: str, pieces: Sequence[Piece]) -> None:
        key = safe(run_id)
        there = set(self._place.names(f"{RUNS}{key}/journal/"))
        for seq, name, content in _expected(pieces):
            found = self._place.read(f"{RUNS}{key}/journal/{name}") if name in there else None
            if found == content or run_id in self._overlooked:
                continue
            if self._moved(key, pieces):
                return
            if found is not None and _changed(found, content):
                if self._place.read(f"{RUNS}{key}/journal/{name}") != found:
                    continue  # somebody is just writing it
                raise Damaged(run_id, _record_in(found, content) or seq, CHANGED.format(path=self._path(key, name), run_id=run_id))
            self._write(key, name, content)
        self._refuse_orphans(run_id, pieces, there)

    def _moved(self, key: str, pieces: Sequence[Piece]) -> bool:
        """Whether the run began, ended or went into another generation after these were read: then the views are of what came later."""
        if not pieces:
            return bool(Runs(self._place, self).living(key)) or not self._place.names(f"{RUNS}{key}/journal/")
        last = pieces[-1].commit.head.seq if pieces[-1].commit else pieces[-1].first()
        following = _commit(self._place.read(pieces[-1].generation() + seq_name(last + 1)))
        return following[1].turn if following else not self._place.has(pieces[-1].name)

    def mended(self, run_id: str, pieces: Sequence[Piece]) -> list[Piece]:
        key, found = safe(run_id), {piece.first(): piece for piece in pieces}
        for name in self._place.names(f"{RUNS}{key}/journal/") if pieces else ():
            number = VIEW.fullmatch(name)
            at = int(number[1]) if number else 0
            if at and (at not in found or found[at].commit is None):
                commit = _commit(self._place.read(f"{RUNS}{key}/journal/{name}"))
                behind = at > pieces[-1].first() and self._told(run_id, name, pieces) is None
                if commit is not None and commit[1].head.run_id == run_id and not behind and not _within(commit[1], pieces):
                    found[at] = Piece(pieces[-1].generation() + seq_name(at), *commit)
        kept = [found[at] for at in sorted(found)]
        return [self._pieced(run_id, piece, following) for piece, following in zip_longest(kept, kept[1:])]

    def _pieced(self, run_id: str, piece: Piece, following: Piece | None) -> Piece:
        """A commit that cannot be read, put together from views of one record each; its head is only known by the commit behind it."""
        if piece.commit is not None or following is None or following.commit is None:
            return piece
        folder, first, end = f"{RUNS}{safe(run_id)}/journal/", max(1, piece.first()), following.first()
        names = [name for name in self._place.names(folder) if VIEW.fullmatch(name) and first <= _number(name) < end]
        rows = [row for name in names for row in _rows_shown(run_id, self._place.read(folder + name))]
        rows.sort(key=lambda row: row.seq)
        if [row.seq for row in rows] != list(range(first, end)):
            return piece
        head = following.commit.head._replace(epoch=rows[-1].epoch, seq=rows[-1].seq, digest=rows[-1].digest)
        return piece._replace(commit=Commit(rows, head, ""))

    def edited(self, run_id: str, pieces: Sequence[Piece]) -> list[HandEdit]:
        """The views that somebody changed."""
        key, found = safe(run_id), list[HandEdit]()
        for _, name, content in _expected(pieces):
            now = self._place.read(f"{RUNS}{key}/journal/{name}")
            if now is not None and _changed(now, content):
                found.append(_read(self._path(key, name), now, content))
        return found

    @contextlib.contextmanager
    def overlooking(self, run_id: str) -> Iterator[None]:
        """Inside this, do not say that views of this run were changed."""
        self._overlooked.add(run_id)
        try:
            yield
        finally:
            self._overlooked.discard(run_id)

    def put_back(self, run_id: str, pieces: Sequence[Piece]) -> None:
        """Keep what somebody wrote aside, and show again what was recorded."""
        key = safe(run_id)
        for _, name, content in _expected(pieces):
            now = self._place.read(f"{RUNS}{key}/journal/{name}")
            if now == content:
                continue
            if now is not None and _changed(now, content):
                self._place.make(f"{RUNS}{key}/aside/")
                self._place.create(f"{RUNS}{key}/aside/edited-{new_token()}-{name}", now)
            self._place.replace(f"{RUNS}{key}/journal/{name}", content)

    def _refuse_orphans(self, run_id: str, pieces: Sequence[Piece], there: set[str]) -> None:
        """A view behind the last commit tells of one that is not there any more, unless that has come meanwhile."""
        last = (pieces[-1].commit.head.seq if pieces[-1].commit else pieces[-1].first()) if pieces else 0
        for name in sorted(there):
            number = VIEW.fullmatch(name)
            if number is None or int(number[1]) <= last:
                continue
            if not self._told(run_id, name, pieces):
                continue
            if pieces and self._place.has(pieces[-1].generation() + seq_name(int(number[1]))):
                continue  # looked for behind the view, which is written behind its commit
            if not self._moved(safe(run_id), pieces):
                path = self._path(safe(run_id), name)
                if not pieces:
                    raise StoreDamaged(self._place.url, GONE.format(path=path, run_id=run_id))
                raise Damaged(run_id, last + 1, f"its sealed commit is missing, of which {path} still tells")

    def _told(self, run_id: str, name: str, pieces: Sequence[Piece]) -> Commit | None:
        """What a view behind the last commit tells of; one from before a repair, which raised the epoch, tells of nothing."""
        found = _commit(self._place.read(f"{RUNS}{safe(run_id)}/journal/{name}"))
        if found is None or found[1].head.run_id != run_id:
            return None
        epoch = max((piece.commit.head.epoch for piece in pieces if piece.commit), default=0)
        return found[1] if found[1].head.epoch >= epoch else None

    def _write(self, key: str, name: str, content: bytes) -> None:
        """A view, whole or not; it is not worth failing for."""
        path = self._place.path(f"{RUNS}{key}/journal/{name}")
        with contextlib.suppress(OSError):
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                os.mkdir(os.path.dirname(path), 0o700)  # noqa: PTH102, PTH120 (this is done for every commit)
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, content)
            finally:
                os.close(fd)

    def _show_state(self, key: str, commit: Commit) -> None:
        before = self._knows.get(key, Knowing())
        saved = [row for row in commit.rows if row.kind in STATES]
        turned = any(row.kind in TURNING for row in commit.rows)
        if not (saved or turned or before.status != commit.head.status):
            return
        knowing = None if turned or (not before.status and commit.rows[0].seq > 1) else self._onward(before, saved)
        self._write_state(key, commit, knowing or self._folded(commit._replace(rows=self._rows(commit.head.run_id))))

    def _onward(self, before: Knowing, saved: Sequence[Row]) -> Knowing | None:
        """What is known with these states; None where they are told as differences from others than were seen here."""
        unpacker = Unpacker(saved, self._fetch, before.packed)
        try:
            new = {row.step_id: unpacker.certain(row).value or b"null" for row in saved}
        except ValueError:
            return None
        return Knowing("", {**before.states, **new}, unpacker.known)

    def _folded(self, commit: Commit) -> Knowing:
        unpacker = Unpacker(commit.rows, self._fetch)
        return Knowing("", fold([unpacker.plain(row) if row.kind in STATES else row for row in commit.rows]), unpacker.known)

    def _rows(self, run_id: str) -> list[Row]:
        return [row for piece in Runs(self._place, self).pieces(run_id) if piece.commit for row in piece.commit.rows]

    def _write_state(self, key: str, commit: Commit, knowing: Knowing) -> None:
        head = commit.head
        while len(self._knows) >= MOST_KNOWN:
            del self._knows[next(iter(self._knows))]
        self._knows[key] = knowing._replace(status=head.status)
        told = {"run": head.run_id, "agent": head.agent, "status": head.status, "note": head.note, "seq": head.seq}
        shown_states = {name: _json(value) for name, value in knowing.states.items()}
        self._place.replace(f"{RUNS}{key}/state.json", pretty({**told, "state": shown_states}) + b"\n")

    def _path(self, key: str, name: str) -> str:
        return self._place.path(f"{RUNS}{key}/journal/{name}")


def views_of(first: int, data: bytes, commit: Commit) -> Iterator[tuple[str, bytes]]:
    """The files that show a commit: the same bytes under a name for people, or one for each of many rows."""
    together = 1 if first == 1 else TOGETHER  # a run that begins here has one record first, one that comes in has several
    if len(commit.rows) <= together and not commit.turn:
        yield f"{first:06d}-{_label(commit.rows[-1])}.json", data
        return
    for row in commit.rows:
        yield f"{row.seq:06d}-{_label(row)}.json", with_seal({"run": commit.head.run_id, "rows": [shown(row)]})


def fold(rows: Sequence[Row]) -> dict[str, bytes]:
    """What an agent knows after these rows: each state as it was saved last on the path that stands."""
    saved: list[tuple[int, str, bytes]] = []
    for row in rows:
        if row.kind == "run.continued":
            saved = []
        elif row.kind in TURNING:
            told = _json(row.body)
            after = told.get("after", row.seq) if isinstance(told, dict) else row.seq
            saved = [each for each in saved if each[0] <= after]
        if row.kind in STATES:
            saved.append((row.seq, row.step_id, row.value or b"null"))
    return {name: value for _, name, value in saved}


def _expected(pieces: Sequence[Piece]) -> Iterator[tuple[int, str, bytes]]:
    for piece in pieces:
        if piece.commit is not None:
            for name, content in views_of(piece.first(), piece.data, piece.commit):
                yield _number(name), name, content


def _label(row: Row) -> str:
    """The name of the step, with which its body begins, and what became of it unless it is done; else what the record is."""
    found = NAMED.match(row.body)
    if found is None:
        return label(row.kind.replace(".", "-"))
    name = found[1].decode("utf-8", "replace")
    return label(name) if row.kind == "step.done" else label(f"{name[:40]}-{row.kind.rpartition('.')[2]}")


def _commit(data: bytes | None) -> tuple[bytes, Commit] | None:
    """What a view shows, if it is a whole commit as it was written."""
    try:
        return (data, opened(data)) if data is not None else None
    except Unreadable:
        return None


def _number(name: str) -> int:
    return int(name.partition("-")[0])


def _rows_shown(run_id: str, data: bytes | None) -> list[Row]:
    """What a view of single records shows, if it is as it was written."""
    try:
        document = without_seal(data or b"")
        return [row_of(each) for each in document["rows"]] if document["run"] == run_id else []
    except (Unreadable, LookupError, TypeError, ValueError):
        return []


def _within(commit: Commit, pieces: Sequence[Piece]) -> bool:
    """Whether some commit that can be read has these rows: then the view is of no commit that is missing."""
    seqs = {row.seq for row in commit.rows}
    return any(row.seq in seqs for piece in pieces if piece.commit for row in piece.commit.rows)


def _changed(found: bytes, content: bytes) -> bool:
    """Whether somebody changed a view: it is none of ours, nor what a power loss left of it, nor the same in another layout.

    One of ours that should not be there was put there by who was reading the run, or turning it, while another turned it.
    """
    if found == content or content.startswith(found.rstrip(b"\0")):
        return False
    try:
        return bool(json.loads(found) != json.loads(content)) and not _is_ours(found)
    except ValueError:
        return True


def _is_ours(found: bytes) -> bool:
    try:
        without_seal(found)
    except Unreadable:
        return False
    return True


def _read(path: str, now: bytes, content: bytes) -> HandEdit:
    """What somebody made of a view, if only values are others than they were."""
    before = without_seal(content)
    recorded = [row_of(each) for each in before["rows"]]
    try:
        after = json.loads(now)
    except ValueError as error:
        return HandEdit(path, recorded, None, f"it is not JSON ({error})")
    try:
        rows = [row_of(each) for each in after["rows"]]
        other = next(_differences(_but_values(before), _but_values(after)), "")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return HandEdit(path, recorded, None, f"it has other fields than it had ({error})")
    if other:
        return HandEdit(path, recorded, None, f"more than the value of a result or state was changed: {other}")
    return HandEdit(path, recorded, rows, "")


def _but_values(document: dict[str, Any]) -> dict[str, Any]:
    """A view without what may be changed, its records by their numbers, and in which order they stand."""
    rows = [{name: each for name, each in row.items() if name not in ("value", "value_text")} for row in document["rows"]]
    others = {name: each for name, each in document.items() if name not in ("rows", "seal")}
    return others | {f"record {row['seq']}": row for row in rows} | {"rows": [row["seq"] for row in rows]}


def _differences(was: Any, now: Any, where: str = "") -> Iterator[str]:
    """Where a document is another one than it was, in words."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        if was != now:
            yield f"{where} was {json.dumps(was)[:SHOWN]} and is {json.dumps(now)[:SHOWN]}"
        return
    for name in {**was, **now}:
        at = f"{where}, {name}" if where else name
        if name in was and name in now:
            yield from _differences(was[name], now[name], at)
        else:
            yield f"{at} {'is gone' if name in was else 'was added'}"


def _record_in(found: bytes, content: bytes) -> int:
    """The first record of a view that somebody changed; 0 where that cannot be told."""
    try:
        pairs = zip(json.loads(content)["rows"], json.loads(found)["rows"], strict=False)
        return next((int(was["seq"]) for was, now in pairs if was != now), 0)
    except (LookupError, TypeError, ValueError):
        return 0


def _first(name: str) -> int:
    return int(name.rpartition("/")[2].partition(".")[0])


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode("utf-8", "replace")
