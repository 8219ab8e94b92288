"""What an effect's error says about whether it happened; in doubt, nothing. The real libraries are in `test_clients`."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import logging
import socket
import urllib.error
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from agents_for_tests.clients import installed
from holdfast._landing import Landed, NotLanded, Unknown, Verdict, landing, rules_of
from holdfast.errors import Misuse


def foreign(package: str, *names: str, cause: BaseException | None = None, **attributes: object) -> Exception:
    """An error of a library that need not be installed; the last name is its class, those before are its bases."""
    cls: type[Exception] = Exception
    for name in names:
        cls = type(name, (cls,), {"__module__": f"{package}._errors"})
    error = cls("x")
    error.__cause__ = cause
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def after(error: Exception, earlier: BaseException) -> Exception:
    """An error raised while an earlier one was being handled."""
    error.__context__ = earlier
    return error


def answered(status: object) -> Exception:
    return foreign("httpx", "HTTPStatusError", response=SimpleNamespace(status_code=status))


def tried(*errors: Exception) -> OSError:
    """What anyio raises when no address of a host could be reached."""
    error = OSError("All connection attempts failed")
    error.__cause__ = ExceptionGroup("multiple connection attempts failed", errors)
    return error


def raised_in(module: str, function: str, error: Exception, **values: object) -> Exception:
    """The error after it came through a function of a foreign module that has these variables."""
    names: dict[str, Any] = {"__name__": module}
    exec(f"def {function}(error, {', '.join(values)}):\n    raise error", names)
    with pytest.raises(type(error)):
        names[function](error, **values)
    return error


MODEL_SDKS = {"openai": "OpenAIError", "anthropic": "AnthropicError"}
STATUS_ERRORS = {404: "NotFoundError", 409: "ConflictError", 429: "RateLimitError"}


def by_model_sdk(
    package: str, *names: str, retries: str | None = "0", status: int | None = None, cause: Exception | None = None
) -> Exception:
    """An error of a model SDK, which counts its retries in a header of the request."""
    request = httpx.Request("POST", "http://localhost", headers={} if retries is None else {"X-Stainless-Retry-Count": retries})
    answer = {} if status is None else {"status_code": status, "response": httpx.Response(status, request=request)}
    return foreign(package, MODEL_SDKS[package], "APIError", *names, cause=cause, request=request, **answer)


def unconnected(package: str, *, retries: str | None) -> Exception:
    connect = foreign("httpx2", "ConnectError", cause=foreign("httpcore2", "ConnectError", cause=REFUSED))
    return by_model_sdk(package, "APIConnectionError", retries=retries, cause=connect)


def by_botocore(status: int, retries: int | None = 0) -> Exception:
    told = {"HTTPStatusCode": status} if retries is None else {"HTTPStatusCode": status, "RetryAttempts": retries}
    return foreign("botocore", "ClientError", response={"Error": {}, "ResponseMetadata": told})


def endpoint() -> Exception:
    below = foreign("urllib3", "HTTPError", "NewConnectionError", cause=REFUSED)
    return foreign("botocore", "BotoCoreError", "ConnectionError", "EndpointConnectionError", kwargs={"endpoint_url": "x", "error": below})


REFUSED, NO_NAME = ConnectionRefusedError(111, "refused"), socket.gaierror(-2, "unknown name")
URLLIB3 = foreign("urllib3", "MaxRetryError", reason=foreign("urllib3", "HTTPError", "NewConnectionError", cause=REFUSED))

NOT_LANDED = [
    *(NotLanded(), NotLanded("closed today"), REFUSED, NO_NAME, urllib.error.URLError(REFUSED), urllib.error.URLError(NO_NAME)),
    foreign("httpx", "TransportError", "ConnectError", cause=foreign("httpcore", "ConnectError", cause=REFUSED)),
    foreign("httpx", "ConnectError", cause=foreign("httpcore", "ConnectError", cause=tried(REFUSED, REFUSED))),
    foreign("aiohttp", "ClientConnectorError", "ClientConnectorDNSError", cause=NO_NAME),
    foreign("requests", "ConnectionError", cause=URLLIB3),
    after(foreign("requests", "ConnectionError", args=(URLLIB3,)), URLLIB3),
    *(answered(status) for status in (400, 401, 403, 404, 408, 409, 422, 429)),
    foreign("aiohttp", "ClientResponseError", status=404),
    *(by_model_sdk(sdk, "APIStatusError", name, status=status) for sdk in MODEL_SDKS for status, name in STATUS_ERRORS.items()),
    *(unconnected(sdk, retries="0") for sdk in MODEL_SDKS),
    *(by_botocore(400), by_botocore(403), by_botocore(429)),
    raised_in("botocore.endpoint", "_send_request", endpoint(), attempts=1),
    foreign("botocore", "BotoCoreError", "ParamValidationError"),
    raised_in("botocore.endpoint", "_send_request", foreign("botocore", "BotoCoreError", "NoCredentialsError"), attempts=1),
]
IN_DOUBT = [
    *(TimeoutError(), ConnectionResetError(), BrokenPipeError(), asyncio.CancelledError(), KeyboardInterrupt(), ValueError(), OSError()),
    *(answered(status) for status in (200, 302, 500, 502, 503, 504, 499, 460, "404", True, None, 4040)),
    *(urllib.error.URLError(TimeoutError()), urllib.error.URLError("refused"), http.client.RemoteDisconnected("hung up")),
    after(TimeoutError(), REFUSED),
    after(foreign("httpx", "ReadTimeout", cause=foreign("httpcore", "ReadTimeout")), REFUSED),
    foreign("httpx", "ReadError", cause=REFUSED),
    foreign("httpx", "ConnectError"),
    foreign("httpx", "ConnectError", cause=ConnectionResetError()),
    foreign("httpx", "ConnectTimeout", cause=TimeoutError()),
    foreign("httpx", "ConnectError", cause=foreign("httpcore", "ConnectError", cause=tried(REFUSED, TimeoutError()))),
    foreign("mine", "ConnectError", cause=REFUSED),
    *(unconnected(sdk, retries=count) for sdk in MODEL_SDKS for count in ("1", "2", None)),
    *(by_model_sdk(sdk, "APIStatusError", "RateLimitError", status=429, retries=count) for sdk in MODEL_SDKS for count in ("2", None)),
    *(by_model_sdk(sdk, "APIStatusError", "InternalServerError", status=500) for sdk in MODEL_SDKS),
    *(by_model_sdk(sdk, "APIStatusError", status=200) for sdk in MODEL_SDKS),
    *(by_model_sdk(sdk, "APIConnectionError", "APITimeoutError", cause=foreign("httpx2", "ReadTimeout")) for sdk in MODEL_SDKS),
    *(by_botocore(500), by_botocore(400, 4), by_botocore(400, None), endpoint()),
    raised_in("botocore.endpoint", "_send_request", endpoint(), attempts=3),
    raised_in("botocore.endpoint", "_send_request", foreign("botocore", "BotoCoreError", "NoCredentialsError"), attempts=2),
    foreign("botocore", "BotoCoreError", "HTTPClientError", "ReadTimeoutError"),
    foreign("botocore", "BotoCoreError", "ConnectionError", "ConnectTimeoutError"),
    foreign("botocore", "BotoCoreError", "HTTPClientError", "ConnectionClosedError"),
    foreign("aiohttp", "ClientResponseError", status=400, cause=foreign("aiohttp", "HttpProcessingError", "BadHttpMessage")),
    raised_in("tenacity", "__call__", ConnectionRefusedError(111, "refused")),
    foreign("requests", "ConnectionError", cause=foreign("urllib3", "ProtocolError", cause=REFUSED)),
    foreign("mine", "BankError", cause=answered(404)),
    foreign("mine", "BankError", code=404),
    ExceptionGroup("parallel", [REFUSED]),
    RuntimeError(REFUSED),
]


@pytest.mark.parametrize("error", NOT_LANDED, ids=repr)
def test_what_was_refused_or_never_reached_did_not_happen(error: BaseException) -> None:
    assert landing(error, ()) == "not_landed"


@pytest.mark.parametrize("error", IN_DOUBT, ids=repr)
def test_everything_else_is_doubt(error: BaseException) -> None:
    assert landing(error, ()) == "unknown"


def test_an_error_that_the_code_lists_is_the_answer_whatever_else_it_says() -> None:
    class Declined(Exception):
        status_code = 402

    class Sooner(Declined): ...

    assert landing(Sooner(), (KeyError, Declined)) == "answer"
    assert landing(REFUSED, (OSError,)) == "answer"
    assert landing(Sooner(), (KeyError,)) == "not_landed"


def test_an_attribute_that_cannot_be_read_proves_nothing() -> None:
    class Odd(Exception):
        @property
        def status_code(self) -> int:
            raise RuntimeError("not yet")

        @property
        def response(self) -> object:
            raise RuntimeError("not yet")

    assert landing(Odd(), ()) == "unknown"


def test_a_circle_of_causes_ends() -> None:
    one = foreign("httpx", "ConnectError")
    one.__cause__ = foreign("httpcore", "ConnectError", cause=one)
    assert landing(one, ()) == "unknown"


def test_verdicts_are_values() -> None:
    def probe(seen: int | None) -> Verdict[int]:
        return Landed(seen) if seen else Unknown("the list is late")

    assert probe(5) == Landed(5)
    assert probe(None) == Unknown("the list is late")
    assert isinstance(NotLanded(), Exception)


REAL = {
    "openai": {
        "APIConnectionError": ["APIConnectionError", "APIError", "OpenAIError"],
        "APITimeoutError": ["APITimeoutError", "APIConnectionError", "APIError", "OpenAIError"],
        "RateLimitError": ["RateLimitError", "APIStatusError", "APIError", "OpenAIError"],
    },
    "anthropic": {
        "APIConnectionError": ["APIConnectionError", "APIError", "AnthropicError"],
        "APITimeoutError": ["APITimeoutError", "APIConnectionError", "APIError", "AnthropicError"],
        "RateLimitError": ["RateLimitError", "APIStatusError", "APIError", "AnthropicError"],
    },
    "botocore.exceptions": {
        "ClientError": ["ClientError"],
        "EndpointConnectionError": ["EndpointConnectionError", "ConnectionError", "BotoCoreError"],
        "ConnectionClosedError": ["ConnectionClosedError", "HTTPClientError", "BotoCoreError"],
        "ParamValidationError": ["ParamValidationError", "BotoCoreError"],
        "NoCredentialsError": ["NoCredentialsError", "BotoCoreError"],
    },
}


@pytest.mark.xdist_group("sdk")  # one process loads them
@pytest.mark.parametrize("module", [module for module in REAL if installed(module.partition(".")[0])])
def test_the_errors_built_here_have_the_classes_of_the_real_ones(module: str) -> None:
    real = importlib.import_module(module)
    for name, classes in REAL[module].items():
        mro = [cls for cls in getattr(real, name).__mro__ if cls.__module__.partition(".")[0] == module.partition(".")[0]]
        assert [cls.__name__ for cls in mro] == classes


class Busy(Exception):
    code = 7


class Closed(Busy): ...


def test_what_the_effect_declares_comes_before_the_table() -> None:
    rules = rules_of({ConnectionRefusedError: "unknown", (TimeoutError, Busy): "not_landed", KeyError: "answer"})
    assert landing(REFUSED, ()) == "not_landed"
    assert landing(REFUSED, (), rules) == "unknown"
    assert [landing(error, (), rules) for error in (TimeoutError(), Closed(), KeyError())] == ["not_landed", "not_landed", "answer"]
    assert [landing(error, (), rules) for error in (NO_NAME, ValueError())] == ["not_landed", "unknown"]


def test_what_is_in_raises_comes_before_what_is_in_errors() -> None:
    assert landing(Busy(), (Busy,), rules_of({Busy: "unknown"})) == "answer"


def test_the_first_rule_that_fits_counts() -> None:
    assert landing(Closed(), (), rules_of({Closed: "answer", Busy: "not_landed"})) == "answer"
    assert landing(Closed(), (), rules_of({Busy: "not_landed", Closed: "answer"})) == "not_landed"


def test_a_function_sees_the_error_and_may_leave_it_to_the_next() -> None:
    rules = rules_of({Busy: lambda error: "answer" if error.code == 8 else None, (Closed, OSError): lambda _: None, Closed: "not_landed"})
    assert landing(Closed(), (), rules) == "not_landed"
    assert landing(Busy(), (), rules) == "unknown"
    assert landing(REFUSED, (), rules) == "not_landed"
    special = Busy()
    special.code = 8
    assert landing(special, (), rules) == "answer"


@pytest.mark.parametrize("says", [lambda error: error.missing, lambda _: "maybe", lambda _: True])
def test_a_function_that_fails_or_talks_nonsense_does_not_know_and_is_reported(says: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "holdfast"):
        assert landing(REFUSED, (), rules_of({OSError: says})) == "unknown"
    assert "ConnectionRefusedError" in caplog.text


async def later(error: Exception) -> None: ...


@pytest.mark.parametrize(
    ("errors", "blamed"),
    [
        ([Busy], "must be a dict"),
        ("answer", "must be a dict"),
        (((Busy, "answer"),), "must be a dict"),
        ({"Busy": "answer"}, "the key 'Busy'"),
        ({(Busy, int): "answer"}, "the key"),
        ({(): "answer"}, r"the key \(\)"),
        ({KeyboardInterrupt: "answer"}, "the key"),
        ({Busy: "landed"}, "has 'landed'"),
        ({Busy: None}, "has None"),
        ({Busy: NotLanded}, "NotLanded"),
        ({Busy: later}, "`def` function"),
    ],
)
def test_wrong_rules_are_refused_with_an_example(errors: object, blamed: str) -> None:
    with pytest.raises(Misuse, match=blamed) as refused:
        rules_of(errors)
    assert "(Declined, Expired): 'answer'" in str(refused.value)


def test_rules_that_were_checked_stay_as_they_are() -> None:
    rules = rules_of({Busy: "answer"})
    assert rules_of(rules) is rules
    assert rules_of(()) == rules_of({}) == ()
