"""Pages on a terminal: colours, tables that fit the width, and a bar for long work."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO, TypeVar, assert_never

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.cli.page import INDENT, Cell, Column, Commands, Facts, Line, Page, Table, fact_lines
from holdfast.cli.wording import clean

T = TypeVar("T")

ROOMY = 140
"""From this width on, columns that are there only when there is room are shown."""
GUTTER = 2
"""Blanks between columns."""


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
                console.print(_table(block, room=console.width))
            case Commands():
                for command in block.commands:
                    console.print(Text(INDENT + clean(command), style="cyan"), soft_wrap=True)
            case _:
                assert_never(block)


def followed(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with a bar on stderr that goes away at the end."""
    columns = (TextColumn(f"{what} "), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        yield from progress.track(items, total=total)


def widths(columns: Sequence[Column], wanted: Sequence[int], room: int) -> list[int]:
    """What each column gets: all it wants, or, where it can give way, what the others leave; the earlier ones come first."""
    least = [min(column.least, want) if column.least else want for column, want in zip(columns, wanted, strict=True)]
    spare = max(0, room - sum(least) - GUTTER * (len(columns) - 1))
    given = []
    for low, want in zip(least, wanted, strict=True):
        more = min(spare, want - low)
        spare -= more
        given.append(low + more)
    return given


def _facts(block: Facts) -> RichTable:
    grid = RichTable.grid(padding=(0, GUTTER))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for label, value in block.facts:
        grid.add_row(Text(label), Text("\n".join(fact_lines(value))))
    return grid


def _table(block: Table, *, room: int) -> RichTable:
    roomy = room >= ROOMY
    kept = [index for index, column in enumerate(block.columns) if roomy or not column.roomy]
    columns = [block.columns[index] for index in kept]
    rows = [[_text(row[index], roomy=roomy) for index in kept] for row in block.rows]
    wanted = [max(len(column.name), *(_width(row[index]) for row in rows)) for index, column in enumerate(columns)]
    table = RichTable(box=None, pad_edge=False, padding=(0, GUTTER, 0, 0), header_style="bold")
    for column, width in zip(columns, widths(columns, wanted, room), strict=True):
        table.add_column(Text(column.name.upper()), width=width, no_wrap=True, justify="right" if column.right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _text(cell: Cell, *, roomy: bool) -> Text:
    first, *more = (cell.text,) if roomy or not cell.tight else cell.tight
    text = Text(clean(first), style=cell.style)
    for line in more:
        text.append(f"\n{clean(line)}", style="dim")
    return text


def _width(text: Text) -> int:
    return max(cell_len(line) for line in text.plain.split("\n"))
