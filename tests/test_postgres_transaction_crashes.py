"""A step that commits with its outcome, killed and cut off at every place: one row each time, and nobody is asked anything."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast.sync as hf
import starting
from cutting_proxy import Proxy, proxy
from holdfast._failpoints import TRANSACTIONS
from holdfast.errors import LeaseLost
from holdfast.store import Undone
from holdfast.stores._postgres_transaction import OpenTransaction
from holdfast.stores.postgres import PostgresStore
from postgres_server import HOST, server

HERE = Path(__file__).parent
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}
COMMIT = b"Q\0\0\0\x0bCOMMIT\0"
MODES = ("before", "after", "at once")
CUTS = 10


@pytest.fixture
def schema() -> str:
    return "t_" + secrets.token_hex(6)


@pytest.fixture
def table(postgres_url: str, schema: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE bookings_{schema} (id serial PRIMARY KEY, item text)".encode())
        yield connection
        connection.execute(f"DROP TABLE bookings_{schema}".encode())


def booked(table: psycopg.Connection[Any], schema: str) -> list[str]:
    return [item for (item,) in table.execute(f"SELECT item FROM bookings_{schema} ORDER BY id".encode())]


Lives = Callable[..., int]


@pytest.fixture(scope="session")
def crew() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "agents_for_tests.booker"]
    with starting.Popen[str](command, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.communicate()


@pytest.fixture
def lives(crew: subprocess.Popen[str], postgres_url: str, schema: str) -> Lives:
    """A process that runs the agent to its end, or to the place where it is killed; gives how it ended."""

    def live(failpoint: str = "", broken: str = "") -> int:
        assert crew.stdin is not None
        assert crew.stdout is not None
        order = {"url": f"{postgres_url}?schema={schema}", "table": f"bookings_{schema}", "failpoint": failpoint, "broken": broken}
        crew.stdin.write(json.dumps(order) + "\n")
        crew.stdin.flush()
        return int(crew.stdout.readline())

    return live


@pytest.mark.sweep
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_kill_at_any_place_leaves_one_row_and_no_question(
    lives: Lives, postgres_url: str, schema: str, table: psycopg.Connection[Any], name: str
) -> None:
    assert lives(f"{name}:1") == -signal.SIGKILL
    if name != "transaction.before":
        assert lives("transaction.before_commit:1") == -signal.SIGKILL
    assert lives() == 0
    assert booked(table, schema) == ["first", "second"]
    with hf.Holdfast(f"{postgres_url}?schema={schema}") as app:
        assert app.show("r").status == "done"
        assert app.inbox() == []
        assert [verdict.good for verdict in app.check()] == [True]


@pytest.mark.parametrize(("broken", "rows"), [("doubles", ["first", "first", "second"]), ("loses", ["second"])])
def test_two_commits_would_double_or_lose_a_row(
    lives: Lives, schema: str, table: psycopg.Connection[Any], broken: str, rows: list[str]
) -> None:
    """The negative control."""
    assert lives("transaction.before_commit:1", broken) == -signal.SIGKILL
    assert lives(broken=broken) == 0
    assert booked(table, schema) == rows


@pytest.fixture
def between(postgres_url: str) -> Iterator[Proxy]:
    with proxy(int(postgres_url.rpartition(":")[2].partition("/")[0])) as opened:
        yield opened


@pytest.fixture
def through(between: Proxy, schema: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(f"postgresql://postgres@{HOST}:{between.port}/postgres?schema={schema}")) as store:
        yield store


def book_while_cut(store: PostgresStore, between: Proxy, schema: str, at: bytes) -> list[int]:
    """Book again and again, the connection cut each time: when `at` is on its way, or its reply is."""

    @hf.transaction
    def book(number: int) -> int:
        between.at, between.cut_how = at, MODES[number % len(MODES)] if number not in tried else None
        tried.append(number)
        hf.connection().execute(f"INSERT INTO bookings_{schema} (item) VALUES (%s)".encode(), (str(number),))
        return number

    @hf.agent
    def booker() -> list[int]:
        return [book(number) for number in range(3 * CUTS)]

    tried: list[int] = []
    with hf.Holdfast(store) as app:
        return app.run(booker, run_id="r")


@pytest.mark.parametrize("at", [COMMIT, b"INSERT INTO bookings"])
def test_cut_connections_leave_one_row_each(
    through: PostgresStore, between: Proxy, table: psycopg.Connection[Any], schema: str, at: bytes
) -> None:
    assert book_while_cut(through, between, schema, at) == list(range(3 * CUTS))
    assert [between.cuts.count(mode) for mode in MODES] == [CUTS] * 3
    assert booked(table, schema) == [str(number) for number in range(3 * CUTS)]


def test_a_session_that_is_ended_at_the_commit_is_looked_after(
    through: PostgresStore, table: psycopg.Connection[Any], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that it ended the session, with the connection still open: that is no yes."""
    tried: list[int] = []

    @hf.transaction
    def book() -> int:
        hf.connection().execute(f"INSERT INTO bookings_{schema} (item) VALUES ('x')".encode())
        tried.append(1)
        return len(tried)

    @hf.agent
    def booker() -> int:
        return book()

    real = OpenTransaction._exit

    def ends(self: OpenTransaction, error: Exception | None) -> None:
        if error is None and len(tried) == 1:
            self._outer = None
            raise psycopg.errors.AdminShutdown("terminating connection")
        real(self, error)

    monkeypatch.setattr(OpenTransaction, "_exit", ends)
    with hf.Holdfast(through) as app:
        assert app.run(booker, run_id="r") == 2
    assert booked(table, schema) == ["x"]


def test_who_does_not_look_after_a_lost_reply_is_refused_by_his_own_outcome(
    through: PostgresStore, between: Proxy, table: psycopg.Connection[Any], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a lost reply is taken for a transaction that was rolled back, and is noticed."""

    def believe(self: OpenTransaction, append: object) -> None:
        raise Undone(psycopg.OperationalError("lost"), again=True)

    monkeypatch.setattr(OpenTransaction, "_look_up", believe)
    with pytest.raises(LeaseLost):
        book_while_cut(through, between, schema, COMMIT)


def test_a_server_that_is_killed_meanwhile_leaves_one_row_each() -> None:
    with server() as one, closing(PostgresStore(one.url())) as store:
        with psycopg.connect(one.url().partition("?")[0], autocommit=True) as admin:
            admin.execute("CREATE TABLE bookings_x (id serial PRIMARY KEY, item text)")
        begun = threading.Semaphore(0)

        @hf.transaction
        def book(number: int) -> int:
            hf.connection().execute("INSERT INTO bookings_x (item) VALUES (%s)", (str(number),))
            begun.release()
            return number

        @hf.agent
        def booker() -> int:
            return sum(book(number) == number for number in range(40))

        def kill() -> None:
            for _ in range(3):
                for _ in range(10):
                    begun.acquire()
                one.kill()
                one.start()

        killer = threading.Thread(target=kill)
        killer.start()
        with hf.Holdfast(store) as app:
            assert app.run(booker, run_id="r") == 40
            killer.join(60)
            assert app.inbox() == []
        with psycopg.connect(one.url().partition("?")[0]) as admin:
            rows = admin.execute("SELECT item FROM bookings_x ORDER BY id").fetchall()
        assert rows == [(str(number),) for number in range(40)]
