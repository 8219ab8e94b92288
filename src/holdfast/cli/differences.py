"""What differs between two checkpoints, as a page: each place with what was taken away and what was added."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import ndiff
from typing import Any

from holdfast.cli.page import INDENT, Line, Page
from holdfast.cli.wording import count
from holdfast.operating.compare import Difference, Parting
from holdfast.operating.patch import Change, Path

SHORT = 100
"""Characters of a value that stands on one line."""
MOST_LINES = 40
"""Lines of one value that are shown; --json has all of it."""
MARKS = {"-": "red", "+": "green", " ": "dim"}
GAP = Line("")


def difference_page(found: Difference) -> Page:
    """Where two runs part, and then every change under the place at which it is."""
    names = f"{found.left.name} -> {found.right.name}"
    if not found.changes:
        return [Line(f"{names}: no difference", "bold")]
    shown, section = worth_showing(found.changes), None
    page: Page = [Line(f"{names}: {count(len(shown), 'difference')}", "bold")]
    page += [GAP, *_parting(found, found.parting)] if found.parting is not None else []
    for change in shown:
        page += [GAP] if change.path[:1] != section else []
        page += [Line(place(change.path), "bold"), *_marked(change)]
        section = change.path[:1]
    return page


def worth_showing(changes: Sequence[Change]) -> list[Change]:
    """All changes but one kind: where another function is called, that the arguments of the first are gone says nothing."""
    another = any(change.path == ("step", "call") for change in changes)
    return [change for change in changes if not (another and change.kind == "remove" and change.path[:2] == ("step", "arguments"))]


def place(path: Path) -> str:
    """A place as one would write it: results 12: result.items[3]."""
    if not path:
        return "everything"
    head, *rest = path
    if head == "results" and rest:
        return _joined(f"step {rest[0]}", rest[1:])
    if head == "state" and rest:
        branch, _, number = str(rest[0]).partition("/state.")
        return _joined(f"state {number}{f' of {branch}' if branch else ''}", rest[1:])
    return _joined("this call" if head == "step" else "the agent's call" if head == "agent" else str(head), rest)


def _joined(head: str, rest: Sequence[str | int]) -> str:
    tail = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest).lstrip(".")
    return f"{head}: {tail}" if tail else head


def _parting(found: Difference, parting: Parting) -> Iterator[Line]:
    yield Line(f"They part at step {parting.step_id}, in its {parting.what}:", "bold yellow")
    for side, value in ((found.left, parting.before), (found.right, parting.after)):
        shown = "no such step" if value is None and parting.what == "call" else _short(value)
        yield Line(f"{INDENT}{side.name}: {shown}")


def _short(value: Any) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= SHORT else f"{line[: SHORT - 3]}..."


def _marked(change: Change) -> Iterator[Line]:
    """The lines of a change, each behind its mark."""
    lines = list(_lines(change))
    for line in lines[:MOST_LINES]:
        yield Line(f"{INDENT}{line}", MARKS[line[0]])
    if len(lines) > MOST_LINES:
        yield Line(f"{INDENT}... {count(len(lines) - MOST_LINES, 'more line')}; --json shows all", "dim")


def _lines(change: Change) -> Iterator[str]:
    before, after = change.before, change.after
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        yield from (line for line in ndiff(before.split("\n"), after.split("\n")) if not line.startswith("?"))
        return
    if change.kind != "add":
        yield from (f"- {line}" for line in _told(change.path, before))
    if change.kind != "remove":
        yield from (f"+ {line}" for line in _told(change.path, after))


def _told(path: Path, value: Any) -> list[str]:
    """A value as lines: a step that came with its name, a text of several lines as it is, all else as JSON."""
    match path, value:
        case ("results", _), {"call": str(call), "open": True}:
            return [f"{call}: not finished"]
        case ("results", _), {"call": str(call), **came} if len(came) == 1:
            ((name, outcome),) = came.items()
            first, *rest = _told((), outcome)
            return [f"{call}: {'' if name == 'result' else f'{name} '}{first}", *rest]
        case _, str() if "\n" in value:
            return value.split("\n")
    line = json.dumps(value, ensure_ascii=False)
    return [line] if len(line) <= SHORT else json.dumps(value, ensure_ascii=False, indent=2).split("\n")
