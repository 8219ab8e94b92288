"""The waits of `def` agents: the same steps, which block."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar, overload

from holdfast._duration import Duration
from holdfast.verbs.waits import MISSING, Who, asking, receiving, sent, sleeping

T = TypeVar("T")


@overload
def ask(
    question: str, kind: type[T], /, *, details: object = ..., timeout: Duration | None = ..., default: T = ..., who: Who = ...
) -> T: ...
@overload
def ask(question: str, /, *, details: object = ..., timeout: Duration | None = ..., default: bool = ..., who: Who = ...) -> bool: ...
@overload
def ask(
    question: str, kind: Any, /, *, details: object = ..., timeout: Duration | None = ..., default: Any = ..., who: Who = ...
) -> Any: ...
def ask(
    question: str, kind: Any = bool, /, *, details: object = None, timeout: Duration | None = None, default: Any = MISSING, who: Who = ()
) -> Any:
    """A person's answer, of the type `kind`, waited for as long as it takes, or until `timeout`; then `default` holds."""
    return asking(question, kind, is_async=False, details=details, timeout=timeout, default=default, who=who)


def sleep(until: Duration | datetime, /) -> None:
    """Wait for a time, or until one, also across restarts; the run holds nothing meanwhile."""
    sleeping(until, is_async=False)


@overload
def receive(name: str, kind: type[T], /, *, timeout: Duration | None = ..., default: T = ...) -> T: ...
@overload
def receive(name: str, kind: Any, /, *, timeout: Duration | None = ..., default: Any = ...) -> Any: ...
def receive(name: str, kind: Any, /, *, timeout: Duration | None = None, default: Any = MISSING) -> Any:
    """The oldest message of that name that nobody took, sent from outside or by another run; waited for like an answer."""
    return receiving(name, kind, is_async=False, timeout=timeout, default=default)


def send(run_id: str, name: str, value: object = None, /) -> None:
    """Leave a message for another run, once, whatever crashes."""
    sent(run_id, name, value, is_async=False)
