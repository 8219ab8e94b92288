"""When to try again, and after how long: pure policy, an attempt in, a delay out."""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from holdfast._clients import CHAIN_LIMIT, attribute, http_status, is_of
from holdfast._duration import Duration, seconds
from holdfast._options import refusing_unknown
from holdfast.errors import CircuitOpen, Misuse

RETRY_AFTER_LIMIT_S = 3_600.0
"""The longest wait that the other side may ask for."""
ATTEMPTS_LIMIT = 1_000
"""More attempts than this are a loop, not a retry."""

_TRANSIENT_STATUS = frozenset({408, 409, 425, 429, *range(500, 600)})
_TRANSIENT_ERRNO = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH})
# A mistake in the code or in the data stays one, whatever caused it.
_MISTAKES = (TypeError, ValueError, AssertionError, AttributeError, NameError, LookupError, ArithmeticError, NotImplementedError)
_TRANSIENT_CLASSES = frozenset(
    {
        *((package, name) for package in ("httpx", "httpx2", "httpcore", "httpcore2") for name in ("TimeoutException", "NetworkError")),
        *((package, "RemoteProtocolError") for package in ("httpx", "httpx2", "httpcore", "httpcore2")),
        *(("requests", name) for name in ("ConnectionError", "Timeout", "ChunkedEncodingError")),
        *(("urllib3", name) for name in ("TimeoutError", "ProtocolError", "NewConnectionError", "MaxRetryError")),
        *(("aiohttp", name) for name in ("ClientConnectionError", "ClientPayloadError", "ServerTimeoutError")),
        *(("botocore", name) for name in ("EndpointConnectionError", "ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError")),
        *((package, "APIConnectionError") for package in ("openai", "anthropic")),
        ("http", "IncompleteRead"),
        ("psycopg", "OperationalError"),
    }
)

On: TypeAlias = Callable[[BaseException], bool] | type[BaseException] | tuple[type[BaseException], ...]


def _transient(error: BaseException) -> bool:
    """Whether the error is likely to go away by itself: connection errors, time-outs, HTTP 408, 409, 425, 429 and 5xx."""
    if isinstance(error, CircuitOpen):
        return True
    found: BaseException | None = error
    for _ in range(CHAIN_LIMIT):
        if found is None or isinstance(found, _MISTAKES):
            return False
        status = http_status(found)
        if status is not None:
            return status in _TRANSIENT_STATUS
        if _is_of_the_network(found):
            return True
        found = found.__cause__ or _reason(found)
    return False


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a step is tried, how long it waits between, and after which errors: a predicate, a class or several.

    `within`: no attempt begins later than this after the first one began. `usd`: none begins once the failed ones have cost so much.
    """

    attempts: int = 5
    base: Duration = "0.5s"
    factor: float = 2
    max: Duration = "60s"
    on: On = _transient
    within: Duration | None = None
    usd: float | None = None

    transient = staticmethod(_transient)

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= ATTEMPTS_LIMIT:
            raise Misuse(f"attempts of Retry is {self.attempts!r}; it must be a whole number from 1 (no retry) to {ATTEMPTS_LIMIT}")
        if type(self.factor) not in (int, float) or not 1 <= self.factor < math.inf:
            raise Misuse(f"factor of Retry is {self.factor!r}; it must be a number from 1 on, such as 2")
        if not _usable(self.on):
            raise Misuse("on of Retry must be Retry.transient, a function of the error, an exception class, or a tuple of those classes")
        seconds(self.base, "base of Retry")
        seconds(self.max, "max of Retry")
        if self.within is not None:
            seconds(self.within, "within of Retry")
        if self.usd is not None and (type(self.usd) not in (int, float) or not 0 < self.usd < math.inf):
            raise Misuse(f"usd of Retry is {self.usd!r}; it must be an amount of US dollars above 0, such as 0.5")

    def delay_s(
        self, error: BaseException, failed: int, dice: float, now: datetime | None = None, *, since_s: float = 0.0, usd: float = 0.0
    ) -> float | None:
        """Seconds to wait after the attempt that was the `failed`-th (from 1) to fail; None means stop.

        `dice` in [0, 1) spreads the waits, so that a crowd does not come back at once; `now` is needed to read a Retry-After with a date.
        `since_s` is how long ago the first attempt began, `usd` what the attempts have cost.
        """
        if failed >= self.attempts or not self.applies(error):
            return None
        delay_s = max(self.backoff_s(failed, dice), retry_after_s(error, now))
        return None if self.stops(failed, since_s=since_s + delay_s, usd=usd) else delay_s

    def stops(self, failed: int, *, since_s: float, usd: float) -> bool:
        """Whether no attempt may begin any more after `failed` ones, `since_s` after the first began."""
        late = self.within is not None and since_s > seconds(self.within, "within of Retry")
        return failed >= self.attempts or late or (self.usd is not None and usd >= self.usd)

    def backoff_s(self, failed: int, dice: float) -> float:
        """Seconds to wait after the `failed`-th failure, whatever went wrong."""
        return self._grown_s(failed) * (0.5 + dice / 2)

    def applies(self, error: BaseException) -> bool:
        """Whether this is an error after which to try again; that a breaker was open always is."""
        if isinstance(error, CircuitOpen):
            return True
        if isinstance(self.on, type | tuple):
            return isinstance(error, self.on)
        return bool(self.on(error))

    def _grown_s(self, attempt: int) -> float:
        try:
            grown = seconds(self.base, "base of Retry") * float(self.factor) ** (attempt - 1)
        except OverflowError:
            grown = math.inf
        return min(grown, seconds(self.max, "max of Retry"))


def _usable(on: object) -> bool:
    if isinstance(on, type | tuple):
        classes = on if isinstance(on, tuple) else (on,)
        return all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes)
    return callable(on)


def _is_of_the_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return is_of(error, _TRANSIENT_CLASSES)


def _reason(error: BaseException) -> BaseException | None:
    """Where urllib keeps the error below."""
    reason = attribute(error, "reason")
    return reason if isinstance(reason, BaseException) else None


def retry_after_s(error: BaseException, now: datetime | None) -> float:
    """What the other side asks to wait, bounded; 0 where it asks for nothing. A breaker asks for its rest."""
    if isinstance(error, CircuitOpen):
        return error.rest_s
    found: BaseException | None = error
    for _ in range(CHAIN_LIMIT):
        if found is None:
            return 0.0
        headers = _headers(found)
        if headers:
            return min(max(_asked_s(headers, now), 0.0), RETRY_AFTER_LIMIT_S)
        found = found.__cause__
    return 0.0


def _headers(error: BaseException) -> dict[str, str]:
    response = attribute(error, "response")
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
    else:
        headers = attribute(response, "headers") or attribute(error, "headers")
    with suppress(Exception):
        return {str(name).lower(): str(value) for name, value in headers.items()} if headers else {}
    return {}


def _asked_s(headers: dict[str, str], now: datetime | None) -> float:
    if "retry-after-ms" in headers:
        return _number(headers["retry-after-ms"]) / 1000
    asked = headers.get("retry-after", "")
    return _number(asked) or _until_s(asked, now)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _until_s(text: str, now: datetime | None) -> float:
    if now is None:
        return 0.0
    from email.utils import parsedate_to_datetime  # rarely needed, and slow to load

    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return (aware - (now if now.tzinfo else now.replace(tzinfo=UTC))).total_seconds()
