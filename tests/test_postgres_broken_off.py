"""A PostgreSQL server that breaks a statement off and lives on, by a time-out or its administrator's word: the session is used no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from holdfast.errors import StoreBusy
from holdfast.stores import _postgres_line
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
