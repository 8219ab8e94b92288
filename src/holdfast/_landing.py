"""Whether an effect that raised has happened: the words for a verdict, and the table of errors.

Only two things prove that nothing happened: the other side said so (HTTP 4xx, NotLanded), or it was never reached (connection refused,
name not found). Proof is looked for on the error itself and, below it, only through classes that say they failed to connect. A refused
connection anywhere else in the chain proves nothing: it may be the first attempt, and the error at hand the second, which was sent.
For the same reason the model SDKs' APIConnectionError and botocore's errors are not believed: they retry by themselves.
"""

from __future__ import annotations

import socket
import urllib.error
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

T = TypeVar("T")

CHAIN_LIMIT = 8
"""How many wrappers around an error are opened."""

_UNREACHED = (ConnectionRefusedError, socket.gaierror)
_CONNECT_WRAPPERS = frozenset(
    {
        ("httpx", "ConnectError"),
        ("httpx2", "ConnectError"),
        ("httpcore", "ConnectError"),
        ("httpcore2", "ConnectError"),
        ("requests", "ConnectionError"),
        ("urllib3", "MaxRetryError"),
        ("urllib3", "NewConnectionError"),
        ("urllib3", "NameResolutionError"),
        ("aiohttp", "ClientConnectorError"),
    }
)
_STATUSES = range(100, 600)
_CLIENT_ERRORS = range(400, 500)
# A gateway's words for "the caller went away", which says nothing about the request.
_CALLER_LEFT = frozenset({460, 499})


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


def landing(error: BaseException, raises: tuple[type[BaseException], ...]) -> Literal["answer", "no", "unknown"]:
    """What an effect's error says: its answer, that it did not happen, or nothing."""
    if isinstance(error, raises):
        return "answer"
    if isinstance(error, NotLanded) or _never_reached(error) or _refused(http_status(error)):
        return "no"
    return "unknown"


def http_status(error: BaseException) -> int | None:
    """The HTTP status that an error of a client library carries, or None."""
    response = attribute(error, "response")
    if isinstance(response, Mapping):
        response = response.get("ResponseMetadata")
        return _status(response.get("HTTPStatusCode")) if isinstance(response, Mapping) else None
    found = (attribute(holder, name) for holder in (error, response) for name in ("status_code", "status"))
    return next((status for status in map(_status, found) if status is not None), None)


def is_of(error: BaseException, known: frozenset[tuple[str, str]]) -> bool:
    """Whether the error's class, or one it derives from, is in the table of (top package, class name)."""
    return any((cls.__module__.partition(".")[0], cls.__name__) in known for cls in type(error).__mro__)


def attribute(holder: object, name: str) -> Any:
    """An attribute of somebody else's object; None where it is missing or cannot be read."""
    with suppress(Exception):
        return getattr(holder, name, None)
    return None


def _refused(status: int | None) -> bool:
    return status in _CLIENT_ERRORS and status not in _CALLER_LEFT


def _never_reached(error: BaseException | None) -> bool:
    for _ in range(CHAIN_LIMIT):
        if isinstance(error, _UNREACHED):
            return True
        if error is None:
            return False
        error = _below(error)
    return False


def _below(error: BaseException) -> BaseException | None:
    """What a class that failed to connect says was the reason; None for every other class."""
    if type(error) is urllib.error.URLError:
        return _an_error(error.reason)
    if is_of(error, _CONNECT_WRAPPERS):
        return error.__cause__ or _an_error(attribute(error, "reason")) or _an_error(error.args[0] if error.args else None)
    if type(error) is OSError and str(error) == "All connection attempts failed":
        return _only_unreached(error.__cause__)
    return None


def _only_unreached(error: BaseException | None) -> BaseException | None:
    """Of several addresses that were tried, all must have been out of reach."""
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0] if all(isinstance(one, _UNREACHED) for one in error.exceptions) else None
    return error


def _an_error(found: object) -> BaseException | None:
    return found if isinstance(found, BaseException) else None


def _status(found: object) -> int | None:
    return found if isinstance(found, int) and not isinstance(found, bool) and found in _STATUSES else None
