"""What still stands of a run's records once somebody has gone back to an earlier step, and what is remembered of the rest; pure.

A point is the place of a step's outcome in the journal. What had begun by then stands, with whatever came of it later: an effect of a
branch beside it that was under way keeps its outcome. What began later is superseded: safe steps, states, times, waits, answers and
watches are forgotten and come anew, effects and child runs are remembered with their results, and messages are there again for whoever
receives them.
What is said of the run itself, and what it has spent, stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeAlias

from holdfast.records import kinds as rec
from holdfast.records.ledger import BUDGET
from holdfast.records.replay import CANCEL, UNDO, History
from holdfast.store import Row

Pair: TypeAlias = tuple[Row, rec.Record]

ANY_EPOCH = 1 << 62
"""Later than every epoch: whatever was under way is in doubt."""

OF_THE_RUN = (
    rec.RunStarted, rec.RunResumed, rec.RunDone, rec.RunFailed, rec.RunCancelled, rec.RunWaiting, rec.RunReleased, rec.RunBlocked,
    rec.RunRepaired, rec.RunPaused, rec.RunSealed, rec.RunHandedOver, rec.RunMoved, rec.RunArrived, rec.RunUnsealed,
)  # fmt: skip
OF_A_STEP = (
    rec.StepStarted, rec.AttemptFailed, rec.StepDone, rec.StepFailed, rec.DoubtOpened, rec.DoubtSettled, rec.TimeoutFired,
    rec.StepEdited, rec.StepPartial, rec.ChildStarted,
)  # fmt: skip


class Unread(NamedTuple):
    """A message that was taken on a path that was given up: it is received again. `mark` tells which one it is."""

    mark: str
    name: str
    value: str
    by: str
    key: str


def standing(pairs: Sequence[Pair], after: int, begun: AbstractSet[str]) -> list[Pair]:
    """The records that still count where the run goes back to `after`; `begun` are the steps that had begun by then."""
    asked = {record.step_id for row, record in pairs if row.seq <= after and isinstance(record, rec.AskOpened)}
    return [(row, record) for row, record in pairs if row.seq <= after or _stays(record, after, begun, asked)]


def _stays(record: rec.Record, after: int, begun: AbstractSet[str], asked: AbstractSet[str]) -> bool:
    match record:
        case _ if isinstance(record, OF_THE_RUN):
            return True
        case _ if isinstance(record, OF_A_STEP):
            return record.step_id in begun
        case rec.StepBrokenOff():  # by something that is superseded: then all that is known is its intent
            return record.step_id in begun and record.cause in ("", CANCEL)
        case rec.AskAnswered() | rec.AskClosed():
            return record.step_id in asked and record.step_id != BUDGET
        case rec.StateEdited():
            return record.after <= after
        case rec.MessageTaken():
            return bool(record.unfit)
    return False


def happened(histories: Iterable[tuple[str, History]], after: int) -> list[tuple[str, History]]:
    """The effects that began behind `after` and happened, or may have, in the order of their outcomes; one that is undone did not.

    Child runs are among them, whatever became of them: what was done in them happened.
    """
    found = dict(histories)
    undone = {step_id.removeprefix(UNDO) for step_id, history in found.items() if step_id.startswith(UNDO) and history.landed()}
    mine = [
        (step_id, history)
        for step_id, history in found.items()
        if (history.effect or history.child) and history.first_seq > after and not step_id.startswith(UNDO) and step_id not in undone
    ]
    mine = [(step_id, history) for step_id, history in mine if history.child or history.landed() or _in_doubt(history)]
    return sorted(mine, key=lambda pair: pair[1].outcome_seq or pair[1].first_seq)


def _in_doubt(history: History) -> bool:
    """Whether it may have happened; a call that a person was asked about before it began has not."""
    return history.open_doubt(ANY_EPOCH) and history.has_begun()


def unread(run_id: str, pairs: Sequence[Pair], after: int) -> list[Unread]:
    """The messages that were taken behind `after`, as they came: another call may stand at that step by now, or a correction."""
    found, taken = list[Unread](), dict[str, tuple[str, rec.MessageTaken]]()
    for row, record in pairs:
        match record:
            case rec.MessageTaken() if row.seq > after and not record.unfit:
                taken[record.step_id] = (record.again or f"{run_id}/{row.seq}", record)
            case rec.StepDone() if record.step_id in taken:
                mark, message = taken.pop(record.step_id)
                found.append(Unread(mark, message.name, _text(record.value or b"null"), message.by, message.key))
    return found


def label(step_id: str, history: History) -> str:
    """How an effect that was superseded is named: its step, and its run where that is another one."""
    return f"{history.elsewhere}@{step_id}" if history.elsewhere else step_id


def named(effects: Sequence[tuple[str, History]], name: str, fingerprint: str) -> tuple[str, History] | None:
    """The effect of that name; several paths may have had another one at that step, so the one with these arguments is preferred."""
    found = [pair for pair in effects if label(*pair) == name] if name else []
    return next((pair for pair in found if pair[1].fingerprint == fingerprint), found[0] if found else None)


def result_of(history: History) -> bytes | None:
    """What an effect returned, as far as anybody knows."""
    if isinstance(history.outcome, rec.StepDone):
        return history.outcome.value
    return history.settled.value if history.settled is not None and history.settled.verdict == "landed" else None


def told(run_id: str, effects: Sequence[tuple[str, History]], messages: Iterable[Unread]) -> bytes:
    """What a branch is to know of its source, as it is recorded."""
    known = [_described(run_id, step_id, history) for step_id, history in effects]
    return json.dumps({"effects": known, "messages": [each._asdict() for each in messages]}, separators=(",", ":")).encode()


def heard(value: bytes | None) -> tuple[list[tuple[str, History]], dict[str, Unread]]:
    """The same again."""
    known: dict[str, Any] = json.loads(value or b"{}")
    effects = [(each["step"], _as_history(each)) for each in known.get("effects", ())]
    return effects, {each["mark"]: Unread(**each) for each in known.get("messages", ())}


def _described(run_id: str, step_id: str, history: History) -> dict[str, Any]:
    value, done = result_of(history), history.outcome
    told = {
        "run": history.elsewhere or run_id, "step": step_id, "name": history.name, "fingerprint": history.fingerprint,
        "key": history.sent or history.key,
        "at_us": history.started_us or history.began_us, "landed": history.landed(), "value": None if value is None else _text(value),
        "args": None if history.args is None else _text(history.args), "not_kept": getattr(done, "not_kept", ""), "child": history.child,
    }  # fmt: skip
    return {name: given for name, given in told.items() if given not in (None, "")}


def _as_history(told: dict[str, Any]) -> History:
    step_id, name, fingerprint = told["step"], told["name"], told["fingerprint"]
    args, value, child = told.get("args"), told.get("value"), told.get("child", "")
    history = History()
    history.name, history.fingerprint, history.effect, history.child = name, fingerprint, not child, child
    history.key, history.args = told.get("key", ""), None if args is None else _bytes(args)
    history.started_us, history.elsewhere = told.get("at_us", 0), told["run"]
    if told["landed"]:
        history.outcome = rec.StepDone(
            step_id=step_id, name=name, fingerprint=fingerprint, effect=not child, value=None if value is None else _bytes(value),
            not_kept=told.get("not_kept", ""),
        )  # fmt: skip
    elif not child:
        reason = f"it is in doubt in run {told['run']}"
        history.doubt = rec.DoubtOpened(step_id=step_id, name=name, fingerprint=fingerprint, reason=reason, action="ask")
    return history


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
