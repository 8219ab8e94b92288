"""What each command says, as pages: decided here from the views of the engine, printed elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast._duration import in_words as duration
from holdfast._turns import QUEUE
from holdfast.budget import shown as amount
from holdfast.cli.page import Block, Cell, Column, Commands, Facts, Line, Page, Table
from holdfast.cli.wording import ago, as_json, count, local, moment, shortened
from holdfast.operating.checking import Verdict
from holdfast.operating.checkpoints import Checkpoint
from holdfast.operating.drift import Comparison
from holdfast.operating.repair import Mending
from holdfast.operating.views import CheckpointView, Item, RunView, Summary
from holdfast.stores._sqlite_file import KEEP_A_COPY
from holdfast.verbs.waits import AFTERWARDS

Fact: TypeAlias = tuple[str, str | tuple[str, ...]]

GAP = Line("")

STATUS_STYLES = {
    "running": "green", "queued": "blue", "waiting": "yellow", "blocked": "magenta", "failed": "red",
    "done": "", "cancelled": "dim", "stopped": "red", "moving": "yellow", "moved": "dim",
}  # fmt: skip
STATE_STYLES = {
    "started": "green", "done": "", "in doubt": "yellow", "broken off": "yellow", "failed": "red", "attempt failed": "red",
    "run failed": "red", "run blocked": "magenta", "run waiting": "yellow", "doubt opened": "yellow", "run done": "green",
    "asked": "yellow", "drifted": "yellow", "model changed": "yellow", "budget set": "blue",
    "step edited": "blue", "state edited": "blue", "run forked": "blue",
}  # fmt: skip
BESIDE_STEPS = frozenset({"asked", "answered", "watched", "drifted"})
"""States of lines that speak of a question or a thing, which is named in the note where it is no step."""

RUNS = (
    Column("run"), Column("agent", least=8), Column("status"), Column("queue"), Column("priority", right=True), Column("key"),
    Column("changed"), Column("note", below=True),
)  # fmt: skip
HISTORY = (
    Column("time"), Column("step"), Column("state"), Column("try", right=True), Column("took", right=True),
    Column("call", least=20), Column("key", below=True), Column("note", below=True),
)  # fmt: skip
HISTORY_INDENT = 10
"""Below the step, beside the time."""
DRIFT = (Column("thing"), Column("what"), Column("was", below=True), Column("is", below=True))
KNOWN = (Column("step"), Column("call", least=24), Column("state"), Column("result", below=True))

BEFORE_ALL_ELSE = "Keep a copy of all files of the store before anything else; docs/damage.md says what can be saved. Or restore a backup"

MOST_FAILED = 100
"""Failed runs that the inbox counts."""
NOTE_LIMIT = 150
"""Characters of a note that the list of runs shows; `show` shows all of it."""
DAMAGES = 20
"""Damaged runs, and lines about the store, that a check shows: where a whole file is damaged there is no end of them."""
UNKNOWN = "an effect that is not on record counts as one in doubt: it is resent, verified, asked about, as it declares"
"""What follows for a run from what a repair could not read."""
STATE_LIMIT = 200
"""Characters of a state object that `show` shows; `show --at` shows all of it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and when a page is written: the time it is, and the --store that commands to try must repeat."""

    now_us: int
    store: str | None = None

    def command(self, command: str) -> str:
        """A command as it must be typed to mean the same store."""
        return command if self.store is None or " --store " in command else f"{command} --store {shlex.quote(self.store)}"


def runs_page(runs: Sequence[Summary], *, limit: int, setting: Setting, near: Sequence[str] = ()) -> Page:
    """The runs, one line each; where there is none, what may have been meant."""
    if not runs:
        return [Line(f"no run matches{'; did you mean ' + ' '.join(near) + '?' if near else ''}")]
    rows = [_run_row(run, setting) for run in runs]
    told = {"queue": any(run.queue != QUEUE for run in runs), "priority": any(run.priority for run in runs)}
    told |= {"key": any(run.key for run in runs)}
    kept = [index for index, column in enumerate(RUNS) if told.get(column.name, True)]
    page: Page = [Table([RUNS[index] for index in kept], [[row[index] for index in kept] for row in rows])]
    if len(runs) == limit:
        page += [GAP, Line(f"the first {limit}; more with --limit", "dim")]
    return page


def _run_row(run: Summary, setting: Setting) -> list[Cell]:
    status = "stopped" if run.status == "running" and run.owner_lives is False else run.status
    style = STATUS_STYLES.get(status, "")
    note = run.note if status != "stopped" else f"its process is dead; {run.note or 'resume it to go on'}"
    changed = Cell(ago(run.updated_us, setting.now_us), "dim")
    line = [Cell(run.queue), Cell(str(run.priority or "")), Cell(run.key)]
    return [Cell(run.run_id), Cell(run.agent), Cell(status, style), *line, changed, Cell(in_brief(note))]


def in_brief(note: str) -> str:
    """The beginning of a note, for a list."""
    return note if len(note) <= NOTE_LIMIT else f"{note[: NOTE_LIMIT - 3]}..."


def run_page(run: RunView, setting: Setting, why: Sequence[Block] = ()) -> Page:
    """One run: the status in words, and why it stays so, the facts, and the commands to try next."""
    status, style = in_words(run)
    page: Page = [Line(status, f"bold {style}".strip()), *why, GAP, Facts(_run_facts(run, setting.now_us))]
    if run.next_commands:
        page += [GAP, Line("Next:", "bold"), Commands([setting.command(command) for command in run.next_commands])]
    return page


def in_words(run: RunView) -> tuple[str, str]:
    """Where the run stands, in words, and the style of it."""
    at = f" at step {run.current.step_id}, {run.current.call}" if run.current else ""
    match run.status:
        case "running" if run.owner_lives:
            text = f"running{at}{f'; {run.told}' if run.told else ''}"
        case "running":
            return f"stopped: the process that ran it is dead{at}", STATUS_STYLES["stopped"]
        case "waiting":
            for_what = run.waits.removeprefix("waits") if run.waits.startswith("waits for ") else f": {run.waits}"
            text = f"waiting for a person: {run.waits}" if run.asks else f"waiting{for_what}"
        case "queued" if run.undoing:
            text = f"to be undone {run.undoing}; nobody runs it"
        case "queued":
            text = f"ready to go on, and nobody runs it{_after(run.note)}"
        case "done":
            text = "done"
        case "failed" | "blocked":
            text = f"{run.status}{_after(run.note)}"
        case "cancelled":
            text = f"cancelled {run.note}{f'; step {run.current.step_id} stays in doubt' if run.current else ''}"
        case _:
            text = f"{run.status} {run.note}" if run.status in ("moved", "moving", "paused") else run.status
    return text, STATUS_STYLES.get(run.status, "")


def _after(note: str) -> str:
    """What was said last, behind where the run stands; of one that was moved here, where it came from."""
    return f"; it came {note}" if note.startswith("from ") else f": {note}" if note else ""


def _run_facts(run: RunView, now_us: int) -> list[Fact]:
    facts: list[Fact] = [("run", run.run_id), ("agent", run.call)]
    facts += [("version", run.version)] if run.version else []
    if run.status == "done":
        facts.append(("result", as_json(run.result)))
    facts += [("queue", _in_line(run))] if (run.queue, run.priority, run.key) != (QUEUE, 0, "") else []
    facts.append(("owner", _owner(run)))
    if run.current is not None:
        facts.append(("step", _step_fact(run.current, now_us)))
        facts += [("key", run.current.key)] if run.current.key else []
    facts += [("details", as_json(each)) for each in run.details]
    facts += _until(run.until_us, now_us)
    facts += [("wakes", moment(run.wake_us, now_us))] if run.wake_us and run.until_us is None else []
    facts += [("done", count(run.steps_done, "step")), ("taken up", f"{count(run.attempt, 'time')} by a process")]
    facts += [(_state_label(name), shortened(value, STATE_LIMIT)) for name, value in run.state.items()]
    facts += [("milestone", run.milestone)] if run.milestone else []
    facts += [("generation", str(run.generation))] if run.generation else []
    facts += [("undoing", run.undoing)] if run.undoing else []
    facts += _unknown(run)
    facts += [("fork of", run.forked_from)] if run.forked_from else []
    facts += [("forks", ", ".join(run.forks))] if run.forks else []
    facts += [("last error", run.last_error)] if run.last_error not in ("", run.note) and run.status != "blocked" else []
    facts += [("model", change) for change in run.model_changes]
    facts += [("started", moment(run.created_us, now_us)), ("changed", moment(run.updated_us, now_us))]
    facts += [("tags", _tags(run.tags))] if run.tags else []
    facts += [("parent", run.parent)] if run.parent else []
    facts += [("children", ", ".join(run.children))] if run.children else []
    facts += [("cost", f"${run.usd:,.4f}")] if run.usd and not run.limits else []
    facts += [("spent", _of_the_budget(run))] if run.limits else []
    return facts


def _unknown(run: RunView) -> list[Fact]:
    left = run.unreadable if run.status not in ("done", "cancelled") else 0
    return [("unknown", f"a repair could not read {count(left, 'record')}: {UNKNOWN}")] if left else []


def _in_line(run: RunView) -> str:
    """Where it stands in line, as far as that was said."""
    priority = f", priority {run.priority}" if run.priority else ""
    return f"{run.queue}{priority}{f', key {run.key}' if run.key else ''}"


def _of_the_budget(run: RunView) -> tuple[str, ...]:
    return tuple(f"{amount(name, run.spent.of(name))} of {amount(name, most)}" for name, most in run.limits.items())


def _state_label(name: str) -> str:
    """`state 1` for what the agent's first `hf.state` keeps; in a branch, with the branch."""
    branch, _, number = name.partition("/state.")
    return f"state {number}{f' of {branch}' if branch else ''}"


def _owner(run: RunView) -> str:
    if run.owner is None:
        return "nobody"
    return f"{run.owner} ({'alive' if run.owner_lives else 'dead'})"


def _step_fact(step: Checkpoint, now_us: int) -> str:
    tries = f", try {step.attempt}" if step.attempt > 1 else ""
    settled = f", {step.note}" if step.state == "doubt settled" else ""
    return f"{step.step_id} {step.call}: {step.state}{settled}{tries}, {ago(step.at_us, now_us)}"


def drift_page(run_id: str, things: Sequence[Comparison]) -> Page:
    """What a run relies on, one line for each thing, and the sum."""
    if not things:
        return [Line(f"run {run_id} watches nothing")]
    rows = [[Cell(each.name), Cell(each.what, "yellow" if each.drifted else ""), Cell(each.old), Cell(each.new)] for each in things]
    drifted = sum(each.drifted for each in things)
    unseen = sum(each.what == "not compared" for each in things)
    said = f"{drifted} of {count(len(things), 'thing')} not as the run knew {'it' if drifted == 1 else 'them'}" if drifted else "no drift"
    return [Table(DRIFT, rows), GAP, Line(f"{said}{f'; {unseen} not compared' if unseen else ''}", "bold")]


def history_page(lines: Sequence[Checkpoint]) -> Page:
    """Every checkpoint, one line each; keys and notes stand below where there is no room beside."""
    days = sorted({_day(line) for line in lines})
    shown = f"{days[0]}, local time" if len(days) == 1 else "local time"
    rows = [_history_row(line, one_day=len(days) == 1) for line in lines]
    told = {"try": any(line.attempt > 1 for line in lines), "key": any(line.key for line in lines)}
    kept = [index for index, column in enumerate(HISTORY) if told.get(column.name, True)]
    table = Table([HISTORY[index] for index in kept], [[row[index] for index in kept] for row in rows], HISTORY_INDENT)
    return [Line(shown, "dim"), table]


def _day(line: Checkpoint) -> str:
    return local(line.at_us).partition(" ")[0]


def _history_row(line: Checkpoint, *, one_day: bool) -> list[Cell]:
    day, _, hour = local(line.at_us).partition(" ")
    beside = line.state in BESIDE_STEPS and not line.step_id[:1].isdigit()
    step_id, note = ("", f"{line.step_id}: {line.note}") if beside else (line.step_id, line.note)
    return [
        Cell(hour if one_day else f"{day} {hour}", "dim"), Cell(step_id), _state_cell(line),
        Cell(str(line.attempt or "")), Cell("" if line.duration_s is None else duration(line.duration_s), "dim"),
        Cell(line.call), Cell(line.key, "dim"), Cell(note, "dim"),
    ]  # fmt: skip


def _state_cell(line: Checkpoint) -> Cell:
    return Cell(f"{line.state}, superseded", "dim") if line.superseded else Cell(line.state, STATE_STYLES.get(line.state, ""))


def checkpoint_page(view: CheckpointView, setting: Setting) -> Page:
    """What the agent knew after a step."""
    line = view.checkpoint
    facts: list[Fact] = [("run", view.run_id), ("at", moment(line.at_us, setting.now_us))]
    facts += [("try", str(line.attempt))] if line.attempt else []
    facts += [("took", duration(line.duration_s))] if line.duration_s is not None else []
    facts += [("key", line.key)] if line.key else []
    facts += [("arguments", as_json(view.arguments))] if view.arguments is not None else []
    facts += [_outcome(view), *([("edited", view.edited)] if view.edited else [])]
    facts += [(f"saved {name}", as_json(value)) for name, value in view.partial.items()]
    facts += [("usage", as_json(each)) for each in view.usage]
    facts += [(_state_label(name), as_json(value)) for name, value in view.state.items()]
    called = f", {line.call}" if line.call else ""
    return [Line(f"step {line.step_id}{called}: {line.state}", "bold"), GAP, Facts(facts), GAP, *_known(view.known)]


def _outcome(view: CheckpointView) -> Fact:
    if isinstance(view.error, dict):
        return "error", f"{view.error.get('type', 'error')}: {view.error.get('message', '')}"
    if view.checkpoint.state == "done" and view.result is not None:
        return "result", as_json(view.result)
    return ("result" if view.checkpoint.state == "done" else "note"), view.checkpoint.note


def _known(known: Sequence[Checkpoint]) -> list[Block]:
    if not known:
        return [Line("Known before it: nothing, it was the first step")]
    return [Line("Known before it:", "bold"), Table(KNOWN, [_known_row(each) for each in known])]


def _known_row(line: Checkpoint) -> list[Cell]:
    state = line.state if line.call else ""
    return [Cell(line.step_id), Cell(line.call or line.state), Cell(state, STATE_STYLES.get(line.state, "")), Cell(line.note, "dim")]


def inbox_page(items: Sequence[Item], setting: Setting, url: str, failed: int = 0, *, more: bool = False) -> Page:
    """What needs a person, each with the commands that settle it, and how many runs have failed beside that, or how many at least.

    Where there is nothing, the store is named: whoever was told to look here may have meant another.
    """
    told = f"{count(failed, 'run')}{' or more' if more else ''} failed, and can be resumed:"
    beside: Page = [GAP, Line(told, "yellow"), Commands([setting.command("holdfast runs --status failed")])] if failed else []
    if not items:
        return [Line(f"nothing needs a person in {url}"), *beside]
    page: Page = []
    for item in items:
        page += [Line(f"{item.kind}: {item.what}", "bold red" if item.kind in ("blocked", "undo", "damaged") else "bold yellow")]
        page += [Facts(_item_facts(item, setting.now_us)), Commands([setting.command(command) for command in item.commands]), GAP]
    return [*page[:-1], *beside]


def _item_facts(item: Item, now_us: int) -> list[Fact]:
    at = f", step {item.step_id}" if item.step_id and item.kind in ("doubt", "result", "blocked", "undo") else ""
    facts: list[Fact] = [("run", f"{item.run_id}{at}")]
    facts += [("agent", item.call)] if item.call else []
    facts += [("key", item.key)] if item.key else []
    facts += [("details", as_json(item.details))] if item.details is not None else []
    facts += [("result" if item.kind == "doubt" else "answer", item.wants)] if item.wants not in ("", "yes or no") else []
    facts += [("for", ", ".join(item.who))] if item.who else []
    facts += [("tags", _tags(item.tags))] if item.tags else []
    facts += [("parent", item.parent)] if item.parent else []
    return [*facts, ("since", moment(item.since_us, now_us)), *_until(item.until_us, now_us)]


def _until(until_us: int | None, now_us: int) -> list[Fact]:
    return [] if until_us is None else [("until", f"{moment(until_us, now_us)}, {AFTERWARDS}")]


def _tags(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in tags.items())


def check_page(verdicts: Sequence[Verdict], problems: Sequence[str], setting: Setting) -> Page:
    """What a check found: damage first, and nothing else where there is none."""
    bad = [verdict for verdict in verdicts if verdict.what]
    lost = [problem for verdict in verdicts for problem in verdict.artifacts]
    wrong = [line for problem in problems for line in f"the store: {_fact(problem)}".splitlines()]
    page: Page = [Line(line, "red") for line in wrong[:DAMAGES]]
    page += _and_more(len(wrong) - DAMAGES, "line")
    for verdict in bad[:DAMAGES]:
        found = f"run {verdict.run_id} is damaged at record {verdict.seq}: {_fact(verdict.what)}"
        page += [Line(found, "red"), Line(f"  {_still_good(verdict)}")]
        page += [Commands([setting.command(f"holdfast check {verdict.run_id} --repair --dry-run")])] if verdict.records else []
    page += _and_more(len(bad) - DAMAGES, "damaged run")
    page += [Line(problem, "red") for problem in lost]
    records = sum(verdict.records for verdict in verdicts)
    found = count(len(bad), "damaged run") if bad or problems else "no damage" if not lost else count(len(lost), "damaged artifact")
    page.append(Line(f"{count(len(verdicts), 'run')} checked, {count(records, 'good record')}, {found}", "bold"))
    advised = any(KEEP_A_COPY in problem for problem in (*problems, *(verdict.what for verdict in bad)))
    return [*page, Line(BEFORE_ALL_ELSE)] if advised else page


def _and_more(left: int, what: str) -> Page:
    return [Line(f"and {count(left, f'more {what}')}; --json has all", "dim")] if left > 0 else []


def _fact(problem: str) -> str:
    """What is wrong, without the advice to look, which has been followed."""
    return problem.replace(f". {KEEP_A_COPY}", "")


def _still_good(verdict: Verdict) -> str:
    if not verdict.records:
        return "none of its records is good"
    finished = f"up to {verdict.checkpoint}" if verdict.checkpoint else "and no step is finished in them"
    return f"its records 1 to {verdict.records} are good, {finished}"


def repair_page(mending: Mending, setting: Setting) -> Page:
    """What a repair does, or has done."""
    did = "was repaired" if mending.done else "would be repaired; nothing is changed yet"
    page: Page = [Line(f"run {mending.run_id} {did}", "bold"), GAP, Facts(_repair_facts(mending))]
    page += [GAP] if mending.doubts or mending.unreadable else []
    for doubt in mending.doubts:
        page += [Line(f"in doubt: {doubt}", "yellow")]
    if mending.unreadable:
        unread = f"At least {count(mending.unreadable, 'record')} could not be read: an effect may have happened that is not known"
        page += [Line(f"{unread}. From here on {UNKNOWN}", "bold red")]
    onward = f"show {mending.run_id}" if mending.status in ("done", "cancelled") else f"resume {mending.run_id} --here APP.py"
    following = f"holdfast {onward}" if mending.done else f"holdfast check {mending.run_id} --repair"
    commands = ["holdfast inbox", following] if mending.done and mending.doubts else [following]
    return [*page, GAP, Line("Next:", "bold"), Commands([setting.command(command) for command in commands])]


def _repair_facts(mending: Mending) -> list[Fact]:
    facts: list[Fact] = [("damage", f"at record {mending.bad_seq}: {mending.what}"), ("stays", f"records 1 to {mending.keeps}")]
    facts += [("goes back to", mending.checkpoint or "its beginning")] if mending.status == "blocked" else []
    if mending.files:
        put = "is put back" if mending.done else "would be put back"
        facts += [("files", f"what was recorded {put}; what was written there {'is' if mending.done else 'would be'} kept aside")]
    if mending.moved or not mending.files:
        facts += [("moved aside", f"{count(mending.moved, 'record')} and the head as it was")]
    return [*facts, ("stands as", mending.status)]
