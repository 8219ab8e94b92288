"""Pages on a terminal: colours, tables that fit the width, and a bar for long work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, TypeVar, assert_never

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.cli.page import INDENT, Cell, Column, Commands, Facts, Line, Page, Table, fact_lines
from holdfast.cli.wording import clean

T = TypeVar("T")

ROOMY = 120
"""From this width on, columns that are there only when there is room are shown."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream, on something that can do more than print lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def draw(page: Page, stream: TextIO) -> None:
    """Print the page. All text is `Text`, so that no markup of anybody's is obeyed."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for block in page:
        match block:
            case Line():
                console.print(Text(clean(block.text), style=block.style))
            case Facts():
                console.print(Padding(_facts(block), (0, 0, 0, len(INDENT))))
            case Table():
                console.print(_table(block, roomy=console.width >= ROOMY))
            case Commands():
                for command in block.commands:
                    console.print(Text(INDENT + clean(command), style="cyan"), soft_wrap=True)
            case _:
                assert_never(block)


def followed(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with a bar on stderr that goes away at the end."""
    columns = (TextColumn(f"{what}  "), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        yield from progress.track(items, total=total)


def _facts(block: Facts) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for label, value in block.facts:
        grid.add_row(Text(label), Text("\n".join(fact_lines(value))))
    return grid


def _table(block: Table, *, roomy: bool) -> RichTable:
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    kept = [index for index, column in enumerate(block.columns) if roomy or not column.roomy]
    for index in kept:
        table.add_column(Text(block.columns[index].name.upper()), **_shape(block.columns[index]))
    for row in block.rows:
        table.add_row(*(_text(row[index], roomy=roomy) for index in kept))
    return table


def _shape(column: Column) -> dict[str, Any]:
    return {"no_wrap": True, "overflow": "ellipsis", "ratio": None, "min_width": 12 if column.wide else None, "justify": "right" if column.right else "left"}


def _text(cell: Cell, *, roomy: bool) -> Text:
    text = Text(clean(cell.text), style=cell.style)
    if cell.below and not roomy:
        text.append(f"\n{clean(cell.below)}", style="dim")
    return text
