"""Runs that can go on now are found among those that rest, by what they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from agents_for_tests.sites import StillClock
from holdfast.errors import Misuse
from holdfast.store import Store
from holdfast.stores import _sqlite_append
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

HOUR_US = 3_600_000_000


@hf.agent
async def sleeps(hours: int) -> str:
    await hf.sleep(hours * 3600)
    return "awake"


@hf.agent
async def asks() -> str:
    return await hf.ask("colour?", str)


@hf.agent
async def receives() -> list[str]:
    return [await hf.receive("one", str), await hf.receive("two", str)]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    yield opened
    opened.close()


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def app(store: Store, clock: StillClock) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(store, clock=clock) as app:
        yield app


def park(app: hf.Holdfast, run_id: str, agent: Any, *args: Any) -> None:
    with suppress(hf.RunWaiting):
        app.run(agent, *args, run_id=run_id, wait=False)


def ready(app: hf.Holdfast, **more: Any) -> list[str]:
    return [run.run_id for run in app.ready(**more)]


def test_a_timer_is_ready_when_its_time_has_come_the_earliest_first(app: hf.Holdfast, clock: StillClock) -> None:
    for run_id, hours in (("late", 3), ("soon", 1), ("later", 2)):
        park(app, run_id, sleeps, hours)
    assert ready(app) == []
    clock.at_us += HOUR_US
    assert ready(app) == ["soon"]
    clock.at_us += 2 * HOUR_US
    assert ready(app) == ["soon", "later", "late"]
    assert ready(app, limit=2) == ["soon", "later"]
    assert app.run(sleeps, 1, run_id="soon") == "awake"
    assert ready(app) == ["later", "late"]


def test_a_run_that_was_answered_or_marked_is_ready(app: hf.Holdfast) -> None:
    for run_id in ("answered", "marked", "waiting"):
        park(app, run_id, asks)
    app.answer("answered", "1", "red")
    app.resume("marked")
    assert sorted(ready(app)) == ["answered", "marked"]
    assert ready(app, agent="receives") == []


def test_a_letter_that_nobody_has_read_makes_its_run_ready(app: hf.Holdfast, store: Store) -> None:
    for run_id in ("a", "b"):
        park(app, run_id, asks)
    store.post("b", "cancel", b'{"by": "ann"}', 1)
    assert ready(app) == ["b"]


def test_only_the_message_that_is_waited_for_makes_its_run_ready(app: hf.Holdfast) -> None:
    park(app, "r", receives)
    app.send("r", "two", "early")
    assert ready(app) == []
    app.send("r", "one", "now", key="k")
    assert ready(app) == ["r"]
    assert app.run(receives, run_id="r") == ["now", "early"]


def test_the_repetition_of_a_message_that_was_taken_does_not_make_its_run_ready_for_ever(app: hf.Holdfast) -> None:
    @hf.agent
    async def twice() -> list[str]:
        return [await hf.receive("one", str), await hf.receive("one", str)]

    park(app, "r", twice)
    app.send("r", "one", "first", key="k")
    park(app, "r", twice)
    app.send("r", "one", "first", key="k")
    assert ready(app) == []


@pytest.mark.parametrize("limit", [0, -1, 100_001])
def test_a_limit_that_makes_no_sense_is_refused(app: hf.Holdfast, limit: int) -> None:
    with pytest.raises(Misuse, match="between 1 and 100000"):
        app.ready(limit=limit)


def test_a_store_from_before_there_was_an_index_of_times_gets_it_when_it_is_opened(tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", StillClock()
    with hf.Holdfast(path, clock=clock) as app:
        park(app, "r", sleeps, 1)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("DROP INDEX runs_due")
    clock.at_us += HOUR_US
    with hf.Holdfast(path, clock=clock) as app:
        assert ready(app) == ["r"]
        assert app.store.check() == []


def test_a_step_of_an_owned_run_does_not_open_the_index_of_times(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "runs.db").close()
    with closing(apsw.Connection(str(tmp_path / "runs.db"))) as connection:
        pages = {page: str(name) for page, name in connection.execute("SELECT rootpage, name FROM sqlite_schema")}

        def opened(sql: str) -> set[str]:
            told = connection.execute(f"EXPLAIN {sql}", [None] * sql.count("?"))
            return {pages[page] for _, code, _, page, *_ in told if code == "OpenWrite"}

        assert opened(_sqlite_append.ADVANCE) == {"runs", "runs_resting"}
        assert opened(_sqlite_append.REPLACE) == {"runs", "runs_resting", "runs_owned", "runs_due", "runs_turn", "runs_lane"}


def test_a_message_without_a_key_wakes_a_run_that_took_another_one_without_a_key_before(app: hf.Holdfast) -> None:
    park(app, "run", receives)
    for name in ("one", "two"):
        assert ready(app) == []
        app.send("run", name, name)
        assert ready(app) == ["run"]
        park(app, "run", receives)
    assert app.show("run").result == ["one", "two"]
