"""Facts: small values that nobody changes, equal when they hold the same.

To the type checker they are frozen dataclasses. At run time they are plain ones with shared methods: making 50 frozen classes took a
tenth of the whole import, and a frozen instance takes three times as long to make.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def fact(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class of facts from its annotations."""
    return dataclasses.dataclass(slots=True, kw_only=kw_only, eq=False, repr=False)


@fact()
class Fact:
    """What all facts can do."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _held(self) == _held(other)

    def __hash__(self) -> int:
        return hash((type(self), _held(self)))

    def __repr__(self) -> str:
        held = ", ".join(f"{name}={getattr(self, name)!r}" for name in _fields(self))
        return f"{type(self).__qualname__}({held})"

    def but(self, **changes: object) -> Self:
        """The same with other values in some fields."""
        return type(self)(**{**{name: getattr(self, name) for name in _fields(self)}, **changes})


def _fields(one: Any) -> tuple[str, ...]:
    return _fields_of(one.__class__)


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _held(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, name) for name in _fields(one))


Json = dict[str, Any]

COLUMNS = frozenset({"step_id", "value", "args"})
"""Fields that are columns of a row instead of part of its body."""


@fact(kw_only=True)
class Record(Fact):
    """What all facts have: the step they speak of, if any, and the data they carry."""

    kind: ClassVar[str] = ""
    step_id: str = ""
    value: bytes | None = None
    args: bytes | None = None
