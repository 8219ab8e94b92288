"""Taking a run from one store to another: `move` hands it over, `copy` leaves it where it is or makes one file of it."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from holdfast import Holdfast
from holdfast.cli.exits import Exit
from holdfast.cli.location import opened
from holdfast.cli.options import ByOption, JsonOption, ReasonOption, RunArgument, StoreOption, UsageError, examples
from holdfast.cli.page import Commands, Facts, Line, Page
from holdfast.cli.screen import Screen
from holdfast.cli.wording import count
from holdfast.moving.copying import FINAL, Copying, is_archive
from holdfast.moving.moving import Moving
from holdfast.stores.planning import open_planned

MOVE_EXAMPLES = examples(
    "holdfast move order-47 --to postgresql://user@host/agents", "holdfast move order-47 --to other.db --dry-run",
    "holdfast move order-47 --back",
)  # fmt: skip
COPY_EXAMPLES = examples(
    "holdfast copy order-47 --to backup.holdfast", "holdfast copy backup.holdfast --to other.db", "holdfast copy backup.holdfast --dry-run",
    "holdfast copy order-47 --to other.db --id order-47b",
)  # fmt: skip

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only check, and show what would be done.")]


def move(
    run: RunArgument,
    *,
    to: Annotated[str | None, typer.Option("--to", metavar="URL", help="The store that it goes to; made where there is none.")] = None,
    back: Annotated[bool, typer.Option("--back", help="Take back a move that was interrupted.")] = False,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Hand a run over to another store; it is closed here.

    It goes with its child runs, its artifacts and what was said to it, and goes on there where it stopped. Interrupted, give the same
    command again: it goes on. As long as the run is not handed over, --back lets it stay.
    """
    if back == (to is not None):
        raise UsageError("say one of --to URL and --back")
    if back and dry_run:
        raise typer.BadParameter("it goes with --to", param_hint="--dry-run")
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        holdfast.watch = screen.followed  # type: ignore[method-assign]
        found = holdfast.move(run, to=to, back=back, dry_run=dry_run, by=by, reason=reason)
        screen.say(moving_page(found), store=holdfast.store.url, move=found)
    return Exit.FINE


def copy(
    what: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, or an archive: a file.holdfast.", show_default=False)],
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL|FILE", help="A store, or a file.holdfast; of an archive, without it: this store.")
    ] = None,
    new_id: Annotated[str | None, typer.Option("--id", metavar="NEW", help="The id of an unfinished one; without it, RUN.f1 etc.")] = None,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Copy a run to another store or into one file, or read such a file.

    A run that has ended comes in as it is. Any other one comes in as a fork, which knows what its source did and does none of it again
    unasked.
    """
    if to is None and not is_archive(what):
        raise UsageError("say --to URL, or --to FILE.holdfast")
    screen = Screen(store, as_json)
    with _reading(to, dry_run=dry_run) if to is not None and is_archive(what) else opened(store) as holdfast:
        holdfast.watch = screen.followed  # type: ignore[method-assign]
        found = holdfast.copy(what, to=None if is_archive(what) else to, new_id=new_id, dry_run=dry_run, by=by, reason=reason)
        screen.say(copying_page(found), store=holdfast.store.url, copy=found)
    return Exit.FINE


def _reading(to: str, *, dry_run: bool) -> Holdfast:
    """The store that an archive is read into."""
    return Holdfast(open_planned(to) if dry_run else to)


def moving_page(found: Moving) -> Page:
    """What a move did, or would do."""
    run, children = found.run_id, len(found.runs) - 1
    family = f", with {count(children, 'child run')}" if children else ""
    if found.back:
        return [Line(f"the move of {run} to {found.to} is taken back: it is {found.status} here, as before")]
    if not found.done and found.status == "moved":
        head = f"{run} is in {found.to}{family}: it was moved before, and nothing would be changed"
    elif not found.done:
        head = f"{run} would be moved to {found.to}{family}; nothing is changed yet"
    elif found.existed:
        head = f"{run} is in {found.to}{family}: it was moved before"
    else:
        head = f"{run} is in {found.to} now{family}, and closed here"
    command = f"holdfast show {run} --store {shlex.quote(found.to)}"
    letters = [("letters", f"{found.letters:,}, which go along")] if found.letters else []
    return [Line(head, "bold"), Facts([*_sizes(found), *letters]), *([Commands([command])] if found.done else [])]


def copying_page(found: Copying) -> Page:
    """What a copy did, or would do."""
    would, there = "" if found.done or found.existed else "would be ", " already" if found.existed else ""
    if is_archive(found.to):
        head = f"{found.run_id} {would or 'is '}copied to {found.to}"
    elif found.status in FINAL:
        head = f"{found.run_id} {would or 'is '}copied to {found.to}{there}, as it is: {found.status}"
    else:
        name = f" as {found.new_id}" if found.new_id else ""
        head = f"{found.run_id} {would or 'is '}copied to {found.to}{there}{name}, a fork of it that goes on from step {found.at}"
    facts: list[tuple[str, str | tuple[str, ...]]] = [*_sizes(found), *([("digest", found.digest)] if found.digest else [])]
    goes_on = found.done and not is_archive(found.to) and found.status not in FINAL
    command = f"holdfast resume {found.new_id} --here APP.py --store {shlex.quote(found.to)}"
    return [Line(head, "bold"), Facts(facts), *([Commands([command])] if goes_on else [])]


def _sizes(found: Moving | Copying) -> list[tuple[str, str | tuple[str, ...]]]:
    kept = [("artifacts", f"{found.artifacts:,}, {found.artifact_bytes:,} bytes")] if found.artifacts else []
    return [("from", found.source), ("records", f"{found.records:,}"), *kept]
