"""Blobs in a PostgreSQL store: pieces of a quarter of a megabyte under a number, and one line that gives the number to a digest."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from holdfast._failpoints import reach
from holdfast.store import Swept
from holdfast.stores._blob_files import NAME, condemned
from holdfast.stores._postgres_address import Address
from holdfast.stores._postgres_append import BLOBS_GO, BLOBS_STAY
from holdfast.stores._postgres_limits import SOON_OVER
from holdfast.stores._postgres_line import Connection, connect

PIECE_BYTES = 256 * 1024

NUMBER = "SELECT nextval('blob_numbers'), set_config('idle_in_transaction_session_timeout', '0', true)"
"""Where the bytes come from may take its time; nothing is held meanwhile that others wait for."""
ADD_PIECE = "INSERT INTO blob_pieces VALUES (%b, %b, %b)"
NAME_IT = "INSERT INTO blobs VALUES (%b, %b, %b, %b) ON CONFLICT (digest) DO UPDATE SET kept_us = excluded.kept_us RETURNING number"
DROP_PIECES = "DELETE FROM blob_pieces WHERE number = ANY(%b)"
ABSENT = """
    SELECT part FROM unnest(%b::text[]) WITH ORDINALITY AS p (part, nr)
    WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE digest = part) ORDER BY nr
"""
JOIN = "INSERT INTO blob_parts SELECT %b, unnest(%b::text[]) ON CONFLICT DO NOTHING"
TOUCH = "UPDATE blobs SET kept_us = %b WHERE digest = %b"
FIND = "SELECT number, size FROM blobs WHERE digest = %b"
PIECE = "SELECT data FROM blob_pieces WHERE number = %b AND place = %b"
REFS = "SELECT digest FROM blob_refs WHERE run_id = %b ORDER BY digest"
PARTS = "SELECT part FROM blob_parts WHERE whole = %b ORDER BY part"
OLD = "SELECT digest, size FROM blobs WHERE kept_us < %b AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE digest = blobs.digest)"
GO = "DELETE FROM blobs WHERE digest = ANY(%b) RETURNING number"


def keep(connection: Connection, chunks: Iterable[bytes], at_us: int, parts: Sequence[str]) -> str:
    """Write the pieces and then the name, in one transaction; what breaks off leaves nothing."""
    with connection.transaction():
        number = connection.execute(NUMBER).fetchall()[0][0]
        hashed, size = hashlib.sha256(), 0
        for place, piece in enumerate(_pieces(chunks)):
            connection.cursor(binary=True).execute(ADD_PIECE, (number, place, piece))
            hashed.update(piece)
            size += len(piece)
        digest = hashed.hexdigest()
        connection.execute(SOON_OVER)
        connection.execute(BLOBS_STAY)
        for (part,) in connection.execute(ABSENT, (list(parts),)):
            raise KeyError(part)
        if connection.execute(NAME_IT, (digest, number, size, at_us)).fetchall() != [(number,)]:
            connection.execute(DROP_PIECES, ([number],))
        if parts:
            connection.execute(JOIN, (digest, list(parts)))
        reach("blob.before")
    reach("blob.after")
    return digest


def touch(connection: Connection, digest: str, at_us: int) -> bool:
    """Whether the blob is there; if so, it counts as kept now. The lock keeps a sweep that has found it to be old from coming between."""
    with connection.transaction():
        connection.execute(BLOBS_STAY)
        return connection.execute(TOUCH, (at_us, digest)).rowcount == 1


def opened(address: Address, digest: str) -> BinaryIO | None:
    """The bytes as a stream with a session of its own, so that it outlives the store's; what is small comes at once."""
    if NAME.fullmatch(digest) is None:
        raise ValueError(f"{digest!r} is no SHA-256 in hexadecimal")
    connection = connect(address)
    try:
        found = connection.execute(FIND, (digest,)).fetchall()
        if found and found[0][1] > PIECE_BYTES:
            stream = io.BufferedReader(Pieces(connection, *found[0]))
            connection = None  # type: ignore[assignment]
            return stream
        return io.BytesIO(_piece(connection, found[0][0], 0)) if found else None
    finally:
        if connection is not None:
            connection.close()


class Pieces(io.RawIOBase):
    """The pieces of a blob, one after another."""

    def __init__(self, connection: Connection, number: int, size: int) -> None:
        super().__init__()
        self._connection, self._number, self._size, self._at = connection, number, size, 0
        self._place, self._piece = -1, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, buffer: object) -> int:
        room = memoryview(buffer)  # type: ignore[arg-type]  # the parent's signature
        place, offset = divmod(self._at, PIECE_BYTES)
        if self._at >= self._size:
            return 0
        if place != self._place:
            self._place, self._piece = place, _piece(self._connection, self._number, place)
        part = self._piece[offset : offset + len(room)]
        room[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        if not self.closed:
            self._connection.close()
        super().close()


def listed(connection: Connection, sql: str, about: str) -> list[str]:
    """The digests that a query gives."""
    return [digest for (digest,) in connection.execute(sql.encode(), (about,))]


def sweep(connection: Connection, before_us: int, *, dry_run: bool) -> Swept:
    """Remove what nobody refers to, while nobody refers to anything new. What crashes left half-written was undone by the server."""
    with connection.transaction():
        connection.execute(BLOBS_GO)
        old: dict[str, int] = dict(connection.execute(OLD, (before_us,)).fetchall())
        gone = condemned(old.keys(), connection.execute("SELECT whole, part FROM blob_parts").fetchall())
        if gone and not dry_run:
            numbers = [number for (number,) in connection.execute(GO, (list(gone),))]
            connection.execute(DROP_PIECES, (numbers,))
        reach("sweep.before")
    reach("sweep.after")
    return Swept(len(gone), sum(old[digest] for digest in gone))


def _piece(connection: Connection, number: int, place: int) -> bytes:
    found = connection.cursor(binary=True).execute(PIECE, (number, place)).fetchall()
    return bytes(found[0][0]) if found else b""


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces that are all of one length, but for the last."""
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        while len(rest) >= PIECE_BYTES:
            yield bytes(rest[:PIECE_BYTES])
            del rest[:PIECE_BYTES]
    if rest:
        yield bytes(rest)
