"""A proxy on this machine that cuts the connection of an append: before the server has seen it, after it has replied, or one side only."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from holdfast.stores._postgres_append import NAME

HOST = "127.0.0.1"
CHUNK = 1 << 16


class Proxy:
    """Passes everything on, but for the next append once `cut` says how; `at` is what another statement has in it."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut: str | None = None
        self.at = NAME
        self.cuts: list[str] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for one in self._open:
            _end(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection((HOST, self._server_port))
        except OSError:
            _end(client)
            return
        self._open += [client, server]
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        doomed = threading.Event()
        threading.Thread(target=self._back, args=(server, client, doomed), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(CHUNK):
                how = self.cut if self.at in data and b"WITH " not in data else None
                if how is None:
                    server.sendall(data)
                    continue
                self.cut = None
                self.cuts.append(how)
                if how in ("after", "at once", "stuck"):
                    doomed.set()
                    server.sendall(data)
                if how == "after":
                    return  # its reply ends both
                _end(client)
                if how != "stuck":
                    _end(server)
                return
        _end(server)

    @staticmethod
    def _back(server: socket.socket, client: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(CHUNK):
                if doomed.is_set():
                    break
                client.sendall(data)
        _end(client)
        _end(server)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy in front of the server at that port."""
    opened = Proxy(port)
    try:
        yield opened
    finally:
        opened.close()
