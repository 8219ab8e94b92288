"""What an effect's error says about whether it happened; in doubt, nothing."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from holdfast._landing import Landed, NotLanded, Unknown, Verdict, landing


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
    foreign("openai", "RateLimitError", status_code=429),
    foreign("botocore", "ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 403}}),
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
    foreign("openai", "APIConnectionError", cause=foreign("httpx", "ConnectError", cause=REFUSED)),
    foreign("requests", "ConnectionError", cause=foreign("urllib3", "ProtocolError", cause=REFUSED)),
    foreign("mine", "BankError", cause=answered(404)),
    foreign("mine", "BankError", code=404),
    ExceptionGroup("parallel", [REFUSED]),
    RuntimeError(REFUSED),
]


@pytest.mark.parametrize("error", NOT_LANDED, ids=repr)
def test_what_was_refused_or_never_reached_did_not_happen(error: BaseException) -> None:
    assert landing(error, ()) == "no"


@pytest.mark.parametrize("error", IN_DOUBT, ids=repr)
def test_everything_else_is_doubt(error: BaseException) -> None:
    assert landing(error, ()) == "unknown"


def test_an_error_that_the_code_lists_is_the_answer_whatever_else_it_says() -> None:
    class Declined(Exception):
        status_code = 402

    class Sooner(Declined): ...

    assert landing(Sooner(), (KeyError, Declined)) == "answer"
    assert landing(REFUSED, (OSError,)) == "answer"
    assert landing(Sooner(), (KeyError,)) == "no"


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


class Answers(http.server.BaseHTTPRequestHandler):
    """The path is the status; 0 hangs up without a word."""

    def do_GET(self) -> None:
        status = int(self.path[1:])
        if status:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def unused() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def by_urllib(host: str, path: str, timeout: float = 5) -> None:
    urllib.request.urlopen(f"http://{host}{path}", timeout=timeout).close()


def by_http_client(host: str, path: str, timeout: float = 5) -> None:
    connection = http.client.HTTPConnection(host, timeout=timeout)
    try:
        connection.request("GET", path)
        connection.getresponse()
    finally:
        connection.close()


def raised(call: Callable[..., None], *args: object) -> BaseException:
    with pytest.raises(Exception) as caught:
        call(*args)
    if isinstance(caught.value, urllib.error.HTTPError):
        caught.value.close()
    return caught.value


@pytest.mark.parametrize("call", [by_urllib, by_http_client])
def test_a_real_refusal_is_told_from_a_real_hang_up_and_a_real_time_out(call: Callable[..., None], server: str) -> None:
    assert landing(raised(call, unused(), "/"), ()) == "no"
    assert landing(raised(call, server, "/0"), ()) == "unknown"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        assert landing(raised(call, host, "/", 0.05), ()) == "unknown"


@pytest.mark.parametrize(("status", "told"), [(404, "no"), (429, "no"), (500, "unknown"), (503, "unknown")])
def test_a_real_answer_says_whether_it_was_refused(status: int, told: str, server: str) -> None:
    assert landing(raised(by_urllib, server, f"/{status}"), ()) == told
