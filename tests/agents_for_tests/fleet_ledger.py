"""What a fleet did, over HTTP: every effect that was booked, every body that is inside, and whether more are than may be."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

HOST = "127.0.0.1"
HELD_S = 20.0

Owned = Callable[[list[str]], dict[str, tuple[int, bool]] | None]
"""The epoch of each of these runs, and whether somebody owns it; None where the store cannot be asked."""


class Inside(NamedTuple):
    """One body that has begun and not ended."""

    run: str
    step: str
    epoch: int
    pid: int
    limits: dict[str, int]


@dataclass
class Ledger:
    """The books, written by the bodies themselves. `owned` tells which of those that are inside were taken over meanwhile."""

    owned: Owned = field(default=lambda _: None)
    booked: list[dict[str, Any]] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    inside: dict[str, Inside] = field(default_factory=dict)
    most: Counter[str] = field(default_factory=Counter)
    exceeded: list[str] = field(default_factory=list)
    called_s: list[float] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    late: int = 0
    unchecked: int = 0
    held: threading.Event = field(default_factory=threading.Event)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def begin(self, told: dict[str, Any]) -> str:
        with self.lock:
            self.pids[told["owner"]] = told["pid"]
            self.inside[told["token"]] = Inside(told["run"], told["step"], told["epoch"], told["pid"], told["limits"])
            for what, most in told["limits"].items():
                self._count(what, most)
        return ""

    def _count(self, what: str, most: int) -> None:
        """How many runs are inside of what has a limit; those that were taken from a silent worker do not count any more."""
        found = {one.run: one.epoch for one in self.inside.values() if what in one.limits}
        if len(found) > most:
            stand = self.owned(list(found))
            self.unchecked += stand is None
            found = {run: epoch for run, epoch in found.items() if stand is not None and stand.get(run) == (epoch, True)}
        self.most[what] = max(self.most[what], len(found))
        if len(found) > most:
            self.exceeded.append(f"{what}: {len(found)} runs were inside at a time, {most} may be: {sorted(found)}")

    def end(self, told: dict[str, Any]) -> str:
        with self.lock:
            self.inside.pop(told["token"], None)
        return ""

    def book(self, told: dict[str, Any]) -> str:
        """Book an effect; where it `remembers`, the same key again is the same booking."""
        with self.lock:
            self.requests[f"{told['name']} {told['key']}"] += 1
            known = next((one for one in self.booked if one["key"] == told["key"]), None) if told["remembers"] else None
            if known is None:
                known = {**told, "receipt": f"r-{len(self.booked) + 1}"}
                self.booked.append(known)
            return str(known["receipt"])

    def find(self, told: dict[str, Any]) -> str:
        with self.lock:
            return next((str(one["receipt"]) for one in self.booked if one["key"] == told["key"]), "")

    def call(self, _: dict[str, Any]) -> str:
        with self.lock:
            self.called_s.append(time.time())
        return ""

    def hold(self, _: dict[str, Any]) -> str:
        """Answer when somebody lets go."""
        self.held.wait(HELD_S)
        return ""

    def gone(self, pid: int) -> None:
        """A process is dead: nothing of it is inside any more."""
        with self.lock:
            self.inside = {token: one for token, one in self.inside.items() if one.pid != pid}

    def under_way(self, run: str, step: str) -> bool:
        """Whether somebody may still be about to book this."""
        with self.lock:
            return any((one.run, one.step) == (run, step) for one in self.inside.values())

    def counts(self) -> Counter[tuple[str, str]]:
        """How often each effect was booked, by name and key."""
        with self.lock:
            return Counter((one["name"], one["key"]) for one in self.booked)


class _Listener(http.server.ThreadingHTTPServer):
    """Keeps whoever comes while the machine is slow: a few in line, as it is by default, and the kernel turns the others away."""

    request_queue_size = 256


class Server:
    """The ledger behind a port of this machine."""

    def __init__(self, ledger: Ledger) -> None:
        self._server = _Listener((HOST, 0), _desk_of(ledger))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._ledger = ledger

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.held.set()
        self._server.shutdown()
        self._server.server_close()


def _desk_of(ledger: Ledger) -> type[http.server.BaseHTTPRequestHandler]:
    doors = {f"/{name}": getattr(ledger, name) for name in ("begin", "end", "book", "find", "call", "hold")}

    class Desk(http.server.BaseHTTPRequestHandler):
        """One request, one answer."""

        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = doors[self.path](told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """The ledger is the log."""

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                """Whoever asked was killed."""

    return Desk
