"""Pausing, resuming and cancelling more than one run: a queue, the fleet, or all that filters choose; and what is said about it.

`--queue NAME` and `--fleet` hold work back that may not even be in line yet, and touch no run. The filters choose runs that are there
now; that of the queue is called `--of-queue`, so that nobody says one and means the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from holdfast import Holdfast
from holdfast.cli.exits import Exit
from holdfast.cli.location import opened
from holdfast.cli.options import (
    STATUSES,
    ByOption,
    JsonOption,
    ReasonOption,
    StoreOption,
    UsageError,
    examples,
    read_duration,
    read_statuses,
    read_tags,
)  # fmt: skip
from holdfast.cli.page import Cell, Column, Commands, Line, Page, Table
from holdfast.cli.screen import Screen, is_terminal
from holdfast.cli.sentences import completed
from holdfast.cli.views import Setting, in_brief
from holdfast.cli.wording import ago, count
from holdfast.errors import Refusal
from holdfast.fleet import choosing
from holdfast.fleet.choosing import Chosen, Touched, Wanted
from holdfast.operating.holding import HoldView
from holdfast.store import Head

MOST = 1_000
"""Runs that one command touches, where nothing else is said."""
MOST_RUNS = 100_000
"""The largest --limit."""
ASKED, SHOWN = 10, 20
"""Runs that a question names, and that a page names; the document names all."""

DONE = {"pause": "paused", "resume": "resumed", "accept": "resumed with what changed", "cancel": "cancelled"}
COLUMNS = (Column("run"), Column("agent", least=8), Column("was"), Column("queue", least=8), Column("now", least=20, below=True))
COLUMNS_BEFORE = (Column("run"), Column("agent", least=8), Column("is"), Column("queue", least=8), Column("because", least=20, below=True))

PAUSES = examples(
    "holdfast pause order-47 --reason 'the price is wrong'", "holdfast pause order-47 --now", "holdfast pause --queue mail",
    "holdfast pause --fleet --reason 'the bank is down'", "holdfast pause --agent buy --tag customer=7 --dry-run",
)  # fmt: skip

RESUMES = examples(
    "holdfast resume order-47 --here app.py", "holdfast resume order-47 --budget usd=50 --reason 'worth it'",
    "holdfast resume --queue mail", "holdfast resume --status paused --agent buy --dry-run",
    "holdfast resume --status blocked --agent buy --accept --dry-run",
)  # fmt: skip
CANCELS = examples(
    "holdfast cancel order-47 --reason 'the customer called'", "holdfast cancel order-47 --undo --here app.py",
    "holdfast cancel --of-queue mail --idle 2h --dry-run",
)  # fmt: skip

OR_ALL = "or say --queue NAME or --fleet, "

MaybeRun = Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's id.", show_default=False)]
QueueOption = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue itself, for all workers; no run is chosen.")]
FleetOption = Annotated[bool, typer.Option("--fleet", help="All queues, for all workers.")]
StatusOption = Annotated[list[str] | None, typer.Option("--status", metavar="STATUS", help=f"Runs that are {', '.join(STATUSES)}.")]
AgentOption = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Runs of this agent.")]
TagOption = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Runs with this tag; may be repeated.")]
IdleOption = Annotated[str | None, typer.Option("--idle", metavar="DURATION", help="Runs unchanged for so long: 10m, 2h, 3d.")]
OfQueueOption = Annotated[str | None, typer.Option("--of-queue", metavar="NAME", help="Runs that are in this queue now.")]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, max=MOST_RUNS, help=f"At most so many: {MOST:,}.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show which runs it would be.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """The runs that a command is for, as it was told."""

    wanted: Wanted
    limit: int | None
    dry_run: bool
    yes: bool


def many(
    *, status: Sequence[str] | None, agent: str | None, tag: Sequence[str] | None, idle: str | None, of_queue: str | None,
    limit: int | None, dry_run: bool, yes: bool,
) -> Many:  # fmt: skip
    """What the filters say."""
    statuses, tags, idle_s = read_statuses(status or ()), read_tags(tag or ()), read_duration(idle, "--idle")
    wanted = Wanted(statuses=statuses, agent=agent, tags=tags, idle_s=idle_s, queue=of_queue)
    return Many(wanted=wanted, limit=limit, dry_run=dry_run, yes=yes)


def is_for_many(run: str | None, chosen: Many, *, or_else: str = "") -> bool:
    """Whether runs are to be chosen by filters; a command that names neither, or both, or filters nothing, was not understood."""
    filters = chosen.wanted.says_something()
    if run is not None and filters:
        raise UsageError("name one RUN, or choose runs with filters, not both")
    if run is None and not filters:
        chooses = "--status, --agent, --tag, --idle or --of-queue"
        raise UsageError(f"name a RUN, {or_else}or choose runs with {chooses}")
    if not filters:
        _refuse_beside("it is for runs that filters choose", chosen)
    return filters


def is_for_all(run: str | None, chosen: Many, *, queue: str | None, fleet: bool) -> bool:
    """Whether a queue or the fleet is meant, and nothing else."""
    if queue is None and not fleet:
        return False
    if queue is not None and fleet:
        raise UsageError("say only one of --queue NAME and --fleet")
    option = "--fleet" if fleet else "--queue"
    if run is not None or chosen.wanted.says_something():
        remedy = "To choose the runs that are in a queue now, say --of-queue NAME"
        raise UsageError(f"{option} is for all runs, there now or later; it goes with no RUN and no filter. {remedy}")
    _refuse_beside(f"{option} touches no run by itself", chosen)
    return True


def _refuse_beside(why: str, chosen: Many) -> None:
    """An option that would change nothing is not swallowed: whoever says --dry-run must not see it done."""
    given = {"--dry-run": chosen.dry_run, "--yes": chosen.yes, "--limit": chosen.limit is not None}
    for option, said in given.items():
        if said:
            raise typer.BadParameter(why, param_hint=option)


def pause(
    run: MaybeRun = None,
    *,
    now: Annotated[bool, typer.Option("--now", help="Break off the step that is under way; an effect is in doubt then.")] = False,
    queue: QueueOption = None,
    fleet: FleetOption = False,
    status: StatusOption = None,
    agent: AgentOption = None,
    tag: TagOption = None,
    idle: IdleOption = None,
    of_queue: OfQueueOption = None,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Let nobody go on with a run, a queue or the fleet until it is resumed.

    A run that executes stops before its next step, and holds nothing then; one that waits is not woken. `holdfast resume` lets it go on.
    With --queue or --fleet no worker takes runs of it, and those that execute are let go of, until the same is resumed. With filters
    every run that they choose is paused; if no status is named, those that are queued, running or waiting.
    """
    chosen = many(status=status, agent=agent, tag=tag, idle=idle, of_queue=of_queue, limit=limit, dry_run=dry_run, yes=yes)
    screen = Screen(store, as_json)
    if is_for_all(run, chosen, queue=queue, fleet=fleet):
        with opened(store) as holdfast:
            pausing = holdfast.pause_fleet if queue is None else partial(holdfast.pause_queue, queue)
            return said_of_all(screen, holdfast, queue, pausing(now=now, by=by, reason=reason))
    for_many = is_for_many(run, chosen, or_else=OR_ALL)
    with opened(store) as holdfast:
        verb = partial(holdfast.pause, now=now, by=by, reason=reason)
        if for_many:
            return carried_out(screen, holdfast, "pause", chosen, verb)
        assert run is not None
        screen.told(run, verb(run))
    return Exit.FINE


def resume_all(screen: Screen, queue: str | None, *, by: str | None, reason: str) -> Exit:
    """Lift what holds a queue or the fleet back."""
    if by is not None or reason:
        forgotten = "what held a queue or the fleet back is forgotten when it is lifted"
        raise typer.BadParameter(forgotten, param_hint="--by" if by else "--reason")
    with opened(screen.store) as holdfast:
        said = holdfast.resume_fleet() if queue is None else holdfast.resume_queue(queue)
        return said_of_all(screen, holdfast, queue, said)


def resume_many(screen: Screen, chosen: Many, *, accept: bool, by: str | None, reason: str) -> Exit:
    """Mark all runs that are chosen as ready, with what changed for them or as they are."""
    with opened(screen.store) as holdfast:
        verb, say = ("accept", holdfast.accept) if accept else ("resume", holdfast.resume)
        return carried_out(screen, holdfast, verb, chosen, partial(say, by=by, reason=reason))


def cancel_many(screen: Screen, chosen: Many, *, undo: bool, by: str | None, reason: str) -> Exit:
    """Close all runs that are chosen."""
    with opened(screen.store) as holdfast:
        return carried_out(screen, holdfast, "cancel", chosen, partial(holdfast.cancel, undo=undo, by=by, reason=reason))


def refuse_for_one(given: Mapping[str, bool]) -> None:
    """Options that need one run to be named."""
    for option, said in given.items():
        if said:
            raise typer.BadParameter("it is for one run: name it", param_hint=option)


def said_of_all(screen: Screen, holdfast: Holdfast, queue: str | None, said: str) -> Exit:
    """Tell what became of a queue or the fleet; commands in it name the store that was named."""
    said = completed(said, screen.setting().command)
    screen.say([Line(said[0].upper() + said[1:])], store=holdfast.store.url, queue=queue, said=said, held=holdfast.held())
    return Exit.FINE


def carried_out(screen: Screen, holdfast: Holdfast, verb: str, many: Many, say: Callable[[str], str]) -> Exit:
    """Say the verb to all runs that are chosen, after asking whoever sits there, and tell what became of each."""
    chosen = choosing.chosen(holdfast.engine, verb, many.wanted, limit=many.limit or MOST)
    if chosen.runs and not many.dry_run and not many.yes and not screen.as_json and is_terminal(sys.stdin) and is_terminal(sys.stdout):
        _confirm(verb, chosen)
    answers = choosing.carried_out(chosen.runs, None if many.dry_run else say)
    told = list(screen.followed(answers, len(chosen.runs), f"{verb} runs"))
    refused = sum(bool(one.refused) for one in told)
    screen.say(
        many_page(verb, told, chosen, dry_run=many.dry_run), store=holdfast.store.url, verb=verb, done=not many.dry_run,
        chosen=len(told), refused=refused, along=[head.run_id for head in chosen.along], left=chosen.left, runs=told,
    )  # fmt: skip
    return Exit.REFUSED if refused else Exit.FINE


def _confirm(verb: str, chosen: Chosen) -> None:
    """Ask whoever sits there; a no is told."""
    named = ", ".join(head.run_id for head in chosen.runs[:ASKED])
    more = f" and {len(chosen.runs) - ASKED:,} more" if len(chosen.runs) > ASKED else ""
    if not typer.confirm(f"{verb.capitalize()} {count(len(chosen.runs), 'run')} ({named}{more})?"):
        raise Refusal("nothing was changed. --dry-run shows which runs it would be")


def many_page(verb: str, told: Sequence[Touched], chosen: Chosen, *, dry_run: bool) -> Page:
    """What became of the runs, or would: those that were refused first."""
    if not told:
        return [Line("no run matches; nothing was changed")]
    refused = sum(bool(one.refused) for one in told)
    did = f"would be {DONE[verb]}; nothing is changed yet" if dry_run else DONE[verb]
    failed = f", {count(refused, 'run')} not" if refused else ""
    page: Page = [Line(f"{count(len(told) - refused, 'run')} {did}{failed}", "bold")]
    shown = sorted(told, key=lambda one: not one.refused)[:SHOWN]
    page += [Table(COLUMNS_BEFORE if dry_run else COLUMNS, [_row(one, dry_run=dry_run) for one in shown])]
    if len(told) > SHOWN:
        page += [Line(f"and {count(len(told) - SHOWN, 'more run')}; --json names all", "dim")]
    if chosen.along:
        page += [Line(f"{count(len(chosen.along), 'run')} inside them {'goes' if len(chosen.along) == 1 else 'go'} with them", "dim")]
    if chosen.left:
        stays = "matches, and is left as it is" if chosen.left == 1 else "match, and are left as they are"
        page += [Line(f"{count(chosen.left, 'more run')} {stays}: say the same again, or --limit N", "yellow")]
    return page


def _row(one: Touched, *, dry_run: bool) -> list[Cell]:
    became = Cell(one.refused, "red") if one.refused else Cell(in_brief(one.note) if dry_run else one.said, "dim")
    return [Cell(one.run_id), Cell(one.agent), Cell(one.status), Cell(one.queue), became]


def held_over(held: Sequence[HoldView], head: Head | None) -> list[HoldView]:
    """What keeps workers from going on with a run."""
    ended = head is None or head.status in ("done", "cancelled", "moved")
    return [] if ended or head is None else [one for one in held if one.concerns(head.queue)]


def held_lines(held: Sequence[HoldView], setting: Setting) -> Page:
    """What is held back, by whom, since when, why, and the command that lifts it."""
    page: Page = []
    for one in held:
        since = f"{ago(one.since_us, setting.now_us)} " if one.since_us else ""
        whose = "run" if one.queue is None else "run of it"
        told = f"{one.named()} was paused {since}{one.told()}. Workers take no {whose} until:"
        page += [Line(told[0].upper() + told[1:], "yellow"), Commands([setting.command(one.lifted_by())])]
    return page


def held_footer(held: Sequence[HoldView], setting: Setting) -> Page:
    """The same below a page of something else."""
    return [Line(""), *held_lines(held, setting)] if held else []
