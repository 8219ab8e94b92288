"""`holdfast tail`: what happens in a run, line by line, while it happens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.document import line
from holdfast.cli.exits import Exit
from holdfast.cli.location import opened
from holdfast.cli.options import RunArgument, StoreOption
from holdfast.cli.page import Line
from holdfast.cli.screen import Screen, complain, is_terminal
from holdfast.cli.sentences import completed
from holdfast.cli.views import in_words
from holdfast.cli.wording import clean, local, shortened

if TYPE_CHECKING:
    from holdfast.operating.follow import Event
    from holdfast.operating.views import RunView

EXAMPLES = ("holdfast tail order-47", "holdfast tail order-47 --after 12 --json", "holdfast tail order-47 --text")

ENDS = ("done", "cancelled", "failed", "blocked", "moved")
"""Statuses of a run that nobody executes at which following ends."""

SHOWN = 200
"""Characters of an emitted value on its line; texts are shown whole."""

STYLES = {
    "emit": "green", "done": "", "started": "dim", "failed": "red", "attempt failed": "yellow", "in doubt": "red", "run done": "bold",
    "run failed": "bold red", "run cancelled": "bold red", "run blocked": "bold red", "run waiting": "yellow",
}  # fmt: skip


def tail(
    run: RunArgument,
    *,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only what came behind this record.")] = 0,
    text: Annotated[bool, typer.Option("--text", help="Only the texts that the run emits, as they are: a model's tokens.")] = False,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout, one for each event.")] = False,
) -> Exit:
    """Follow a run: its records, and what it emits, while it happens.

    Ends when the run is done, cancelled, failed or blocked and nobody executes it; a run that has ended is shown as it was.
    """
    if text and as_json:
        raise typer.BadParameter("say only one of --text and --json", param_hint="--text")
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        if is_terminal(sys.stderr) and (said := standstill(holdfast.show(run))):
            complain(completed(said, screen.setting().command))
        for event in holdfast.tail(run, after=after):
            if text:
                sys.stdout.write(words(event))
            elif as_json:
                print(line(event))
            else:
                screen.say([event_line(event)])
            sys.stdout.flush()
    return Exit.FINE


def standstill(run: RunView) -> str:
    """Why nothing comes for the time being, where nobody executes a run that is not at its end."""
    if run.owner_lives or run.status in ENDS:
        return ""
    return f"{in_words(run)[0]}. Nothing comes until somebody executes it; Ctrl-C ends this. What helps: holdfast show {run.run_id}"


def words(event: Event) -> str:
    """What the run emitted, if it is text; what a terminal could obey is escaped, line ends and tabs stay."""
    if event.kind != "emit" or not isinstance(event.value, str):
        return ""
    return "".join(one if one in "\n\t" else clean(one) for one in event.value.replace("\r\n", "\n"))


def event_line(event: Event) -> Line:
    """An event in one line: when, at which step, what, and what came of it."""
    said = event.value if isinstance(event.value, str) else shortened(event.value, SHOWN)
    what = said if event.kind == "emit" else "  ".join(part for part in (event.call, event.note) if part)
    clock = local(event.at_us).partition(" ")[2]
    return Line(f"{clock}  {event.step_id or '-':<6} {event.state:<14} {what}".rstrip(), STYLES.get(event.state, ""))
