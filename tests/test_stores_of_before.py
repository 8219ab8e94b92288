"""Stores that were made before workers shared runs are brought up to date when they are opened, with all that they hold."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

import holdfast as hf
from holdfast._turns import in_line_as_ever, turn_of
from holdfast.fleet.worker import Worker
from holdfast.store import Query
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.sample import create, repair

SQLITE = """
    ALTER TABLE owners DROP COLUMN tail; UPDATE meta SET value = '1' WHERE key = 'format';
    DROP INDEX runs_lane;
    DROP INDEX runs_turn; DROP TABLE meters; DROP TABLE holds; ALTER TABLE owners DROP COLUMN about; ALTER TABLE runs DROP COLUMN queue;
    ALTER TABLE runs DROP COLUMN turn; ALTER TABLE runs DROP COLUMN lane; ALTER TABLE aside_heads DROP COLUMN queue;
    ALTER TABLE aside_heads DROP COLUMN turn; ALTER TABLE aside_heads DROP COLUMN lane;
"""
FIRST_SQLITE = "DROP TABLE aside_rows; DROP TABLE aside_heads; DROP TABLE pruned; DROP INDEX runs_due"
POSTGRES = """
    DROP INDEX runs_turn; DROP STATISTICS runs_agents; DROP TABLE meters, holds;
    ALTER TABLE owners DROP about; ALTER TABLE runs DROP queue, DROP turn, DROP lane;
    ALTER TABLE aside_heads DROP queue, DROP turn, DROP lane; UPDATE meta SET value = '1' WHERE key = 'migration'
"""


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def looks(seen: list[str]) -> Callable[[str], object]:
    @hf.step
    async def look(what: str) -> str:
        seen.append(what)
        return what

    @hf.agent(name="looks")
    async def looks(what: str) -> str:
        await look(what)
        return await look(f"{what}!") if await hf.ask("go") else ""

    return looks


def carried_out(url: str, sql: str) -> None:
    if url.startswith("postgresql"):
        address, _, schema = url.partition("?schema=")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"SET search_path TO {schema}; {sql}".encode())
    else:
        with closing(apsw.Connection(url)) as connection:
            connection.execute(sql)


async def worked(app: hf.Holdfast, agent: Callable[..., object], run_id: str) -> None:
    worker = Worker(app.engine, [agent], concurrency=1)
    task = asyncio.create_task(worker.work())
    async with asyncio.timeout(30):
        while app.show(run_id).status != "done":  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.01)
    worker.stop()
    await task


@pytest.mark.parametrize("before", [SQLITE, SQLITE + FIRST_SQLITE, POSTGRES], ids=["sqlite", "the first sqlite", "postgres"])
def test_a_run_of_before_is_whole_and_a_worker_goes_on_with_it(
    before: str, seen: list[str], looks: Callable[[str], object], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    served = request.getfixturevalue("postgres_url") if before == POSTGRES else ""
    url = f"{served}?schema=t_{secrets.token_hex(6)}" if served else str(tmp_path / "runs.db")
    with hf.Holdfast(url) as app, pytest.raises(hf.RunWaiting):
        app.run(looks, "a", run_id="old", wait=False)
    carried_out(url, before)
    with hf.Holdfast(url) as app:
        assert ([verdict.good for verdict in app.check()], app.store.check()) == ([True], [])
        head = app.store.head("old")
        assert head is not None
        assert (head.queue, head.turn, head.lane) == ("default", turn_of(0, head.created_us), "")
        app.answer("old", app.inbox()[0].step_id, yes=True, by="ann")
        asyncio.run(worked(app, looks, "old"))
        app.submit(looks, "b", run_id="new")
        assert [each.run_id for each in app.store.heads(Query(statuses=["queued"], queue="default"))] == ["new"]
    assert seen == ["a", "a!"]


def test_what_a_repair_had_moved_to_sqlite_aside_before_is_still_shown(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "runs.db")) as store:
        store.append([create("run", rows=4)])
        assert store.set_aside(repair("run", rows=4, good=2))
        before = store.aside("run")
    carried_out(str(store.path), SQLITE)
    with closing(SqliteStore(store.path)) as store:
        assert {each.what for each in before} == {"row", "head"}
        assert [(each.what, each.fields[:13]) for each in store.aside("run")] == [(each.what, each.fields[:13]) for each in before]
        assert store.check() == []


def test_a_head_of_before_stands_in_line_since_it_began_and_a_later_one_where_it_says() -> None:
    place = {"queue": "default", "turn": "10000 00000000000000007", "lane": ""}
    assert in_line_as_ever({"created_us": 7}) == {"created_us": 7} | place
    assert in_line_as_ever({"created_us": 7, "queue": "mail", "turn": "t", "lane": "l"})["queue"] == "mail"
