"""Options that commands share, and the words that must be understood before anything is opened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast._duration import seconds
from holdfast.budget import LIMITS, Budget
from holdfast.errors import Misuse
from holdfast.operating.onward import STOPPED

STATUSES = ("queued", "running", "waiting", "paused", "blocked", "failed", "done", "cancelled", "moving", "moved", STOPPED)

UsageError: Any = typer.BadParameter.__base__
"""For a command that was not understood as a whole; typer does not export it."""

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", show_default=False,
        help="A URL, a path ending in .db, or a folder. Without it: HOLDFAST_STORE, else .holdfast/holdfast.db in the project's root.",
    ),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for errors too.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; recorded with the run.", show_default=False)]
ByOption = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who says so; without it, your user name.", show_default=False)]


def examples(*lines: str) -> str:
    """The end of a help text; the mark keeps its lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def read_statuses(given: Sequence[str]) -> tuple[str, ...]:
    """Statuses that there are."""
    if unknown := [status for status in given if status not in STATUSES]:
        raise typer.BadParameter(f"{unknown[0]!r} is not a status; there are {', '.join(STATUSES)}", param_hint="--status")
    return tuple(given)


def read_tags(given: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE, each."""
    pairs = [tag.partition("=") for tag in given]
    if bad := [name for name, separator, _ in pairs if not separator or not name]:
        raise typer.BadParameter(f"{bad[0]!r} is not KEY=VALUE, such as customer=7", param_hint="--tag")
    return {name: value for name, _, value in pairs}


def read_duration(given: str | None, option: str) -> float | None:
    """The seconds of a duration."""
    try:
        return None if given is None else seconds(given, option)
    except Misuse:
        raise typer.BadParameter(f"{given!r} is not a duration, such as 30s, 10m, 2h or 3d", param_hint=option) from None


def read_budget(given: Sequence[str]) -> Budget | None:
    """NAME=AMOUNT, several divided by commas or given one by one; the limits of a budget."""
    pairs = [part.partition("=") for each in given for part in each.split(",")]
    if not pairs:
        return None
    limits: dict[str, Any] = {}
    try:
        for name, _, amount in pairs:
            limits[name.strip()] = _amount(name.strip(), amount.strip())
        return Budget(**limits)
    except (Misuse, ValueError) as error:
        advice = f"write usd=50, or steps=200,time=2h; there are {', '.join(LIMITS)}"
        raise typer.BadParameter(f"{error}; {advice}", param_hint="--budget") from None


def _amount(name: str, amount: str) -> float | int | str:
    if name not in LIMITS or not amount:
        raise ValueError(f"{name}={amount} is no limit")
    if name == "time":
        return float(amount) if amount.replace(".", "", 1).isdigit() else amount
    try:
        return float(amount) if name == "usd" else int(amount)
    except ValueError:
        raise ValueError(f"{amount!r} is no {'number' if name == 'usd' else 'whole number'}") from None


def read_question(given: str) -> tuple[str, str]:
    """RUN/QUESTION, as `inbox` shows it: a run id holds no slash."""
    run_id, slash, ask_id = given.partition("/")
    if not (run_id and slash and ask_id):
        raise typer.BadParameter(f"{given!r} is not RUN/QUESTION, such as order-47/approve:7; `holdfast inbox` shows them", param_hint="ID")
    return run_id, ask_id


def read_json(given: str, option: str) -> object:
    """A result as JSON; the advice is for those whose shell ate the quotes."""
    try:
        return json.loads(given, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        advice = f"a text needs its own quotes inside the shell's: {option} '\"r-9\"'; an object: {option} '{{\"id\": 9}}'"
        raise typer.BadParameter(f"{given[:60]!r} is not JSON ({error}); {advice}", param_hint=option) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"it has no {constant}")
