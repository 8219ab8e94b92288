"""The commands: each reads its arguments, asks the engine, and hands the answer to a page or a document."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import Holdfast, _inspect, _operate
from holdfast._duration import seconds
from holdfast.cli import views
from holdfast.cli.app_file import agent_from
from holdfast.cli.document import document, error_document
from holdfast.cli.exits import MEANINGS, Exit
from holdfast.cli.location import opened
from holdfast.cli.page import Page, plain
from holdfast.cli.wording import lines_of
from holdfast.errors import HoldfastError, Misuse, Unwinding

STATUSES = ("queued", "running", "waiting", "paused", "blocked", "failed", "done", "cancelled")
MOST_RUNS = 100_000
"""The largest --limit."""

StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="The store: sqlite:///PATH or a path ending in .db.  [default: HOLDFAST_STORE, else .holdfast/holdfast.db of the project]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, errors too.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded with the run.", show_default=False)]
ByOption = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who says so.  [default: your user name]", show_default=False)]


def examples(*lines: str) -> str:
    """The end of a help text; the mark keeps its lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


EXITS = "\b\nExit codes:\n" + "\n".join(f"  {code.value}  {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name="holdfast", help="Look at runs of agents, settle what is in doubt, and go on after a crash.",
    epilog=f"{EXITS}\n\n{examples('holdfast runs', 'holdfast show order-47', 'holdfast COMMAND --help')}",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Screen:
    """Where a command's answer goes."""

    store: str | None
    as_json: bool

    def setting(self) -> views.Setting:
        """The time it is, and the store that commands must repeat."""
        return views.Setting(time.time_ns() // 1000, self.store)

    def say(self, page: Page, **parts: Any) -> None:
        """Print the page, or, under --json, the document of these parts."""
        if self.as_json:
            print(document(**parts))
        elif sys.stdout.isatty():
            from holdfast.cli.terminal import draw

            draw(page, sys.stdout)
        else:
            for line in plain(page):
                print(line)


@app.command(epilog=examples("holdfast runs --status waiting --agent buy", "holdfast runs --tag customer=7 --idle 10m --json"))
def runs(
    status: Annotated[list[str] | None, typer.Option("--status", metavar="STATUS", help=f"Only these: {', '.join(STATUSES)}. May be repeated.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Only runs with this tag. May be repeated.")] = None,
    idle: Annotated[str | None, typer.Option("--idle", metavar="DURATION", help="Only runs that did not change for so long: 10m, 2h, 3d.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MOST_RUNS, help="At most so many.")] = 100,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """List runs, the one that changed last first."""
    statuses, tags, idle_s = _statuses(status or ()), _tags(tag or ()), _idle(idle)
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        found = holdfast.runs(status=statuses, agent=agent, tags=tags, idle=idle_s, limit=limit)
        screen.say(views.runs_page(found, limit=limit, setting=screen.setting()), store=holdfast.store.url, runs=found)
    return Exit.FINE


@app.command(epilog=examples("holdfast show order-47", "holdfast show order-47 --at 12"))
def show(
    run: RunArgument,
    at: Annotated[str | None, typer.Option("--at", metavar="STEP", help="What the agent knew after this step.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Where a run stands, who owns it, what it waits for, and what to do next."""
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        if at is None:
            view = holdfast.show(run)
            screen.say(views.run_page(view, screen.setting()), store=holdfast.store.url, run=view)
        else:
            knew = holdfast.show_at(run, at)
            screen.say(views.checkpoint_page(knew, screen.setting().now_us), store=holdfast.store.url, at=knew)
    return Exit.FINE


@app.command(epilog=examples("holdfast history order-47", "holdfast history order-47 --json"))
def history(run: RunArgument, store: StoreOption = None, as_json: JsonOption = False) -> Exit:
    """Every checkpoint of a run: step, call, attempt, how it ended, how long it took, and its key."""
    with opened(store) as holdfast:
        lines = holdfast.history(run)
        Screen(store, as_json).say(views.history_page(lines), store=holdfast.store.url, run_id=run, checkpoints=lines)
    return Exit.FINE


@app.command(epilog=examples("holdfast resume order-47 --here app.py", "holdfast resume order-47 --reason 'the bank is back'"))
def resume(
    run: RunArgument,
    here: Annotated[Path | None, typer.Option("--here", metavar="APP.py", help="Execute it now, with the agent in this file.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="With --here: end with code 3 where the run waits for a person.")] = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Mark a run as ready for whoever runs its agent next, or, with --here, go on with it now."""
    if no_wait and here is None:
        raise typer.BadParameter("it says how --here behaves; name a file with --here APP.py", param_hint="--no-wait")
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        if here is not None:
            return _resume_here(holdfast, run, here, wait=not no_wait, marked=(reason, by), screen=screen)
        _told(screen, run, holdfast.resume(run, by=by, reason=reason))
    return Exit.FINE


@app.command(epilog=examples("holdfast cancel order-47 --reason 'the customer called'"))
def cancel(run: RunArgument, reason: ReasonOption = "", by: ByOption = None, store: StoreOption = None, as_json: JsonOption = False) -> Exit:
    """Close a run for good; one that executes is told to stop."""
    with opened(store) as holdfast:
        _told(Screen(store, as_json), run, holdfast.cancel(run, by=by, reason=reason))
    return Exit.FINE


@app.command(epilog=examples("holdfast inbox"))
def inbox(store: StoreOption = None, as_json: JsonOption = False) -> Exit:
    """All that needs a person, each with the commands that settle it."""
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        items = holdfast.inbox()
        screen.say(views.inbox_page(items, screen.setting()), store=holdfast.store.url, items=items)
    return Exit.FINE


@app.command(
    epilog=examples(
        """holdfast resolve order-47 5 --landed '"r-9"' --reason 'seen in the bank'""",
        """holdfast resolve order-47 5 --landed '{"id": "r-9", "cents": 500}'""",
        "holdfast resolve order-47 5 --not-landed --by ann",
    )
)
def resolve(
    run: RunArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step that is in doubt.", show_default=False)],
    landed: Annotated[str | None, typer.Option("--landed", metavar="JSON", help="It happened, and this is its result.", show_default=False)] = None,
    not_landed: Annotated[bool, typer.Option("--not-landed", help="It did not happen.")] = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Say what is true of an effect in doubt: it landed, with this result, or it did not."""
    if (landed is None) != not_landed:
        raise typer.BadParameter("say one of --landed JSON and --not-landed", param_hint="--landed")
    result = _operate.UNSAID if landed is None else _result(landed)
    with opened(store) as holdfast:
        said = holdfast.resolve(run, step, landed=result, not_landed=not_landed, by=by, reason=reason)
        _told(Screen(store, as_json), run, said)
    return Exit.FINE


@app.command(epilog=examples("holdfast check order-47", "holdfast check --all"))
def check(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run to check.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Check every run, and the store itself.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Whether what is stored is what was written; names the first bad record and what is still good."""
    if (run is None) != everything:
        raise typer.BadParameter("name one run, or say --all", param_hint="RUN")
    with opened(store) as holdfast:
        problems = holdfast.store.check() if everything else []
        verdicts = list(_followed(holdfast, _inspect.check(holdfast.engine, run), quiet=as_json or not everything))
        good = not problems and all(verdict.good for verdict in verdicts)
        parts = {"store": holdfast.store.url, "good": good, "problems": problems, "runs": verdicts}
        Screen(store, as_json).say(views.check_page(verdicts, problems), **parts)
    return Exit.FINE if good else Exit.DAMAGED


@app.command(epilog=examples("holdfast demo"))
def demo() -> int:
    """An agent is killed in the middle of a charge, starts again and finishes; nothing is charged twice."""
    from holdfast.demo import main

    return int(main())


def _told(screen: Screen, run: str, said: str) -> None:
    screen.say([views.Line(said)], run_id=run, said=said)


def _statuses(given: Sequence[str]) -> tuple[str, ...]:
    if unknown := [status for status in given if status not in STATUSES]:
        raise typer.BadParameter(f"{unknown[0]!r} is not a status; there are {', '.join(STATUSES)}", param_hint="--status")
    return tuple(given)


def _tags(given: Sequence[str]) -> dict[str, str]:
    pairs = [tag.partition("=") for tag in given]
    if bad := [name for name, separator, _ in pairs if not separator or not name]:
        raise typer.BadParameter(f"{bad[0]!r} is not KEY=VALUE, such as customer=7", param_hint="--tag")
    return {name: value for name, _, value in pairs}


def _idle(given: str | None) -> float | None:
    try:
        return None if given is None else seconds(given, "it")
    except Misuse:
        raise typer.BadParameter(f"{given!r} is not a duration, such as 30s, 10m, 2h or 3d", param_hint="--idle") from None


def _result(given: str) -> object:
    try:
        return json.loads(given)
    except ValueError as error:
        advice = "a text needs its own quotes inside the shell's: --landed '\"r-9\"'; others: --landed 9, --landed null, --landed '{\"id\": \"r-9\"}'"
        raise typer.BadParameter(f"{given!r} is not JSON ({error}); {advice}", param_hint="--landed") from None


def _followed(holdfast: Holdfast, verdicts: Iterable[_inspect.Verdict], *, quiet: bool) -> Iterable[_inspect.Verdict]:
    if quiet or not sys.stderr.isatty():
        return verdicts
    from holdfast.cli.terminal import followed

    return followed(verdicts, sum(1 for _ in _inspect.walk(holdfast.engine, ())), "checking runs")


def _resume_here(holdfast: Holdfast, run: str, file: Path, *, wait: bool, marked: tuple[str, str | None], screen: Screen) -> Exit:
    """Execute the run with the agent in `file`; whatever is wrong with the file is said before anything is changed."""
    with _only_ours_on_stdout(quiet=screen.as_json):
        agent = agent_from(file, holdfast.show(run).agent)
        order = _operate.order_for(holdfast.engine, run, [agent], where=str(file), wait=wait)
        reason, by = marked
        if reason or by:
            holdfast.resume(run, by=by, reason=reason)
        try:
            holdfast.carry_out(order)
        except (HoldfastError, Unwinding):
            raise
        except Exception as error:
            if holdfast.show(run).status != "failed":
                raise
            failed = error
        else:
            failed = None
    if failed is not None:
        return _failed(failed, file, screen)
    view = holdfast.show(run)
    screen.say(views.run_page(view, screen.setting()), run_id=run, status=view.status, result=view.result)
    return Exit.FINE


def _failed(error: Exception, file: Path, screen: Screen) -> Exit:
    """The agent's own error: where in its code it happened, and what it says."""
    message = f"{type(error).__name__}: {error}"
    if screen.as_json:
        print(error_document(error, message))
        return Exit.REFUSED
    ours = str(Path(__file__).parent.parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    for line in [*traceback.format_list(frames), f"holdfast: the run failed: {message}"]:
        print("\n".join(lines_of(line.rstrip("\n"))), file=sys.stderr)
    return Exit.REFUSED


@contextlib.contextmanager
def _only_ours_on_stdout(*, quiet: bool) -> Iterator[None]:
    """Where stdout must hold one document, what the agent and its children print goes to stderr."""
    if not quiet:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
