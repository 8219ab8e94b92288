"""Whether an effect that raised has happened: the words for a verdict, and who is asked in which order.

First the effect's own declarations (`raises=`, then `errors=`), then the table of client libraries. What nobody knows is doubt.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from holdfast._clients import did_not_happen
from holdfast.errors import Misuse

T = TypeVar("T")

Word: TypeAlias = Literal["not_landed", "unknown", "answer"]
"""What an error says: it did not happen, it is not known, or this is what the other side answered."""
Judge: TypeAlias = Word | Callable[[Any], Word | None]
"""A word, or a function of the error that says one; None leaves it to the next rule."""
Errors: TypeAlias = Mapping[type[Exception] | tuple[type[Exception], ...], Judge]
"""What `errors=` of an effect takes."""

_WORDS = get_args(Word)
_EXAMPLE = "errors={Busy: 'not_landed', (Declined, Expired): 'answer', ApiError: lambda error: 'unknown' if error.code > 9 else None}"

log = logging.getLogger("holdfast")


class NotLanded(Exception):
    """The effect did not happen: raise it from an effect, or return it from a probe."""


@dataclass(frozen=True, slots=True)
class Landed(Generic[T]):
    """The effect happened, and this is its result."""

    result: T


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe cannot tell; a person is asked."""

    reason: str = ""


Verdict: TypeAlias = Landed[T] | NotLanded | Unknown


class Rule(NamedTuple):
    """One entry of `errors=`."""

    classes: tuple[type[Exception], ...]
    says: Judge


Rules: TypeAlias = tuple[Rule, ...]


def landing(error: BaseException, raises: tuple[type[BaseException], ...], rules: Rules = ()) -> Word:
    """What an effect's error says: its answer, that it did not happen, or nothing."""
    if isinstance(error, raises):
        return "answer"
    for rule in rules:
        word = _word(rule, error) if isinstance(error, rule.classes) else None
        if word is not None:
            return word
    return "not_landed" if isinstance(error, NotLanded) or did_not_happen(error) else "unknown"


def rules_of(errors: object) -> Rules:
    """What `errors=` declares, checked; rules that were checked before stay as they are."""
    if isinstance(errors, tuple) and all(isinstance(rule, Rule) for rule in errors):
        return errors
    if not isinstance(errors, Mapping):
        raise Misuse(f"errors={errors!r}: it must be a dict from exception classes to what they say, such as {_EXAMPLE}")
    return tuple(Rule(_classes(key), _says(key, judge)) for key, judge in errors.items())


def _classes(key: object) -> tuple[type[Exception], ...]:
    classes = key if isinstance(key, tuple) else (key,)
    if not classes or not all(isinstance(cls, type) and issubclass(cls, Exception) for cls in classes):
        raise Misuse(f"errors= has the key {key!r}: it must be a class of exceptions, or a tuple of them, such as {_EXAMPLE}")
    return classes


def _says(key: object, judge: Any) -> Judge:
    if judge in _WORDS:
        return judge  # type: ignore[no-any-return]
    if not callable(judge) or isinstance(judge, type) or inspect.iscoroutinefunction(judge):
        words = ", ".join(map(repr, _WORDS))
        raise Misuse(f"errors= has {judge!r} for {key!r}: it must be {words}, or a `def` function of the error, such as {_EXAMPLE}")
    return judge  # type: ignore[no-any-return]


def _word(rule: Rule, error: BaseException) -> Word | None:
    """What a rule says; a function that fails has said that it does not know."""
    if not callable(rule.says):
        return rule.says
    try:
        word = rule.says(error)
    except Exception:
        log.exception("a function in errors= failed on %s: taken as 'unknown'", type(error).__name__)
        return "unknown"
    if word is None or word in _WORDS:
        return word
    log.error("a function in errors= said %r of %s: taken as 'unknown'", word, type(error).__name__)
    return "unknown"
