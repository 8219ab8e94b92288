"""What a look for runs costs, and who has his turn: neither grows with those that cannot be taken now, and everybody has his turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import Holdfast
from holdfast.fleet.claiming import PAGE, Looks, claimable
from holdfast.fleet.waking import Spoken
from holdfast.fleet.worker import Worker
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.store import Head, Query, Row
from holdfast.stores.sqlite import SqliteStore

MANY = 500


class Counting(SqliteStore):
    """Counts the heads that it gives, and the journals."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.given: Counter[str] = Counter()

    def heads(self, query: Query) -> list[Head]:
        found = super().heads(query)
        self.given["heads"] += len(found)
        return found

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        self.given["journals"] += 1
        return super().load(run_id)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Counting]:
    store = Counting(tmp_path / "runs.db")
    yield store
    store.close()


@hf.agent
async def job(nr: int = 1) -> int:
    return nr


def put(store: SqliteStore, name: str, *more: rec.Record, count: int = MANY, queue: str = "default", lane: str = "") -> None:
    """So many runs in line, behind those that are there, with whatever happened to them since."""
    first = len(store.heads(Query(limit=MANY + 1))) + 1
    begun = rec.RunStarted(agent="job", fingerprint="1:f", origin="run", queue=queue, lane=lane)
    batch = [Journal(f"{name}-{nr:04}").seal([begun.but(turn_us=first + nr), *more], at_us=1) for nr in range(count)]
    assert store.append(batch) == [None] * count


# --- long lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (hf.Limit(each_key=True, running=1), ["ann-0000", "bob-0000"]),
        (hf.Limit(queue="default", running=1), ["ann-0000"]),
        (hf.Limit(agent="job", running=1), ["ann-0000"]),
    ],
)
def test_those_for_whom_there_is_no_room_are_not_read_one_by_one(store: Counting, limit: hf.Limit, expected: list[str]) -> None:
    put(store, "ann", lane="ann")
    put(store, "bob", count=1, lane="bob")
    store.given.clear()
    with Holdfast(store, limits=[limit]) as app:
        worker = Worker(app.engine, [job], concurrency=4)
        assert [order.run_id for order in worker._orders(4)] == expected
        assert store.given["heads"] <= PAGE + 1


def test_a_line_is_walked_to_its_end_and_each_is_met_once(store: Counting) -> None:
    put(store, "run", count=3 * PAGE + 1)
    with Holdfast(store) as app:
        found = [head.run_id for head in claimable(app.engine, ["job"], ["default"], Looks(app.engine))]
        assert found == [f"run-{nr:04}" for nr in range(3 * PAGE + 1)]


def test_runs_of_another_queue_whose_time_has_come_are_not_read(store: Counting) -> None:
    put(store, "strange", rec.RunWaiting(waits="a time", wake_us=1), queue="other")
    put(store, "mine", rec.RunWaiting(waits="a time", wake_us=1), count=2)
    store.given.clear()
    with Holdfast(store) as app:
        found = [head.run_id for head in claimable(app.engine, ["job"], ["default"], Looks(app.engine))]
        assert found == ["mine-0000", "mine-0001"]
        assert store.given["heads"] == 2


# --- whose turn it is -----------------------------------------------------------------------------------------------


def test_runs_in_line_have_their_turn_though_others_always_can_go_on(store: Counting) -> None:
    put(store, "polls", rec.RunWaiting(waits="a time", wake_us=1), count=12)
    put(store, "line", count=2)
    with Holdfast(store) as app:
        worker = Worker(app.engine, [job], concurrency=4)
        one_by_one = [order.run_id for _ in range(4) for order in worker._orders(1)]
        assert {run_id.partition("-")[0] for run_id in one_by_one[:2]} == {"polls", "line"}
        assert Counter(run_id.partition("-")[0] for run_id in one_by_one) == {"polls": 2, "line": 2}
        together = [order.run_id.partition("-")[0] for order in worker._orders(4)]
        assert Counter(together) == {"polls": 2, "line": 2}


def test_of_two_kinds_of_which_one_has_no_more_the_other_has_every_turn(store: Counting) -> None:
    put(store, "line", count=3)
    with Holdfast(store) as app:
        worker = Worker(app.engine, [job], concurrency=4)
        assert len(list(worker._orders(4))) == 3


# --- words that wake nobody -----------------------------------------------------------------------------------------


@hf.agent
async def receives() -> str:
    return await hf.receive("go", str)


def test_a_journal_is_read_once_for_a_message_that_wakes_nobody_and_again_when_there_is_another(store: Counting) -> None:
    with Holdfast(store) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(receives, run_id="run", wait=False)
        app.send("run", "other", "x")
        spoken = Spoken(app.engine)
        assert list(spoken.to()) == []
        store.given.clear()
        assert [list(spoken.to()) for _ in range(5)] == [[]] * 5
        assert store.given["journals"] == 0
        app.send("run", "go", "x")
        assert [head.run_id for head in spoken.to()] == ["run"] == [head.run_id for head in spoken.to()]
