"""Transactions of the user's that carry an append: on sessions of their own, so that nobody else who appends is held up.

The user's code sees the session as its database has it by default: no search path, no planner settings of ours. Those are set for the rest
of the transaction when its code is through. The fence of the append is that of every other; where it refuses, all is rolled back. A reply
to COMMIT that is lost is looked up as for any append: a new session ends the old one first, so that nothing is under way any more.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from holdfast._clock import SystemClock
from holdfast._failpoints import reach
from holdfast.errors import Misuse, StoreBusy, StoreFailed
from holdfast.store import Append, Stale, Undone
from holdfast.stores._postgres_address import Address
from holdfast.stores._postgres_append import get_ready, landed, written
from holdfast.stores._postgres_errors import ended
from holdfast.stores._postgres_line import PATIENCE_S, SETTINGS, Connection, Line, Lost, set_to

SESSIONS = 8
"""Transactions of one process at the same time; who comes later waits."""
WAIT_S = 60.0
"""How long, before that is an error."""
USUAL_PREPARE_THRESHOLD = 5
UNDONE = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
NOT_KNOWN = "It is not known whether the transaction was committed; whoever takes the run next looks"

IDLE_S = 60
"""After so long without a statement the server ends the transaction: a process that was stopped in its body would hold its locks for as
long, and whoever has taken its run would wait for them. What the user has set for that goes before."""

AS_IT_WAS = """
    RESET ROLE; RESET ALL; SELECT set_config('idle_in_transaction_session_timeout',
    coalesce(nullif(current_setting('idle_in_transaction_session_timeout'), '0'), '{idle_s}s'), false)
"""
OURS = SETTINGS.replace("false)", "true)").rstrip() + ", current_setting('holdfast.mark', true), pg_advisory_xact_lock(%(key)s)"
"""The settings of every session of ours, until the end of the transaction; the mark tells whether it is still the one that was begun."""


class OpenTransaction:
    """One transaction, from its beginning to its end."""

    def __init__(self, line: Line) -> None:
        self._line, self._mark = line, secrets.token_hex(8)
        self._outer: contextlib.AbstractContextManager[Any] | None = None
        self.connection: Connection = line.run(self._begin, again=True)

    def _begin(self, connection: Connection) -> Connection:
        connection.prepare_threshold, connection.row_factory = USUAL_PREPARE_THRESHOLD, tuple_row
        connection.execute(AS_IT_WAS.format(idle_s=IDLE_S).encode())
        self._outer = connection.transaction()
        self._outer.__enter__()
        connection.execute(f"SET LOCAL holdfast.mark = '{self._mark}'".encode())
        return connection

    def again(self, error: BaseException) -> bool:
        return self.connection.closed or isinstance(error, UNDONE) or (isinstance(error, psycopg.Error) and ended(error))

    def commit(self, append: Append) -> Stale | None:
        try:
            stale = self._append(append)
        except Exception as error:
            raise Undone(error, self.again(error)) from error
        if stale is not None:
            self.end()
            return stale
        reach("transaction.before_commit")
        if not self._is_committed():
            self._look_up(append)
        reach("transaction.after_commit")
        return None

    def _is_committed(self) -> bool:
        """Commit; False where the reply was lost, and `Undone` where the server refuses."""
        try:
            self._exit(None)
        except psycopg.Error as error:
            if self.connection.closed or ended(error):
                return False
            raise Undone(error, self.again(error)) from error
        return not self.connection.closed  # psycopg says nothing where it was lost before

    def _append(self, append: Append) -> Stale | None:
        """The append as the last that is done in the transaction; `Stale` where it is refused."""
        connection = self.connection
        connection.row_factory = tuple_row
        if connection.info.transaction_status == pq.TransactionStatus.IDLE:
            raise Misuse(ENDED)
        ((*_, mark, _),) = connection.execute(OURS, set_to(self._line.address) | {"key": self._line.key}).fetchall()
        if mark != self._mark:
            raise Misuse(ENDED)
        return written(connection, [append])[0]

    def _look_up(self, append: Append) -> None:
        """Behind a lost reply: whether it was committed; `Undone` where it was not."""
        line, until_s = self._line, SystemClock().monotonic_s() + PATIENCE_S
        line.discard()
        while True:
            try:
                found = line.attempt(lambda session: landed(session, [append]), line.session(until_s))
            except Lost as lost:
                if SystemClock().monotonic_s() >= until_s:
                    raise StoreFailed(line.address.shown, f"{lost.said.reason}. {NOT_KNOWN}") from lost.__cause__
            except StoreFailed as error:
                raise StoreFailed(line.address.shown, f"{error.reason}. {NOT_KNOWN}") from error.__cause__
            else:
                if found is None:
                    raise Undone(psycopg.OperationalError("the connection was lost; the transaction was rolled back"), again=True)
                return

    def end(self) -> None:
        """Roll back what was not committed, and leave a session behind that the next one can use, or none."""
        with contextlib.suppress(psycopg.Error):
            self._exit(RolledBack())
        if self.connection.closed or self.connection.info.transaction_status != pq.TransactionStatus.IDLE:
            self._line.let_go_of(self.connection)

    def _exit(self, error: Exception | None) -> None:
        outer, self._outer = self._outer, None
        if outer is not None:
            outer.__exit__(type(error) if error else None, error, None)


class RolledBack(Exception):
    """What ends a transaction that is not to be committed."""


ENDED = (
    "the body of an @hf.transaction has ended its transaction by itself; what it did before that is committed, and its outcome is not "
    "recorded. Leave COMMIT and ROLLBACK to Holdfast; a part can be rolled back in `with hf.connection().transaction():`"
)


class Transactions:
    """The sessions on which the transactions of one process are carried out: opened when they are needed, up to a limit."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lines = [Line(address, get_ready) for _ in range(SESSIONS)]
        self._idle = list(self._lines)
        self._free = threading.BoundedSemaphore(SESSIONS)

    @contextlib.contextmanager
    def begun(self) -> Iterator[OpenTransaction]:
        """A transaction; what is not committed when the context ends is rolled back."""
        if not self._free.acquire(timeout=WAIT_S):
            raise StoreBusy(self._address.shown, f"{SESSIONS} transactions are under way in this process; nothing was done. Try again")
        line = self._idle.pop()
        try:
            with line.held():
                transaction = OpenTransaction(line)
                try:
                    yield transaction
                finally:
                    transaction.end()
        finally:
            self._idle.append(line)
            self._free.release()

    def close(self) -> None:
        """Let go of the sessions, once what is under way on them has ended."""
        for line in self._lines:
            line.close()
