"""Pages on a terminal: colours, tables that fit the width, and a bar for long work."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO, TypeVar, assert_never

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.cli.page import INDENT, Column, Commands, Facts, Line, Page, Table, fact_lines
from holdfast.cli.sentences import advises, wrapped
from holdfast.cli.wording import clean

T = TypeVar("T")

LEAST_ROOM = 20
"""Columns into which a text is wrapped at the least."""
GUTTER = 2
"""Blanks between columns."""


def draw(page: Page, stream: TextIO) -> None:
    """Print the page. All text is `Text`, so that no markup of anybody's is obeyed."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for block in page:
        match block:
            case Line():
                _line(block, console)
            case Facts():
                console.print(Padding(_facts(block), (0, 0, 0, len(INDENT)), expand=False))
            case Table():
                for line in _table(block, console):
                    console.print(line, soft_wrap=True)
            case Commands():
                for command in block.commands:
                    console.print(Text(INDENT + clean(command), style="cyan"), soft_wrap=True)
            case _:
                assert_never(block)


def _line(block: Line, console: Console) -> None:
    """A line, over several where it is long; of a command in it, none is broken."""
    text, holds = clean(block.text), advises(block.text)
    for part in wrapped(text, console.width) if holds else [text]:
        console.print(Text(part, style=block.style), soft_wrap=holds)


def followed(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with a bar on stderr that goes away at the end."""
    columns = (TextColumn(f"{what} "), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        yield from progress.track(items, total=total)


def beside(columns: Sequence[Column], wanted: Sequence[int], room: int) -> list[int]:
    """Which columns stand beside each other: all, or those that do not go below, or at the worst those that never give way."""
    everything = range(len(columns))
    upper = [index for index in everything if not columns[index].below]
    if sum(wanted) + GUTTER * (len(columns) - 1) <= room:
        return [*everything]
    least = sum(min(columns[index].least or wanted[index], wanted[index]) + GUTTER for index in upper) - GUTTER
    return upper if least <= room else [index for index in upper if not columns[index].least]


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
    grid.add_column(overflow="fold")  # a digest or a key that is too wide is broken, never cut
    for label, value in block.facts:
        grid.add_row(Text(label), Text("\n".join(fact_lines(value))))
    return grid


def _table(block: Table, console: Console) -> Iterator[Text]:
    """The table, line by line; a column that must not be cut may be wider than the terminal, which then breaks the line itself."""
    names = [Text(column.name.upper(), style="bold") for column in block.columns]
    rows = [[Text(clean(cell.text), style=cell.style) for cell in row] for row in block.rows]
    if block.named:
        rows.insert(0, names)
    wanted = [max(row[index].cell_len for row in rows) for index in range(len(names))]
    kept = beside(block.columns, wanted, console.width)
    columns = [block.columns[index] for index in kept]
    given = widths(columns, [wanted[index] for index in kept], console.width)
    for row in rows:
        cells = [_fitted(row[index], width, column) for index, column, width in zip(kept, columns, given, strict=True)]
        line = _joined(cells if row[kept[-1]].plain else cells[:-1])
        yield from _with_below(line, _under(block.columns, row, kept, head=row is names), console, block.indent)


def _under(columns: Sequence[Column], row: Sequence[Text], kept: Sequence[int], *, head: bool) -> list[Text]:
    """What stands below a row; of the names, the last one, unless each stands with what it names."""
    found = [(column, text) for index, (column, text) in enumerate(zip(columns, row, strict=True)) if index not in kept and text.plain]
    if head:
        return [text for column, text in found if not column.named][-1:]
    return [Text(f"{column.name}: ") + text if column.named else text for column, text in found]


def _with_below(line: Text, under: Sequence[Text], console: Console, indent: int) -> Iterator[Text]:
    """A row and what belongs below it: beside it where all of that fits, otherwise wrapped and set in."""
    room = console.width - line.cell_len - GUTTER
    if sum(text.cell_len + GUTTER for text in under) - GUTTER <= room:
        yield _rstripped(_joined([line, *under]))
        return
    yield _rstripped(line)
    for text in under:
        for part in text.wrap(console, max(LEAST_ROOM, console.width - indent)):
            yield _rstripped(Text(" " * indent) + part)


def _fitted(text: Text, width: int, column: Column) -> Text:
    fitted = text.copy()
    fitted.truncate(width, overflow="ellipsis")
    blanks = " " * (width - fitted.cell_len)
    return Text(blanks) + fitted if column.right else fitted + Text(blanks)


def _joined(parts: Sequence[Text]) -> Text:
    return Text(" " * GUTTER).join(parts)


def _rstripped(text: Text) -> Text:
    text.rstrip()
    return text
