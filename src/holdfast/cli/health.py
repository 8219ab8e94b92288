"""Whether a worker lives and takes runs, for those who watch over it: two small pages over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Health:
    """Answers /health with 200 while the process serves, and /ready with 200 or, with the reason, 503."""

    def __init__(self, port: int, hindered: Callable[[], str], host: str = "0.0.0.0") -> None:  # noqa: S104 (who watches is elsewhere)
        self._server = ThreadingHTTPServer((host, port), _page_of(hindered))
        self.port = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="holdfast-health", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _page_of(hindered: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Page(BaseHTTPRequestHandler):
        """Two addresses, a line of text each."""

        def do_GET(self) -> None:
            known = self.path in ("/health", "/ready")
            why = hindered() if self.path == "/ready" else ""
            text = (why or "ok") if known else "there is /health and /ready"
            self.send_response(503 if why else 200 if known else 404)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{text}\n".encode())

        def log_message(self, *_: object) -> None:
            """Who watches asks every few seconds."""

    return Page
