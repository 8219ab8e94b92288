"""The world outside the demo's agent: a local HTTP service that books charges and sends mails, and keeps a ledger of both.

It runs in a process of its own, so that killing the agent does not touch it, and ends when its standard input is closed.
The bank does not know idempotency keys: a second request is a second charge. The mail service does: a second mail with a known key
is answered, not sent.

On standard output it says `ready URL`, and `held ORDER` when it has booked the charge that it was told to hold back the answer to.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOLD_LIMIT_S = 15.0
"""How long an answer is held back at the most."""
BODY_LIMIT = 10_000
"""Bytes of a request that are read at the most."""


@dataclass(slots=True)
class Books:
    """What was booked and sent, and how often somebody asked; `hold` is the number of the charge whose answer is held back."""

    hold: int = 0
    charges: list[dict[str, Any]] = field(default_factory=list)
    mails: list[dict[str, Any]] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)

    def charge(self, order: dict[str, Any], key: str) -> dict[str, Any]:
        """Book a charge, and hold back the answer where told so."""
        with self.lock:
            self.requests["charge"] += 1
            booked = {"id": f"ch-{len(self.charges) + 1:03}", "order": order["order"], "cents": order["cents"], "key": key}
            self.charges.append(booked)
            held = self.requests["charge"] == self.hold
        if held:
            say(f"held {booked['order']}")
            self.released.wait(HOLD_LIMIT_S)
        return booked

    def charges_of(self, order: str) -> list[dict[str, Any]]:
        """What was booked for an order."""
        with self.lock:
            self.requests["look-up"] += 1
            return [charge for charge in self.charges if charge["order"] == order]

    def mail(self, letter: dict[str, Any], key: str) -> dict[str, Any]:
        """Send a mail, once per key."""
        with self.lock:
            self.requests["mail"] += 1
            sent = next((mail for mail in self.mails if mail["key"] == key), None)
            if sent is None:
                sent = {"id": f"m-{len(self.mails) + 1:03}", "order": letter["order"], "text": letter["text"], "key": key}
                self.mails.append(sent)
            return sent

    def ledger(self) -> dict[str, Any]:
        """Everything, for whoever wants to check."""
        with self.lock:
            return {"charges": list(self.charges), "mails": list(self.mails), "requests": dict(self.requests)}


class Counterpart(ThreadingHTTPServer):
    """The server with its books."""

    daemon_threads = True

    def __init__(self, books: Books) -> None:
        self.books = books
        super().__init__(("127.0.0.1", 0), Desk)

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that was killed does not read its answer: nothing to report."""


class Desk(BaseHTTPRequestHandler):
    """Reads one request and answers it."""

    server: Counterpart

    def do_GET(self) -> None:
        """`/ledger`, or `/charges/ORDER`."""
        books = self.server.books
        match self.path.strip("/").split("/"):
            case ["ledger"]:
                self._answer(200, books.ledger())
            case ["charges", order]:
                self._answer(200, books.charges_of(order))
            case _:
                self._answer(404, {"error": f"nothing at {self.path}"})

    def do_POST(self) -> None:
        """`/charges`, `/mails`, or `/release`, which lets go of the answer that was held back."""
        books, key = self.server.books, self.headers.get("Idempotency-Key", "")
        body = json.loads(self.rfile.read(min(int(self.headers.get("Content-Length", 0)), BODY_LIMIT)) or b"{}")
        match self.path:
            case "/charges":
                self._answer(201, books.charge(body, key))
            case "/mails":
                self._answer(201, books.mail(body, key))
            case "/release":
                books.released.set()
                self._answer(200, {})
            case _:
                self._answer(404, {"error": f"nothing at {self.path}"})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name it has in http.server)
        """The ledger is the log."""


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold", type=int, default=0)
    options = parser.parse_args()
    with Counterpart(Books(hold=options.hold)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        say(f"ready http://127.0.0.1:{server.server_address[1]}")
        sys.stdin.read()


if __name__ == "__main__":
    main()
