"""Adopting what somebody changed by hand: a value in a readable file becomes an official edit, with an author, and the file is put back.

Everything is checked before anything is written: each file reads, nothing in it is another but the value of a result or of a state, and
each value is one that `edit` takes. An edit gives up what began after it, so of two edits the later one holds only if its step had begun
by then; else both are refused, for none is lost unsaid. Then the edits are appended, in the order of their steps, and then the files are
put back, so that the records hold again. Who dies in between finds the files still changed, and adopts what does not hold yet.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast._failpoints import reach
from holdfast._ids import checked_run_id
from holdfast.errors import Refusal
from holdfast.large.packing import MARK
from holdfast.operating.telling import ready
from holdfast.operating.timetravel import Word, _state_edit, _step_edit, edit, edit_state, point
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.records.journal import EDIT_KINDS, Journal
from holdfast.running.engine import Engine
from holdfast.store import HandEdit, HandEdited, Row

RESULTS = (rec.StepDone.kind, rec.StepEdited.kind)
STEPS = "step."
SHOWN = 300
"""Characters of a value in a command to copy."""
RIDERS = (rec.StateSaved.kind, rec.TimeRead.kind, rec.MilestoneReached.kind)


class Change(NamedTuple):
    """Another value for the result of a step or, with its name, for a state at that step."""

    path: str
    seq: int
    step_id: str
    value: bytes
    state: str = ""


class _UnfitError(Exception):
    """What was changed cannot become an edit: the file, and why."""


def adopt(engine: Engine, run_id: str, *, said: Word, fits: Callable[[str], object] = lambda _: None) -> str:
    """Make edits of all that was changed by hand; gives what happens next, in words. `fits` gives what a step's value is checked by."""
    try:
        return _adopted(engine, run_id, said, fits)
    except _UnfitError as error:
        path, why = error.args
        back = f"holdfast check {run_id} --repair --store {shlex.quote(engine.store.url)}"
        raise Refusal(f"{path} cannot be adopted: {why}; nothing was changed. To put back what was recorded: {back}") from error


def _adopted(engine: Engine, run_id: str, said: Word, fits: Callable[[str], object]) -> str:
    store = engine.store
    if not isinstance(store, HandEdited):
        raise Refusal(f"the store {store.url} has no files that could be edited by hand; nothing was changed")
    found = store.edited(checked_run_id(run_id))
    if not found:
        raise Refusal(f"no file of run {run_id!r} was changed by hand; nothing was changed")
    with store.overlooking(run_id):
        head, rows = loaded(engine, run_id)
        journal = Journal.load(head, rows)
        changes = [change for one in found for change in _changes(one, rows)]
        _refuse_ended(journal, changes[0], store.url)
        _refuse_given_up(journal, changes, rows)
        _refuse_unfit(journal, changes, said, fits)
        changes.sort(key=lambda change: point(journal, change.step_id))
        _refuse_losing(journal, changes)
        todo = [change for change in changes if not _holds(journal, change)]
        words = [_applied(engine, run_id, change, said, fits) for change in todo] or [ready(engine, run_id)]
    reach("adopt.before_back")
    store.put_back(run_id)
    reach("adopt.after_back")
    adopted = ", ".join(f"{'state ' + change.state + ' at ' if change.state else ''}step {change.step_id}" for change in changes)
    return f"adopted: {adopted}. {words[-1]}"


def _changes(found: HandEdit, rows: Sequence[Row]) -> Iterator[Change]:
    """What was changed in one file; refused where that cannot be an edit."""
    if found.now is None:
        raise _UnfitError(found.path, found.why)
    for was, now in zip(found.recorded, found.now, strict=True):
        if was == now:
            continue
        if now.value is None or was.value is None:
            raise _UnfitError(found.path, "a value was taken away or added")
        _refuse_no_json(found.path, now.value)
        if was.kind in RESULTS:
            yield Change(found.path, was.seq, was.step_id, now.value)
        elif was.kind == rec.StateSaved.kind and (at := _ridden_on(was, rows)):
            yield Change(found.path, was.seq, at, now.value, was.step_id)
        else:
            raise _UnfitError(found.path, f"what was changed is neither the result of a step nor a state saved with one ({was.kind})")


def _ridden_on(state: Row, rows: Sequence[Row]) -> str:
    """The step with which a state was saved: that of the first record behind it that is not such a rider itself."""
    behind = next((row for row in rows if row.seq > state.seq and row.kind not in RIDERS), None)
    return behind.step_id if behind is not None and behind.kind.startswith(STEPS) else ""


def _refuse_no_json(path: str, value: bytes) -> None:
    if value[:1] == MARK:
        raise _UnfitError(path, 'a large or growing value stands there packed. Write all of it as "value" in the place of "value_text"')
    try:
        json.loads(value)
    except ValueError as error:
        raise _UnfitError(path, f"the value is not JSON ({error})") from error


def _refuse_ended(journal: Journal, change: Change, url: str) -> None:
    """A run that has ended stays so: the value can only become that of a fork, which is not made while the file is changed."""
    head, store = journal.head, f"--store {shlex.quote(url)}"
    if head.status not in ("done", "cancelled") and journal.undoing is None:
        return
    stands = f"is {head.status} and stays so" if journal.undoing is None or head.status == "cancelled" else "is being undone"
    value = shlex.quote(f"{change.state or change.step_id}={change.value.decode()}")
    edited = value if len(value) <= SHOWN else f"{change.state or change.step_id}=JSON"
    fork = f"holdfast fork {head.run_id} --at {shlex.quote(change.step_id)} --edit {edited} {store}"
    remedy = f"Put back what was recorded: holdfast check {head.run_id} --repair {store}; then branch it with your value: {fork}"
    raise Refusal(f"{change.path} cannot be adopted: run {head.run_id!r} {stands}; nothing was changed. {remedy}")


def _refuse_given_up(journal: Journal, changes: Sequence[Change], rows: Sequence[Row]) -> None:
    """What an edit of an earlier step gave up does not count any more, though the history still tells of it."""
    turns = [(row.seq, record_of(row)) for row in rows if row.kind in EDIT_KINDS]
    for path, seq, step_id, _, state in changes:
        behind = any(at > seq > getattr(record, "after", seq) for at, record in turns)
        if step_id not in journal.histories or (state and behind):
            what = f"state {state} at step {step_id}" if state else f"step {step_id}"
            raise _UnfitError(path, f"{what} was superseded since, by an edit of an earlier step or as the run began anew")


def _refuse_unfit(journal: Journal, changes: Sequence[Change], said: Word, fits: Callable[[str], object]) -> None:
    """Whether each of them could be made alone, before the first is."""
    for path, seq, step_id, value, state in changes:
        if state:
            _state_edit(journal, state, value, said, at=step_id)
            continue
        history = journal.histories.get(step_id)
        if history is not None and history.outcome is not None and seq < history.outcome_seq:
            raise _UnfitError(path, f"step {step_id} has another result since")
        _step_edit(journal, step_id, value, said, fits=fits(step_id))


def _refuse_losing(journal: Journal, changes: Sequence[Change]) -> None:
    """One edit would give up another; `changes` in the order of their points."""
    first = changes[0]
    after = point(journal, first.step_id)
    for change in changes[1:]:
        if journal.histories[change.step_id].first_seq > after:
            lost = f"step {change.step_id} began after step {first.step_id}, and is done anew once that is edited"
            remedy = f"Adopt one at a time: take back what you changed in {change.path}, adopt, and edit that step when it is done anew"
            raise Refusal(f"{first.path} and {change.path} cannot both be adopted: {lost}; nothing was changed. {remedy}")


def _holds(journal: Journal, change: Change) -> bool:
    """Whether the edit was made already, by somebody who died before the files were put back."""
    value, history = json.loads(change.value), journal.histories[change.step_id]
    if change.state:
        saved = journal.states[change.state].at(history.outcome_seq) if change.state in journal.states else None
        return saved is not None and json.loads(saved) == value
    return history.edited is not None and json.loads(history.edited.value or b"null") == value


def _applied(engine: Engine, run_id: str, change: Change, said: Word, fits: Callable[[str], object]) -> str:
    value = json.loads(change.value)
    if change.state:
        return edit_state(engine, run_id, value, at=change.step_id, name=change.state, said=said)
    return edit(engine, run_id, change.step_id, value, said=said, fits=fits(change.step_id))
