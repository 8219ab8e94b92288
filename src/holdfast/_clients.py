"""What the errors of client libraries say: whether they prove that nothing happened, and the HTTP status that they carry.

Libraries are known by the names of their packages and classes; none is imported. Three things are proof: the other side was never reached
(connection refused, name not found), it refused (HTTP 4xx), or it took everything back (a database's roll-back). A refused connection
elsewhere in the chain of causes proves nothing, so only classes that say they failed to connect are opened.

An error tells of one request, and many clients send several: they follow redirects, and they try again. If the first was sent and its
reply lost, that the last was refused proves nothing. So each proof is dropped where there is a trace of an earlier request that may have
happened: in what the error counts, in the history of its response, or in the client's own frames of the traceback.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, TypeAlias

Classes: TypeAlias = frozenset[tuple[str, str]]
"""Classes of foreign libraries: the top package and the name."""

CHAIN_LIMIT = 8
"""How many wrappers around an error are opened."""

_UNREACHED = (ConnectionRefusedError, socket.gaierror)
_CONNECT_WRAPPERS: Classes = frozenset(
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
        ("openai", "APIConnectionError"),
        ("anthropic", "APIConnectionError"),
        ("botocore", "EndpointConnectionError"),
    }
)
_BEFORE_SENDING: Classes = frozenset(
    ("botocore", name) for name in ("NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ParamValidationError")
)
_STATUSES = range(100, 600)
_CLIENT_ERRORS = range(400, 500)
# A gateway's words for "the caller went away", which says nothing about the request.
_CALLER_LEFT = frozenset({460, 499})
# Other redirects may mean "done, the result is over there".
_ASK_ELSEWHERE = frozenset({307, 308})
# What aiohttp makes of a reply that is not HTTP: an error with the status 400, which nobody sent.
_GARBLED: Classes = frozenset({("aiohttp", "HttpProcessingError")})

_MODEL_SDK: Classes = frozenset({("openai", "APIError"), ("anthropic", "APIError")})
_RETRY_COUNT = "x-stainless-retry-count"
# After a lost connection aiohttp sends these a second time, without a word.
_SENT_TWICE_BY_AIOHTTP = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
_RETRYING_PACKAGES = frozenset({"tenacity", "stamina", "backoff"})

# States and classes of states with which PostgreSQL says that it kept nothing. Not 40003 and 08007, which say that it is not known.
_ROLLED_BACK = frozenset({"40001", "40002", "40P01", "55P03"})
_ROLLED_BACK_CLASSES = frozenset({"21", "22", "23", "3D", "3F", "42", "44"})


def did_not_happen(error: BaseException) -> bool:
    """Whether the error proves that nothing happened."""
    if _never_reached(error):
        return True
    proof = _refused(http_status(error)) or is_of(error, _BEFORE_SENDING) or _rolled_back(error)
    return proof and not _sent_before(error)


def http_status(error: BaseException) -> int | None:
    """The HTTP status that an error of a client library carries, or None."""
    response = attribute(error, "response")
    if isinstance(response, Mapping):
        return _status(_metadata(response).get("HTTPStatusCode"))
    if error.__cause__ is not None and is_of(error.__cause__, _GARBLED):
        return None
    return _status_of(error) or _status_of(response)


def is_of(error: BaseException, known: Classes) -> bool:
    """Whether the error's class, or one it derives from, is in the table of (top package, class name)."""
    return any((cls.__module__.partition(".")[0], cls.__name__) in known for cls in type(error).__mro__)


def attribute(holder: object, *names: str) -> Any:
    """An attribute of somebody else's object, or of that one's; None where it is missing or cannot be read."""
    for name in names:
        try:
            holder = getattr(holder, name, None)
        except Exception:  # noqa: BLE001 (a property may raise anything)
            return None
    return holder


def _refused(status: int | None) -> bool:
    return status in _CLIENT_ERRORS and status not in _CALLER_LEFT


def _never_reached(error: BaseException | None) -> bool:
    for _ in range(CHAIN_LIMIT):
        if error is None or _sent_before(error):
            return False
        if isinstance(error, _UNREACHED):
            return True
        error = _below(error)
    return False


def _below(error: BaseException) -> BaseException | None:
    """What a class that failed to connect says was the reason; None for every other class."""
    if (type(error).__module__, type(error).__name__) == ("urllib.error", "URLError"):
        return _an_error(attribute(error, "reason"))
    if is_of(error, _CONNECT_WRAPPERS):
        told = (error.__cause__, attribute(error, "reason"), _argument(error), _named(error, "error"))
        return next(filter(None, map(_an_error, told)), None)
    if type(error) is OSError and str(error) == "All connection attempts failed":
        return _only_unreached(error.__cause__)
    return None


def _only_unreached(error: BaseException | None) -> BaseException | None:
    """Of several addresses that were tried, all must have been out of reach."""
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0] if all(isinstance(one, _UNREACHED) for one in error.exceptions) else None
    return error


def _rolled_back(error: BaseException) -> bool:
    """Whether PostgreSQL had no statement yet, or undid them."""
    if not is_of(error, frozenset({("psycopg", "Error")})):
        return False
    state = attribute(error, "sqlstate")
    if isinstance(state, str):
        return state in _ROLLED_BACK or state[:2] in _ROLLED_BACK_CLASSES
    return attribute(error, "pgconn") is not None or any(where == ("psycopg", "connect") for where, _ in _frames(error))


def _sent_before(error: BaseException) -> bool:
    """Whether an earlier request of the same call may have been sent and may have happened."""
    return _counted(error) or any(map(_may_have_happened, _history(error))) or any(_betrays(*frame) for frame in _frames(error))


def _counted(error: BaseException) -> bool:
    """Clients that try again by themselves, unless the error itself says that this was the first request."""
    if is_of(error, _MODEL_SDK):
        return bool(_in(attribute(error, "request", "headers"), _RETRY_COUNT) != "0")
    if is_of(error, frozenset({("botocore", "ClientError")})):
        return bool(_metadata(attribute(error, "response")).get("RetryAttempts") != 0)
    if is_of(error, frozenset({("botocore", "EndpointConnectionError")})):
        return not any(where == ("botocore", "_send_request") for where, _ in _frames(error))
    if is_of(error, frozenset({("aiohttp", "ClientResponseError")})):
        return attribute(error, "request_info", "method") in _SENT_TWICE_BY_AIOHTTP
    return False


def _history(error: BaseException) -> Iterator[object]:
    """The requests before this one that the error or its response remembers: redirects, and the retries of urllib3."""
    response = attribute(error, "response")
    yield from _listed(attribute(error, "history"))
    yield from _listed(attribute(response, "history"))
    yield from _listed(attribute(response, "raw", "retries", "history"))


def _may_have_happened(earlier: object) -> bool:
    """Whether a request of which this is the response, or urllib3's entry, may have changed something."""
    status = _status_of(earlier)
    if status is not None:
        return not _refused(status) and status not in _ASK_ELSEWHERE
    return not _never_reached(_an_error(attribute(earlier, "error")))


def _betrays(where: tuple[str, str], frame: FrameType) -> bool:
    """Whether a frame of the traceback shows that its client, or a library for retries, has sent something before."""
    if where[0] in _RETRYING_PACKAGES:
        return True
    sign = _SIGNS.get(where)
    return sign is not None and sign(frame.f_locals)


def _with_history(values: Mapping[str, Any]) -> bool:
    return any(map(_may_have_happened, _listed(values.get("history"))))


def _twice_by_aiohttp(values: Mapping[str, Any]) -> bool:
    spent = values.get("retry_persistent_connection") is False and values.get("method") in _SENT_TWICE_BY_AIOHTTP
    return spent or _with_history(values)


_SIGNS: dict[tuple[str, str], Callable[[Mapping[str, Any]], bool]] = {
    ("urllib", "http_error_302"): lambda _: True,
    ("requests", "resolve_redirects"): lambda _: True,
    ("httpx", "_send_handling_redirects"): _with_history,
    ("httpx2", "_send_handling_redirects"): _with_history,
    ("urllib3", "increment"): _with_history,
    ("aiohttp", "_request"): _twice_by_aiohttp,
    ("botocore", "_send_request"): lambda values: values.get("attempts") != 1,
}


def _frames(error: BaseException) -> Iterator[tuple[tuple[str, str], FrameType]]:
    """Each frame that the error came through, with its top package and function."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        yield (package, frame.f_code.co_name), frame


def _status_of(holder: object) -> int | None:
    return _status(attribute(holder, "status_code")) or _status(attribute(holder, "status"))


def _status(found: object) -> int | None:
    return found if isinstance(found, int) and not isinstance(found, bool) and found in _STATUSES else None


def _metadata(response: object) -> Mapping[Any, Any]:
    """What botocore says about a response."""
    found = _in(response, "ResponseMetadata")
    return found if isinstance(found, Mapping) else {}


def _in(holder: object, name: str) -> Any:
    with suppress(Exception):
        return holder.get(name) if isinstance(holder, Mapping) else None
    return None


def _listed(found: object) -> list[object] | tuple[object, ...]:
    return found if isinstance(found, list | tuple) else ()


def _an_error(found: object) -> BaseException | None:
    return found if isinstance(found, BaseException) else None


def _argument(error: BaseException) -> object:
    return error.args[0] if error.args else None


def _named(error: BaseException, name: str) -> object:
    """A named argument that botocore keeps."""
    return _in(attribute(error, "kwargs"), name)
