"""The demo on the screen: what happens while it happens, then what was not done again, and whether every promise was kept."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from holdfast.operating.checkpoints import Checkpoint

from .agent import ORDERS
from .ending import Ending
from .evidence import BEGUN, KILL_STEP, STEPS, Evidence, Finding, How, Life, findings
from .stage import AGENT, BANK, Command, Silent, Stage, folder

PLAIN_WIDTH = 100
"""Columns where there is no terminal that says how many it has."""
AROUND = 3
"""Checkpoints that are shown before and after the one that was broken off."""
LEDGER_ENTRY = 24
"""Columns of the screen that one order takes."""

REQUESTS = {"charge": "charges sent", "look-up": "charges looked up", "mail": "mails sent"}
SHOWN: dict[How, str] = {
    "given back": "given back from the journal, not executed",
    "looked up": "looked up at the bank: it had landed",
    "executed": "executed",
}


def show(*, bank: Command = BANK, agent: Command = AGENT) -> int:
    """Play the demo; 0 if every promise was kept, 1 if not. The commands are parameters so that a test can send in a forger."""
    began_s = time.monotonic()
    console = _console()
    with Ending() as ending, folder() as place:
        try:
            with Stage(place, ending, bank=bank, agent=agent) as stage:
                evidence = _play(console, stage)
        except (Silent, OSError) as silent:
            console.print(f"[red]The demo could not be played:[/] {escape(str(silent))}")
            return 1
    found = findings(evidence)
    _report(console, evidence)
    return _conclude(console, found, time.monotonic() - began_s)


def _console() -> Console:
    """The screen, or a plain text of a fixed width; what its encoding does not know becomes a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def _play(console: Console, stage: Stage) -> Evidence:
    console.print(f"[bold]Holdfast demo[/]: {STEPS} steps; for each of {ORDERS} orders a model is asked, a card charged, a mail sent.")
    console.print(f"Bank and mail are an HTTP service in a process of its own, at {stage.url}\n")
    console.print(f"[dim]$ {escape(_shown(stage.line))}[/]", soft_wrap=True)
    first = _live(console, stage, "first life")
    console.print(f"[red bold]SIGKILL[/] in the middle of step {KILL_STEP}: the bank booked the charge, the agent never saw the answer.\n")
    console.print(f"[dim]$ {escape(_shown(stage.line))}[/]", soft_wrap=True)
    second = _live(console, stage, "second life")
    console.print(f"The same line again: {second.first_new_s:.2f} s from the start of the process to its first new step.\n")
    return stage.evidence(first, second)


def _live(console: Console, stage: Stage, title: str) -> Life:
    """One life of the agent, with a bar where there is a terminal, with a few lines where there is none."""
    if not console.is_terminal or console.is_dumb_terminal:
        life = stage.live(lambda _step, _how: None)
        for number, last, how in _stretches(life):
            steps = f"step {number}" if number == last else f"steps {number} to {last}"
            console.print(f"{title:<12} {steps} {SHOWN[how]}")
        return life
    columns = (TextColumn(f"{title:<12}"), BarColumn(36), MofNCompleteColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, console=console, refresh_per_second=30) as bar:
        task = bar.add_task("", total=STEPS, what="")
        life = stage.live(lambda step, how: bar.update(task, completed=step, what=f"step {step} {SHOWN[how]}"))
        bar.update(task, what=", ".join(f"{len(life.those(how))} {how}" for how in SHOWN if life.those(how)))
        return life


def _stretches(life: Life) -> Iterator[tuple[int, int, How]]:
    """First and last of the steps that came to their end in the same way, one after another."""
    for how, steps in groupby(life.steps, key=itemgetter(1)):
        numbers = [number for number, _ in steps]
        yield numbers[0], numbers[-1], how


def _report(console: Console, evidence: Evidence) -> None:
    for table in (_lives(evidence), _history(evidence, console.width), _ledger(evidence, max(1, console.width // LEDGER_ENTRY))):
        console.print(table, "")


def _lives(evidence: Evidence) -> Table:
    """What was done in each life, and so what was not done again."""
    table = _table("What each life did")
    for title in ("", "first life", "second life", "together", "counted by"):
        table.add_column(title, justify="left" if title in ("", "counted by") else "right")
    first, second = evidence.first, evidence.second
    table.add_row("steps given back from the journal", *_sums(len(first.those("given back")), len(second.those("given back"))), "agent")
    table.add_row("steps executed to their end", *_sums(len(first.those("executed")), len(second.those("executed"))), "agent")
    table.add_row("model calls", *_sums(first.count("model"), second.count("model")), "agent")
    for call, name in REQUESTS.items():
        table.add_row(name, *_sums(*(life.get(call, 0) for life in evidence.requests())), "service")
    return table


def _history(evidence: Evidence, columns: int) -> Table:
    """The checkpoints around the crash."""
    lines = evidence.second.history
    table = _table("Checkpoints around the crash")
    call = max(16, (columns - 32) // 2)
    for title, width in (("at", 7), ("step", 4), ("call", call), ("state", 13), ("what is known", max(16, columns - 32 - call))):
        table.add_column(title, width=width, no_wrap=True, justify="right" if title in ("at", "step") else "left")
    for line in filter(_near, lines):
        at = f"{(line.at_us - lines[0].at_us) / 1e6:.2f} s"
        table.add_row(at, line.step_id, escape(line.call), line.state, escape(line.note), style=_style(line))
    return table


def _near(line: Checkpoint) -> bool:
    if not line.step_id:
        return line.state == "run resumed"
    return abs(int(line.step_id) - KILL_STEP) <= AROUND


def _style(line: Checkpoint) -> str:
    if line.state in BEGUN:
        return "red"
    return "yellow" if line.state.startswith(("doubt", "run")) or line.step_id == str(KILL_STEP) else ""


def _ledger(evidence: Evidence, columns: int) -> Table:
    """Orders side by side, with what was booked and sent for each."""
    table = _table("The ledger of the service: order, amount, number of charges, number of mails")
    for _ in range(columns):
        table.add_column(no_wrap=True)
    table.show_header = False
    entries = [_entry(*entry) for entry in evidence.second.ledger.per_order()]
    rows = -(-len(entries) // columns)
    for row in range(rows):
        table.add_row(*entries[row::rows])
    return table


def _entry(order: str, cents: int, charges: int, mails: int) -> str:
    text = f"{order}  {cents / 100:5.2f}   {charges}   {mails}"
    return text if (charges, mails) == (1, 1) else f"[red bold]{text}[/]"


def _conclude(console: Console, found: Sequence[Finding], took_s: float) -> int:
    for finding in found:
        verdict, seen = ("[green]ok[/]    ", "") if finding.holds else ("[red bold]NOT SO[/]", f"; seen: {finding.seen}")
        _hang(console, verdict, finding.claim + seen)
    broken = [finding for finding in found if not finding.holds]
    if broken:
        console.print(f"\n[red bold]{len(broken)} of {len(found)} promises were not kept.[/]")
        return 1
    console.print(f"\n[green bold]Nothing was lost and nothing was done twice.[/] All of it took {took_s:.1f} s.")
    console.print("\nNext: [cyan]holdfast --help[/]")
    return 0


def _hang(console: Console, mark: str, text: str) -> None:
    """A mark with a text beside it; where a person looks, the text is wrapped and all of it stands right of the mark."""
    if not console.is_terminal:
        console.print(f"{mark}  {escape(text)}", soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(mark, escape(text))
    console.print(grid)


def _sums(first: int, second: int) -> tuple[str, str, str]:
    return str(first), str(second), str(first + second)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)


def _shown(command: Command) -> str:
    """The command as a person would type it."""
    return " ".join([Path(command[0]).name, *(Path(word).name if word.startswith("/") else word for word in command[1:])])
