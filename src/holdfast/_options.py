"""Options that do not exist are refused, with the one that was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from holdfast.errors import Misuse

T = TypeVar("T")

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def refuse_unknown(given: Mapping[str, object], known: Sequence[str], what: str, hint: str = "", beside: Sequence[str] = ()) -> None:
    """An option that does not exist must not be swallowed: it was meant to do something. `beside` are parameters that there are too."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, [*known, *beside], 2)
            meant = f" Did you mean {' or '.join(f'{one}=' for one in close)}?" if close else f" It has: {', '.join([*known, *beside])}."
            raise Misuse(f"{what} has no option {name!r}; nothing was done.{meant}{' ' + hint if hint else ''}")


def refusing_unknown(kind: type[T]) -> type[T]:
    """A class whose constructor refuses unknown options like everything else does, instead of with a bare TypeError."""
    made: Any = kind
    init = made.__init__
    known = [each.name for each in inspect.signature(kind).parameters.values() if each.kind in _BY_NAME]

    @functools.wraps(init)
    def checked(self: T, *args: Any, **options: Any) -> None:
        refuse_unknown(options, known, f"hf.{kind.__name__}")
        init(self, *args, **options)

    made.__init__ = checked
    return kind


AWAY = ("moving", "moved")
"""Statuses of runs that are on their way to another store, or are there."""

STATUSES = ("queued", "running", "waiting", "paused", "blocked", "failed", "done", "cancelled", *AWAY, "stopped")
"""Where a run may stand; stopped ones are recorded as running, and their owner is dead."""


def checked_statuses(given: str | Sequence[str]) -> tuple[str, ...]:
    """Statuses that there are."""
    statuses = (given,) if isinstance(given, str) else tuple(given)
    for status in statuses:
        if status not in STATUSES:
            raise Misuse(f"status={status!r:.80} is not one; there are {', '.join(STATUSES)}")
    return statuses
