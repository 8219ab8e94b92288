"""Taking a run back: what its effects did is undone, the newest first, each undo an effect of its own.

By now the code has been played, or replayed to its live edge, and every call that can be undone is known with its arguments. The journal
knows what became of each: what happened is undone, what did not is passed over, and at a doubt it stops until a person has spoken. An
undo has its own intent, outcome and key, under the id `undo:STEP`, so that whoever goes on after a crash finds out how far it came. A child
run is undone by itself, in its turn, one that is done too; its own journal tells how far that came.
"""

from __future__ import annotations

import inspect
import logging

from holdfast.codec.failures import failure, told
from holdfast.errors import Cancelled, InDoubt, Parked, ResultNotKept, UndoFailed
from holdfast.life.calls import Call
from holdfast.life.commands import Commit, Life
from holdfast.life.door import LEAVING
from holdfast.life.doubt import opened
from holdfast.life.run import Run
from holdfast.life.steps import life
from holdfast.records import kinds as rec
from holdfast.records.replay import UNDO, History

ITSELF = "its agent"
"""Who asked, where an agent declared that its failure undoes what it did."""

SHOWN_ERROR = 300
"""Characters of the error that had the run undone which its reason shows."""

log = logging.getLogger("holdfast")


def asked_by_failure(error: Exception) -> rec.RunUndoing:
    """The request that the error of an agent with on_failure="undo" makes."""
    return rec.RunUndoing(by=ITSELF, reason=f"failed with {told(error)[:SHOWN_ERROR]}", error=failure(error))


def take_back(run: Run) -> Life[Cancelled]:
    """Undo what landed; gives what is to be recorded as the end of the run. `Parked` where a person must speak first."""
    asked = run.undo.asked
    assert asked is not None
    if run.journal.undoing is None:
        taken = tuple(run.taking)
        yield Commit([asked], taken)
        del run.taking[: len(taken)]
    run.unchecked.clear()  # what the run relied on outside is no matter any more
    if any(found.open_doubt(run.journal.head.epoch + 1) for step_id, found in _traces(run) if step_id not in run.requested):
        raise Parked
    undone, children = 0, 0
    for call in newest_first(run):
        if run.leaving is not None:  # it is paused or handed over between two of them, and whoever takes it next goes on
            run.awaits = {LEAVING}
            raise Parked
        found = run.journal.histories[call.step_id]
        if found.child:
            children += yield from call.spec.wait.undone(call, found)  # type: ignore[union-attr]
        else:
            undone += yield from _undone(call, found)
    beside = f" and {_counted(children, 'child run')}" if children else ""
    counted = f"{_counted(undone, 'effect')}{beside} undone"
    return Cancelled(asked.by, "".join([f"{asked.reason}: {counted}" if asked.reason else counted, *_left(run)]))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def newest_first(run: Run) -> list[Call]:
    """The calls that can be undone and have begun, the one whose outcome is the newest first; without an outcome, its intent counts."""
    began = [(call, run.journal.histories.get(step_id)) for step_id, call in run.undo.calls.items()]
    mine = [(call, found) for call, found in began if found is not None and _is_of(found, call)]
    return [call for call, _ in sorted(mine, key=lambda pair: pair[1].outcome_seq or pair[1].first_seq, reverse=True)]


def _is_of(found: History, call: Call) -> bool:
    return (found.name, found.fingerprint) == (call.spec.name, call.fingerprint)


def _undone(call: Call, found: History) -> Life[bool]:
    """Whether this effect had happened, and is undone now; what another run did, from which this one branches, is that one's to undo."""
    run = call.run
    if found.elsewhere:
        return False
    if not found.landed():
        if found.open_doubt(run.journal.head.epoch + 1) and found.has_begun():
            raise Parked
        return False
    undo_id = f"{UNDO}{call.step_id}"
    before = run.journal.histories.get(undo_id)
    if before is None or not before.landed():
        _go_on_behind(run, before)
        value = yield from _result(call, found)
        yield from _called(call, undo_id, value)
    return True


def _go_on_behind(run: Run, before: History | None) -> None:
    """An undo that had given up in doubt: it goes on once a person has said that it did not happen."""
    if before is None or not isinstance(before.outcome, rec.StepFailed) or not before.outcome.doubt:
        return
    if before.open_doubt(run.journal.head.epoch + 1):
        raise Parked
    before.clear_failure()


def _result(call: Call, found: History) -> Life[bytes]:
    """What the effect had returned; where that is not known, or does not fit, a person is asked."""
    if found.result_is_missing():
        how = f"its result was not kept. Say what it was: holdfast resolve {call.run.id} {call.step_id} --landed JSON"
        raise UndoFailed(call.run.id, call.step_id, call.spec.name, how)
    value = found.outcome.value if isinstance(found.outcome, rec.StepDone) else found.settled.value if found.settled else None
    unfit = call.unfit(value)
    if unfit:
        yield Commit([opened(call, f"the result that was given does not fit: {unfit}", "ask")])
        raise Parked
    return value or b"null"


def _called(call: Call, undo_id: str, value: bytes) -> Life[None]:
    """Call the undo with the result and the arguments of its effect."""
    run, spec = call.run, call.spec.undo
    assert spec is not None
    result, given = call.spec.codec().give_back(value), inspect.signature(call.spec.fn).bind(*call.args, **call.kwargs)
    given.apply_defaults()  # those of the effect: the undo's own may be others
    try:
        yield from life(Call(spec, run.scopes[0], undo_id, (result, *given.args), given.kwargs))
    except ResultNotKept:
        return  # it happened, and nobody needs to know what it returned
    except InDoubt as error:
        raise Parked from error
    except Exception as error:
        raise UndoFailed(run.id, call.step_id, call.spec.name, f"{spec.name} failed with {told(error)}") from error


def _traces(run: Run) -> list[tuple[str, History]]:
    """Effects that the code did not come to, or calls no more: all that is known of them are traces which a repair had found."""
    mine = {call.step_id for call in newest_first(run)}
    found = [(step_id, history) for step_id, history in run.journal.histories.items() if history.effect and step_id not in mine]
    found = [(step_id, history) for step_id, history in found if not step_id.startswith(UNDO)]
    return [(step_id, history) for step_id, history in found if history.lost or step_id not in run.requested]


def _left(run: Run) -> list[str]:
    """What happened and nobody can say how to undo: the code does not call it any more, or not yet."""
    own = [(step_id, found) for step_id, found in run.journal.superseded if not found.elsewhere]
    when = "made before the code changed" if run.journal.turned is None else "superseded by an edit"
    told = {when: own, "known from what a repair moved aside": _traces(run)}
    for call in newest_first(run):
        found = run.journal.histories[call.step_id]
        if found.elsewhere:
            told.setdefault(f"done by run {found.elsewhere}", []).append((call.step_id, found))
    left = {
        why: [f"{found.name} (step {step_id})" for step_id, found in those if found.landed() or found.child] for why, those in told.items()
    }
    lines = [f"{why}, and not undone: {', '.join(names)}" for why, names in left.items() if names]
    if run.journal.unknown is not None:
        lines.append("records that a repair could not read may have told of more, which is not undone")
    for line in lines:
        log.warning("run %s: %s", run.id, line)
    return [f"; {line}" for line in lines]
