"""One connection for one thread at a time: opened when first needed, thrown away after an error, dropped after a fork.

What failed inside a transaction is never tried again on the same connection: after a failed flush the kernel may
have forgotten what it could not write. The connection is closed, without a checkpoint, and the next use opens a new one. What an
interruption left in the middle counts as failed: the next use by that thread finds it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from math import inf
from pathlib import Path
from threading import get_ident

import apsw

from holdfast.errors import StoreBusy, StoreError
from holdfast.stores._seat import IN_USE, SEAT, Seat
from holdfast.stores._sqlite_file import BUSY_LIMIT_MS, connect, from_sqlite

CLOSED = "the store is closed. Open it anew"
FORKED = "the store was opened before os.fork and belongs to the parent process; nothing was done. Open it anew in the child"


class Transaction:
    """`with` it: begun at the top, committed and flushed at the end, undone when the block raises. Gives the cursor to use."""

    __slots__ = ("_line", "_patience_ms")

    def __init__(self, line: Line, patience_ms: int) -> None:
        self._line, self._patience_ms = line, patience_ms

    def __enter__(self) -> apsw.Cursor:
        return self._line.begin(self._patience_ms)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._line.end(error)


class Seated:
    """`with` it: the line is this thread's, and no transaction is begun."""

    __slots__ = ("_line", "_patience_ms")

    def __init__(self, line: Line, patience_ms: int) -> None:
        self._line, self._patience_ms = line, patience_ms

    def __enter__(self) -> None:
        self._line.sit(self._patience_ms)

    def __exit__(self, *_: object) -> None:
        self._line.leave()


class Line:
    """A connection to the database for one thread at a time.

    Its cursor and its transactions are made once: Python that runs right after a flush finds cold caches, and making them
    anew cost a tenth of an append.
    """

    def __init__(self, path: Path, url: str, begin: str) -> None:
        self._path, self._url, self._begin = path, url, begin
        self._seat = Seat()
        self._begun = False
        self._cursor: apsw.Cursor | None = None
        self._patience_ms = 0
        self._gone = ""
        self.limit_ms = BUSY_LIMIT_MS  # how long others are waited for by whoever waits
        self._patient = Transaction(self, self.limit_ms)
        self.seated, self.seated_at_once = Seated(self, self.limit_ms), Seated(self, 0)
        _all.add(self)

    def transaction(self) -> Transaction:
        """A transaction that waits for other threads and processes up to the limit."""
        return self._patient

    def sit(self, patience_ms: int) -> None:
        """Take the seat; what this very thread left behind when it was interrupted in its last transaction is undone."""
        me, seat = get_ident(), self._seat
        if seat.by.get(SEAT) == me and seat.is_in_use():
            raise StoreError(self._url, IN_USE)
        if self._gone or (seat.by.setdefault(SEAT, me) != me and not seat.take(patience_ms / 1000)):
            self.refuse_if_gone()
            raise StoreBusy(self._url, "another thread of this process is using the store; nothing was written. Try again")
        if self._begun:
            try:
                self._discard()
                self._begun = False
            except BaseException:
                seat.leave()
                raise

    def begin(self, patience_ms: int) -> apsw.Cursor:
        """Take the seat and begin; on an error it is free again."""
        self.sit(patience_ms)
        try:
            self._begun, cursor = True, self._cursor
            if cursor is None or patience_ms != self._patience_ms:
                cursor = self._ready(patience_ms)
            cursor.execute(self._begin)
        except BaseException as error:
            self._fail(error, fine=isinstance(error, apsw.BusyError))
            raise
        return cursor

    def end(self, error: BaseException | None) -> None:
        """Commit and leave the seat; after an error throw the connection away instead."""
        if error is None:
            self.commit()
            self._seat.leave()
        else:
            self._fail(error)

    def commit(self) -> None:
        """Commit, and stay seated; on an error the seat is free."""
        cursor = self._cursor
        assert cursor is not None, "only a transaction that began can end"
        try:
            cursor.execute("COMMIT")
        except BaseException as failed:
            self._fail(failed)
            raise
        self._begun = False

    def leave(self) -> None:
        """Leave the seat."""
        self._seat.leave()

    def refuse_if_gone(self) -> None:
        """Say that the store is closed, or the parent's, if it is."""
        if self._gone:
            raise StoreError(self._url, self._gone)

    def close(self) -> None:
        """Let go of the connection once nobody uses it."""
        if self._gone:
            return
        self._seat.take(inf)
        try:
            self._gone = CLOSED
            if self._begun:
                self._discard()
            elif self._cursor is not None:
                self._cursor.connection.close()
                self._cursor = None
        finally:
            self._seat.leave()

    def drop_in_child(self) -> None:
        """Refuse everything from now on, and never close what is the parent's: even closing writes to shared memory."""
        self._gone = self._gone or FORKED
        if self._cursor is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._cursor))

    def _ready(self, patience_ms: int) -> apsw.Cursor:
        self.refuse_if_gone()
        if self._cursor is None:
            self._cursor = connect(self._path, self._url, patience_ms).cursor()
        self._cursor.connection.set_busy_timeout(patience_ms)
        self._patience_ms = patience_ms
        return self._cursor

    def _fail(self, error: BaseException, *, fine: bool = False) -> None:
        """Leave the seat and, unless it is fine, the connection; say SQLite's errors as ours."""
        try:
            if not fine:
                self._discard()
        finally:
            self._begun = False
            self._seat.leave()
        if isinstance(error, apsw.Error | UnicodeDecodeError):
            raise from_sqlite(error, self._url) from error

    def _discard(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            connection = cursor.connection
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)


_all: weakref.WeakSet[Line] = weakref.WeakSet()


def _drop_in_child() -> None:
    for line in list(_all):
        line.drop_in_child()


os.register_at_fork(after_in_child=_drop_in_child)
