"""An effect on tables of the user's that commits with its outcome: exactly once, and never a doubt."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import lines, loaded, records
from holdfast.errors import LeaseLost
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores import _postgres_transaction
from holdfast.stores.postgres import PostgresStore

HERE = Path(__file__).parent
NAME = f"bookings_{secrets.token_hex(4)}"
INSERT = f"INSERT INTO {NAME} (item) VALUES (%s) RETURNING id"


@pytest.fixture
def table(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """The user's table, seen from outside."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {NAME} (id serial PRIMARY KEY, item text, CHECK (item <> 'bad'))".encode())
        yield connection
        connection.execute(f"DROP TABLE {NAME}".encode())


def booked(table: psycopg.Connection[Any]) -> list[str]:
    return [item for (item,) in table.execute(f"SELECT item FROM {NAME} ORDER BY id".encode())]


@hf.transaction
def book(item: str) -> int:
    ((number,),) = hf.connection().execute(INSERT.encode(), (item,)).fetchall()
    return int(number)


@hf.agent
async def shopping(*items: str) -> list[int]:
    return [book(item) for item in items]


@hf.agent
def shopping_blocking(*items: str) -> list[int]:
    return [book(item) for item in items]


@pytest.mark.parametrize("agent", [shopping, shopping_blocking])
def test_what_the_body_wrote_and_its_outcome_are_there_together(
    postgres_store: PostgresStore, table: psycopg.Connection[Any], agent: Any
) -> None:
    with hf.Holdfast(postgres_store) as app:
        assert app.run(agent, "a", "b", run_id="r") == [1, 2]
        assert app.run(agent, "a", "b", run_id="r") == [1, 2]
        assert lines(postgres_store) == ["run.started", "step.done 1", "step.done 2", "run.done"]
        assert [verdict.good for verdict in app.check()] == [True]
    assert booked(table) == ["a", "b"]


def test_a_body_that_raises_leaves_nothing_and_its_error_is_recorded(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    @hf.transaction(raises=LookupError)
    def booking(item: str) -> None:
        hf.connection().execute(INSERT.encode(), (item,))
        raise LookupError(item)

    @hf.agent
    def agent() -> str:
        try:
            booking("a")
        except LookupError as error:
            return f"no {error}"
        return "booked"

    with hf.Holdfast(postgres_store) as app:
        assert app.run(agent, run_id="r") == "no a"
        assert lines(postgres_store) == ["run.started", "step.failed 1", "run.done"]
    assert booked(table) == []


def test_what_the_database_refuses_is_rolled_back_and_tried_again_as_the_policy_says(
    postgres_store: PostgresStore, table: psycopg.Connection[Any]
) -> None:
    tried: list[str] = []

    @hf.transaction(retry=hf.Retry(attempts=2, base=0.001, on=psycopg.errors.CheckViolation))
    def booking() -> str:
        hf.connection().execute(INSERT.encode(), ("first",))
        tried.append("good" if tried else "bad")
        hf.connection().execute(INSERT.encode(), (tried[-1],))
        return tried[-1]

    @hf.agent
    def agent() -> str:
        return booking()

    with hf.Holdfast(postgres_store) as app:
        assert app.run(agent, run_id="r") == "good"
        assert lines(postgres_store) == ["run.started", "step.attempt_failed 1", "step.done 1", "run.done"]
    assert booked(table) == ["first", "good"]


def test_what_is_only_refused_at_the_commit_is_an_error_of_the_step(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    table.execute(f"CREATE UNIQUE INDEX ON {NAME} (item)".encode())
    table.execute(f"ALTER TABLE {NAME} ADD CONSTRAINT once UNIQUE (item) DEFERRABLE INITIALLY DEFERRED".encode())
    table.execute(f"DROP INDEX {NAME}_item_idx".encode())
    table.execute(INSERT.encode(), ("a",))

    @hf.agent
    def agent() -> int:
        seen = hf.state({"before": 1})
        seen["before"] += 1
        return book("a")

    with hf.Holdfast(postgres_store) as app:
        with pytest.raises(hf.StepFailed, match="once"):
            app.run(agent, run_id="r")
        assert "step.failed 1" in lines(postgres_store)
        assert "state.saved /state.1" in lines(postgres_store)
    assert booked(table) == ["a"]


def test_a_transaction_that_another_one_deadlocks_or_overtakes_is_done_again(
    postgres_store: PostgresStore, table: psycopg.Connection[Any]
) -> None:
    table.execute(INSERT.encode(), ("seats",))
    tried: list[int] = []

    @hf.transaction
    def booking() -> int:
        connection = hf.connection()
        connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        connection.execute(f"SELECT item FROM {NAME}".encode())
        tried.append(1)
        if len(tried) < 3:
            table.execute(f"UPDATE {NAME} SET item = item || '+'".encode())
        connection.execute(f"UPDATE {NAME} SET item = item || '!'".encode())
        return len(tried)

    @hf.agent
    def agent() -> int:
        return booking()

    with hf.Holdfast(postgres_store) as app:
        assert app.run(agent, run_id="r") == 3
        assert lines(postgres_store) == ["run.started", "step.done 1", "run.done"]
    assert booked(table) == ["seats++!"]


def test_a_zombies_transaction_is_refused_and_rolled_back(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    """While the body works, somebody else takes the run over."""

    @hf.transaction
    def booking() -> None:
        hf.connection().execute(INSERT.encode(), ("late",))
        stolen = Journal.load(*loaded(postgres_store)).seal([rec.RunResumed(owner="thief", why="taken over")], at_us=1)
        assert postgres_store.append([stolen]) == [None]

    @hf.agent
    def agent() -> None:
        booking()

    with hf.Holdfast(postgres_store) as app:
        with pytest.raises(LeaseLost):
            app.run(agent, run_id="r")
        assert lines(postgres_store) == ["run.started", "run.resumed"]
    assert booked(table) == []


def test_who_was_stopped_in_its_body_does_not_hold_up_whoever_has_taken_the_run(
    postgres_store: PostgresStore, table: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_postgres_transaction, "IDLE_S", 1)
    table.execute(f"CREATE UNIQUE INDEX ON {NAME} (item)".encode())
    with postgres_store.transaction() as stopped:
        stopped.connection.execute(INSERT.encode(), ("seat",))
        with postgres_store.transaction() as onward:
            onward.connection.execute("SET LOCAL lock_timeout = '20s'")
            onward.connection.execute(INSERT.encode(), ("seat",))
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout) as told:
            stopped.connection.execute("SELECT 1")
        assert stopped.again(told.value)


@hf.transaction
def note(words: list[str]) -> str:
    hf.connection().execute(INSERT.encode(), (f"{len(words)} words",))
    return "w" * 70_000


@hf.agent
def noting(rounds: int) -> int:
    words = ["w" * 2000]
    for number in range(rounds):
        words.append(note(words)[:100] + str(number))
    return len(words)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_large_results_and_growing_arguments_are_packed(postgres_url: str, table: psycopg.Connection[Any], isolation: str) -> None:
    setting = quote(f"-c default_transaction_isolation={isolation}".replace("d c", "d\\ c").replace("e r", "e\\ r"))
    store = PostgresStore(f"{postgres_url}?schema=t_{secrets.token_hex(6)}&options={setting}")
    with hf.Holdfast(store) as app:
        assert app.run(noting, 4, run_id="r") == 5
        found = store.load("r")
        assert found is not None
        done = [row for row in found[1] if row.kind == "step.done"]
        assert [(row.value or b"")[:8] for row in done] == [b'={"zlib"'] * 4
        assert [(row.args or b"")[:8] for row in done[1:]] == [b'={"like"'] * 3
        assert app.check()[0].good
        assert len(app.show_at("r", 4).arguments["words"]) == 4
    assert booked(table) == [f"{number} words" for number in range(1, 5)]


def test_branches_keep_their_order_and_share_the_run(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    """Branches of a `def` agent are threads: their steps, letters and transactions are numbered one behind the other."""

    @hf.step
    def look(number: int) -> int:
        return number

    def branch(number: int) -> int:
        return look(number) + book(str(number)) + look(number)

    @hf.agent
    def agent() -> int:
        return len(hfs.map(branch, range(12)))

    with hf.Holdfast(postgres_store) as app:
        assert app.run(agent, run_id="r") == 12
        assert [verdict.good for verdict in app.check()] == [True]
        assert sum(line.startswith("step.done") for line in lines(postgres_store)) == 36
    assert sorted(booked(table)) == sorted(str(number) for number in range(12))


def test_many_runs_on_one_loop(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    async def shop(app: hf.Holdfast) -> list[list[int]]:
        handles = [await app.start(shopping, name, name, run_id=name) for name in "abcdefghijkl"]
        return [await handle.result() for handle in handles]

    with hf.Holdfast(postgres_store) as app:
        results = asyncio.run(shop(app))
    assert sorted(number for result in results for number in result) == list(range(1, 25))
    assert sorted(booked(table)) == sorted("abcdefghijkl" * 2)


def test_a_body_that_is_interrupted_did_not_happen_and_is_done_when_the_run_goes_on(
    postgres_store: PostgresStore, table: psycopg.Connection[Any]
) -> None:
    pressed: list[bool] = []

    @hf.transaction
    def booking() -> str:
        hf.connection().execute(INSERT.encode(), ("once",))
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        return "booked"

    @hf.agent
    def agent() -> str:
        return booking()

    with hf.Holdfast(postgres_store) as app:
        with pytest.raises(KeyboardInterrupt):
            app.run(agent, run_id="r")
        assert app.inbox() == []
        assert app.run(agent, run_id="r", wait=False) == "booked"
        assert next(line.call for line in app.history("r") if line.state == "done").startswith("booking(")
    assert booked(table) == ["once"]


def test_states_that_branches_change_are_saved_in_the_order_in_which_they_were_looked_at(
    postgres_store: PostgresStore, table: psycopg.Connection[Any]
) -> None:
    def branch(seen: list[int], number: int) -> int:
        seen.append(number)
        return book(str(number))

    @hf.agent
    def agent() -> int:
        seen: list[int] = hf.state([])
        return len(hfs.map(lambda number: branch(seen, number), range(8)))

    with hf.Holdfast(postgres_store) as app:
        assert app.run(agent, run_id="r") == 8
        saved = [json.loads(record.value or b"") for record in records(postgres_store) if isinstance(record, rec.StateSaved)]
    assert [len(state) for state in saved] == sorted(len(state) for state in saved)
    assert sorted(saved[-1]) == list(range(8))


def test_no_verbs_inside_and_no_connection_outside(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    @hf.transaction
    def booking() -> int:
        return book("inside")

    @hf.agent
    def agent(what: str) -> int:
        if what == "nested":
            return booking()
        hf.connection()
        return 0

    with hf.Holdfast(postgres_store) as app:
        with pytest.raises(hf.NestedStep):
            app.run(agent, "nested", run_id="n")
        with pytest.raises(hf.Misuse, match=r"body of an @hf\.transaction"):
            app.run(agent, "outside", run_id="o")
    assert booked(table) == []


def test_a_body_that_commits_by_itself_is_told(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    @hf.transaction
    def booking(how: str) -> None:
        hf.connection().execute(INSERT.encode(), (how,))
        if how == "commit()":
            hf.connection().commit()
        if how == "rollback()":
            hf.connection().rollback()
        hf.connection().execute("COMMIT")
        if how == "and goes on":
            hf.connection().execute("BEGIN")

    @hf.agent
    def agent(how: str) -> None:
        booking(how)

    with hf.Holdfast(postgres_store) as app:
        for how in ("COMMIT", "and goes on"):
            with pytest.raises(hf.Misuse, match="ended its transaction by itself"):
                app.run(agent, how)
        for how in ("commit()", "rollback()"):
            with pytest.raises(hf.StepFailed, match="forbidden"):
                app.run(agent, how)
    assert booked(table) == ["COMMIT", "and goes on"]


def test_what_a_body_sets_is_not_there_for_the_next(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    @hf.transaction
    def setting() -> str:
        ((was,),) = hf.connection().execute("SHOW search_path").fetchall()
        hf.connection().execute("SET search_path = nowhere")
        hf.connection().execute("SET synchronous_commit = off")
        return str(was)

    @hf.agent
    def agent() -> list[str]:
        return [setting(), setting()]

    with hf.Holdfast(postgres_store) as app:
        assert app.run(agent) == ['"$user", public'] * 2


def test_another_store_refuses_it_at_the_call() -> None:
    with hf.Holdfast("memory:") as app, pytest.raises(hf.Misuse, match=r"one transaction.*postgresql://"):
        app.run(shopping, "a", run_id="r")


def test_an_async_body_is_refused_where_it_is_declared() -> None:
    async def booking() -> None: ...

    with pytest.raises(hf.Misuse, match="make it `def`"):
        hf.transaction(booking)


def test_a_unit_test_lends_a_connection(table: psycopg.Connection[Any]) -> None:
    with hf.plain(connection=table):
        assert book("plain") == 1
    assert booked(table) == ["plain"]


def test_a_fork_knows_that_it_happened_and_an_undo_takes_it_back(postgres_store: PostgresStore, table: psycopg.Connection[Any]) -> None:
    @hf.transaction
    def unbook(number: int, item: str) -> None:
        hf.connection().execute(f"UPDATE {NAME} SET item = %s WHERE id = %s".encode(), (f"not {item}", number))

    @hf.transaction(undo=unbook)
    def booking(item: str) -> int:
        ((number,),) = hf.connection().execute(INSERT.encode(), (item,)).fetchall()
        return int(number)

    @hf.step
    def look() -> str:
        return "x"

    @hf.agent(on_failure="undo")
    def agent() -> int:
        look()
        booking("a")
        if hf.current().tags.get("fails"):
            raise ValueError("no")
        return 7

    with hf.Holdfast(postgres_store) as app:
        assert app.run(agent, run_id="r") == 7
        fork = app.fork("r", at="1", effects="reuse")
        assert app.resume_here(fork, [agent]) == 7
        assert booked(table) == ["a"]
        with pytest.raises(ValueError, match="no"):
            app.run(agent, run_id="u", tags={"fails": "yes"})
    assert booked(table) == ["a", "not a"]


def test_the_page_about_it_shows_what_works(postgres_url: str, tmp_path: Path) -> None:
    page = (HERE.parent / "docs" / "transactions.md").read_text()
    (sql,), (code,) = (re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) for kind in ("sql", "python"))
    (tmp_path / "travel.py").write_text(code)
    schema = f"t_{secrets.token_hex(6)}"
    options = f"schema={schema}&options=-csearch_path%3D{schema}_own"
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "HOLDFAST_STORE": f"{postgres_url}?{options}"}
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}_own; SET search_path = {schema}_own; {sql}".encode())
        for _ in range(2):
            done = subprocess.run([sys.executable, "travel.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        assert admin.execute("SELECT customer, seat FROM bookings").fetchall() == [("ann", "12A")]
