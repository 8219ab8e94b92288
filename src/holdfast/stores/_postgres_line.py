"""One session with a PostgreSQL server for one thread at a time: opened when needed, opened anew when it is lost, dropped after a fork.

Whoever loses a session in the middle of a statement does not know what became of it, and the server may still be busy with it. So a
line holds an advisory lock of its own in every session. The session that takes the place of a lost one first ends whoever holds that
lock and waits until it is free: then what was under way has been committed or undone, and can be looked up.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, TypeVar

import psycopg
from psycopg import pq

from holdfast._clock import SystemClock
from holdfast.errors import StoreBusy, StoreError, StoreReadOnly
from holdfast.stores._postgres_address import Address
from holdfast.stores._postgres_errors import ended, from_postgres, passes
from holdfast.stores._seat import IN_USE, Seat

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

PATIENCE_S = 20.0
"""How long a lost server is waited for before it is said: longer than a restart takes."""
BUSY_LIMIT_S = 10.0
"""How long another thread, or somebody else's lock in the database, is waited for."""
STILL_MS = 10_000
"""After so long without a statement the server ends a transaction: who was stopped in it, or is gone for good, would hold its locks."""
PAUSES_S = (0.01, 0.05, 0.1, 0.25, 0.5)
NOT_KNOWN = "It is not known whether that was done: look before you repeat it"
CLOSED = "the store is closed. Open it anew"
FORKED = "the store was opened before os.fork and belongs to the parent process; nothing was done. Open it anew in the child"

SETTINGS = """
    SELECT set_config('search_path', %(schema)s, false), set_config('default_transaction_isolation', 'read committed', false),
    set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false),
    set_config('lock_timeout', %(lock)s, false), set_config('statement_timeout', '0', false), set_config('jit', 'off', false),
    set_config('idle_in_transaction_session_timeout', %(still)s, false),
    set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false), set_config('max_parallel_workers_per_gather', '0', false)
"""
"""Plans are made once, when the tables are empty, so they must be those for large ones: through the indexes. To start parallel
workers takes longer than any of our questions."""
END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = (%(key)s::bigint >> 32)::oid AND objid = (%(key)s::bigint & 4294967295)::oid
"""


class Line:
    """A session for one thread at a time."""

    def __init__(self, address: Address, get_ready: Callable[[Connection], None] = lambda _: None) -> None:
        self.address, self._get_ready = address, get_ready
        self.key = secrets.randbits(63)
        self._seat = Seat()
        self._connection: Connection | None = None
        self._gone = ""
        self._closing = threading.Event()
        _all.add(self)

    @contextlib.contextmanager
    def held(self, *, wait_s: float = BUSY_LIMIT_S) -> Iterator[None]:
        """Have the line to oneself; `StoreBusy` where another thread has it for too long."""
        if not self.take(wait_s):
            raise StoreBusy(self.address.shown, "another thread of this process is using the store; nothing was written. Try again")
        try:
            yield
        finally:
            self.give_back()

    def take(self, wait_s: float) -> bool:
        """Whether the line could be had in that time; who has it gives it back."""
        self.refuse_if_gone()
        if self._seat.is_in_use():
            raise StoreError(self.address.shown, IN_USE)
        if self._seat.was_left():
            self.discard()  # this very thread was interrupted while it used the session
        taken = self._seat.take(wait_s)
        if self._gone and taken:
            self._seat.leave()
        self.refuse_if_gone()
        return taken

    def give_back(self) -> None:
        """Let somebody else have the line."""
        self._seat.leave()

    def run(self, work: Callable[[Connection], T], *, again: bool) -> T:
        """Do `work` with the session of a line that one has; where it is lost, once more with a new one, if doing it twice is harmless."""
        until_s = SystemClock().monotonic_s() + PATIENCE_S
        while True:
            connection = self.session(until_s)
            try:
                return self.attempt(work, connection)
            except Lost as lost:
                if not again:
                    raise type(lost.said)(self.address.shown, f"{lost.said.reason}. {NOT_KNOWN}") from lost.__cause__
                if SystemClock().monotonic_s() >= until_s:
                    raise lost.said from lost.__cause__

    def attempt(self, work: Callable[[Connection], T], connection: Connection) -> T:
        """Do `work` once; `Lost` where the session was lost meanwhile, so that it is not known what became of it."""
        try:
            return work(connection)
        except psycopg.Error as error:
            said = from_postgres(error, self.address)
            if connection.closed or ended(error):
                self.discard()
                raise Lost(said) from error
            if isinstance(said, StoreReadOnly):
                self.discard()  # the next one may find the primary, or a server that may write by then
            self._discard_unless_idle(connection)
            raise said from error
        except BaseException:
            self._discard_unless_idle(connection)
            raise

    def session(self, until_s: float | None = None) -> Connection:
        """The session, opened anew if there is none; a server that cannot be reached is waited for until then."""
        pauses = iter(PAUSES_S)
        while self._connection is None:
            self.refuse_if_gone()
            try:
                self._connection = self._opened()
            except psycopg.Error as error:
                if until_s is None or not passes(error) or SystemClock().monotonic_s() >= until_s:
                    raise from_postgres(error, self.address) from error
                self._closing.wait(next(pauses, PAUSES_S[-1]))
        return self._connection

    def _opened(self) -> Connection:
        """A session in which what an earlier one of this line had begun is over."""
        connection = connect(self.address)
        try:
            settle_earlier(connection, self.key)
            self._get_ready(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def discard(self) -> None:
        """Let go of a session that cannot be trusted any more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _discard_unless_idle(self, connection: Connection) -> None:
        """Whoever comes next would be refused inside a transaction that an error has left open."""
        if connection.closed or connection.info.transaction_status != pq.TransactionStatus.IDLE:
            self.discard()

    def let_go_of(self, connection: Connection) -> None:
        """The same, unless another one has taken its place."""
        if self._connection is connection:
            self.discard()

    def refuse_if_gone(self) -> None:
        """Say that the store is closed, or the parent's, if it is."""
        if self._gone:
            raise StoreError(self.address.shown, self._gone)

    def close(self) -> None:
        """Let go of the session once nobody uses it."""
        if self._gone:
            return
        self._gone = CLOSED
        self._closing.set()
        self._seat.take(inf)
        try:
            self.discard()
        finally:
            self._seat.leave()

    def drop_in_child(self) -> None:
        """Refuse everything from now on, and never close what is the parent's: closing would say goodbye on its socket."""
        self._gone = self._gone or FORKED


class Lost(Exception):
    """The session ended in the middle of a statement, and `said` is what a user would be told."""

    def __init__(self, said: StoreError) -> None:
        self.said = said
        super().__init__(said)


class Lines:
    """A few lines for those who do not mind which: one as a rule, more while it is busy, up to a limit."""

    def __init__(self, address: Address, limit: int) -> None:
        self._lines = [Line(address) for _ in range(limit)]

    def run(self, work: Callable[[Connection], T], *, again: bool = True) -> T:
        """Do `work` on the first line that is free, or wait for the last."""
        free = next((line for line in self._lines if line.take(0)), None)
        if free is None:
            with self._lines[-1].held():
                return self._lines[-1].run(work, again=again)
        try:
            return free.run(work, again=again)
        finally:
            free.give_back()

    def close(self) -> None:
        """Close all of them."""
        for line in self._lines:
            line.close()


def connect(address: Address) -> Connection:
    """A new session with our settings; each statement is a transaction of its own unless one is begun."""
    options = address.options | {"client_encoding": "UTF8"}  # whatever the user, the database or PGCLIENTENCODING says: text is packed so
    connection = psycopg.connect(**options, autocommit=True, prepare_threshold=0)  # type: ignore[arg-type]  # all are text
    try:
        connection.execute(SETTINGS, set_to(address), prepare=False)
    except BaseException:
        connection.close()
        raise
    return connection


def set_to(address: Address) -> dict[str, str | int]:
    """What the settings are set to."""
    return {"schema": address.schema, "lock": f"{BUSY_LIMIT_S:.0f}s", "still": f"{STILL_MS}ms"}


def settle_earlier(connection: Connection, key: int) -> None:
    """Hold the lock of a line; whoever holds it is an earlier session of the same line, which is ended."""
    for _ in range(2):
        if connection.execute("SELECT pg_try_advisory_lock(%s)", (key,), prepare=False).fetchone() == (True,):
            return
        connection.execute(END_OTHERS, {"key": key}, prepare=False)
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT pg_advisory_lock(%s)", (key,), prepare=False)
            return
    raise psycopg.OperationalError("an earlier session of this process does not end")


_all: weakref.WeakSet[Line] = weakref.WeakSet()


def _drop_in_child() -> None:
    for line in list(_all):
        line.drop_in_child()


os.register_at_fork(after_in_child=_drop_in_child)
