"""Adopting what somebody changed by hand: a value in a readable file becomes an official edit, with an author, and the file is put back.

Everything is checked before anything is written: each file reads, nothing in it is another but the value of a result or of a state, and
each value is one that `edit` takes. Then the edits are appended, the last step first, since an edit gives up what came after it; and
then the files are put back, so that the records hold again. Who dies in between finds the files still changed, and adopts them again:
what is recorded by then is not edited once more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from . import _records as rec
from ._chain import record_of
from ._engine import Engine
from ._failpoints import reach
from ._ids import checked_run_id
from ._inspect import loaded
from ._journal import Journal
from ._packing import MARK
from ._timetravel import Word, _state_edit, _step_edit, edit, edit_state
from .errors import Refusal
from .store import HandEdit, HandEdited, Row

RESULTS = (rec.StepDone.kind, rec.StepEdited.kind)
EDITS = (rec.StepEdited.kind, rec.StateEdited.kind)
STEPS = "step."


class Change(NamedTuple):
    """Another value for the result of a step or, with its name, for a state at that step, whose record is `seq`."""

    path: str
    seq: int
    step_id: str
    value: bytes
    state: str = ""


def adopt(engine: Engine, run_id: str, *, said: Word, fits: Callable[[str], object] = lambda _: None) -> str:
    """Make edits of all that was changed by hand; gives what happens next, in words. `fits` gives what a step's value is checked by."""
    store = engine.store
    if not isinstance(store, HandEdited):
        raise Refusal(f"the store {store.url} has no files that could be edited by hand; nothing was changed")
    found = store.edited(checked_run_id(run_id))
    if not found:
        raise Refusal(f"no file of run {run_id!r} was changed by hand; nothing was changed")
    changes = [change for one in found for change in _changes(one)]
    with store.overlooking(run_id):
        head, rows = loaded(engine, run_id)
        left = [change for change in changes if not _is_made(rows, change)]
        _refuse_unfit(Journal.load(head, rows), left, said, fits)
        words = ["that was recorded before", *(_applied(engine, run_id, change, said, fits) for change in reversed(left))]
    reach("adopt.before_back")
    store.put_back(run_id)
    reach("adopt.after_back")
    adopted = ", ".join(f"{'state ' + change.state + ' at ' if change.state else ''}step {change.step_id}" for change in changes)
    return f"adopted: {adopted}. {words[-1]}"


def _changes(found: HandEdit) -> Iterator[Change]:
    """What was changed in one file; refused where that cannot be an edit."""
    if found.now is None:
        raise _refusal(found.path, found.why)
    for number, (was, now) in enumerate(zip(found.recorded, found.now, strict=True)):
        if was == now:
            continue
        if now.value is None or was.value is None:
            raise _refusal(found.path, "a value was taken away or added")
        _refuse_no_json(found.path, now.value)
        if was.kind in RESULTS:
            yield Change(found.path, was.seq, was.step_id, now.value)
        elif was.kind == rec.StateSaved.kind and (at := _ridden_on(found.recorded[number:])):
            yield Change(found.path, at.seq, at.step_id, now.value, was.step_id)
        else:
            raise _refusal(found.path, f"what was changed is neither the result of a step nor a state saved with one ({was.kind})")


def _ridden_on(rows: Sequence[Row]) -> Row | None:
    """The record of a step with which a state was saved."""
    return next((row for row in rows if row.kind.startswith(STEPS)), None)


def _is_made(rows: Sequence[Row], change: Change) -> bool:
    """Whether the last edit of that step or state says the same: whoever adopted it before died before the file was put back."""
    for record in map(record_of, reversed([row for row in rows if row.seq > change.seq and row.kind in EDITS])):
        if isinstance(record, rec.StateEdited) and (record.step_id, record.at) == (change.state, change.step_id):
            return _same(record, change)
        if isinstance(record, rec.StepEdited) and not change.state and record.step_id == change.step_id:
            return _same(record, change)
    return False


def _same(record: rec.StepEdited | rec.StateEdited, change: Change) -> bool:
    return bool(json.loads(record.value or b"null") == json.loads(change.value))


def _refuse_no_json(path: str, value: bytes) -> None:
    if value[:1] == MARK:
        raise _refusal(path, 'a large or growing value stands there packed. Write all of it as "value" in the place of "value_text"')
    try:
        json.loads(value)
    except ValueError as error:
        raise _refusal(path, f"the value is not JSON ({error})") from error


def _refuse_unfit(journal: Journal, changes: Sequence[Change], said: Word, fits: Callable[[str], object]) -> None:
    """Whether each of them could be made alone, before the first is."""
    for path, seq, step_id, value, state in changes:
        history = journal.histories.get(step_id)
        if state:
            if history is not None and seq < history.first_seq:
                raise _refusal(path, f"step {step_id} was begun anew since, and has another state")
            _state_edit(journal, state, value, said, at=step_id)
            continue
        if history is not None and history.outcome is not None and seq < history.outcome_seq:
            raise _refusal(path, f"step {step_id} has another result since")
        _step_edit(journal, step_id, value, said, fits=fits(step_id))


def _applied(engine: Engine, run_id: str, change: Change, said: Word, fits: Callable[[str], object]) -> str:
    value = json.loads(change.value)
    if change.state:
        return edit_state(engine, run_id, value, at=change.step_id, name=change.state, said=said)
    return edit(engine, run_id, change.step_id, value, said=said, fits=fits(change.step_id))


def _refusal(path: str, why: str) -> Refusal:
    return Refusal(f"{path} cannot be adopted: {why}; nothing was changed. To put back what was recorded: holdfast check RUN --repair")
