"""Processes on one PostgreSQL hear of each other at once; where they cannot hear, they look as often as before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast.sync as hf
from holdfast.running import runner
from holdfast.stores import _postgres_bell
from holdfast.stores.postgres import PostgresStore

LONG_S = 60.0
LISTENS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND query LIKE '%%' || md5(%s)"

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def here(postgres_store: PostgresStore) -> Iterator[hf.Holdfast]:
    """The process that executes runs."""
    with hf.Holdfast(postgres_store) as app:
        yield app


@pytest.fixture
def there(here: hf.Holdfast, postgres_url: str) -> Iterator[hf.Holdfast]:
    """Another one."""
    with hf.Holdfast(f"{postgres_url}?schema={schema_of(here)}") as app:
        yield app


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def schema_of(app: hf.Holdfast) -> str:
    assert isinstance(app.store, PostgresStore)
    return app.store._address.schema


def looking(monkeypatch: pytest.MonkeyPatch, every_s: float) -> None:
    """How often whoever waits looks by itself."""
    monkeypatch.setattr(runner, "POLL_S", every_s)
    monkeypatch.setattr("holdfast.running.lease.LETTERS_S", every_s)


@hf.agent
def asking() -> bool:
    return hf.ask("Go on?", bool)


def begun(app: hf.Holdfast, results: list[object], **options: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: results.append(app.run(asking, run_id="r", **options)), daemon=True)
    thread.start()
    return thread


def until(what: Any) -> None:
    for _ in range(2000):
        if what():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to that")


def hears(admin: psycopg.Connection[Any], app: hf.Holdfast) -> list[tuple[int]]:
    return admin.execute(LISTENS, (schema_of(app),)).fetchall()


def answered(there: hf.Holdfast, admin: psycopg.Connection[Any], here: hf.Holdfast) -> None:
    """Answer once the other process waits, and listens."""
    until(lambda: hears(admin, here) and there.inbox())
    there.answer("r", "1", value=True)


@pytest.mark.parametrize("park_after", [0, LONG_S])
def test_an_answer_reaches_the_run_in_another_process_without_it_looking(
    here: hf.Holdfast, there: hf.Holdfast, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, park_after: float
) -> None:
    looking(monkeypatch, LONG_S)
    results: list[object] = []
    thread = begun(here, results, park_after=park_after)
    answered(there, admin, here)
    thread.join(20)
    assert results == [True]


def test_who_waits_for_the_result_of_another_process_hears_that_it_has_ended(
    here: hf.Holdfast, there: hf.Holdfast, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looking(monkeypatch, LONG_S)
    results: list[object] = []
    threads = [begun(here, results)]
    until(lambda: hears(admin, here))
    threads.append(threading.Thread(target=lambda: results.append(there.handle("r", asking).wait()), daemon=True))
    threads[1].start()
    until(lambda: len(hears(admin, here)) == 2)
    there.answer("r", "1", value=True)
    for thread in threads:
        thread.join(20)
    assert results == [True, True]


def test_without_notifications_the_answer_is_found_when_it_is_looked_for(
    here: hf.Holdfast, there: hf.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control, and what stands behind the notifications: nobody can listen, and the run goes on all the same."""

    def refuse(_: object) -> None:
        raise psycopg.OperationalError("no more connections")

    looking(monkeypatch, 1.5)
    monkeypatch.setattr(_postgres_bell, "connect", refuse)
    results: list[object] = []
    thread = begun(here, results)
    until(there.inbox)
    until(lambda: there.show("r").status == "waiting")
    threading.Event().wait(0.2)
    there.answer("r", "1", value=True)
    thread.join(0.4)
    assert results == []
    thread.join(20)
    assert results == [True]


def test_a_session_that_is_cut_is_opened_anew_and_hears_again(
    here: hf.Holdfast, there: hf.Holdfast, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looking(monkeypatch, LONG_S)
    results: list[object] = []
    thread = begun(here, results, park_after=LONG_S)
    until(lambda: hears(admin, here))
    before = hears(admin, here)
    for (pid,) in before:
        admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    until(lambda: hears(admin, here) not in ([], before))
    answered(there, admin, here)
    thread.join(20)
    assert results == [True]


def test_a_long_id_rings_for_all(here: hf.Holdfast, there: hf.Holdfast) -> None:
    """A notification is limited, the id of a run is not."""
    heard: list[str] = []
    assert isinstance(here.store, PostgresStore)
    here.store.listen(heard.append)
    until(lambda: heard == [""])
    for run_id in ("x" * 10_000, "\0zero"):
        there.store.post(run_id, "message", b"{}", 1)
    until(lambda: heard == ["", "", "\0zero"])


def test_steps_of_a_run_that_goes_on_ring_for_nobody(here: hf.Holdfast, there: hf.Holdfast) -> None:
    @hf.step
    def look(number: int) -> int:
        return number

    @hf.agent
    def looking_on() -> int:
        return sum(look(number) for number in range(5))

    heard: list[str] = []
    assert isinstance(there.store, PostgresStore)
    there.store.listen(heard.append)
    until(lambda: heard == [""])
    assert here.run(looking_on, run_id="r") == 10
    here.store.post("last", "message", b"{}", 1)
    until(lambda: "last" in heard)
    assert heard == ["", "r", "last"]
