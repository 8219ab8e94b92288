"""A proxy in front of an object server that loses requests and replies, answers itself that there is too much to do, delays, and counts."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

HOST = "127.0.0.1"
SLOW_DOWN = b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Request(NamedTuple):
    """What the client asks for; `path` begins with the bucket."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def creates(self) -> bool:
        return self.method == "PUT" and self.headers.get("if-none-match") == "*"


Fault = str
"""`before` and `after` cut the connection before the server has seen the request and behind its reply, `half` in the middle of the reply;
`503`, `500`, `429` and so on are answered instead of the server; `500 after` is answered although the server did it; `late` holds the
request back until `release` is set."""


class Proxy:
    """Passes everything on, unless `fault` says otherwise for a request."""

    def __init__(self, endpoint: str) -> None:
        self.server_address = (urlsplit(endpoint).hostname or HOST, urlsplit(endpoint).port or 80)
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.faults: list[Fault] = []
        self.seen: Counter[str] = Counter()
        self.requests: list[Request] = []
        self.release = threading.Event()
        self.held = threading.Semaphore(0)
        self._listener = ThreadingHTTPServer((HOST, 0), type("Handler", (Handler,), {"proxy": self}))
        self._listener.daemon_threads = True
        threading.Thread(target=self._listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._listener.server_port}"

    def next(self, fault: Fault, *, times: int = 1, when: Callable[[Request], bool] = lambda request: request.creates) -> None:
        """Let the next requests of a kind, as a rule the create-only puts, meet this fault."""
        left = iter(range(times))
        self.fault = lambda request: fault if when(request) and next(left, None) is not None else None

    def close(self) -> None:
        self.release.set()
        self._listener.shutdown()
        self._listener.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    proxy: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _pass(self) -> None:
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.seen[request.method] += 1
        self.proxy.requests.append(request)
        fault = self.proxy.fault(request)
        if fault is not None:
            self.proxy.faults.append(fault)
        if fault == "late":
            self.proxy.held.release()
            self.proxy.release.wait(60)
        if fault == "before":
            self._cut()
        elif fault is not None and fault.isdecimal():
            self._reply(int(fault), {}, SLOW_DOWN)
        else:
            self._finish(fault, self._ask(body))

    def _finish(self, fault: Fault | None, answer: tuple[int, dict[str, str], bytes]) -> None:
        if fault is not None and fault.endswith(" after"):
            self._reply(int(fault.partition(" ")[0]), {}, SLOW_DOWN)
        elif fault == "half":
            self.wfile.write(b"HTTP/1.1 200 O")
            self._cut()
        elif fault == "after":
            self._cut()
        else:
            self._reply(*answer)

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(http.client.HTTPConnection(*self.proxy.server_address, timeout=60)) as server:
            server.connect()
            server.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.request(self.command, self.path, body, {name: self.headers[name] for name in self.headers})
            reply = server.getresponse()
            data = reply.read()
            return reply.status, dict(reply.getheaders()), data

    def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = next((value for name, value in headers.items() if name.lower() == "content-length"), str(len(body)))
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 (named by http.server)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (named by http.server)
        """Nothing."""


@contextlib.contextmanager
def proxy(endpoint: str) -> Iterator[Proxy]:
    """A proxy in front of the server there."""
    opened = Proxy(endpoint)
    try:
        yield opened
    finally:
        opened.close()
