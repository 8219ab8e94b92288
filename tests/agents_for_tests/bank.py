"""A real HTTP service with a ledger, and its client: it can answer, refuse, break, fall silent and kill, before or after the charge."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import signal
import socket
import struct
import threading
from collections import deque
from typing import Self
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
CLIENT_TIMEOUT_S = 10.0
IMPATIENCE_S = 0.01
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class HttpError(Exception):
    """What a client library raises for a status of 400 and more."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        super().__init__(status_code)


class Bank:
    """The service. `plan` says how the next requests are treated, e.g. "lands, 500"; without a plan they are answered.

    The words of a plan are carried out in order: "lands" charges, "late" waits until time passes, "kill" and "stop" are done to the
    client's process, and the last one is the answer.
    """

    def __init__(self, *, remembers_keys: bool = True) -> None:
        self.plan: deque[str] = deque()
        self.ledger: list[tuple[str, str]] = []
        self.seen: list[str] = []
        self.remembers_keys = remembers_keys
        self.lock = threading.Lock()
        self.let_go = threading.Event()
        self.late = threading.Event()
        self.taken = threading.Event()
        self.under_way = threading.Event()
        self.landed_late = threading.Event()
        self.most = 0
        self._server = http.server.ThreadingHTTPServer((HOST, 0), _Desk)
        self._server.daemon_threads = True
        self._server.bank = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def charged(self) -> list[str]:
        """The orders that were really charged, one entry per charge."""
        return [order for order, _ in self.ledger]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go.set()
        self.late.set()
        self._server.shutdown()
        self._server.server_close()

    def record(self, order: str, key: str) -> str:
        """Charge, unless this key has been charged already and the bank remembers keys; "-o-1" takes the charges of o-1 back."""
        with self.lock:
            if order.startswith("-"):
                self.ledger = [entry for entry in self.ledger if entry[0] != order[1:]]
                return ""
            known = [index for index, entry in enumerate(self.ledger, 1) if entry[1] == key]
            if not known or not key or not self.remembers_keys:
                self.ledger.append((order, key))
                known = [len(self.ledger)]
            self.most = max(self.most, self.charged.count(order))
            return f"r-{known[0]}"

    def time_passes(self) -> None:
        """What is under way arrives."""
        self.late.set()
        if self.under_way.is_set():
            self.landed_late.wait(CLIENT_TIMEOUT_S)

    def find(self, order: str) -> str:
        with self.lock:
            return next((f"r-{index}" for index, entry in enumerate(self.ledger, 1) if entry[0] == order), "")


class _Desk(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        bank: Bank = self.server.bank  # type: ignore[attr-defined]
        order, key = self._asked("order"), self.headers["Idempotency-Key"] or ""
        with bank.lock:
            bank.seen.append(key)
            words = (bank.plan.popleft() if bank.plan else "lands, 200").split(", ")
        if "late" in words:
            bank.under_way.set()
        receipt = ""
        self.close_connection = True
        for word in words:
            match word:
                case "lands":
                    receipt = bank.record(order, key)
                case "drops":
                    pass
                case "late":
                    bank.taken.set()
                    bank.late.wait(CLIENT_TIMEOUT_S)
                case "kill" | "stop":
                    os.kill(int(self.headers["Client-Pid"]), SIGNALS[word])
                case answer:
                    with contextlib.suppress(ConnectionError):  # the client has given up
                        self._answer(bank, answer, receipt)
        if "late" in words:
            bank.landed_late.set()

    def do_GET(self) -> None:
        """A receipt; or wait until a request is in the bank's hands, let time pass, get no answer at all."""
        bank: Bank = self.server.bank  # type: ignore[attr-defined]
        match asked := self._asked("order"):
            case "taken":
                bank.taken.wait(CLIENT_TIMEOUT_S)
            case "time":
                bank.time_passes()
            case "never":
                self._answer(bank, "silence", "")
                return
        self._answer(bank, "200", bank.find(asked))

    def _asked(self, what: str) -> str:
        return parse_qs(urlsplit(self.path).query)[what][0]

    def _answer(self, bank: Bank, answer: str, text: str) -> None:
        self.close_connection = True
        if answer == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if answer == "silence":
            bank.taken.set()
            bank.let_go.wait()
            return
        self.send_response(int(answer))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name it has there)
        """Nobody reads it."""


def charge(port: int, order: str, key: str, timeout_s: float = CLIENT_TIMEOUT_S, *, impatient: bool = False) -> str:
    """Charge an order; gives the receipt. An impatient client gives up as soon as the bank has the request in its hands."""
    headers = {"Client-Pid": str(os.getpid()), **({"Idempotency-Key": key} if key else {})}
    return _request(port, "POST", order, headers, timeout_s, impatient=impatient)


def find(port: int, order: str, timeout_s: float = CLIENT_TIMEOUT_S) -> str:
    """The receipt of an order, or nothing."""
    return _request(port, "GET", order, {}, timeout_s)


def _request(port: int, method: str, order: str, headers: dict[str, str], timeout_s: float, *, impatient: bool = False) -> str:
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request(method, f"/?order={order}", headers=headers)
        if impatient:
            find(port, "taken")
            connection.sock.settimeout(IMPATIENCE_S)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status >= 400:
        raise HttpError(response.status)
    return text


def closed_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        return int(unused.getsockname()[1])
