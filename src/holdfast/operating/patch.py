"""Two JSON documents compared: the changes that lead from one to the other, for people and as a JSON patch (RFC 6902); pure.

The changes are in the order in which they are applied: the place of each is its place in the document that those before it have made. A
list is aligned with difflib, so that one that has grown shows what was added and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
Kind: TypeAlias = Literal["add", "remove", "replace"]

MAX_ALIGNED = 1_000_000
"""Pairs of items that are aligned at the most; lists that differ in more of them are compared item by item."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place at which two documents differ; `before` of what was added and `after` of what was removed are None."""

    kind: Kind
    path: Path
    before: Any = None
    after: Any = None

    def pointer(self) -> str:
        """The place as a JSON pointer (RFC 6901)."""
        return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in self.path)

    def operation(self) -> dict[str, Any]:
        """The change as an operation of a JSON patch."""
        found: dict[str, Any] = {"op": self.kind, "path": self.pointer()}
        return found if self.kind == "remove" else {**found, "value": self.after}


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are one; true, 1 and 1.0 are three."""
    return _text(left) == _text(right)


def compared(left: Any, right: Any, path: Path = ()) -> Iterator[Change]:
    """The changes that lead from `left` to `right`."""
    if same(left, right):
        return
    if isinstance(left, dict) and isinstance(right, dict):
        yield from _objects(left, right, path)
    elif isinstance(left, list) and isinstance(right, list):
        yield from _lists(left, right, path)
    else:
        yield Change("replace", path, left, right)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _objects(left: dict[str, Any], right: dict[str, Any], path: Path) -> Iterator[Change]:
    for name, value in left.items():
        if name in right:
            yield from compared(value, right[name], (*path, name))
        else:
            yield Change("remove", (*path, name), value)
    for name, value in right.items():
        if name not in left:
            yield Change("add", (*path, name), None, value)


def _lists(left: list[Any], right: list[Any], path: Path) -> Iterator[Change]:
    for left_part, right_part, at in _aligned(left, right):
        both = min(len(left_part), len(right_part))
        for index in range(both):
            yield from compared(left_part[index], right_part[index], (*path, at + index))
        for gone in left_part[both:]:
            yield Change("remove", (*path, at + both), gone)
        for index, new in enumerate(right_part[both:], at + both):
            yield Change("add", (*path, index), None, new)


def _aligned(left: list[Any], right: list[Any]) -> Iterator[tuple[list[Any], list[Any], int]]:
    """The parts of two lists that differ, and where each begins in the second."""
    ours, theirs = [_text(item) for item in left], [_text(item) for item in right]
    start = _common(ours, theirs)
    end = _common(ours[start:][::-1], theirs[start:][::-1])
    ours, theirs = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
    if len(ours) * len(theirs) > MAX_ALIGNED:
        yield left[start : start + len(ours)], right[start : start + len(theirs)], start
        return
    for tag, begin, stop, new_begin, new_stop in SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes():
        if tag != "equal":
            yield left[start + begin : start + stop], right[start + new_begin : start + new_stop], start + new_begin


def _common(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How many items two lists begin with together."""
    return next((index for index, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), min(len(ours), len(theirs)))
