"""A run's records as lines for people: one per attempt of a step, and one for each thing that happened to the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast._clock import to_datetime
from holdfast.budget import shown as amount
from holdfast.life.calls import shown_call
from holdfast.records import kinds as rec
from holdfast.records.chain import verified
from holdfast.records.lineage import OF_A_STEP
from holdfast.records.models import Pair
from holdfast.store import Head, Row

NOTE = 80
"""Characters of a result that a line shows."""

STOOD = {
    "failed": "after it had failed", "blocked": "after it was blocked", "waiting": "after it had waited", "queued": "from the queue",
}  # fmt: skip
"""Where a run stood that was taken up, behind who says so."""

STATES = {
    rec.AskOpened.kind: "asked", rec.AskAnswered.kind: "answered", rec.AskClosed.kind: "closed",
    rec.WatchTaken.kind: "watched", rec.WatchDrifted.kind: "drifted",
    rec.ModelChanged.kind: "model changed", rec.ModelAccepted.kind: "model accepted", rec.BudgetSet.kind: "budget set",
    rec.WaitBegun.kind: "waiting", rec.MessageTaken.kind: "message taken", rec.RunPruned.kind: "pruned",
    rec.ChildStarted.kind: "child run",
}  # fmt: skip
"""Words for a line that read better than the kind of its record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One line of a run's history: a step's attempt, or something that happened to the run itself.

    `superseded` where somebody has gone back to an earlier step since: the run goes on as if it had not been.
    """

    seq: int
    at_us: int
    step_id: str
    call: str
    state: str
    attempt: int = 0
    effect: bool = False
    duration_s: float | None = None
    key: str = ""
    note: str = ""
    delay_s: float | None = None
    superseded: bool = False


@dataclass(slots=True)
class _Folding:
    """Lines under construction: a step's line is begun by its intent and finished by its outcome."""

    lines: list[Checkpoint] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    started: dict[str, rec.StepStarted] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    points: dict[int, int] = field(default_factory=dict)

    def begin(self, row: Row, record: rec.StepStarted) -> None:
        self.open[record.step_id] = len(self.lines)
        self.started[record.step_id] = record
        self.lines.append(_line(row, record, state="started", call=shown_call(record.name, record.args), key=record.key))

    def finish(self, row: Row, record: Any, state: str, note: str = "") -> None:
        """The outcome takes the place of the intent; what only the intent says is kept: an effect's key, the arguments."""
        index, started = self.open.pop(record.step_id, None), self.started.get(record.step_id)
        if index is not None and self.lines[index].note and state != "done":
            note = "; ".join(part for part in (note, self.lines[index].note) if part)
        began_us = getattr(record, "started_us", 0) or (row.at_us if index is None else self.lines[index].at_us)
        args = record.args or (started.args if started else None)
        line = _line(row, record, state=state, call=shown_call(record.name, args), note=note, duration_s=(row.at_us - began_us) / 1e6)
        if started is not None:
            line = replace(line, effect=line.effect or started.effect, key=started.key)
        if index is None:
            self.lines.append(line)
        else:
            self.lines[index] = line

    def save(self, row: Row, record: rec.StepPartial) -> None:
        """What a body saved stands on the line of its attempt, the latest alone; a brief one has no line yet."""
        if record.step_id not in self.open:
            self.open[record.step_id] = len(self.lines)
            self.lines.append(_line(row, record, state="started", call=record.about.rpartition(" ")[0]))
        index = self.open[record.step_id]
        self.lines[index] = replace(self.lines[index], note=f"saved so far: {_shortened(record.value)}")

    def place(self, row: Row, record: rec.Record) -> None:
        """Where a step begins; and what is superseded, where somebody goes back."""
        if record.step_id and isinstance(record, OF_A_STEP):
            self.first.setdefault(record.step_id, row.seq)
        if isinstance(record, rec.StepEdited | rec.StateEdited) and not record.in_fork:
            self.go_back(record.after)
        if isinstance(record, rec.StateEdited):
            self.points[row.seq] = record.after

    def go_back(self, after: int) -> None:
        """What began behind `after` is superseded; that is said of a step, and of what was asked or waited for, not of the run itself."""
        for index, line in enumerate(self.lines):
            if line.step_id and self.points.get(line.seq, self.first.get(line.step_id, line.seq)) > after:
                self.lines[index] = replace(line, superseded=True)
        self.first = {step_id: seq for step_id, seq in self.first.items() if seq <= after}

    def break_off(self) -> None:
        """Nobody is left to finish what is open: a step was broken off, of an effect it is not known whether it happened."""
        for index in self.open.values():
            line = self.lines[index]
            note = "; ".join(("its process ended in the middle", *([line.note] if line.note else [])))
            self.lines[index] = replace(line, state="in doubt" if line.effect else "broken off", note=note)
        self.open.clear()

    def tell(self, row: Row, record: rec.Record) -> None:
        """A line for what happened to the run itself; once it has begun anew, what has the same id is another step."""
        if isinstance(record, rec.RunResumed):
            self.break_off()
        if isinstance(record, rec.RunContinued):
            self.open.clear()
            self.started.clear()
        self.lines.append(_line(row, record, state=_state(record), call="", note=_note(record)))


def checkpoints(head: Head, rows: Sequence[Row], *, abandoned: bool) -> list[Checkpoint]:
    """The rows of a run as lines; `abandoned` where nobody is left to finish what was begun."""
    folding = _Folding()
    for row, record in verified(head, rows):
        folding.place(row, record)
        match record:
            case rec.StepStarted():
                folding.begin(row, record)
            case rec.StepDone():
                folding.finish(row, record, "done", _done_note(record))
            case rec.StepFailed():
                folding.finish(row, record, "in doubt" if record.doubt else "failed", message(record.error))
            case rec.AttemptFailed():
                state = "in doubt" if record.landed == "unknown" else "attempt failed"
                folding.finish(row, record, state, f"{message(record.error)}{_again(record.delay_ms)}")
            case rec.StepBrokenOff():
                folding.finish(row, record, "broken off", f"by {record.cause}" if record.cause else "")
            case rec.StateSaved() | rec.TimeRead() | rec.MilestoneReached():
                pass
            case rec.StepPartial():
                folding.save(row, record)
            case _:
                folding.tell(row, record)
    if abandoned:
        folding.break_off()
    return folding.lines


def told(record: rec.Record) -> tuple[str, str]:
    """The state and the note of one record for itself, for whoever follows a run as it goes."""
    match record:
        case rec.StepStarted():
            return "started", ""
        case rec.StepDone():
            return "done", _done_note(record)
        case rec.StepFailed():
            return "in doubt" if record.doubt else "failed", message(record.error)
        case rec.AttemptFailed():
            return "in doubt" if record.landed == "unknown" else "attempt failed", f"{message(record.error)}{_again(record.delay_ms)}"
        case rec.StepBrokenOff():
            return "broken off", f"by {record.cause}" if record.cause else ""
    return _state(record), _note(record)


def _state(record: rec.Record) -> str:
    """The word for a line; whoever only made a run ready has not taken it up."""
    if isinstance(record, rec.RunResumed) and not record.owner:
        return "run ready"
    if isinstance(record, rec.DoubtSettled) and record.verdict == "unknown":
        return "still in doubt"
    return STATES.get(record.kind) or record.kind.replace(".", " ").replace("_", " ")


def message(error: rec.Json) -> str:
    """An error in words, uncut: its end says what to do."""
    return f"{error.get('type')}: {error.get('message')}"


def _line(
    row: Row, record: rec.Record, *, state: str, call: str, key: str = "", note: str = "", duration_s: float | None = None
) -> Checkpoint:
    return Checkpoint(
        seq=row.seq, at_us=row.at_us, step_id=record.step_id, call=call, state=state, key=key, note=note, duration_s=duration_s,
        attempt=getattr(record, "attempt", 0), effect=getattr(record, "effect", False), delay_s=_delay_s(record),
    )  # fmt: skip


def _done_note(record: rec.StepDone) -> str:
    if record.not_kept:
        return f"result not kept: {record.shown}"
    if record.reused:
        return f"{_shortened(record.value)}, taken over from step {record.reused}; not executed"
    return _shortened(record.value)


def _shortened(value: bytes | None) -> str:
    shown = (value or b"").decode("utf-8", "replace")
    return shown if len(shown) <= NOTE else shown[: NOTE - 3] + "..."


def _note(record: rec.Record) -> str:
    match record:
        case rec.RunStarted():
            return f"by {record.owner}" if record.owner else ""
        case rec.RunResumed():
            behind = f", behind {', '.join(record.cleared)}" if record.cleared else ""
            known = "; effects that are not on record did not happen" if record.effects == "repeat" else ""
            return f"{STOOD.get(record.why, record.why)}{', by ' + record.owner if record.owner else ''}{behind}{known}"
        case rec.RunFailed() | rec.RunBlocked():
            return message(record.error)
        case rec.RunCancelled() | rec.RunUndoing() | rec.RunPaused():
            return f"by {record.by}{': ' + record.reason if record.reason else ''}"
        case rec.RunWaiting():
            return record.waits
        case rec.RunReleased():
            return record.reason
        case rec.RunContinued():
            return f"generation {record.generation} begins with {shown_call('', record.args)}"
        case rec.RunAccepted():
            return f"{record.by} goes on with changed code from step {record.step_id}{': ' + record.reason if record.reason else ''}"
        case rec.RunRepaired():
            return f"by {record.by}: record {record.bad_seq} was damaged ({record.what}), {record.moved} moved aside{_why(record.reason)}"
    return _said(record)


def _said(record: rec.Record) -> str:
    """What was asked and said about a step or a limit, and by whom."""
    match record:
        case rec.DoubtOpened():
            return f"{record.reason} -> {record.action}{_again(record.delay_ms)}"
        case rec.DoubtSettled():
            return f"{record.by}: {record.verdict.replace('_', ' ')}{_why(record.reason)}{_again(record.delay_ms)}"
        case rec.AskOpened():
            return f"{record.question}{_until(record.until_us)}"
        case rec.AskAnswered(timed_out=True):
            return f"no: {record.reason}"
        case rec.AskAnswered():
            return f"{record.by}: {record.said()}{_why(record.reason)}"
        case rec.BudgetSet():
            return f"{record.by}: {', '.join(amount(name, limit) for name, limit in record.limits.items())}{_why(record.reason)}"
        case rec.RunForked():
            return f"{record.by}: from {record.source} at step {record.at}{_why(record.reason)}, effects: {record.effects}"
        case rec.StepEdited() | rec.StateEdited():
            at = f" at step {record.at}" if isinstance(record, rec.StateEdited) else ""
            value = (record.value or b"").decode("utf-8", "replace")
            return f"{record.by}: {value if len(value) <= NOTE else value[: NOTE - 3] + '...'}{at}{_why(record.reason)}"
    return _found_out(record)


def _found_out(record: rec.Record) -> str:
    """What became of something that the run relies on or waits for."""
    match record:
        case rec.WaitBegun():
            return f"for {record.what.replace(':', ' ', 1)}{_until(record.until_us)}"
        case rec.MessageTaken():
            return f"{record.name}, from {record.by}{'; put aside: ' + record.unfit if record.unfit else ''}"
        case rec.ChildStarted():
            return record.child
        case rec.AskClosed():
            return record.reason
        case rec.RunPruned():
            whole = f", {record.dropped} of them as a whole" if record.dropped else ""
            return f"by {record.by}: {record.bytes:,} bytes of {record.rows} records went{whole} ({record.policy}){_why(record.reason)}"
        case rec.WatchTaken():
            shown = str(record.found.get("shown") or record.found.get("state") or "")
            return f"{shown}, accepted as it is" if record.accepted else shown
        case rec.WatchDrifted():
            return f"{record.what}: it was {record.old or 'not there'}, it is {record.new or 'not there'} -> {record.action}"
        case rec.ModelChanged():
            return f"{record.name}: it was {record.before}, it is {Pair(record.asked, record.answered)} -> {record.action}"
        case rec.ModelAccepted():
            return f"{record.name}: {Pair(record.asked, record.answered)}, by {record.by}{_why(record.reason)}"
    return _moved(record)


def _until(end_us: int) -> str:
    return f" until {to_datetime(end_us):%Y-%m-%d %H:%M:%S} UTC" if end_us else ""


def _moved(record: rec.Record) -> str:
    """From where to where a run went."""
    match record:
        case rec.RunSealed():
            return f"by {record.by}: to {record.to}{_why(record.reason)}"
        case rec.RunMoved():
            return f"to {record.to}"
        case rec.RunArrived():
            return f"from {record.source}{', not yet to be taken' if record.pending else ''}"
        case rec.RunUnsealed():
            return f"by {record.by}: the move is taken back{_why(record.reason)}"
    return ""


def _delay_s(record: rec.Record) -> float | None:
    delay_ms = getattr(record, "delay_ms", None)
    return None if delay_ms is None else delay_ms / 1000


def _again(delay_ms: int) -> str:
    return f"; again after {delay_ms / 1000:.3g} s" if delay_ms else ""


def _why(reason: str) -> str:
    return f" ({reason})" if reason else ""
