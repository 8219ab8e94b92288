"""Which runs a verb for many is for, and that one which cannot be changed does not stop the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from agents_for_tests.sites import HandClock
from holdfast import Holdfast
from holdfast.errors import StoreFailed
from holdfast.fleet import choosing
from holdfast.fleet.choosing import Wanted
from holdfast.fleet.worker import Worker
from holdfast.operating.family import top_of
from holdfast.records.chain import CHILD_OF
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore


@hf.agent
def adds(number: int) -> int:
    return number + 1


@hf.agent
async def asks(number: int) -> bool:
    return await hf.ask(f"{number}?", bool)


@hf.agent
async def calls(number: int) -> bool:
    return await asks(number)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            yield MemoryStore()
        case "sqlite":
            from holdfast.stores.sqlite import SqliteStore

            yield SqliteStore(tmp_path / "runs.db")
        case _:
            yield request.getfixturevalue("postgres_store")


@pytest.fixture
def app(store: Store) -> Iterator[Holdfast]:
    """Runs of two agents in two queues: in line, paused, waiting and done."""
    with Holdfast(store) as opened:
        for number, queue in enumerate(("mail", "mail", "other", "other")):
            opened.submit(adds, number, run_id=f"adds-{number}", queue=queue, tags={"half": queue[:1]})
        opened.pause("adds-1", by="ann")
        opened.run(adds, 2, run_id="adds-2", tags={"half": "o"})
        with pytest.raises(hf.RunWaiting):
            opened.run(asks, 1, run_id="asks-1", wait=False)
        yield opened


def ids(app: Holdfast, verb: str, wanted: Wanted, limit: int = 100) -> list[str]:
    return [head.run_id for head in choosing.chosen(app.engine, verb, wanted, limit=limit).runs]


CASES = [
    ("pause", Wanted(agent="adds"), ["adds-0", "adds-3"]),
    ("pause", Wanted(queue="mail"), ["adds-0"]),
    ("pause", Wanted(queue="nobody"), []),
    ("pause", Wanted(idle_s=0.0), ["adds-0", "adds-3", "asks-1"]),
    ("pause", Wanted(idle_s=3600.0), []),
    ("pause", Wanted(statuses=["paused", "waiting"]), ["adds-1", "asks-1"]),
    ("resume", Wanted(agent="adds"), ["adds-1"]),
    ("resume", Wanted(statuses=["waiting"]), ["asks-1"]),
    ("cancel", Wanted(agent="adds"), ["adds-0", "adds-1", "adds-3"]),
    ("cancel", Wanted(tags={"half": "m"}, queue="mail"), ["adds-0", "adds-1"]),
    ("cancel", Wanted(tags={"half": "m"}, queue="other"), []),
    ("cancel", Wanted(statuses=["stopped"]), []),
]


def test_filters_choose_runs_that_the_verb_is_for(app: Holdfast) -> None:
    for verb, wanted, found in CASES:
        assert ids(app, verb, wanted) == found, (verb, wanted)


def test_more_than_the_limit_are_counted(app: Holdfast) -> None:
    chosen = choosing.chosen(app.engine, "cancel", Wanted(agent="adds"), limit=2)
    assert ([head.run_id for head in chosen.runs], chosen.left) == (["adds-0", "adds-1"], 1)


def test_one_that_is_refused_does_not_stop_the_others_and_tells_why(app: Holdfast) -> None:
    runs = choosing.chosen(app.engine, "cancel", Wanted(statuses=["queued", "done", "waiting"]), limit=100).runs
    told = list(choosing.carried_out(runs, lambda run_id: app.cancel(run_id, by="ann")))
    assert {one.run_id: bool(one.refused) for one in told} == {"adds-0": False, "adds-2": True, "adds-3": False, "asks-1": False}
    assert next(one.refused for one in told if one.refused) == "run 'adds-2' is done and stays so; nothing was changed"
    assert {run.run_id for run in app.runs(status="cancelled")} == {"adds-0", "adds-3", "asks-1"}


def test_only_looking_changes_nothing(app: Holdfast) -> None:
    before = app.runs()
    runs = choosing.chosen(app.engine, "cancel", Wanted(agent="adds"), limit=100).runs
    assert [(one.said, one.refused) for one in choosing.carried_out(runs, None)] == [("", "")] * 3
    assert app.runs() == before


def test_a_store_that_is_gone_stops_all_of_it(app: Holdfast) -> None:
    def gone(run_id: str) -> str:
        raise StoreFailed(run_id, "it is away")

    runs = choosing.chosen(app.engine, "cancel", Wanted(agent="adds"), limit=100).runs
    with pytest.raises(StoreFailed):
        list(choosing.carried_out(runs, gone))


def test_runs_inside_others_go_with_them() -> None:
    with Holdfast(MemoryStore()) as app:
        for number in range(2):
            with pytest.raises(hf.RunWaiting):
                app.run(calls, number, run_id=f"calls-{number}", wait=False)
        chosen = choosing.chosen(app.engine, "cancel", Wanted(statuses=["waiting"]), limit=100)
        assert [head.run_id for head in chosen.runs] == ["calls-0", "calls-1"]
        assert {json.loads(head.tags)[CHILD_OF] for head in chosen.along} == {"calls-0", "calls-1"}
        assert len(ids(app, "cancel", Wanted(agent="asks"))) == 2
        told = list(choosing.carried_out(chosen.runs, lambda run_id: app.cancel(run_id, by="ann")))
        assert [one.refused for one in told] == ["", ""]
        assert {run.status for run in app.runs()} == {"cancelled"}


def test_a_child_is_in_the_queue_of_the_run_that_it_goes_on_with() -> None:
    async def left(app: Holdfast) -> None:
        working = Worker(app.engine, [calls], queues=["mail"], concurrency=1)
        task = asyncio.create_task(working.work())
        while {run.status for run in app.runs()} != {"waiting"}:  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.01)
        working.stop()
        await task

    with Holdfast(MemoryStore()) as app:
        app.submit(calls, 1, run_id="calls", queue="mail")
        asyncio.run(asyncio.wait_for(left(app), 20))
        assert ids(app, "cancel", Wanted(queue="default")) == []
        chosen = choosing.chosen(app.engine, "cancel", Wanted(queue="mail"), limit=100)
        assert ([head.run_id for head in chosen.runs], len(chosen.along)) == (["calls"], 1)
        assert (len(app.runs(queue="mail")), app.runs(queue="default")) == (2, [])
        (child,) = chosen.along
        assert top_of(app.store, child).run_id == "calls"
        app.cancel("calls", by="ann")
        assert top_of(app.store, child) == child


def test_runs_that_are_idle_long_enough_are_found_by_the_clock_of_whoever_asks() -> None:
    clock = HandClock()
    with Holdfast(MemoryStore(), clock=clock) as app:
        app.submit(adds, 1, run_id="old")
        clock.ahead_s += 7200
        app.submit(adds, 2, run_id="new")
        assert ids(app, "cancel", Wanted(idle_s=3600.0)) == ["old"]
