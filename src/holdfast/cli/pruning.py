"""The command `prune`: reads a policy, says what it will do, asks where a person is there, and tells what went."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast import Retention
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
from holdfast.cli.page import Cell, Column, Facts, Line, Page, Table
from holdfast.cli.screen import Screen, is_terminal
from holdfast.cli.wording import count
from holdfast.errors import Misuse, Refusal
from holdfast.operating import pruning
from holdfast.operating.telling import somebody
from holdfast.store import Head

ASKED = 10
"""Runs that the question names."""
SHOWN = 20
"""Runs that a page names; the document names all."""
COLUMNS = (
    Column("run"), Column("agent", least=8), Column("status"), Column("what"), Column("bytes", right=True),
    Column("why", least=20, below=True),
)  # fmt: skip
EPILOG = examples(
    "holdfast prune --keep-last 5 --max-age 24h --dry-run", "holdfast prune --max-age 30d --tag customer=7", "holdfast prune --details 7d"
)


def prune(
    *,
    keep_last: Annotated[int | None, typer.Option("--keep-last", metavar="N", min=0, help="Keep the last N of each agent.")] = None,
    max_age: Annotated[str | None, typer.Option("--max-age", metavar="DURATION", help="Keep what ended less long ago: 24h, 30d.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Failed runs may go too; without it they stay, since they can go on.")] = False,
    details: Annotated[
        str | None, typer.Option("--details", metavar="DURATION", help="Of runs that stay: details and generations older than this go.")
    ] = None,
    keep_ids: Annotated[
        str | None, typer.Option("--keep-ids", metavar="DURATION", help="Forget the ids of runs removed longer ago; else they stay taken.")
    ] = None,
    status: Annotated[list[str] | None, typer.Option("--status", metavar="STATUS", help=f"{', '.join(STATUSES[:-1])}; repeatable.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Only runs with this tag; may be repeated.")] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Make the file smaller: needs as much room again, holds up writers.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Remove runs that have ended, and details of old steps.

    A run that is done or cancelled stays if it is among the last N of its agent, or ended less long ago than --max-age; otherwise it goes.
    What has not ended, executes, or has a doubt that nobody settled, stays. The ids of removed runs stay taken.
    """
    retention = _policy(keep_last=keep_last, max_age=max_age, details=details, keep_ids=keep_ids, failed=failed)
    statuses, tags, screen = read_statuses(status or ()), read_tags(tag or ()), Screen(store, as_json)
    with opened(store) as holdfast:
        ordered = pruning.Ordered(
            retention=retention, by=by or somebody(), reason=reason, dry_run=dry_run, statuses=statuses, agent=agent, tags=tags,
        )  # fmt: skip
        plan, before = pruning.planned(holdfast.engine, ordered), pruning.able(holdfast.store).room()
        if not dry_run and not yes and not as_json and is_terminal(sys.stdin) and is_terminal(sys.stdout):
            _confirm(plan)
        total = len(plan.goes) + len(plan.ages)
        done = list(screen.followed(pruning.carried_out(holdfast.engine, ordered, plan), total, "pruning runs"))
        report = pruning.concluded(holdfast.engine, ordered, plan, done, before, compact=compact)
        screen.say(pruning_page(report), store=holdfast.store.url, prune=report)
    return Exit.FINE


def _policy(*, keep_last: int | None, max_age: str | None, details: str | None, keep_ids: str | None, failed: bool) -> Retention:
    for option, given in (("--max-age", max_age), ("--details", details), ("--keep-ids", keep_ids)):
        read_duration(given, option)
    try:
        return Retention(keep_last=keep_last, max_age=max_age, details=details, keep_ids=keep_ids, keep_failed=not failed)
    except Misuse:
        raise UsageError("say what is kept: --keep-last N, --max-age DURATION or --details DURATION") from None


def _confirm(plan: pruning.Plan) -> None:
    """Ask whoever sits there, who is shown what would go; a no is told."""
    if not typer.confirm(_question(plan)):
        raise Refusal("nothing was removed. --dry-run shows what would go")


def _question(plan: pruning.Plan) -> str:
    goes = f"remove {count(len(plan.goes), 'run')} of {plan.looked_at:,} for good{_ids(plan.goes)}" if plan.goes else ""
    ages = f"let old details of {count(len(plan.ages), 'run')} go{_ids(plan.ages)}" if plan.ages else ""
    asked = f"{' and '.join(part for part in (goes, ages) if part) or 'nothing to remove: go on'}?"
    return asked[0].upper() + asked[1:]


def _ids(heads: Sequence[Head]) -> str:
    """The runs by name, as many as a question can hold."""
    more = f" and {len(heads) - ASKED:,} more" if len(heads) > ASKED else ""
    return f" ({', '.join(head.run_id for head in heads[:ASKED])}{more})"


def pruning_page(report: pruning.Pruning) -> Page:
    """What a prune did, or would do."""
    did = "pruned" if report.done else "would be pruned; nothing is changed yet"
    page: Page = [Line(f"{count(report.looked_at, 'run')} looked at, {count(report.removed + report.lightened, 'run')} {did}", "bold")]
    page += [Facts(_facts(report))]
    named = sorted(report.runs, key=lambda one: one.what != "kept")[:SHOWN]
    if named:
        page += [Line(""), Table(COLUMNS, [_row(one) for one in named])]
    if len(report.runs) > len(named):
        page += [Line(f"and {count(len(report.runs) - len(named), 'more run')}; --json names all", "dim")]
    if report.done and report.free_bytes:
        page += [Line(""), Line("The free room is used before the store grows; --compact gives it back to the disk.", "dim")]
    return page


def _facts(report: pruning.Pruning) -> list[tuple[str, str | tuple[str, ...]]]:
    facts: list[tuple[str, str | tuple[str, ...]]] = [("policy", report.policy)]
    facts += [("removed" if report.done else "would go", count(report.removed, "run"))]
    facts += [("lightened" if report.done else "would get lighter", count(report.lightened, "run"))] if report.lightened else []
    facts += [("kept", f"{count(report.kept, 'run')} in spite of the policy")] if report.kept else []
    facts += [("data", f"{report.bytes:,} bytes")]
    facts += [("freed", f"{report.freed_bytes:,} bytes")] if report.done else []
    facts += [("artifacts", f"{report.artifacts:,}, {report.artifact_bytes:,} bytes")] if report.artifacts else []
    facts += [("ids forgotten", f"{report.ids_forgotten:,}")] if report.ids_forgotten else []
    return [*facts, ("store", f"{report.size_bytes:,} bytes, {report.free_bytes:,} of them free")]


def _row(one: pruning.Pruned) -> list[Cell]:
    style = "yellow" if one.what == "kept" else ""
    freed = f"{one.bytes:,}" if one.bytes else ""
    return [Cell(one.run_id), Cell(one.agent), Cell(one.status), Cell(one.what, style), Cell(freed), Cell(one.why)]
