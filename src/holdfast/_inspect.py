"""Read-only views for operators: runs, one run, its checkpoints, what needs a person, and whether it is all still whole."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import _records as rec
from ._duration import Duration, seconds
from ._ids import checked_run_id
from ._journal import Journal, verified
from ._replay import History
from ._runner import Engine
from ._steps import shown_call
from .errors import Damaged, Misuse, Refusal, StoreError, UnknownRun
from .store import Head, Query, Row

NOTE = 80
"""Characters of a result that a line of history shows."""

MAX_LISTED = 100_000
"""Runs in one list at the most."""

PAGE = 500
"""Heads that are read at a time when all are walked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run in a list."""

    run_id: str
    agent: str
    status: str
    records: int
    owner: str | None
    owner_lives: bool | None
    created_us: int
    updated_us: int
    tags: dict[str, str]
    usd: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One line of a run's history: a step's attempt, or something that happened to the run itself."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Where one run stands and what to do next."""

    run_id: str
    agent: str
    version: str
    status: str
    call: str
    attempt: int
    owner: str | None
    owner_lives: bool | None
    steps_done: int
    current: Checkpoint | None
    current_age_s: float | None
    last_error: str
    waits: str
    note: str
    result: Any
    tags: dict[str, str]
    usd: float
    created_us: int
    updated_us: int
    next_commands: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """What the agent knew after a step."""

    run_id: str
    checkpoint: Checkpoint
    arguments: Any
    result: Any
    error: Any
    usage: list[dict[str, Any]]
    state: dict[str, Any]
    known: list[Checkpoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that needs a person, with the commands that settle it."""

    kind: str
    run_id: str
    step_id: str
    what: str
    since_us: int
    commands: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check found of one run: `seq` is the first bad record, and everything before it is good."""

    run_id: str
    good: bool
    records: int
    seq: int = 0
    what: str = ""
    last_good: str = ""


def runs(
    engine: Engine, *, status: str | Sequence[str], agent: str | None, tags: Mapping[str, str], idle: Duration | None, limit: int
) -> list[Summary]:
    """The runs that match, the one that changed last first."""
    if not 0 < limit <= MAX_LISTED:
        raise Misuse(f"limit={limit}: between 1 and {MAX_LISTED} runs can be listed at once")
    statuses = (status,) if isinstance(status, str) else tuple(status)
    before = None if idle is None else engine.clock.now_us() - int(seconds(idle, "idle") * 1e6)
    query = Query(statuses=statuses, agent=agent, tags=tuple(tags.items()), idle_before_us=before, limit=limit)
    return [_summary(engine, head) for head in engine.store.heads(query)]


def show(engine: Engine, run_id: str) -> RunView:
    """Where a run stands, who owns it, what it waits for, and the command to try next."""
    head, rows = loaded(engine, run_id)
    journal = Journal.load(head, rows)
    started, lines = journal.started, _told(engine, head, rows)
    assert started is not None
    current = _current(head, lines)
    return RunView(
        run_id=run_id, agent=head.agent, version=started.version, status=head.status, call=shown_call(started.agent, started.args),
        attempt=head.epoch, owner=head.owner, owner_lives=_lives(engine, head),
        steps_done=sum(line.state == "done" for line in lines if line.step_id),
        current=current, current_age_s=None if current is None else (engine.clock.now_us() - current.at_us) / 1e6,
        last_error=_last_error(rows), waits=_waits(journal),
        note=next((line.note for line in reversed(lines) if not line.step_id), ""),
        result=_json(journal.verdict.value) if isinstance(journal.verdict, rec.RunDone) else None, tags=json.loads(head.tags), usd=head.usd,
        created_us=head.created_us, updated_us=head.updated_us, next_commands=_next_commands(engine, head, journal),
    )  # fmt: skip


def history(engine: Engine, run_id: str) -> list[Checkpoint]:
    """Every checkpoint of a run, in order."""
    return _told(engine, *loaded(engine, run_id))


def show_at(engine: Engine, run_id: str, step_id: str) -> CheckpointView:
    """What the agent knew after a step."""
    head, rows = loaded(engine, run_id)
    lines = _told(engine, head, rows)
    mine = [line for line in lines if line.step_id == step_id]
    if not mine:
        steps = ", ".join(dict.fromkeys(line.step_id for line in lines if line.step_id)) or "none"
        raise Refusal(f"run {run_id!r} has no step {step_id!r}; it has: {steps[:300]}")
    records = [(row, record) for row, record in verified(head, rows) if record.step_id == step_id]
    last_seq = records[-1][0].seq
    outcome = records[-1][1]
    shown = next((line for line in reversed(mine) if line.call), mine[-1])
    return CheckpointView(
        run_id=run_id, checkpoint=shown,
        arguments=next((_json(record.args) for _, record in reversed(records) if record.args is not None), None),
        result=_json(outcome.value) if outcome.value is not None else None,
        error=getattr(outcome, "error", None), usage=list(getattr(outcome, "usage", ())),
        state={row.step_id: _json(row.value) for row in rows if row.kind == rec.StateSaved.kind and row.seq <= last_seq},
        known=[line for line in lines if line.step_id and line.seq < shown.seq],
    )  # fmt: skip


def inbox(engine: Engine) -> list[Item]:
    """What needs a person: doubts, blocked and damaged runs."""
    items: list[Item] = []
    for head in walk(engine, ("waiting", "failed", "blocked")):
        try:
            found = engine.store.load(head.run_id)
            items += [] if found is None else _items(*found)
        except (Damaged, StoreError) as error:
            items.append(_damaged(head, error))
    return items


def check(engine: Engine, run_id: str | None) -> Iterator[Verdict]:
    """Verify one run or all, one by one."""
    heads = [_head(engine, run_id)] if run_id is not None else walk(engine, ())
    for head in heads:
        yield check_run(engine, head)


def check_run(engine: Engine, head: Head) -> Verdict:
    """Walk one run from its first record to the last that is good."""
    good = 0
    last = ""
    try:
        found = engine.store.load(head.run_id)
        if found is None:
            return Verdict(run_id=head.run_id, good=False, records=0, seq=1, what="it cannot be found by its id")
        for row, _ in verified(*found):
            good, last = row.seq, f"{row.kind} {row.step_id}".strip()
    except Damaged as damage:
        return Verdict(run_id=head.run_id, good=False, records=good, seq=damage.seq, what=damage.what, last_good=last)
    except StoreError as error:
        return Verdict(run_id=head.run_id, good=False, records=good, seq=good + 1, what=str(error), last_good=last)
    return Verdict(run_id=head.run_id, good=True, records=good, last_good=last)


def walk(engine: Engine, statuses: Sequence[str]) -> Iterator[Head]:
    """All heads with these statuses, page by page; one that moves meanwhile is neither missed nor met twice."""
    after = ""
    while page := engine.store.heads(Query(statuses=statuses, limit=PAGE, after=after)):
        yield from page
        after = page[-1].run_id


def loaded(engine: Engine, run_id: str) -> tuple[Head, list[Row]]:
    """The head and rows of a run that must exist."""
    found = engine.store.load(checked_run_id(run_id))
    if found is None:
        raise UnknownRun(run_id, engine.store.url)
    return found


def _head(engine: Engine, run_id: str) -> Head:
    head = engine.store.head(checked_run_id(run_id))
    if head is None:
        raise UnknownRun(run_id, engine.store.url)
    return head


def _summary(engine: Engine, head: Head) -> Summary:
    return Summary(
        run_id=head.run_id, agent=head.agent, status=head.status, records=head.seq, owner=head.owner, owner_lives=_lives(engine, head),
        created_us=head.created_us, updated_us=head.updated_us, tags=_tags(head), usd=head.usd, note=head.note,
    )  # fmt: skip


def _lives(engine: Engine, head: Head) -> bool | None:
    """Whether the owner lives: True, False where it is proven dead or unknown to the store; None where there is none."""
    if head.owner is None:
        return None
    pulse = engine.store.pulse(head.owner)
    return pulse is not None and not pulse.dead


def _tags(head: Head) -> dict[str, str]:
    """The tags of a run in a list, which is shown even where its head is damaged; `check` says so."""
    try:
        return dict(json.loads(head.tags))
    except (TypeError, ValueError):
        return {}


def _json(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


@dataclass(slots=True)
class _Folding:
    """Lines under construction: a step's line is begun by its intent and finished by its outcome."""

    lines: list[Checkpoint] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    args: dict[str, bytes] = field(default_factory=dict)

    def begin(self, row: Row, record: rec.StepStarted) -> None:
        self.open[record.step_id] = len(self.lines)
        self.args[record.step_id] = record.args or b"{}"
        self.lines.append(_line(row, record, state="started", call=shown_call(record.name, record.args), key=record.key))

    def finish(self, row: Row, record: Any, state: str, note: str = "") -> None:
        index = self.open.pop(record.step_id, None)
        begun = self.lines[index] if index is not None else None
        started_us = begun.at_us if begun else (getattr(record, "started_us", 0) or row.at_us)
        call = begun.call if begun else shown_call(record.name, record.args or self.args.get(record.step_id))
        duration_s = (row.at_us - started_us) / 1e6
        line = _line(row, record, state=state, call=call, key=begun.key if begun else "", note=note, duration_s=duration_s)
        if index is None:
            self.lines.append(line)
        else:
            self.lines[index] = line

    def break_off(self) -> None:
        """Nobody is left to finish what is open: a step was broken off, of an effect it is not known whether it happened."""
        for index in self.open.values():
            line = self.lines[index]
            self.lines[index] = replace(line, state="in doubt" if line.effect else "broken off", note="its process ended in the middle")
        self.open.clear()


def _told(engine: Engine, head: Head, rows: Sequence[Row]) -> list[Checkpoint]:
    """The lines of a run as they stand now: what was begun and has nobody left to finish it was broken off."""
    return _lines(head, rows, abandoned=not _lives(engine, head))


def _lines(head: Head, rows: Sequence[Row], *, abandoned: bool) -> list[Checkpoint]:
    """The rows of a run as lines for people."""
    folding = _Folding()
    for row, record in verified(head, rows):
        match record:
            case rec.StepStarted():
                folding.begin(row, record)
            case rec.StepDone():
                folding.finish(row, record, "done", _done_note(record))
            case rec.StepFailed():
                folding.finish(row, record, "in doubt" if record.doubt else "failed", _message(record.error))
            case rec.AttemptFailed():
                folding.finish(row, record, "in doubt" if record.landed == "unknown" else "attempt failed", _message(record.error))
            case rec.StepBrokenOff():
                folding.finish(row, record, "broken off", f"by {record.cause}" if record.cause else "")
            case rec.StateSaved() | rec.TimeRead():
                pass
            case _:
                if isinstance(record, rec.RunResumed):
                    folding.break_off()
                folding.lines.append(_line(row, record, state=record.kind.replace(".", " "), call="", note=_note(record)))
    if abandoned:
        folding.break_off()
    return folding.lines


def _line(
    row: Row, record: rec.Record, *, state: str, call: str, key: str = "", note: str = "", duration_s: float | None = None
) -> Checkpoint:
    return Checkpoint(
        seq=row.seq, at_us=row.at_us, step_id=record.step_id, call=call, state=state, key=key, note=note, duration_s=duration_s,
        attempt=getattr(record, "attempt", 0), effect=getattr(record, "effect", False),
    )  # fmt: skip


def _done_note(record: rec.StepDone) -> str:
    if record.not_kept:
        return f"result not kept: {record.shown}"
    shown = (record.value or b"").decode("utf-8", "replace")
    return shown if len(shown) <= NOTE else shown[: NOTE - 3] + "..."


def _message(error: rec.Json) -> str:
    return f"{error.get('type')}: {error.get('message')}"[:200]


def _note(record: rec.Record) -> str:
    match record:
        case rec.RunStarted():
            return f"by {record.owner}"
        case rec.RunResumed():
            behind = f", behind {', '.join(record.cleared)}" if record.cleared else ""
            return f"{record.why}{', by ' + record.owner if record.owner else ''}{behind}"
        case rec.RunFailed() | rec.RunBlocked():
            return _message(record.error)
        case rec.RunCancelled():
            return f"by {record.by}{': ' + record.reason if record.reason else ''}"
        case rec.RunWaiting():
            return record.waits
        case rec.RunReleased():
            return record.reason
        case rec.DoubtOpened():
            return f"{record.reason} -> {record.action}"
        case rec.DoubtSettled():
            return f"{record.verdict} says {record.by}{': ' + record.reason if record.reason else ''}"
    return ""


def _current(head: Head, lines: Sequence[Checkpoint]) -> Checkpoint | None:
    """The step at which a run that is not final stands: one that is open, else the last one if it is not done."""
    if head.status in ("done", "cancelled"):
        return None
    calls = {line.step_id: line for line in lines if line.call}
    unfinished = [line for line in calls.values() if line.state in ("started", "in doubt", "broken off")]
    last = max(unfinished or calls.values(), key=lambda line: line.seq, default=None)
    if last is None or last.state == "done":
        return None
    word = next((line for line in reversed(lines) if line.step_id == last.step_id), last)
    return last if word.state != "doubt settled" else replace(last, state=word.state, note=word.note, at_us=word.at_us)


def _waits(journal: Journal) -> str:
    """What a waiting run wants to know, without the commands that answer it."""
    if journal.head.status != "waiting":
        return ""
    asked = [f"did {shown_call(found.name, found.args)} at step {step_id} happen?{_because(found)}" for step_id, found in _doubts(journal)]
    return " ".join(asked) or journal.head.note


def _because(found: History) -> str:
    return f" ({found.doubt.reason})" if found.doubt is not None else ""


def _last_error(rows: Sequence[Row]) -> str:
    for row in reversed(rows):
        if row.kind in (rec.RunFailed.kind, rec.RunBlocked.kind, rec.StepFailed.kind, rec.AttemptFailed.kind):
            return _message(json.loads(row.body)["error"])
    return ""


def _next_commands(engine: Engine, head: Head, journal: Journal) -> list[str]:
    doubts = [command for step_id, found in _doubts(journal) for command in _settling(head.run_id, step_id, found)]
    if doubts:
        return doubts
    match head.status:
        case "done" | "cancelled":
            return []
        case "running" if _lives(engine, head):
            return [f"holdfast history {head.run_id}"]
        case _:
            return [f"holdfast resume {head.run_id} --here APP.py"]


def _doubts(journal: Journal) -> list[tuple[str, History]]:
    """Doubts that wait for a person: those of a run that nobody executes."""
    return journal.open_doubts() if journal.head.status in ("waiting", "failed", "blocked") else []


def _settling(run_id: str, step_id: str, found: History) -> list[str]:
    del found
    step = shlex.quote(step_id)  # it may come from a model's tool call, and the command is made to be pasted
    return [f"holdfast resolve {run_id} {step} --landed RESULT", f"holdfast resolve {run_id} {step} --not-landed"]


def _items(head: Head, rows: Sequence[Row]) -> list[Item]:
    journal = Journal.load(head, rows)
    items = [
        Item(
            kind="doubt", run_id=head.run_id, step_id=step_id, since_us=found.started_us or head.updated_us,
            what=f"did {shown_call(found.name, found.args)} happen? {found.doubt.reason if found.doubt else ''}".strip(),
            commands=_settling(head.run_id, step_id, found),
        )
        for step_id, found in _doubts(journal)
    ]  # fmt: skip
    if head.status == "blocked":
        step_id = journal.verdict.step_id if isinstance(journal.verdict, rec.RunBlocked) else ""
        commands = [f"holdfast resume {head.run_id} --here APP.py", f"holdfast cancel {head.run_id}"]
        items.append(
            Item(kind="blocked", run_id=head.run_id, step_id=step_id, what=head.note, since_us=head.updated_us, commands=commands)
        )
    return items


def _damaged(head: Head, error: Exception) -> Item:
    commands = [f"holdfast check {head.run_id}"]
    return Item(kind="damaged", run_id=head.run_id, step_id="", what=str(error), since_us=head.updated_us, commands=commands)
