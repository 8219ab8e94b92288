"""A proxy on this machine that cuts the connection of an append: before the server has seen it, after it has replied, or one side only."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import parting_proxy
from holdfast.stores._postgres_append import NAME
from parting_proxy import CHUNK, end


class Proxy(parting_proxy.Proxy):
    """Passes everything on, but for the next append once `cut_how` says how; `at` is what another statement has in it."""

    def __init__(self, port: int) -> None:
        self.cut_how: str | None = None
        self.at = NAME
        self.cuts: list[str] = []
        self._doomed: set[socket.socket] = set()
        super().__init__(port)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(CHUNK):
                how = self.cut_how if self.at in data and b"WITH " not in data else None
                if how is None:
                    server.sendall(data)
                    continue
                self.cut_how = None
                self.cuts.append(how)
                if how in ("after", "at once", "stuck"):
                    self._doomed.add(server)
                    server.sendall(data)
                if how == "after":
                    return  # its reply ends both
                end(client)
                if how != "stuck":
                    end(server)
                return
        end(server)

    def _reply(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(CHUNK):
                if server in self._doomed:
                    break
                client.sendall(data)
        end(client)
        end(server)


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy in front of the server at that port."""
    with contextlib.closing(Proxy(port)) as opened:
        yield opened
