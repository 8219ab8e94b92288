"""The commands: each reads its arguments, asks the engine, and hands the answer to the screen."""

from __future__ import annotations

from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from holdfast.cli import artifacts, comparing, moving, scheduled, stopping, timetravel, views, working
from holdfast.cli import doctor as doctoring
from holdfast.cli.exits import MEANINGS, Exit
from holdfast.cli.fleet import hindered_line, unserved_line
from holdfast.cli.following import EXAMPLES as TAILS
from holdfast.cli.following import tail
from holdfast.cli.location import opened
from holdfast.cli.migrating import EPILOG as MIGRATIONS
from holdfast.cli.migrating import migrate
from holdfast.cli.options import (
    STATUSES,
    ByOption,
    JsonOption,
    ReasonOption,
    RunArgument,
    StoreOption,
    UsageError,
    examples,
    read_budget,
    read_duration,
    read_json,
    read_question,
    read_statuses,
    read_tags,
)  # fmt: skip
from holdfast.cli.pruning import EPILOG, prune
from holdfast.cli.resuming import go_on, order_from
from holdfast.cli.screen import Screen
from holdfast.operating import checking, roster
from holdfast.operating.family import top_of
from holdfast.operating.views import meant, walk
from holdfast.records.chain import CHILD_OF

MOST_RUNS = 100_000
"""The largest --limit."""

EXITS = "\b\nExit codes:\n" + "\n".join(f"  {code.value:<3}  {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name="holdfast", help="Look at runs of agents, settle what is in doubt, and go on after a crash.",
    epilog=f"{EXITS}\n\n{examples('holdfast runs', 'holdfast show order-47', 'holdfast resolve --help')}",
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


class Bare(TyperCommand):
    """A command whose usage line names its arguments as they are typed, without braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] RUN`."""
        return [piece.strip("{}").replace("[[", "[").replace("]]", "]") for piece in super().collect_usage_pieces(ctx)]


def _say_version(*, asked: bool) -> None:
    if asked:
        from holdfast import __version__  # to look for it takes a while

        print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def holdfast_command(
    *, version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True)] = False
) -> None:
    del version


@app.command(epilog=examples("holdfast runs --status waiting --agent buy", "holdfast runs --tag customer=7 --idle 10m --json"))
def runs(
    *,
    status: Annotated[list[str] | None, typer.Option("--status", metavar="STATUS", help=f"{', '.join(STATUSES)}; may be repeated.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Only runs with this tag; may be repeated.")] = None,
    idle: Annotated[str | None, typer.Option("--idle", metavar="DURATION", help="Only runs unchanged for so long: 10m, 2h, 3d.")] = None,
    of_queue: Annotated[str | None, typer.Option("--of-queue", metavar="NAME", help="Only runs of this queue.")] = None,
    due: Annotated[bool, typer.Option("--due", help="Only runs that can go on now: their time has come, or they have an answer.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MOST_RUNS, help="At most so many.")] = 100,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """List runs, the one that changed last first.

    With --due: those that wait for nothing any more and that nobody executes, first those whose time came first.
    """
    if due and (status or tag or idle is not None or of_queue is not None):
        raise UsageError("--due goes with --agent and --limit only")
    statuses, tags, idle_s = read_statuses(status or ()), read_tags(tag or ()), read_duration(idle, "--idle")
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        if due:
            found = holdfast.ready(agent=agent, limit=limit)
        else:
            found = holdfast.runs(status=statuses, agent=agent, tags=tags, idle=idle_s, queue=of_queue, limit=limit)
        held, setting = holdfast.held(), screen.setting()
        near = [] if found else meant(holdfast.engine, agent=agent, queue=of_queue)
        page = [*views.runs_page(found, limit=limit, setting=setting, near=near), *stopping.held_footer(held, setting)]
        screen.say(page, store=holdfast.store.url, runs=found, held=held, near=near)
    return Exit.FINE


@app.command(epilog=examples("holdfast show order-47", "holdfast show order-47 --at 12", "holdfast show order-47 --drift"))
def show(
    run: RunArgument,
    *,
    at: Annotated[str | None, typer.Option("--at", metavar="STEP", help="What the agent knew after this step.")] = None,
    drift: Annotated[bool, typer.Option("--drift", help="Compare what the run relies on with what it is here and now.")] = False,
    urls: Annotated[bool, typer.Option("--urls", help="With --drift: fetch the pages that the run watches, from this machine.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Where a run stands, and what to do next.

    Who owns it and whether that process lives, the step it stands at, the last error, and what it waits for.

    With --drift: the files, folders, variables and packages that the run watches are looked at again, here, as the run would when it
    goes on; the run is not touched. Ends with code 6 where something is not what it was.
    """
    if drift and at is not None:
        raise UsageError("say only one of --at STEP and --drift")
    if urls and not drift:
        raise typer.BadParameter("it says how --drift behaves", param_hint="--urls")
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        if drift:
            things = holdfast.drift(run, urls=urls)
            drifted = any(each.drifted for each in things)
            screen.say(views.drift_page(run, things), store=holdfast.store.url, run_id=run, drifted=drifted, things=things)
            return Exit.DRIFTED if drifted else Exit.FINE
        if at is None:
            view, head = holdfast.show(run), holdfast.store.head(run)
            unserved = roster.unserved(holdfast.engine, [head]) if head is not None and roster.serving(holdfast.engine) else {}
            held = stopping.held_over(holdfast.held(), head and top_of(holdfast.store, head))
            why = [*unserved_line(unserved), *hindered_line(holdfast.store, None if view.owner_lives else head)]
            page = [*views.run_page(view, screen.setting(), why), *stopping.held_footer(held, screen.setting())]
            screen.say(page, store=holdfast.store.url, run=view, held=held)
        else:
            knew = holdfast.show_at(run, at)
            kept = artifacts.checkpoint_blocks(run, (knew.arguments, knew.result, knew.state), screen.setting())
            page = views.checkpoint_page(artifacts.readable(knew), screen.setting())
            screen.say([*page, *kept], store=holdfast.store.url, at=knew)
    return Exit.FINE


@app.command(epilog=examples("holdfast history order-47", "holdfast history order-47 --json"))
def history(run: RunArgument, *, store: StoreOption = None, as_json: JsonOption = False) -> Exit:
    """Every checkpoint of a run, in order.

    Step, call, attempt, how it ended (started, done, failed, broken off, in doubt), how long it took, and an effect's key.
    """
    with opened(store) as holdfast:
        lines = holdfast.history(run)
        Screen(store, as_json).say(views.history_page(lines), store=holdfast.store.url, run_id=run, checkpoints=lines)
    return Exit.FINE


app.command(epilog=examples(*TAILS))(tail)
app.command(epilog=comparing.EXAMPLES)(comparing.diff)


@app.command(epilog=stopping.RESUMES)
def resume(
    run: stopping.MaybeRun = None,
    *,
    here: Annotated[Path | None, typer.Option("--here", metavar="APP.py", help="Execute it now, with the agent in this file.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="With --here: end with code 3 where the run waits.")] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Go on with what changed: the code that blocks the run, or the model.")] = False,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", metavar="LIMIT=AMOUNT", help="What it may spend from now on: usd=50, steps=200, time=2h; repeatable."),
    ] = None,
    effects: Annotated[
        str, typer.Option("--effects", metavar="ask|repeat", help="After a repair: repeat says that effects not on record did not happen.")
    ] = "ask",
    queue: stopping.QueueOption = None,
    fleet: stopping.FleetOption = False,
    status: stopping.StatusOption = None,
    agent: stopping.AgentOption = None,
    tag: stopping.TagOption = None,
    idle: stopping.IdleOption = None,
    of_queue: stopping.OfQueueOption = None,
    limit: stopping.LimitOption = None,
    dry_run: stopping.DryRunOption = False,
    yes: stopping.YesOption = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Go on with a run, here or elsewhere; or with a queue or the fleet.

    With --here the run is executed now; without it, it is marked as ready for whoever runs its agent next. --queue and --fleet lift what
    `holdfast pause` held back. With filters every run that they choose is marked as ready; if no status is named, those that are paused,
    or blocked, with --accept.
    """
    chosen = stopping.many(status=status, agent=agent, tag=tag, idle=idle, of_queue=of_queue, limit=limit, dry_run=dry_run, yes=yes)
    screen, limits = Screen(store, as_json), read_budget(budget or ())
    for_all = stopping.is_for_all(run, chosen, queue=queue, fleet=fleet)
    for_many = not for_all and stopping.is_for_many(run, chosen, or_else=stopping.OR_ALL)
    if for_all or for_many or run is None:
        for_one = {"--here": here is not None, "--no-wait": no_wait, "--budget": limits is not None, "--effects": effects != "ask"}
        stopping.refuse_for_one(for_one if for_many else {**for_one, "--accept": accept})
        if for_all:
            return stopping.resume_all(screen, queue, by=by, reason=reason)
        return stopping.resume_many(screen, chosen, accept=accept, by=by, reason=reason)
    _refuse_idle_no_wait(here, no_wait=no_wait)
    _refuse_two_words({"--accept": accept, "--effects": effects != "ask", "--budget": limits is not None})
    with opened(store) as holdfast:
        said = holdfast.accept if accept else partial(holdfast.resume, budget=limits, effects=effects)  # type: ignore[arg-type]
        if here is None:
            screen.told(run, said(run, by=by, reason=reason))
            return Exit.FINE
        with screen.to_itself():
            order = order_from(holdfast, run, here, wait=not no_wait)
        if reason or by or accept or limits is not None or effects != "ask":
            said(run, by=by, reason=reason)
        return go_on(holdfast, order, screen)


def _refuse_two_words(said: dict[str, bool]) -> None:
    """Each is recorded with a resume of its own."""
    given = [option for option, is_said in said.items() if is_said]
    if len(given) > 1:
        raise typer.BadParameter(f"say one after the other: first {given[0]}, then {given[1]}", param_hint=given[1])


def _refuse_idle_no_wait(here: Path | None, *, no_wait: bool) -> None:
    if no_wait and here is None:
        raise typer.BadParameter("it says how --here behaves; name a file with --here APP.py", param_hint="--no-wait")


@app.command(epilog=stopping.CANCELS)
def cancel(
    run: stopping.MaybeRun = None,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Undo what it did, newest first, before it is closed.")] = False,
    here: Annotated[Path | None, typer.Option("--here", metavar="APP.py", help="With --undo: now, with the agent in this file.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="With --here: end with code 3 where the run waits.")] = False,
    status: stopping.StatusOption = None,
    agent: stopping.AgentOption = None,
    tag: stopping.TagOption = None,
    idle: stopping.IdleOption = None,
    of_queue: stopping.OfQueueOption = None,
    limit: stopping.LimitOption = None,
    dry_run: stopping.DryRunOption = False,
    yes: stopping.YesOption = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Close a run for good; one that executes is told to stop.

    With --undo its effects that declare an undo are undone first, by whoever runs its agent next, or here and now with --here. With
    filters every run that they choose is closed; if no status is named, those that have not ended.
    """
    chosen = stopping.many(status=status, agent=agent, tag=tag, idle=idle, of_queue=of_queue, limit=limit, dry_run=dry_run, yes=yes)
    if stopping.is_for_many(run, chosen) or run is None:
        stopping.refuse_for_one({"--here": here is not None, "--no-wait": no_wait})
        return stopping.cancel_many(Screen(store, as_json), chosen, undo=undo, by=by, reason=reason)
    if here is not None and not undo:
        raise typer.BadParameter("it says where --undo is carried out", param_hint="--here")
    _refuse_idle_no_wait(here, no_wait=no_wait)
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        if here is None:
            screen.told(run, holdfast.cancel(run, undo=undo, by=by, reason=reason))
            return Exit.FINE
        with screen.to_itself():
            order = order_from(holdfast, run, here, wait=not no_wait)
        holdfast.cancel(run, undo=True, by=by, reason=reason)
        return go_on(holdfast, order, screen, undo=True)


@app.command(
    epilog=examples(
        "holdfast answer order-47/approve:7 yes",
        "holdfast answer order-47/approve:7 no --reason 'too much'",
        "holdfast answer order-47/3 blue --by ann",
        "holdfast answer order-47/4 '{\"street\": \"Kelp Lane\", \"number\": 7}'",
    )
)
def answer(
    question: Annotated[str, typer.Argument(metavar="ID", help="RUN/QUESTION, as `holdfast inbox` shows it.", show_default=False)],
    said: Annotated[str, typer.Argument(metavar="ANSWER", help="Yes, no, a text, a number or JSON.", show_default=False)],
    *,
    about: Annotated[int, typer.Option("--about", metavar="N", min=0, help="The question's `about` in `inbox --json`: no other.")] = 0,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Answer a question of a run.

    A question of its agent, an approval (yes: execute it), a drift (yes: go on with the thing as it is now) or a budget (yes: spend more).
    The first answer counts.
    """
    run, ask = read_question(question)
    with opened(store) as holdfast:
        Screen(store, as_json).told(run, holdfast.answer(run, ask, typed=said, by=by, reason=reason, about=about))
    return Exit.FINE


@app.command(epilog=examples("holdfast send order-47 delivered '\"on Monday\"'", "holdfast send order-47 stop --by ann"))
def send(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that the run receives.", show_default=False)],
    value: Annotated[str, typer.Argument(metavar="[VALUE]", help="The message, as JSON.", show_default=False)] = "null",
    *,
    key: Annotated[str, typer.Option(metavar="TEXT", help="The same key again is the same message.", show_default=False)] = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Leave a message for a run.

    It is kept until the run's code takes it with hf.receive, once, now or later.
    """
    with opened(store) as holdfast:
        Screen(store, as_json).told(run, holdfast.send(run, name, read_json(value, "VALUE"), key=key, by=by))
    return Exit.FINE


@app.command(epilog=examples("holdfast inbox", "holdfast inbox --json"))
def inbox(*, store: StoreOption = None, as_json: JsonOption = False) -> Exit:
    """All that needs a person, each with the commands that settle it."""
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        items = holdfast.inbox()
        held, setting = holdfast.held(), screen.setting()
        told, found = {item.run_id for item in items}, holdfast.runs(status="failed", limit=views.MOST_FAILED)
        failed, more = sum(run.run_id not in told and CHILD_OF not in run.tags for run in found), len(found) == views.MOST_FAILED
        page = [*views.inbox_page(items, setting, holdfast.store.url, failed, more=more), *stopping.held_footer(held, setting)]
        screen.say(page, store=holdfast.store.url, items=items, held=held, failed=failed)
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
    *,
    landed: Annotated[str | None, typer.Option("--landed", metavar="JSON", help="It happened, and this is its result.")] = None,
    not_landed: Annotated[bool, typer.Option("--not-landed", help="It did not happen.")] = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Say whether an effect in doubt happened.

    It landed, and this is its result, or it did not land and is to be executed.
    """
    if (landed is None) != not_landed:
        raise UsageError(f"say {'only ' if not_landed else ''}one of --landed JSON and --not-landed")
    verdict: dict[str, Any] = {"not_landed": True} if landed is None else {"landed": read_json(landed, "--landed")}
    with opened(store) as holdfast:
        Screen(store, as_json).told(run, holdfast.resolve(run, step, **verdict, by=by, reason=reason))
    return Exit.FINE


@app.command(epilog=examples("holdfast check --all", "holdfast check order-47 --repair --dry-run", "holdfast check order-47 --repair"))
def check(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The run to check.", show_default=False)] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Check every run, and the store itself.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Go back to the last good record; the rest is moved aside and kept.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --repair: only show what it would do.")] = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Whether what is stored is what was written.

    Names the first bad record of every damaged run, and what of it is still good. With --repair a damaged run goes back to there.
    """
    if (run is None) != everything:
        raise typer.BadParameter("name one run, or say --all", param_hint="RUN")
    if dry_run and not repair:
        raise typer.BadParameter("it says how --repair behaves", param_hint="--dry-run")
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        if repair:
            if run is None:
                raise typer.BadParameter("name the one run to repair; each is looked at for itself", param_hint="--repair")
            mending = holdfast.repair(run, dry_run=dry_run, by=by, reason=reason)
            screen.say(views.repair_page(mending, screen.setting()), store=holdfast.store.url, repair=mending)
            return Exit.FINE
        problems = holdfast.store.check() if everything else []
        total = sum(1 for _ in walk(holdfast.engine, ())) if everything else 1
        verdicts = list(screen.followed(checking.check(holdfast.engine, run), total, "checking runs"))
        good = not problems and all(verdict.good for verdict in verdicts)
        parts = {"store": holdfast.store.url, "good": good, "problems": problems, "runs": verdicts}
        screen.say(views.check_page(verdicts, problems, screen.setting()), **parts)
    return Exit.FINE if good else Exit.DAMAGED


app.command(epilog=stopping.PAUSES)(stopping.pause)
app.command(epilog=timetravel.FORK_EXAMPLES)(timetravel.fork)
app.command(epilog=timetravel.EDIT_EXAMPLES)(timetravel.edit)
app.command(epilog=examples("holdfast artifact order-47", "holdfast artifact order-47 3f7a91 --to report.pdf"))(artifacts.artifact)
app.command(epilog=EPILOG)(prune)
app.command(epilog=moving.COPY_EXAMPLES)(moving.copy)
app.command(epilog=moving.MOVE_EXAMPLES)(moving.move)
app.command(epilog=MIGRATIONS)(migrate)
app.command(epilog=doctoring.EPILOG)(doctoring.doctor)
app.command(epilog=working.EXAMPLES)(working.worker)
app.command(epilog=working.WORKERS)(working.workers)
app.command(epilog=working.QUEUES)(working.queues)
app.command(epilog=scheduled.EPILOG)(scheduled.schedules)


@app.command(epilog=examples("holdfast demo"))
def demo() -> int:
    """See an agent be killed, start again, and finish.

    It dies in the middle of a charge. Started again it goes on, and nothing is charged twice.
    """
    from holdfast.demo import main

    return int(main())


for _command in app.registered_commands:
    _command.cls = Bare


@cache
def commands_for(word: str) -> Any:
    """All commands as one, to be called with this word first; where it names one, the code of the others need not be looked at."""
    named = copy(app)
    named.registered_commands = [each for each in app.registered_commands if name_of(each) == word] or app.registered_commands
    return typer.main.get_command(named)


def name_of(command: Any) -> str:
    """What is typed for it."""
    return str(command.name or command.callback.__name__)
