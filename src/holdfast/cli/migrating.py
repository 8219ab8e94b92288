"""The command `migrate`: brings the tables of a store up to date, and says what it did."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.location import ARGUMENT, existing
from holdfast.cli.options import JsonOption, StoreOption, UsageError, examples
from holdfast.cli.page import Line
from holdfast.cli.screen import Screen
from holdfast.stores.migrating import migrated

EPILOG = examples("holdfast migrate postgresql://ann@db/agents --dry-run", "holdfast migrate postgresql://ann@db/agents")


def migrate(
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="The store; as --store.", show_default=False)] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which files would be applied.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Make the tables of a store, or bring them up to date.

    Each file is applied once, under a lock, all of them or none. Opening a store does the same: this is for those who deploy with a user
    of the database that may change tables, and run with one that may not.
    """
    if url is not None and store is not None:
        raise UsageError("say the store once: URL or --store URL")
    found = migrated(existing(url, ARGUMENT) if url is not None else existing(store), dry_run=dry_run)
    Screen(url or store, as_json).say([Line(found.said())], **found._asdict())
    return Exit.FINE
