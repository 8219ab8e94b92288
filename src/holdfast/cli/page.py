"""A page for a person, as data: lines, facts, tables and commands, and how it reads where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from holdfast.cli.wording import clean

INDENT = "  "

PADDED = 60
"""Columns are aligned up to this width; a longer text pushes only what stands beside it in its own row."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text; `style` is a colour where there are colours."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels with values; a value of several lines is a tuple."""

    facts: Sequence[tuple[str, str | tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. With `least` it gives way, down to so many characters, when there is little room; earlier ones give way last.

    Others are never cut: they hold what is to be copied. `below` ones stand under their row, wrapped, where there is no room beside;
    there a `named` one has its name before it, where what it holds would not tell.
    """

    name: str
    least: int = 0
    below: bool = False
    right: bool = False
    named: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; what stands below a row is set in by `indent`, and by `named` the columns show their names."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    indent: int = 4
    named: bool = True


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands to be copied: never broken over lines."""

    commands: Sequence[str]


Block: TypeAlias = Line | Facts | Table | Commands
Page: TypeAlias = list[Block]


def plain(page: Page) -> Iterator[str]:
    """The page as lines for a pipe or a file: aligned, uncut, without colours."""
    for block in page:
        match block:
            case Line():
                yield clean(block.text)
            case Facts():
                yield from _facts(block)
            case Table():
                yield from _table(block)
            case Commands():
                yield from (INDENT + clean(command) for command in block.commands)
            case _:
                assert_never(block)


def fact_lines(value: str | tuple[str, ...]) -> list[str]:
    """The lines of a fact's value, made harmless."""
    return [clean(line) for line in ((value,) if isinstance(value, str) else value)]


def _facts(block: Facts) -> Iterator[str]:
    width = max((len(label) for label, _ in block.facts), default=0)
    for label, value in block.facts:
        for index, line in enumerate(fact_lines(value)):
            yield f"{INDENT}{'' if index else label:<{width}}  {line}".rstrip()


def _table(block: Table) -> Iterator[str]:
    rows = [[clean(cell.text) for cell in row] for row in block.rows]
    if block.named:
        rows.insert(0, [column.name.upper() for column in block.columns])
    widths = [max((len(row[index]) for row in rows if len(row[index]) <= PADDED), default=0) for index in range(len(block.columns))]
    for row in rows:
        cells = (
            text.rjust(width) if column.right else text.ljust(width) for column, text, width in zip(block.columns, row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()
