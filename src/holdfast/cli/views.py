"""What each command says, as pages: decided here from the views of the engine, printed elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast._inspect import Checkpoint, CheckpointView, Item, RunView, Summary, Verdict
from holdfast.cli.page import Block, Cell, Column, Commands, Facts, Line, Page, Table
from holdfast.cli.wording import ago, as_json, count, duration, local, moment

Fact: TypeAlias = tuple[str, str | tuple[str, ...]]

GAP = Line("")

STATUS_STYLES = {
    "running": "green", "queued": "blue", "waiting": "yellow", "paused": "yellow", "blocked": "magenta", "failed": "red",
    "done": "", "cancelled": "dim", "stopped": "red",
}  # fmt: skip
STATE_STYLES = {
    "started": "green", "done": "", "in doubt": "yellow", "broken off": "yellow", "failed": "red", "attempt failed": "red",
    "run failed": "red", "run blocked": "magenta", "run waiting": "yellow", "doubt opened": "yellow", "run done": "green",
}  # fmt: skip

RUNS = (Column("run", least=16), Column("agent", least=8), Column("status"), Column("changed"), Column("note", least=16))
HISTORY = (
    Column("time"), Column("step", least=4), Column("state"), Column("try", right=True), Column("took", right=True),
    Column("call", least=35), Column("key", roomy=True), Column("note", roomy=True, least=16),
)  # fmt: skip
KNOWN = (Column("step", least=4), Column("call", least=24), Column("state"), Column("result", least=16))


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and when a page is written: the time it is, and the --store that commands to try must repeat."""

    now_us: int
    store: str | None = None

    def command(self, command: str) -> str:
        """A command as it must be typed to mean the same store."""
        return command if self.store is None else f"{command} --store {shlex.quote(self.store)}"


def runs_page(runs: Sequence[Summary], *, limit: int, setting: Setting) -> Page:
    """The runs, one line each."""
    if not runs:
        return [Line("no run matches")]
    page: Page = [Table(RUNS, [_run_row(run, setting) for run in runs])]
    if len(runs) == limit:
        page += [GAP, Line(f"the first {limit}; more with --limit", "dim")]
    return page


def _run_row(run: Summary, setting: Setting) -> list[Cell]:
    status = "stopped" if run.status == "running" and run.owner_lives is False else run.status
    style = STATUS_STYLES.get(status, "")
    note = run.note if status != "stopped" else "its process is dead; resume it to go on"
    return [Cell(run.run_id), Cell(run.agent), Cell(status, style), Cell(ago(run.updated_us, setting.now_us), "dim"), Cell(note)]


def run_page(run: RunView, setting: Setting) -> Page:
    """One run: the status in words, the facts, and the commands to try next."""
    status, style = in_words(run)
    page: Page = [Line(status, f"bold {style}".strip()), GAP, Facts(_run_facts(run, setting.now_us))]
    if run.next_commands:
        page += [GAP, Line("Next:", "bold"), Commands([setting.command(command) for command in run.next_commands])]
    return page


def in_words(run: RunView) -> tuple[str, str]:
    """Where the run stands, in words, and the style of it."""
    at = f" at step {run.current.step_id}, {run.current.call}" if run.current else ""
    match run.status:
        case "running" if run.owner_lives:
            text = f"running{at}"
        case "running":
            return f"stopped: the process that ran it is dead{at}", STATUS_STYLES["stopped"]
        case "waiting":
            text = f"waiting for a person: {run.waits}"
        case "queued":
            text = f"ready to go on, and nobody runs it{_after(run.note)}"
        case "done":
            text = "done"
        case "failed" | "blocked":
            text = f"{run.status}{_after(run.note)}"
        case "cancelled":
            text = f"cancelled {run.note}"
        case _:
            text = run.status
    return text, STATUS_STYLES.get(run.status, "")


def _after(note: str) -> str:
    return f": {note}" if note else ""


def _run_facts(run: RunView, now_us: int) -> list[Fact]:
    facts: list[Fact] = [("run", run.run_id), ("agent", run.call)]
    facts += [("version", run.version)] if run.version else []
    if run.status == "done":
        facts.append(("result", as_json(run.result)))
    facts.append(("owner", _owner(run)))
    if run.current is not None:
        facts.append(("step", _step_fact(run.current, now_us)))
        facts += [("key", run.current.key)] if run.current.key else []
    facts += [("done", count(run.steps_done, "step")), ("attempt", str(run.attempt))]
    facts += [("last error", run.last_error)] if run.last_error not in ("", run.note) else []
    facts += [("started", moment(run.created_us, now_us)), ("changed", moment(run.updated_us, now_us))]
    facts += [("tags", ", ".join(f"{name}={value}" for name, value in run.tags.items()))] if run.tags else []
    facts += [("cost", f"${run.usd:,.4f}")] if run.usd else []
    return facts


def _owner(run: RunView) -> str:
    if run.owner is None:
        return "nobody"
    return f"{run.owner} ({'alive' if run.owner_lives else 'dead'})"


def _step_fact(step: Checkpoint, now_us: int) -> str:
    tries = f", try {step.attempt}" if step.attempt > 1 else ""
    settled = f" ({step.note})" if step.state == "doubt settled" else ""
    return f"{step.step_id} {step.call}: {step.state}{settled}{tries}, {ago(step.at_us, now_us)}"


def history_page(lines: Sequence[Checkpoint]) -> Page:
    """Every checkpoint, one line each; keys and troubles stand below where there is no room beside."""
    days = sorted({_day(line) for line in lines})
    shown = f"{days[0]}, local time" if len(days) == 1 else "local time"
    return [Line(shown, "dim"), Table(HISTORY, [_history_row(line, one_day=len(days) == 1) for line in lines])]


def _day(line: Checkpoint) -> str:
    return local(line.at_us).partition(" ")[0]


def _history_row(line: Checkpoint, *, one_day: bool) -> list[Cell]:
    day, _, hour = local(line.at_us).partition(" ")
    trouble = line.note if line.state != "done" else ""
    call = Cell(line.call, "" if line.call else "dim", tight=tuple(part for part in (line.call, line.key, trouble) if part))
    return [
        Cell(hour if one_day else f"{day} {hour}", "dim"), Cell(line.step_id), Cell(line.state, STATE_STYLES.get(line.state, "")),
        Cell(str(line.attempt or "")), Cell("" if line.duration_s is None else duration(line.duration_s), "dim"),
        call, Cell(line.key, "dim"), Cell(line.note, "dim"),
    ]  # fmt: skip


def checkpoint_page(view: CheckpointView, setting: Setting) -> Page:
    """What the agent knew after a step."""
    line = view.checkpoint
    facts: list[Fact] = [("run", view.run_id), ("at", moment(line.at_us, setting.now_us))]
    facts += [("try", str(line.attempt))] if line.attempt else []
    facts += [("took", duration(line.duration_s))] if line.duration_s is not None else []
    facts += [("key", line.key)] if line.key else []
    facts += [("arguments", as_json(view.arguments))] if view.arguments is not None else []
    facts += [_outcome(view)]
    facts += [("usage", as_json(each)) for each in view.usage]
    facts += [(f"state {name}", as_json(value)) for name, value in view.state.items()]
    return [Line(f"step {line.step_id}, {line.call}: {line.state}", "bold"), GAP, Facts(facts), GAP, *_known(view.known)]


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


def inbox_page(items: Sequence[Item], setting: Setting) -> Page:
    """What needs a person, each with the commands that settle it."""
    if not items:
        return [Line("nothing needs a person")]
    page: Page = []
    for item in items:
        at = f", step {item.step_id}" if item.step_id else ""
        page += [Line(f"{item.kind}: {item.what}", "bold yellow" if item.kind == "doubt" else "bold red")]
        page += [Line(f"run {item.run_id}{at}, since {moment(item.since_us, setting.now_us)}", "dim")]
        page += [Commands([setting.command(command) for command in item.commands]), GAP]
    return page[:-1]


def check_page(verdicts: Sequence[Verdict], problems: Sequence[str]) -> Page:
    """What a check found: damage first, and nothing else where there is none."""
    bad = [verdict for verdict in verdicts if not verdict.good]
    page: Page = [Line(f"the store: {problem}", "red") for problem in problems]
    for verdict in bad:
        page += [Line(f"run {verdict.run_id} is damaged at record {verdict.seq}: {verdict.what}", "red"), Line(f"  {_still_good(verdict)}")]
    records = sum(verdict.records for verdict in verdicts)
    found = count(len(bad), "damaged run") if bad or problems else "no damage"
    page.append(Line(f"{count(len(verdicts), 'run')} checked, {count(records, 'good record')}, {found}", "bold"))
    return page


def _still_good(verdict: Verdict) -> str:
    if not verdict.records:
        return "none of its records is good"
    return f"its records 1 to {verdict.records} are good; the last of them is {verdict.last_good}"
