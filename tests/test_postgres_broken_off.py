"""A PostgreSQL server that breaks a statement off and lives on, by a time-out or its administrator's word: the session is used no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

import holdfast.sync as hf
from holdfast.errors import StoreBusy, StoreFailed
from holdfast.stores import _postgres_changed, _postgres_line, _postgres_transaction
from holdfast.stores._postgres_blobs import PIECE_BYTES
from holdfast.stores._postgres_errors import ended
from holdfast.stores._postgres_line import Connection, Line
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.sample import create, onward

pytestmark = pytest.mark.timeout(30)

CANCEL = """
    SELECT pg_cancel_backend(pid) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
    WHERE NOT granted AND relnamespace = %s::regnamespace
"""


@contextmanager
def broken_off(url: str, store: PostgresStore) -> Iterator[None]:
    """Whoever wants to see a journal waits, and is broken off."""
    schema, over = store._address.schema, threading.Event()

    def cancel() -> None:
        with psycopg.connect(url, autocommit=True) as admin:
            while not over.wait(0.01):
                admin.execute(CANCEL, (schema,))

    with psycopg.connect(url) as holder:
        holder.execute(f"LOCK TABLE {schema}.journal".encode())
        thread = threading.Thread(target=cancel)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


READS: list[Callable[[PostgresStore], object]] = [
    lambda store: store.load("run"),
    lambda store: store.rows_after("run", 1),
    lambda store: store.found("run"),
    PostgresStore.check,
]


@pytest.mark.parametrize("read", READS)
def test_who_reads_next_is_not_refused_for_what_was_broken_off(
    postgres_url: str, postgres_store: PostgresStore, read: Callable[[PostgresStore], object]
) -> None:
    postgres_store.append([create("run", rows=3)])
    whole = read(postgres_store)
    with broken_off(postgres_url, postgres_store), pytest.raises(StoreBusy, match="broke it off"):
        read(postgres_store)
    assert read(postgres_store) == whole


def test_of_an_append_that_is_broken_off_nothing_is_written_and_the_next_goes_in(postgres_url: str, postgres_store: PostgresStore) -> None:
    postgres_store.append([create("run")])
    with broken_off(postgres_url, postgres_store), pytest.raises(StoreBusy, match="nothing was written"):
        postgres_store.append([onward("run", 1)])
    assert postgres_store.append([onward("run", 1)]) == [None]
    assert [row.seq for row in postgres_store.rows_after("run", 0)[1]] == [1, 2]  # type: ignore[index]  # it is there


def test_without_letting_go_of_the_session_nobody_could_read_any_more(
    postgres_url: str, postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""

    def kept(_: Line, connection: Connection) -> None:
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR

    monkeypatch.setattr(_postgres_line.Line, "_discard_unless_idle", kept)
    postgres_store.append([create("run")])
    with broken_off(postgres_url, postgres_store), pytest.raises(StoreBusy):
        postgres_store.load("run")
    with pytest.raises(Exception, match="transaction is aborted"):
        postgres_store.load("run")


# --- a session that the server ends because its transaction stood still ----------------------------------------------------


LEFT = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"


def outlive(url: str, pid: int) -> None:
    """Wait until the server has ended a session."""
    with psycopg.connect(url, autocommit=True) as admin:
        for _ in range(500):
            if admin.execute(LEFT, (pid,)).fetchall() == [(0,)]:
                return
            threading.Event().wait(0.01)
    raise AssertionError("the server lets it live")


def stop_within(url: str, connection: Connection) -> None:
    """Do what a process does that is stopped while it removes a run, or is gone without a word."""
    with connection.transaction():
        assert _postgres_changed.found_head(connection, "run", _postgres_changed.LOCKED_HEAD) is not None
        outlive(url, connection.info.backend_pid)


def test_who_stands_still_in_a_transaction_does_not_hold_up_others_for_ever(
    postgres_url: str, postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_postgres_line, "STILL_MS", 50)
    postgres_store.append([create("run")])
    with closing(PostgresStore(f"{postgres_url}?schema={postgres_store._address.schema}")) as other:
        with pytest.raises(StoreFailed, match="not known whether that was done"):
            other._others.run(lambda connection: stop_within(postgres_url, connection), again=False)
        assert postgres_store.append([onward("run", 1)]) == [None]


def test_a_blob_may_come_as_slowly_as_it_likes(postgres_url: str, postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres_line, "STILL_MS", 50)

    def slowly() -> Iterator[bytes]:
        for _ in range(2):
            threading.Event().wait(0.1)
            yield b"x" * PIECE_BYTES

    with closing(PostgresStore(f"{postgres_url}?schema={postgres_store._address.schema}")) as other:
        digest = other.keep_blob(slowly(), at_us=1)
    assert postgres_store.touch_blob(digest, at_us=2)


def test_a_transaction_in_which_the_process_stood_still_for_too_long_is_done_again(
    postgres_url: str, postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_postgres_transaction, "IDLE_S", 0.05)
    table, pids = f"{postgres_store._address.schema}.bookings", list[int]()
    postgres_store._others.run(lambda connection: connection.execute(f"CREATE TABLE {table} (item text)".encode()))

    @hf.transaction
    def book() -> int:
        pids.append(hf.connection().info.backend_pid)
        if len(pids) == 1:
            outlive(postgres_url, pids[0])
        hf.connection().execute(f"INSERT INTO {table} VALUES ('seat')".encode())
        return len(pids)

    @hf.agent
    def booking() -> int:
        return book()

    with hf.Holdfast(postgres_store) as app:
        assert app.run(booking, run_id="r") == 2
    with psycopg.connect(postgres_url) as admin:
        assert admin.execute(f"SELECT * FROM {table}".encode()).fetchall() == [("seat",)]


@pytest.mark.parametrize("setting", ["idle_in_transaction_session_timeout", "transaction_timeout"])
def test_a_session_that_the_server_has_ended_is_known_by_its_last_word(postgres_url: str, setting: str) -> None:
    with psycopg.connect(postgres_url) as one, pytest.raises(psycopg.Error) as told:
        one.execute(f"SET LOCAL {setting} = '30ms'".encode())
        outlive(postgres_url, one.info.backend_pid)
        one.execute("SELECT 1")
    assert ended(told.value)
