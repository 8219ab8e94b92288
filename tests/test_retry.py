"""Which errors are tried again, and after how long."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import urllib.error
from datetime import UTC, datetime
from email.message import Message
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Misuse
from holdfast.retry import RETRY_AFTER_LIMIT_S, Retry


def foreign(package: str, *names: str, **attributes: object) -> Exception:
    """An error of a library that need not be installed; the last name is its class, those before are its bases."""
    cls: type[Exception] = Exception
    for name in names:
        cls = type(name, (cls,), {"__module__": f"{package}._errors"})
    error = cls("x")
    vars(error).update(attributes)
    return error


def answered(status: int, **headers: str) -> Exception:
    return foreign("httpx", "HTTPStatusError", response=SimpleNamespace(status_code=status, headers=headers))


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def aws(status: int, **headers: str) -> Exception:
    return foreign("botocore", "ClientError", response={"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}})


TRANSIENT = [
    *(ConnectionResetError(), ConnectionRefusedError(), BrokenPipeError(), TimeoutError(), asyncio.TimeoutError(), socket.timeout()),  # noqa: UP041
    *(socket.gaierror(-2, "x"), OSError(errno.EHOSTUNREACH, "x"), http.client.RemoteDisconnected("x"), http.client.IncompleteRead(b"")),
    *(answered(status) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)),
    *(aws(503), urllib.error.HTTPError("u", 503, "m", Message(), None), urllib.error.URLError(ConnectionResetError())),
    *(
        foreign("httpx", "TimeoutException", "ReadTimeout"),
        foreign("httpx", "NetworkError", "ConnectError"),
        foreign("requests", "Timeout"),
    ),
    *(foreign("aiohttp", "ClientConnectionError", "ServerDisconnectedError"), foreign("aiohttp", "ClientResponseError", status=503)),
    *(foreign("psycopg", "OperationalError"), foreign("psycopg", "OperationalError", "DeadlockDetected")),
    *(foreign("botocore", "EndpointConnectionError"), foreign("openai", "APIConnectionError", "APITimeoutError")),
    *(foreign("anthropic", "APIStatusError", "RateLimitError", status_code=429), caused(RuntimeError(), caused(OSError(), TimeoutError()))),
]
LASTING = [
    *(
        TypeError(),
        ValueError(),
        AssertionError(),
        KeyError(),
        AttributeError(),
        ZeroDivisionError(),
        RuntimeError(),
        OSError(),
        Exception(),
    ),
    *(PermissionError(), FileNotFoundError(), caused(ValueError(), TimeoutError()), caused(Exception(), TypeError())),
    *(answered(status) for status in (200, 301, 400, 401, 403, 404, 422)),
    *(aws(404), foreign("mine", "ConnectError"), foreign("mine", "Odd", status_code="503"), foreign("mine", "Odd", status=True)),
    *(KeyboardInterrupt(), asyncio.CancelledError(), caused(answered(404), TimeoutError())),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_what_may_go_away_by_itself_is_tried_again(error: BaseException) -> None:
    assert Retry.transient(error)
    assert Retry().delay_s(error, 1, 0.0) is not None


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_what_stays_is_not_tried_again(error: BaseException) -> None:
    assert not Retry.transient(error)
    assert Retry().delay_s(error, 1, 0.0) is None


def test_a_circle_of_causes_ends() -> None:
    one, two = RuntimeError(), RuntimeError()
    one.__cause__, two.__cause__ = two, one
    assert not Retry.transient(one)


def test_the_wait_doubles_up_to_the_longest_and_stops_after_the_attempts() -> None:
    retry = Retry(attempts=5, base="1s", max="3s")
    assert [retry.delay_s(TimeoutError(), attempt, 0.0) for attempt in range(1, 7)] == [0.5, 1.0, 1.5, 1.5, None, None]
    assert Retry(attempts=1).delay_s(TimeoutError(), 1, 0.0) is None
    assert Retry(attempts=1000, factor=1e300).delay_s(TimeoutError(), 999, 0.0) == 30.0


@given(st.integers(1, 4), st.floats(0, 1, exclude_max=True))
def test_the_dice_spread_the_wait_over_its_upper_half(attempt: int, dice: float) -> None:
    whole = 0.5 * 2 ** (attempt - 1)
    found = Retry().delay_s(TimeoutError(), attempt, dice)
    assert found is not None
    assert whole / 2 <= found <= whole


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"RETRY-AFTER-MS": "1500"}, 1.5),
        ({"Retry-After": "Thu, 01 Jan 2026 12:00:09 GMT"}, 9.0),
        ({"Retry-After": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.25),
        ({"Retry-After": "999999"}, RETRY_AFTER_LIMIT_S),
        ({"Retry-After": "nan"}, 0.25),
        ({"Retry-After": "-5"}, 0.25),
        ({"Retry-After": "soon"}, 0.25),
        ({}, 0.25),
    ],
)
def test_retry_after_is_honoured_within_a_limit(headers: dict[str, str], expected_s: float) -> None:
    assert Retry().delay_s(answered(429, **headers), 1, 0.0, NOON) == expected_s
    assert Retry().delay_s(aws(503, **headers), 1, 0.0, NOON) == expected_s


def test_a_date_needs_to_be_told_the_time() -> None:
    assert Retry().delay_s(answered(429, **{"Retry-After": "Thu, 01 Jan 2026 12:00:09 GMT"}), 1, 0.0) == 0.25


def test_retry_after_is_found_on_the_error_itself_too() -> None:
    headers = Message()
    headers["Retry-After"] = "4"
    assert Retry().delay_s(urllib.error.HTTPError("u", 503, "m", headers, None), 1, 0.0) == 4.0


def test_on_takes_a_class_several_or_a_function() -> None:
    for on in (KeyError, (KeyError, TypeError), lambda error: isinstance(error, KeyError)):
        assert Retry(on=on).delay_s(KeyError(), 1, 0.0) == 0.25
        assert Retry(on=on).delay_s(TimeoutError(), 1, 0.0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": True},
        {"attempts": 2.5},
        {"attempts": 10**9},
        {"base": "soon"},
        {"max": -1},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": "2"},
        {"on": int},
        {"on": (KeyError, 5)},
        {"on": None},
    ],
    ids=repr,
)
def test_a_wrong_policy_is_misuse_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(wrong))):
        Retry(**wrong)


def test_the_policy_is_a_value() -> None:
    assert Retry() == Retry(attempts=5, base="0.5s", factor=2, max="60s", on=Retry.transient)
    assert Retry.transient is Retry().on
