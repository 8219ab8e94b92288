"""What each command says, as pages: decided here from the views of the engine, printed elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast._inspect import Checkpoint, CheckpointView, Item, RunView, Summary, Verdict
from holdfast.cli.page import Block, Cell, Column, Commands, Facts, Line, Page, Table
from holdfast.cli.wording import ago, as_json, count, duration, local, moment

GAP = Line("")

STATUS_STYLES = {
    "running": "green", "queued": "blue", "waiting": "yellow", "paused": "yellow", "blocked": "magenta", "failed": "red",
    "done": "", "cancelled": "dim", "dead": "red",
}  # fmt: skip
STATE_STYLES = {
    "started": "green", "done": "", "in doubt": "yellow", "broken off": "yellow", "failed": "red", "attempt failed": "red",
    "run failed": "red", "run blocked": "magenta", "run waiting": "yellow", "doubt opened": "yellow", "run done": "green",
}  # fmt: skip

RUNS = (Column("run", wide=True), Column("agent"), Column("status"), Column("changed"), Column("note", wide=True))
HISTORY = (
    Column("time"), Column("step"), Column("call", wide=True), Column("try", right=True), Column("state"), Column("took", right=True),
    Column("key", roomy=True), Column("note", roomy=True, wide=True),
)  # fmt: skip
KNOWN = (Column("step"), Column("call", wide=True), Column("state"), Column("result", wide=True))
CHECKED = (Column("run", wide=True), Column("state"), Column("good", right=True), Column("found", wide=True))


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
    status = "dead" if run.status == "running" and run.owner_lives is False else run.status
    style = STATUS_STYLES.get(status, "")
    note = run.note if status != "dead" else "its process is dead; run it again to go on"
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
            return f"stopped: the process that ran it is dead{at}", STATUS_STYLES["dead"]
        case "waiting":
            text = f"waiting for a person: {run.waits}"
        case "queued":
            text = f"ready to go on: nobody runs it{_after(run.note)}"
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


def _run_facts(run: RunView, now_us: int) -> list[tuple[str, str | tuple[str, ...]]]:
    facts: list[tuple[str, str | tuple[str, ...]]] = [("run", run.run_id), ("agent", run.call + (f", version {run.version}" if run.version else ""))]
    if run.status == "done":
        facts.append(("result", as_json(run.result)))
    facts.append(("owner", _owner(run)))
    if run.current is not None:
        facts.append(("step", _step_fact(run.current, run.current_age_s or 0)))
        facts += [("key", run.current.key)] if run.current.key else []
    facts += [("done", count(run.steps_done, "step")), ("attempt", str(run.attempt))]
    facts += [("last error", run.last_error)] if run.last_error else []
    facts += [("started", moment(run.created_us, now_us)), ("changed", moment(run.updated_us, now_us))]
    facts += [("tags", ", ".join(f"{name}={value}" for name, value in run.tags.items()))] if run.tags else []
    facts += [("cost", f"${run.usd:,.4f}")] if run.usd else []
    return facts


def _owner(run: RunView) -> str:
    if run.owner is None:
        return "nobody"
    return f"{run.owner} ({'alive' if run.owner_lives else 'dead'})"


def _step_fact(step: Checkpoint, age_s: float) -> str:
    tries = f", try {step.attempt}" if step.attempt > 1 else ""
    return f"{step.step_id} {step.call}: {step.state} for {duration(age_s)}{tries}"


def history_page(lines: Sequence[Checkpoint], *, show_day: bool = True) -> Page:
    """Every checkpoint, one line each; keys and troubles stand below where there is no room beside."""
    page: Page = [Table(HISTORY, [_history_row(line) for line in lines])]
    return [Line(_day(lines), "dim"), *page] if show_day and lines else page


def _day(lines: Sequence[Checkpoint]) -> str:
    first, last = local(lines[0].at_us), local(lines[-1].at_us)
    return f"{first} to {last}, local time"


def _history_row(line: Checkpoint) -> list[Cell]:
    trouble = line.note if line.state != "done" else ""
    about = line.call or line.state
    below = "\n".join(part for part in (line.key, trouble) if part)
    return [
        Cell(local(line.at_us)[11:], "dim"), Cell(line.step_id), Cell(about, below=below), Cell(str(line.attempt) if line.attempt else ""),
        Cell(line.state if line.call else "", STATE_STYLES.get(line.state, "")),
        Cell("" if line.duration_s is None else duration(line.duration_s), "dim"), Cell(line.key, "dim"), Cell(line.note, "dim"),
    ]  # fmt: skip


def checkpoint_page(view: CheckpointView, now_us: int) -> Page:
    """What the agent knew after a step."""
    line = view.checkpoint
    facts: list[tuple[str, str | tuple[str, ...]]] = [("run", view.run_id), ("at", moment(line.at_us, now_us))]
    facts += [("try", str(line.attempt))] if line.attempt else []
    facts += [("took", duration(line.duration_s))] if line.duration_s is not None else []
    facts += [("key", line.key)] if line.key else []
    facts += [("arguments", as_json(view.arguments))] if view.arguments is not None else []
    facts += [("error", _error(view.error))] if view.error is not None else [("result", as_json(view.result))] if line.state == "done" else []
    facts += [("note", line.note)] if line.note and line.state != "done" and view.error is None else []
    facts += [("usage", as_json(each)) for each in view.usage]
    facts += [(f"state {name}", as_json(value)) for name, value in view.state.items()]
    what = line.call or next((known.call for known in reversed(view.known) if known.step_id == line.step_id), "")
    page: Page = [Line(f"step {line.step_id}, {what}: {line.state}", "bold"), GAP, Facts(facts), GAP]
    return [*page, *_known(view.known)]


def _known(known: Sequence[Checkpoint]) -> list[Block]:
    if not known:
        return [Line("Known before it: nothing, it was the first step")]
    rows = [[Cell(each.step_id), Cell(each.call), Cell(each.state, STATE_STYLES.get(each.state, "")), Cell(each.note, "dim")] for each in known]
    return [Line("Known before it:", "bold"), Table(KNOWN, rows)]


def _error(error: Any) -> str:
    return f"{error.get('type', 'error')}: {error.get('message', '')}" if isinstance(error, dict) else str(error)


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
    page.append(Line(f"{count(len(verdicts), 'run')} checked, {count(records, 'good record')}, {count(len(bad), 'damaged run')}", "bold"))
    return page


def _still_good(verdict: Verdict) -> str:
    if not verdict.records:
        return "none of its records is good"
    return f"its records 1 to {verdict.records} are good; the last of them is {verdict.last_good}"
