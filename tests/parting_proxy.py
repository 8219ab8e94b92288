"""A proxy on this machine that separates its clients from the server: it cuts their connections, or lets nothing through for a while."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

HOST = "127.0.0.1"
CHUNK = 1 << 16


class Proxy:
    """Passes everything on, until it is told otherwise; what is sent while it is parted arrives when it is joined."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._through = threading.Event()
        self._through.set()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """End all connections, in the middle of whatever they carry; gives how many there were."""
        doomed = list(self._open)
        for one in doomed:
            end(one)
        return len(doomed) // 2

    def part(self) -> None:
        """Let nothing through, in neither direction; connections stay, and new ones are not answered."""
        self._through.clear()

    def join(self) -> None:
        """Let everything through again, what was sent meanwhile first."""
        self._through.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()
        self.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._through.wait()
        try:
            server = socket.create_connection((HOST, self._server_port))
        except OSError:
            end(client)
            return
        self._open |= {client, server}
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._reply, args=(server, client), daemon=True).start()
        self._ask(client, server)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        self._pass_on(client, server)

    def _reply(self, server: socket.socket, client: socket.socket) -> None:
        self._pass_on(server, client)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._through.wait()
                target.sendall(data)
        for one in (source, target):
            self._open.discard(one)
            end(one)


def end(one: socket.socket) -> None:
    """End a connection, whatever it carries."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy in front of the server at that port."""
    with contextlib.closing(Proxy(port)) as opened:
        yield opened
