"""Whether a worker lives and takes runs, for those who watch over it: two small pages over HTTP.

They are asked every few seconds, and most of all when something is wrong: whatever the store does, an answer comes within about a second,
and neither askers nor looks at the store pile up.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

PATIENCE_S = 1.0
"""How long an asker waits for the store."""

SLOW_S = 2.0
"""How long an asker may take to say what it wants."""

MOST_ASKERS = 32
"""Askers that are served at a time; one more is sent away."""


TICK_S = 0.5
"""How often the event loop shows that it turns."""

STUCK_S = 30.0
"""So long may code block the event loop before the worker counts as stuck; ordinary steps do not for more than a moment."""


class Health:
    """Answers /health with 200 unless the worker is stuck, and /ready while it takes runs; else with 503 and the reason."""

    def __init__(
        self, port: int, hindered: Callable[[], str], host: str = "0.0.0.0", *, stuck: Callable[[], str] = str  # noqa: S104 (who watches is elsewhere)
    ) -> None:  # fmt: skip
        self._server = _Server((host, port), _page_of(Look(hindered).told, stuck))
        self.port = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="holdfast-health", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Pulse:
    """Whether the event loop turns: it notes the time again and again, and whoever asks from another thread sees how long ago that was."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._beat()

    def _beat(self) -> None:
        self._beat_s = time.monotonic()
        self._loop.call_later(TICK_S, self._beat)

    def stuck(self) -> str:
        """For how long it has not turned, where that is too long; else nothing."""
        silent_s = time.monotonic() - self._beat_s
        return f"the code of a run has blocked the event loop for {silent_s:.0f} s" if silent_s > STUCK_S else ""


class Look:
    """Looks what hinders the worker, on a thread of its own; all who ask meanwhile share one look, and none waits for it for long."""

    def __init__(self, hindered: Callable[[], str]) -> None:
        self._hindered = hindered
        self._lock = threading.Lock()
        self._began_s, self._found = 0.0, Future[str]()
        self._found.set_result("")

    def told(self) -> str:
        """Why the worker takes no runs now, or nothing."""
        with self._lock:
            if self._found.done():
                self._began_s, self._found = time.monotonic(), Future()
                threading.Thread(target=self._look, args=(self._found,), name="holdfast-ready", daemon=True).start()
            began_s, found = self._began_s, self._found
        try:
            return found.result(timeout=PATIENCE_S)
        except TimeoutError:
            return f"the store has not answered for {time.monotonic() - began_s:.0f} s"

    def _look(self, found: Future[str]) -> None:
        try:
            found.set_result(self._hindered())
        except Exception as error:  # noqa: BLE001 (whatever it is, that is the answer)
            found.set_result(f"{type(error).__name__}: {error}")


class _Server(ThreadingHTTPServer):
    """One thread per asker, of whom there may be so many at a time."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], page: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(MOST_ASKERS)
        super().__init__(address, page)

    def process_request(self, request: socket.socket | Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket | Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, *_: object) -> None:
        """Whoever has gone before the answer has nothing to be told, nor has the worker's log."""


def _page_of(hindered: Callable[[], str], stuck: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Page(BaseHTTPRequestHandler):
        """Two addresses, a line of text each."""

        timeout = SLOW_S

        def do_GET(self) -> None:
            known = self.path in ("/health", "/ready")
            why = (stuck() if known else "") or (hindered() if self.path == "/ready" else "")
            text = (why or "ok") if known else "there is /health and /ready"
            self.send_response(503 if why else 200 if known else 404)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{text}\n".encode())

        def log_message(self, *_: object) -> None:
            """Who watches asks every few seconds."""

    return Page
