"""Turns: what a prune or a repair does to a run, as one commit that carries the run into its next generation, or out of the world."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from holdfast.store import Aside, Head, Removal, Repair, Row, Shedding, Tombstone
from holdfast.stores._journal_runs import RUNS, Piece, Runs, Standing, new_token, seq_name
from holdfast.stores._safe_names import safe
from holdfast.stores._sealed import Commit, Unreadable, row_of, shown, without_seal

PRUNED = "pruned/"


def shed(runs: Runs, shedding: Shedding) -> bool:
    """Drop rows, put others in place, and append; False where the head was another."""
    run_id = shedding.found.run_id
    standing, pieces = _steady(runs, shedding.found)
    if standing is None or runs.held(safe(run_id), shedding.append.refs):
        return False
    new, (first, last) = {row.seq: row for row in shedding.rows}, shedding.drops
    old = [row for piece in pieces if piece.commit for row in piece.commit.rows]
    rows = [new.get(row.seq, row) for row in old if not first <= row.seq <= last] + list(shedding.append.rows)
    return _turn(runs, run_id, standing, Commit(rows, shedding.append.head, new_token(), standing.taken, shedding.append.refs))


def remove(runs: Runs, removal: Removal) -> bool:
    """Take a whole run away and leave its tombstone; False where it has moved, or not all of its rows can be reached."""
    found, grave = removal
    standing, _ = _steady(runs, found)
    if standing is None:
        return False
    key, commit = safe(found.run_id), Commit((), found, new_token(), turn=True, grave=grave)
    went_in = runs.put(key, standing.generation, found.seq + 1, commit)
    return went_in or _grave(runs.place.read(f"{PRUNED}{key}.json")) == grave  # whoever reads it meanwhile carries it out


def found(runs: Runs, run_id: str) -> tuple[Head | None, list[Row]]:
    """All that can be read of a run, from views too."""
    pieces = _mended(runs, run_id)
    rows = [row for piece in pieces if piece.commit for row in piece.commit.rows]
    return _found_head(runs, run_id, pieces), sorted(rows, key=lambda row: row.seq)


def _mended(runs: Runs, run_id: str) -> list[Piece]:
    pieces = runs.pieces(run_id)
    return runs.views.mended(run_id, pieces) if runs.views is not None else pieces


def _found_head(runs: Runs, run_id: str, pieces: Sequence[Piece]) -> Head | None:
    """What the last commit says; where that cannot be read, what is known of it."""
    if pieces and pieces[-1].commit is not None:
        return pieces[-1].commit.head
    standing = runs.standing(run_id)
    return standing and standing.head


def set_aside(runs: Runs, repair: Repair) -> bool:
    """Keep what is not good aside, and go on behind what is."""
    standing, pieces, good = runs.standing(repair.run_id), _mended(runs, repair.run_id), set(repair.good)
    if standing is None or repair.found is None or _found_head(runs, repair.run_id, pieces) != repair.found:
        return False
    if runs.held(safe(repair.run_id), repair.refs):
        return False
    told = {"at_us": repair.at_us, "by": repair.by, "why": repair.why}
    bad = [row for piece in pieces if piece.commit for row in piece.commit.rows if row not in good]
    kept = [{**told, "what": "row", "fields": shown(row)} for row in bad]
    unread = [(piece.name, base64.b64encode(piece.data).decode()) for piece in pieces if piece.commit is None]
    kept += [{**told, "what": "file", "name": name, "data": data} for name, data in unread]
    kept.append({**told, "what": "head", "fields": repair.found._asdict() | {"digest": repair.found.digest.hex()}})
    commit = Commit([*repair.good, *repair.rows], repair.head, new_token(), standing.taken, repair.refs, aside=kept)
    return _turn(runs, repair.run_id, standing, commit)


def aside(runs: Runs, run_id: str) -> list[Aside]:
    """What repairs have moved away, oldest first."""
    runs.standing(run_id)  # a repair that was left half-done is finished
    folder = f"{RUNS}{safe(run_id)}/aside/"
    found: list[Aside] = []
    for name in runs.place.names(folder):
        found += [_aside(run_id, each) for each in _moved(runs.place.read(folder + name)) if each.get("what") in ("row", "head")]
    return found


def tombstone(runs: Runs, run_id: str) -> Tombstone | None:
    """What stays of a run that was removed."""
    runs.standing(run_id)
    return _grave(runs.place.read(f"{PRUNED}{safe(run_id)}.json"))


def forget(runs: Runs, before_us: int) -> int:
    """Drop old tombstones; gives how many."""
    names = [f"{PRUNED}{name}" for name in runs.place.names(PRUNED)]
    graves = [(name, _grave(runs.place.read(name))) for name in names]
    old = [name for name, grave in graves if grave is not None and grave.pruned_us < before_us]
    for name in old:
        runs.place.purge(f"{RUNS}{name.removeprefix(PRUNED).removesuffix('.json')}/")
        runs.place.remove(name)
    runs.place.settle(PRUNED)
    return len(old)


def _steady(runs: Runs, head: Head) -> tuple[Standing | None, list[Piece]]:
    """Where the run stands and its commits, if it is whole and its head is this one."""
    standing = runs.standing(head.run_id)
    if standing is None or standing.head != head:
        return None, []
    pieces = runs.pieces(head.run_id)
    return (standing, pieces) if is_whole(pieces, head) else (None, [])


def is_whole(pieces: Sequence[Piece], head: Head) -> bool:
    """Whether these are all commits of a run whose head is this one."""
    seq = 0
    for piece in pieces:
        if piece.commit is None or piece.first() not in (0, seq + 1):
            return False
        seq = piece.commit.head.seq
    return bool(pieces) and pieces[-1].commit is not None and pieces[-1].commit.head == head


def _turn(runs: Runs, run_id: str, standing: Standing, commit: Commit) -> bool:
    """Put the turn behind the last commit of its generation, as the fence wants it.

    Whoever reads it finishes it, and may do so before this one has heard that it went in: then the old generation is gone, and the new one
    is the run. It is taken away only where it has not begun.
    """
    key = safe(run_id)
    onward = runs.next_generation(key, standing.generation)
    folder = f"{RUNS}{key}/{onward}/"
    if runs.put(key, standing.generation, standing.head.seq + 1, commit._replace(turn=True, onward=onward)):
        return True
    if runs.place.has(folder + seq_name(0)):
        return True
    runs.place.vacate(folder)
    return False


def _aside(run_id: str, moved: dict[str, Any]) -> Aside:
    fields = moved["fields"]
    kept = tuple(row_of(fields)) if moved["what"] == "row" else tuple(Head(**fields | {"digest": bytes.fromhex(fields["digest"])}))
    return Aside(run_id, moved["at_us"], moved["by"], moved["why"], moved["what"], kept)


def _moved(data: bytes | None) -> list[dict[str, Any]]:
    try:
        return list(without_seal(data)["aside"]) if data is not None else []
    except (Unreadable, LookupError, TypeError):
        return []


def _grave(data: bytes | None) -> Tombstone | None:
    if data is None:
        return None
    try:
        return Tombstone(**without_seal(data)["pruned"])
    except (Unreadable, LookupError, TypeError):
        return Tombstone("", "", "", "", 0, 1 << 62, "", "its tombstone is damaged")
