"""As much of PostgreSQL's protocol as it takes to let a client in and to answer its statements as planned."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

HOST = "127.0.0.1"
WANTS_ENCRYPTION = (80877103, 80877104)
WELCOME = (b"R", struct.pack("!I", 0)), (b"S", b"client_encoding\0UTF8\0"), (b"S", b"server_version\x0016.0\0"), (b"Z", b"I")


@contextlib.contextmanager
def postgres(**plan: str) -> Iterator[str]:
    """Where it listens. The plan says what INSERT, COMMIT or `login` meet: "hang up", or a severity and a state, such as "ERROR 23505"."""
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, plan))
        thread.start()
        yield f"host={HOST} port={listener.getsockname()[1]} user=ann dbname=bank"
        thread.join()


def _serve(listener: socket.socket, plan: dict[str, str]) -> None:
    peer, _ = listener.accept()
    with peer, contextlib.suppress(OSError):
        while struct.unpack("!I", _block(peer)[:4])[0] in WANTS_ENCRYPTION:
            peer.sendall(b"N")
        if "login" in plan:
            peer.sendall(_refusal(plan["login"]))
            return
        peer.sendall(b"".join(_message(*each) for each in WELCOME))
        while peer.recv(1) == b"Q" and _answered(peer, _block(peer).decode().rstrip("\0"), plan):
            pass


def _answered(peer: socket.socket, statement: str, plan: dict[str, str]) -> bool:
    """Whether the connection is still good after the answer."""
    word = statement.partition(" ")[0]
    planned = plan.get(word, "")
    if planned == "hang up":
        return False
    state = b"E" if planned else b"I" if word in ("COMMIT", "ROLLBACK") else b"T"
    peer.sendall((_refusal(planned) if planned else _message(b"C", word.encode() + b"\0")) + _message(b"Z", state))
    return not planned.startswith("FATAL")


def _refusal(planned: str) -> bytes:
    severity, state = planned.encode().split()
    return _message(b"E", b"S%b\0V%b\0C%b\0Mas planned\0\0" % (severity, severity, state))


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _block(peer: socket.socket) -> bytes:
    return peer.recv(struct.unpack("!I", peer.recv(4))[0] - 4)
