"""The command `doctor`: examines a store and says in plain words what a crash could cost there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from enum import IntEnum
from typing import Annotated

import typer

from holdfast._clock import SystemClock
from holdfast.cli.document import error_document
from holdfast.cli.location import meant, refuse_missing
from holdfast.cli.options import JsonOption, StoreOption, UsageError, examples
from holdfast.cli.page import Cell, Column, Line, Page, Table
from holdfast.cli.screen import Screen, complain
from holdfast.cli.wording import count
from holdfast.errors import StoreError, StoreFull
from holdfast.operating.doctor import diagnosed, unopened, worst
from holdfast.store import Finding, Grade, Topic
from holdfast.stores.opening import open_store, place_of, without_password
from holdfast.stores.planning import open_planned


class Health(IntEnum):
    """How an examination ended: the exit codes of this command."""

    WELL = 0
    TO_MEND = 1
    CLOSED = 2


CODES = "\b\nExit codes:\n  0  all is well\n  1  something is to be mended\n  2  the store cannot be opened"
EPILOG = f"{CODES}\n\n{examples('holdfast doctor', 'holdfast doctor postgresql://ann@db.example/bank', 'holdfast doctor runs.db --json')}"
TITLES: dict[Topic, str] = {
    "versions": "Versions", "permissions": "Permissions", "durability": "Durability", "clock": "Clock", "room": "Room", "speed": "Speed",
    "runs": "Runs", "crash": "What a crash could cost here",
}  # fmt: skip
CRASH: Topic = "crash"
STYLES: dict[Grade, str] = {"ok": "green", "warn": "bold yellow", "bad": "bold red"}
COLUMNS = (Column("mark"), Column("what"), Column("found"), Column("meaning", least=20, below=True), Column("advice", least=20, below=True))
INDENT = 6
GRADE, VALUE = 4, 29
"""Columns in which grades, and most values, have room."""


def doctor(
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="The store; else that of --store.", show_default=False)] = None,
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Examine a store: what it rests on, and what a crash could cost.

    Versions, permissions, settings, file system, clock, room and speed, and runs that were left behind. No run is touched, and nothing
    stays of what is written to measure. Of a path at which there is no store yet, what one would rest on there is told.
    """
    if url is not None and store is not None:
        raise UsageError("name the store once: holdfast doctor URL")
    named, because = meant(url if url is not None else store)
    screen = Screen(None, as_json)
    try:
        if url is None:
            refuse_missing(named, because)
        found, where = _examined(named)
    except StoreError as error:
        return _closed(error, url or store, as_json=as_json)
    grade = worst(found)
    screen.say(doctor_page(where, found), store=where, grade=grade, findings=found)
    return Health.WELL if grade == "ok" else Health.TO_MEND


def _examined(named: str) -> tuple[list[Finding], str]:
    """The findings, and the URL; of a full disk on which the store cannot be opened, what can be said of that."""
    try:
        with closing(open_planned(named) if place_of(named) is not None else open_store(named)) as opened:
            return diagnosed(opened, SystemClock()), opened.url
    except StoreFull as error:
        if place_of(error.store) is None:
            raise
        return unopened(error, SystemClock()), error.store


def _closed(error: StoreError, named: str | None, *, as_json: bool) -> Health:
    sys.stdout.write(f"{error_document(error, str(error))}\n" if as_json else "")
    if not as_json:
        complain(str(error), shlex.quote(without_password(named)) if named else "")
    return Health.CLOSED


def doctor_page(where: str, findings: Sequence[Finding]) -> Page:
    """The findings by topic, what must be seen to in colour, and at the end what a crash could cost."""
    page: Page = [_headline(findings), Line(where, "dim")]
    for topic, title in TITLES.items():
        rows = [_row(one, _width(findings, topic)) for one in findings if one.topic == topic]
        page += [Line(""), Line(title, "bold"), Table(COLUMNS, rows, indent=INDENT, named=False)] if rows else []
    return page


def _width(findings: Sequence[Finding], topic: Topic) -> int:
    """Columns for what was looked at: the same for all topics but the last, whose words are longer."""
    return max(len(one.what) for one in findings if (one.topic == CRASH) == (topic == CRASH))


def _headline(findings: Sequence[Finding]) -> Line:
    wrong = [one for one in findings if one.grade != "ok" and one.topic != CRASH]
    match worst(findings):
        case "ok":
            return Line("All is well.", "bold green")
        case "warn":
            return Line(f"{count(len(wrong), 'thing')} to mend.", "bold yellow")
        case "bad":
            return Line(f"{count(len(wrong), 'thing')} to mend; as it is, a crash can cost more than it should.", "bold red")


def _row(one: Finding, wide: int) -> list[Cell]:
    style = STYLES[one.grade]
    value = Cell(f"{one.value:<{VALUE}}", style if one.grade != "ok" else "")
    advice = Cell(f"-> {one.advice}" if one.advice else "", "cyan")
    return [Cell(f"{one.grade:<{GRADE}}", style), Cell(f"{one.what:<{wide}}"), value, Cell(one.meaning, "dim"), advice]
