"""Read-only views for operators: runs, one run, its checkpoints, and what needs a person."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import islice, takewhile
from typing import Any

from holdfast._duration import Duration, seconds
from holdfast._ids import checked_run_id
from holdfast._options import AWAY, checked_statuses
from holdfast._turns import QUEUE, priority_of
from holdfast.budget import Spent
from holdfast.codec.answers import shown
from holdfast.errors import Damaged, HoldfastError, Misuse, Refusal, StoreError, UndoFailed, UnknownRun
from holdfast.large.packing import bare
from holdfast.life.calls import shown_call
from holdfast.operating.advice import answering, branching, going_on, made, moving_on, saying, sent, settling, unblocking
from holdfast.operating.checkpoints import STATES, Checkpoint, checkpoints, message
from holdfast.operating.family import top_of
from holdfast.operating.holding import Fleet
from holdfast.operating.onward import STOPPED, asks_of, besides, doubts_of, heard, lives, next_commands
from holdfast.records import kinds as rec
from holdfast.records.chain import FORK_OF, verified
from holdfast.records.fitting import is_stopped_by
from holdfast.records.fitting import told as tried_in_vain
from holdfast.records.journal import Journal
from holdfast.records.replay import DIED, UNDO, History
from holdfast.running.engine import Engine
from holdfast.running.letters import moved_children, said
from holdfast.running.runner import refuse_pruned
from holdfast.store import Head, Query, Row

MAX_LISTED = 100_000
"""Runs in one list at the most."""

PAGE = 500
"""Heads that are read at a time when all are walked."""

LOOKED_INTO = 50
"""Stopped runs in one list of which it is told what is in doubt: each is read as a whole."""

NEWEST = 200
"""Runs among which the id that was meant is looked for."""

TRANSFERS = ("run sealed", "run handed over", "run moved", "run arrived", "run unsealed")
FORKS = 20
"""Forks of a run that are named with it."""

SAVED = rec.StateSaved.kind

STATES_OF_NEED = ("waiting", "running", "queued", "paused", "failed", "blocked", "cancelled", "moving")
"""Statuses of runs in which something may need a person."""


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
    queue: str
    priority: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Where one run stands and what to do next; `attempt` is how often a process has taken it up, `limits` what it may spend.

    `asks` is whether a person must say something, until `until_us` if there is an end, `details` what the agent wants shown with its open
    questions. It goes on by itself at `wake_us`. `queue`, `priority` and `key` say where it stands in line, and `told` that a run which
    executes is to stop. `unreadable` records a repair could not read: effects that are not on record are in doubt.
    """

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
    undoing: str
    note: str
    result: Any
    state: dict[str, Any]
    tags: dict[str, str]
    usd: float
    spent: Spent
    limits: dict[str, float]
    created_us: int
    updated_us: int
    next_commands: list[str]
    model_changes: list[str]
    forked_from: str
    forks: list[str]
    milestone: str
    generation: int
    queue: str
    priority: int
    key: str
    told: str = ""
    parent: str | None = None
    children: list[str] = field(default_factory=list)
    asks: bool = False
    until_us: int | None = None
    details: list[Any] = field(default_factory=list)
    wake_us: int | None = None
    unreadable: int = 0


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
    partial: dict[str, Any]
    edited: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that needs a person, with the commands that settle it; `call` is the agent's, `key` what an effect sent along.

    `about` is the record that put a question: an answer that names it is not taken for one to a later question. `wants` is what the
    answer, or the result that is in doubt, must be, `who` may give it, until `until_us` if there is an end, and `details` is what the agent
    wants shown with the question.
    """

    kind: str
    run_id: str
    step_id: str
    what: str
    since_us: int
    commands: list[str]
    key: str = ""
    call: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    about: int = 0
    parent: str | None = None
    wants: str = ""
    who: list[str] = field(default_factory=list)
    details: Any = None
    until_us: int | None = None


def runs(
    engine: Engine, *, status: str | Sequence[str], agent: str | None, tags: Mapping[str, str], idle: Duration | None, limit: int,
    queue: str | None = None,
) -> list[Summary]:  # fmt: skip
    """The runs that match, the one that changed last first."""
    if not 0 < limit <= MAX_LISTED:
        raise Misuse(f"limit={limit}: between 1 and {MAX_LISTED} runs can be listed at once")
    statuses = checked_statuses(status)
    before = None if idle is None else engine.clock.now_us() - int(seconds(idle, "idle") * 1e6)
    stored = tuple("running" if each == STOPPED else each for each in statuses)
    query = Query(statuses=stored, agent=agent, tags=tuple(tags.items()), idle_before_us=before, limit=limit)
    found = (summary(engine, head) for head in _pages(engine, query) if queue is None or top_of(engine.store, head).queue == queue)
    living = STOPPED not in statuses or "running" in statuses
    wanted = list(islice((run for run in found if living or run.status != "running" or not run.owner_lives), limit))
    left = [run.run_id for run in wanted if run.status == "running" and run.owner_lives is False][:LOOKED_INTO]
    return [replace(run, note=_left_open(engine, run.run_id)) if run.run_id in left else run for run in wanted]


def _left_open(engine: Engine, run_id: str) -> str:
    """What a dead process has left in doubt; nothing where it cannot be read, as `show` and `check` say."""
    with suppress(Damaged, StoreError):
        found = engine.store.load(run_id)
        return "" if found is None else _in_doubt(engine, Journal.load(*found))
    return ""


def show(engine: Engine, run_id: str) -> RunView:
    """Where a run stands, who owns it, what it waits for, and the command to try next."""
    head, rows = loaded(engine, run_id)
    journal = Journal.load(head, rows)
    started, lines = journal.started, _told(engine, head, rows)
    assert started is not None
    began, freed = _began(rows), _freed(engine, journal)
    current = _current(journal, [line for line in lines if line.seq > began])
    return RunView(
        run_id=run_id, agent=head.agent, version=started.version, status=head.status,
        call=shown_call(started.agent, (journal.continued or started).args),
        attempt=journal.claims, owner=head.owner, owner_lives=lives(engine, head),
        steps_done=sum(line.state == "done" for line in lines if line.step_id and not line.superseded and line.seq > began),
        current=current, current_age_s=None if current is None else (engine.clock.now_us() - current.at_us) / 1e6,
        last_error="" if freed else _last_error(head, [row for row in bare(rows) if row.seq > began]),
        waits=_waits(engine, journal), undoing=_undoing(journal),
        note=freed or _stands(journal, lines, rows),
        state={name: _json(saved.last) for name, saved in journal.states.items()},
        result=_json(journal.verdict.value) if isinstance(journal.verdict, rec.RunDone) else None, tags=json.loads(head.tags), usd=head.usd,
        spent=journal.ledger.spent(engine.clock.now_us() if lives(engine, head) else head.updated_us), limits=dict(journal.ledger.limits),
        created_us=head.created_us, updated_us=head.updated_us, next_commands=next_commands(engine, journal),
        model_changes=[line.note for line in lines if line.state == STATES[rec.ModelChanged.kind]],
        milestone=journal.milestone, generation=journal.continued.generation if journal.continued else 0,
        queue=head.queue or QUEUE, priority=priority_of(head.turn), key=head.lane, told=_told_to_stop(engine, head),
        parent=started.parent.get("run"), children=_children(bare(rows)), asks=bool(doubts_of(engine, journal) or asks_of(engine, journal)),
        until_us=min((asked.opened.until_us for _, asked in asks_of(engine, journal) if asked.opened.until_us), default=None),
        details=[asked.opened.details for _, asked in asks_of(engine, journal) if asked.opened.details is not None], wake_us=head.wake_us,
        unreadable=journal.unknown.records if journal.unknown is not None else 0,
        forked_from=f"{journal.forked.source}@{journal.forked.at}" if journal.forked else "",
        forks=[fork.run_id for fork in engine.store.heads(Query(tags=((FORK_OF, run_id),), limit=FORKS))],
    )  # fmt: skip


def _children(rows: Sequence[Row]) -> list[str]:
    """The child runs that the run has called, in order."""
    return list(dict.fromkeys(json.loads(row.body)["child"] for row in rows if row.kind == rec.ChildStarted.kind))


def history(engine: Engine, run_id: str) -> list[Checkpoint]:
    """Every checkpoint of a run, in order."""
    return _told(engine, *loaded(engine, run_id))


def show_at(engine: Engine, run_id: str, step_id: str) -> CheckpointView:
    """What the agent knew after a step."""
    head, rows = loaded(engine, run_id)
    told, began = _told(engine, head, rows), _began(rows)
    lines = [line for line in told if line.seq > began]
    mine = [line for line in lines if line.step_id == step_id]
    if not mine and any(line.step_id == step_id for line in told):
        raise Refusal(f"step {step_id!r} of run {run_id!r} is of an earlier generation, which is over. See: holdfast history {run_id}")
    if not mine:
        steps = ", ".join(dict.fromkeys(line.step_id for line in lines if line.call)) or "none"
        raise Refusal(f"run {run_id!r} has no step {step_id!r}; it has: {steps[:300]}")
    records = [(row, record) for row, record in verified(head, rows) if record.step_id == step_id and row.seq > began]
    last_seq = records[-1][0].seq
    saved = {record.name: _json(record.value) for _, record in records if isinstance(record, rec.StepPartial)}
    outcome = next((record for _, record in reversed(records) if not isinstance(record, rec.StepPartial)), rec.Record())
    shown = next((line for line in reversed(mine) if line.call), mine[-1])
    return CheckpointView(
        run_id=run_id, checkpoint=shown,
        arguments=next((_json(record.args) for _, record in reversed(records) if record.args is not None), _asked(records)),
        result=_json(outcome.value) if outcome.value is not None else None,
        error=getattr(outcome, "error", None), usage=list(getattr(outcome, "usage", ())),
        state=_states(Journal.load(head, rows), [row for row in rows if row.kind == SAVED and row.seq > began], step_id, last_seq),
        known=[line for line in lines if line.step_id not in ("", step_id) and line.seq < shown.seq and not line.superseded],
        partial={} if isinstance(outcome, rec.StepDone) else saved,
        edited=next((line.note for line in reversed(mine) if line.state == "step edited" and not line.superseded), ""),
    )  # fmt: skip


def _asked(records: Sequence[tuple[Row, rec.Record]]) -> Any:
    """What a person is asked at a step that has no answer yet."""
    opened = next((record for _, record in reversed(records) if isinstance(record, rec.AskOpened)), None)
    return None if opened is None else {"question": opened.question, "details": opened.details}


def _began(rows: Sequence[Row]) -> int:
    """The seq with which the present generation of a run begins; 0 for the first."""
    return next((row.seq for row in reversed(bare(rows)) if row.kind == rec.RunContinued.kind), 0)


def _states(journal: Journal, rows: Sequence[Row], step_id: str, last_seq: int) -> dict[str, Any]:
    """The states at a step; where it still stands, those that stand. `rows` are those that saved one."""
    found = journal.histories.get(step_id)
    if found is None or found.outcome is None:
        return {row.step_id: _json(row.value) for row in rows if row.seq <= last_seq}
    known = {name: saved.at(found.outcome_seq) for name, saved in journal.states.items()}
    return {name: _json(value) for name, value in known.items() if value is not None}


def inbox(engine: Engine) -> list[Item]:
    """What needs a person: doubts, those of cancelled runs too, questions, blocked, half undone and damaged runs."""
    items: list[Item] = []
    fleet = Fleet(engine)
    for head in walk(engine, STATES_OF_NEED):
        try:
            found = engine.store.load(head.run_id) if _has_begun(head) else None
            items += [] if found is None else _items(engine, *found, fleet)
        except (Damaged, StoreError) as error:
            items.append(_damaged(head, error))
    return items


def _has_begun(head: Head) -> bool:
    """Whether anybody has executed the run: one that is in line for the first time has nothing open, and there may be many."""
    return head.status != "queued" or head.seq > 1


def walk(engine: Engine, statuses: Sequence[str]) -> Iterator[Head]:
    """All heads with these statuses, page by page; one that moves meanwhile is neither missed nor met twice."""
    after = ""
    while page := engine.store.heads(Query(statuses=statuses, limit=PAGE, after=after)):
        yield from page
        after = page[-1].run_id


def _pages(engine: Engine, query: Query) -> Iterator[Head]:
    """The heads that match, the one that changed last first, page by page."""
    while page := engine.store.heads(query):
        yield from page
        if len(page) < query.limit:
            return
        query = query._replace(offset=query.offset + len(page))


def loaded(engine: Engine, run_id: str) -> tuple[Head, Sequence[Row]]:
    """The head and rows of a run that must exist."""
    found = engine.store.load(checked_run_id(run_id))
    if found is None:
        raise unknown(engine, run_id)
    return found


def unknown(engine: Engine, run_id: str) -> UnknownRun:
    """The error for an id that nobody has, with the one that may have been meant; of a run that was removed, that it was."""
    refuse_pruned(engine, run_id)
    near = get_close_matches(run_id, [head.run_id for head in engine.store.heads(Query(limit=NEWEST))], n=1)
    return UnknownRun(run_id, engine.store.url, near[0] if near else "")


def meant(engine: Engine, *, agent: str | None, queue: str | None) -> list[str]:
    """Where nothing matches, the agent and the queue that may have been meant, as options."""
    newest = engine.store.heads(Query(limit=NEWEST))
    asked = (("--agent", agent, {head.agent for head in newest}), ("--of-queue", queue, {head.queue or QUEUE for head in newest}))
    near = ((option, get_close_matches(name, known, n=1)) for option, name, known in asked if name and name not in known)
    return [f"{option} {found[0]}" for option, found in near if found]


def summary(engine: Engine, head: Head) -> Summary:
    """A run as a list shows it."""
    return Summary(
        run_id=head.run_id, agent=head.agent, status=head.status, records=head.seq, owner=head.owner, owner_lives=lives(engine, head),
        created_us=head.created_us, updated_us=head.updated_us, tags=_tags(head), usd=head.usd, note=head.note,
        queue=head.queue or QUEUE, priority=priority_of(head.turn), key=head.lane,
    )  # fmt: skip


def _tags(head: Head) -> dict[str, str]:
    """The tags of a run in a list, which is shown even where its head is damaged; `check` says so."""
    try:
        return dict(json.loads(head.tags))
    except (TypeError, ValueError):
        return {}


def _json(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


def _told(engine: Engine, head: Head, rows: Sequence[Row]) -> list[Checkpoint]:
    """The lines of a run as they stand now: what was begun and has nobody left to finish it was broken off."""
    return checkpoints(head, rows, abandoned=not lives(engine, head))


def _current(journal: Journal, lines: Sequence[Checkpoint]) -> Checkpoint | None:
    """The step at which a run that is not final stands: one that is open, else the last one if it is not done; or what stays in doubt."""
    calls = {line.step_id: line for line in lines if line.call and not line.superseded}
    if journal.head.status in ("done", "cancelled", *AWAY):
        left = [step_id for step_id, _ in journal.open_doubts(ended=True)] if journal.head.status == "cancelled" else []
        calls = {step_id: line for step_id, line in calls.items() if step_id in left}
    unfinished = [line for line in calls.values() if line.state in ("started", "in doubt", "broken off")]
    last = max(unfinished or calls.values(), key=lambda line: line.seq, default=None)
    if last is None or last.state == "done":
        return None
    said = (line for line in reversed(lines) if line.step_id == last.step_id and not line.state.startswith("run "))
    word = next(said, last)
    return last if word.state != "doubt settled" else replace(last, state=word.state, note=word.note, at_us=word.at_us)


def _told_to_stop(engine: Engine, head: Head) -> str:
    """That a run which executes is to stop, by whom and when: somebody has said so, and its step goes on."""
    letters = engine.store.letters([head.run_id]) if lives(engine, head) else []
    for letter in (each for each in letters if each.kind in ("pause", "cancel")):
        with suppress(ValueError, TypeError, KeyError):  # it cannot be read; whoever has the run takes it away
            body = dict(json.loads(letter.body))
            what = "stop" if letter.kind == "pause" else "end for good"
            when = "" if letter.kind == "cancel" else ", at once" if body.get("now") else ", before its next step"
            return f"told to {what} by {body['by']}{': ' + body['reason'] if body.get('reason') else ''}{when}"
    return ""


def _stands(journal: Journal, lines: Sequence[Checkpoint], rows: Sequence[Row]) -> str:
    """What was said last about the run as a whole; of a blocked one, what does not fit."""
    if journal.head.status == "blocked":
        return _why_blocked(journal, rows)
    passes = TRANSFERS if journal.head.status not in ("queued", "moving", "moved") else ()  # it stands as it stood before it was moved
    return next((line.note for line in reversed(lines) if line.state.startswith("run ") and line.state not in passes), "")


def _freed(engine: Engine, journal: Journal) -> str:
    """That a run has failed because of a child run which somebody has looked after since; nothing where that is not so."""
    stopped = (child for child in journal.open_children() if is_stopped_by(journal.head, child))
    found = next((head for head in map(engine.store.head, stopped) if head is not None and head.status not in ("blocked", "failed")), None)
    return "" if found is None else f"child run {found.run_id!r}, which had stopped it, is {found.status} by now: it can go on"


def _undoing(journal: Journal) -> str:
    """Who wants what the run did to be undone, and why, as long as that is not done."""
    asked = journal.undoing
    if asked is None or journal.head.status == "cancelled":
        return ""
    return f"by {asked.by}{': ' + asked.reason if asked.reason else ''}"


def _why_blocked(journal: Journal, rows: Sequence[Row]) -> str:
    return f"{_mismatch(journal.verdict.error)}{tried_in_vain(rows)}" if isinstance(journal.verdict, rec.RunBlocked) else journal.head.note


def _mismatch(error: rec.Json) -> str:
    match error.get("state"):
        case {"step_id": step_id, "recorded": recorded, "requested": requested}:
            return f"step {step_id} was {recorded} when it was recorded; the code now {requested}"
        case {"step_id": "", "name": name, "reason": reason}:
            return f"what is recorded as {name} does not fit any more: {reason}"
        case {"step_id": step_id, "name": name, "reason": reason}:
            return f"the recorded result of step {step_id}, {name}, does not fit its type any more: {reason}"
    return message(error)


def _waits(engine: Engine, journal: Journal) -> str:
    """What a waiting run wants to know, without the commands that answer it."""
    if journal.head.status != "waiting":
        return ""
    doubts = [_in_doubt(engine, journal)] if doubts_of(engine, journal) else []
    return " ".join([*doubts, *(asked.opened.question for _, asked in asks_of(engine, journal))]) or _moved_on(engine, journal)


def _in_doubt(engine: Engine, journal: Journal) -> str:
    open_ = doubts_of(engine, journal)
    return " ".join(f"did {shown_call(found.name, found.args)} at step {step_id} happen?{_because(found)}" for step_id, found in open_)


def _moved_on(engine: Engine, journal: Journal) -> str:
    """What a run noted when it parked, unless child runs that it waits for have moved since, or a message has come."""
    told = [f"child run {head.run_id!r} is {head.status} by now" for head in moved_children(engine.store, journal)]
    names = [said(letter).get("name") for letter in heard(engine, journal) if letter.kind == "message"]
    told += [f"message {name!r} has come" for name in names if name is not None]
    return f"{'; '.join(dict.fromkeys(told))}: it can go on" if told else journal.head.note


def _because(found: History) -> str:
    return f" ({found.doubt.reason})" if found.doubt is not None else ""


def _last_error(head: Head, rows: Sequence[Row]) -> str:
    """The error that matters now. Of a done run none; of a cancelled one the agent's: ours advise what is too late, undoing is over."""
    if head.status == "done":
        return ""
    kinds = (rec.RunBlocked.kind, rec.RunFailed.kind, rec.StepFailed.kind, rec.AttemptFailed.kind)
    since = takewhile(lambda row: row.kind != rec.RunAccepted.kind, reversed(bare(rows)))  # what was accepted is over
    stuck = head.status in ("blocked", "queued", "paused")  # else somebody has gone on since it was blocked
    errors = ((row.step_id, json.loads(row.body)["error"]) for row in since if row.kind in kinds[not stuck :])
    past = head.status == "cancelled"
    return next((message(error) for step_id, error in errors if not (past and (step_id.startswith(UNDO) or _ours(error)))), "")


def _ours(error: rec.Json) -> bool:
    return f"{HoldfastError.__module__}:{HoldfastError.__qualname__}" in error.get("classes", ())


def _items(engine: Engine, head: Head, rows: Sequence[Row], fleet: Fleet) -> list[Item]:
    journal = Journal.load(head, rows)
    assert journal.started is not None
    call, tags = shown_call(journal.started.agent, (journal.continued or journal.started).args), _tags(head)
    beside = besides(engine, journal, fleet) if head.status != "blocked" else []  # that it is, with what helps, is an item of its own
    doubts = [
        Item(
            kind="doubt", run_id=head.run_id, step_id=step_id, since_us=found.started_us or head.updated_us, key=sent(journal, step_id),
            what=f"did {shown_call(found.name, found.args)} happen? {found.doubt.reason if found.doubt else _left(head)}".strip(),
            commands=[*settling(head.run_id, step_id, made(journal, step_id)), *beside], call=call, tags=tags,
            wants=shown(found.doubt.wants) if found.doubt and found.doubt.wants else "",
        )
        for step_id, found in doubts_of(engine, journal)
    ]  # fmt: skip
    asks = [
        Item(
            kind=asked.opened.topic, run_id=head.run_id, step_id=ask_id, since_us=asked.at_us, what=asked.opened.question,
            commands=[*answering(head.run_id, ask_id, asked), *branching(journal, rows, ask_id)], call=call, tags=tags,
            about=asked.seq, wants=shown(asked.opened.wants), who=list(asked.opened.who), details=asked.opened.details,
            until_us=asked.opened.until_us or None,
        )
        for ask_id, asked in asks_of(engine, journal)
    ]  # fmt: skip
    parent, paused = journal.started.parent.get("run"), f" (the run is {head.note})" if head.status == "paused" else ""
    items = (*doubts, *asks, *_stuck(journal, rows, fleet))
    return [replace(item, call=call, tags=tags, parent=parent, what=f"{item.what}{paused}") for item in items]


def _left(head: Head) -> str:
    """Why there is a doubt that nobody has looked at yet; where the effect says how to find out, the run does so when it goes on."""
    return f"{DIED}; the run settles it when it goes on, or asks" if head.status in ("running", "blocked") else ""


def _stuck(journal: Journal, rows: Sequence[Row], fleet: Fleet) -> list[Item]:
    """A run that does not go on by itself: it is blocked, lacks a result, or was being undone and could not be."""
    head, verdict = journal.head, journal.verdict
    if head.status == "failed" and saying(journal) and isinstance(verdict, rec.RunFailed):
        kind, (step_id, what), commands = "result", _what_is_missing(journal, verdict.error), going_on(journal, fleet.hands(head))
    elif head.status == "blocked" and isinstance(verdict, rec.RunBlocked | rec.RunRepaired):
        kind, step_id, what, commands = "blocked", verdict.step_id, _why_blocked(journal, rows), unblocking(journal, fleet.hands(head))
    elif head.status == "failed" and journal.undoing is not None and isinstance(verdict, rec.RunFailed):
        kind, (step_id, what), commands = "undo", _why_not_undone(verdict.error), going_on(journal, fleet.hands(head))
    elif head.status == "moving":
        kind, step_id, what, commands = "move", "", f"it is being moved {head.note}; nobody can take it meanwhile", moving_on(head)
    else:
        return []
    return [Item(kind=kind, run_id=head.run_id, step_id=step_id, what=what, since_us=head.updated_us, commands=commands)]


def _what_is_missing(journal: Journal, error: rec.Json) -> tuple[str, str]:
    """The effect whose result could not be kept, and why."""
    step_id, why = str(error["state"]["step_id"]), error["state"].get("reason", "")
    return step_id, f"what did {journal.histories[step_id].name} return? It happened, and its result could not be kept: {why}"


def _why_not_undone(error: rec.Json) -> tuple[str, str]:
    """The step that could not be undone, and why, without the advice that the commands give."""
    match error:
        case {"type": UndoFailed.__qualname__, "state": {"step_id": str(step_id), "name": name, "reason": reason}}:
            left = "what came after it is undone, it and what came before it are not"
            return step_id, f"{name} at step {step_id} could not be undone: {reason}; {left}"
    return "", f"it could not be undone: {message(error)}"


def _damaged(head: Head, error: Exception) -> Item:
    commands = [f"holdfast check {head.run_id}", f"holdfast check {head.run_id} --repair --dry-run"]
    return Item(kind="damaged", run_id=head.run_id, step_id="", what=str(error), since_us=head.updated_us, commands=commands)
