"""An HTTP service that treats each request as planned: it answers, hangs up, falls silent, talks nonsense, or is gone afterwards."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

HOST = "127.0.0.1"


class Service:
    """`plan` says what is done with the next requests; a plan that ends in "gone" closes the door before it is carried out."""

    def __init__(self, *plan: str) -> None:
        self.plan = list(plan)
        self.seen: list[str] = []
        self._listener = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self._closing = threading.Event()

    def serve(self) -> None:
        with contextlib.suppress(OSError), self._listener:
            while True:
                peer, _ = self._listener.accept()
                with peer, contextlib.suppress(OSError):
                    self._treat(peer)

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _treat(self, peer: socket.socket) -> None:
        head = _request(peer)
        if not head:
            return
        self.seen.append(head.partition(b" ")[0].decode())
        word = self.plan.pop(0) if self.plan else "500"
        if word.endswith("gone"):
            self._listener.close()
        self._say(peer, word.removesuffix("gone").strip())

    def _say(self, peer: socket.socket, word: str) -> None:
        match word:
            case "hang up":
                return
            case "silence":
                self._closing.wait()
            case "truncated":
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nhalf")
            case "nonsense":
                peer.sendall(b"hello\r\n\r\n")
            case status:
                where = f"Location: {self.url}/elsewhere\r\n" if status.startswith("3") else ""
                peer.sendall(f"HTTP/1.1 {status} Word\r\n{where}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())


@contextlib.contextmanager
def serving(*plan: str) -> Iterator[Service]:
    service = Service(*plan)
    thread = threading.Thread(target=service.serve)
    thread.start()
    try:
        yield service
    finally:
        service.close()
        thread.join()


def closed_url(host: str = HOST) -> str:
    """An address at which nobody listens."""
    with socket.create_server((HOST, 0)) as taken:
        return f"http://{host}:{taken.getsockname()[1]}"


def _request(peer: socket.socket) -> bytes:
    """The head of the request, after its body has been read too."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = peer.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    while length and len(body) < int(length[1]):
        body += peer.recv(65536)
    return head
