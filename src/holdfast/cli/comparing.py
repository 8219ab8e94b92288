"""The command that compares: two checkpoints of one run, or of two."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.differences import difference_page
from holdfast.cli.exits import Exit
from holdfast.cli.location import opened
from holdfast.cli.options import JsonOption, StoreOption, examples
from holdfast.cli.screen import Screen

EXAMPLES = examples("holdfast diff order-47@11 order-47@12", "holdfast diff run-7@5 run-8@5", "holdfast diff order-47 order-48 --json")


def diff(
    first: Annotated[str, typer.Argument(metavar="RUN[@STEP]", help="A run after a step, or as it stands now.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="RUN[@STEP]", help="What it is compared with.", show_default=False)],
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """What an agent knew at one step and not at another.

    The call and its arguments, the results of all steps by then, the state and what was spent; of two runs, also the step at which they
    part. With --json the changes are a JSON patch (RFC 6902) as well.
    """
    with opened(store) as holdfast:
        found = holdfast.diff(first, second)
        parts = {"left": found.left, "right": found.right, "parting": found.parting, "changes": found.changes, "patch": found.patch}
        Screen(store, as_json).say(difference_page(found), store=holdfast.store.url, **parts)
    return Exit.FINE
