"""Where queues stand: what is in line, executes and is paused, who serves them, and what a list of runs tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from cli_stage import Stage
from holdfast import Holdfast
from holdfast.fleet import queues as queues_room
from holdfast.operating.roster import introduction
from holdfast.store import Head, Query
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


@hf.agent
def buys(number: int) -> int:
    return number


@hf.agent
def packs(number: int) -> int:
    return number


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    """Three runs in the queue mail, one of them paused, and one in the usual queue."""
    with Holdfast(tmp_path / "runs.db") as app:
        for number in range(3):
            app.submit(buys, number, run_id=f"mail-{number}", queue="mail", priority=number, key="ann" if number else "")
        app.submit(buys, 9, run_id="usual")
        app.pause("mail-2", by="ann")
    return Stage(tmp_path, capsys)


@contextmanager
def worker(stage: Stage, *queues: str, limits: list[hf.Limit] | None = None) -> Iterator[None]:
    """This process says that it is a worker, and takes nothing."""
    with Holdfast(stage.store, limits=limits or []) as app:
        app.engine.keeper.enroll()
        told = introduction(app.engine, agents=["buys"], queues=queues, concurrency=1, stopping=False)
        app.engine.store.introduce(app.engine.keeper.owner, told)  # type: ignore[attr-defined]
        yield


def of(stage: Stage) -> dict[str, dict[str, Any]]:
    return {one["queue"]: one for one in stage.document("queues")["queues"]}


def test_a_queue_is_told_with_its_runs_and_the_oldest_in_line(stage: Stage) -> None:
    found = of(stage)
    assert {name: (one["in_line"], one["running"], one["paused"], one["workers"]) for name, one in found.items()} == {
        "default": (1, 0, 0, 0), "mail": (2, 0, 1, 0),
    }  # fmt: skip
    runs = {run["run_id"]: run for run in stage.document("runs")["runs"]}
    assert found["mail"]["oldest"] == runs["mail-0"]["updated"]
    assert stage.told("queues").count("no worker takes its runs") == 2


def test_those_who_serve_a_queue_are_counted_with_the_limit_that_they_told(stage: Stage) -> None:
    with worker(stage, "mail", "night", limits=[hf.Limit(queue="mail", running=5), hf.Limit(agent="buys", running=2)]):
        found = of(stage)
        assert {name: (one["workers"], one["limit"]) for name, one in found.items()} == {
            "default": (0, None), "mail": (1, 5), "night": (1, None),
        }  # fmt: skip
        [line] = [line.split() for line in stage.told("queues").splitlines() if line.startswith("mail ")]
        assert line[-3:] == ["0/5", "1", "1"]
    assert of(stage)["mail"]["workers"] == 0


def test_a_queue_that_is_held_back_says_by_whom(stage: Stage) -> None:
    stage.told("pause", "--queue", "empty", "--by", "ann", "--reason", "incident")
    found = of(stage)
    assert (found["empty"]["held"]["by"], found["empty"]["in_line"], found["mail"]["held"]) == ("ann", 0, None)
    said = stage.told("queues")
    assert "paused by ann: incident" in said
    assert "holdfast resume --queue empty" in said


def test_a_run_that_executes_is_counted_once_with_those_inside_it() -> None:
    seen: list[tuple[int, int]] = []

    @hf.agent
    def inner() -> None:
        [one] = app.queues()
        seen.append((one.running, one.in_line))

    @hf.agent
    def outer() -> None:
        inner()

    with Holdfast(MemoryStore()) as app:
        app.run(outer, run_id="r")
        assert (seen, app.queues()) == ([(1, 0)], [])


class Counting(SqliteStore):
    """A store that notes how much it was asked for."""

    read = 0
    unbounded = 0

    def heads(self, query: Query) -> list[Head]:
        found = super().heads(query)
        self.read += len(found)
        self.unbounded += query.queue is not None and query.agent is None  # without the agent the index does not help
        return found


def test_more_runs_than_are_counted_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_room, "MOST", 3)
    store = Counting(tmp_path / "runs.db")
    with Holdfast(store) as app:
        for number in range(20):
            app.submit(buys if number % 2 else packs, number, run_id=f"r-{number:02}", queue="mail")
        app.submit(buys, 0, run_id="late", queue="night")
        store.read = 0
        found = {one.queue: (one.in_line, one.more) for one in app.queues()}
        assert found == {"mail": (3, ("in_line",)), "night": (1, ())}
        assert (store.read <= 16, store.unbounded) == (True, 0)


def test_where_there_is_nothing_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(tmp_path, capsys)
    with Holdfast(stage.store) as app:
        app.run(buys, 1, run_id="done")
    assert stage.told("queues").startswith("no run is in line")


def test_a_list_of_runs_tells_where_they_stand_in_line_if_one_does_not_stand_where_all_do(stage: Stage) -> None:
    head, *lines = [line.split() for line in stage.told("runs").splitlines()]
    assert head[:7] == ["RUN", "AGENT", "STATUS", "QUEUE", "PRIORITY", "KEY", "CHANGED"]
    assert {line[0]: line[3:6] for line in lines}["mail-1"] == ["mail", "1", "ann"]
    usual = stage.told("runs", "--of-queue", "default").splitlines()[0].split()
    assert not {"QUEUE", "PRIORITY", "KEY"} & {*usual}
