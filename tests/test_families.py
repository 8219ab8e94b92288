"""A run inside another one goes on with that one: never against what has stopped it, and never as one more where runs are counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest

import holdfast as hf
from agents_for_tests.sites import HandClock
from holdfast import Holdfast
from holdfast._turns import QUEUE
from holdfast.fleet.claiming import Looks, _put_back, claimable
from holdfast.fleet.deaths import MOST_LOST, deaths
from holdfast.fleet.worker import Worker
from holdfast.operating.roster import in_line, unserved
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.store import Head, Row, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

BOUND_S = 20
LEASE_S = 15.0
GONE = "far.gone"
AGENTS = ("parent", "child")
BEGUN = ("run.started", "child.started")


@hf.agent
async def parent(nr: int = 1) -> int:
    return await child(nr)


@hf.agent
async def child(nr: int = 1) -> int:
    return nr


def write(store: Store, run_id: str, *records: rec.Record) -> None:
    found = store.load(run_id)
    journal = Journal.load(*found) if found else Journal(run_id)
    assert store.append([journal.seal(records, at_us=1)]) == [None]


def begun(store: Store) -> None:
    """A run with one inside it, as far as both have begun, of an owner who is gone."""
    with Holdfast(MemoryStore()) as elsewhere:
        elsewhere.run(parent, run_id="top")
        for run_id in ("top", "top.1"):
            found = elsewhere.store.load(run_id)
            assert found is not None
            records = [record_of(row) for row in found[1]]
            write(store, run_id, *(of_the_gone(one) if isinstance(one, rec.RunStarted) else one for one in records if one.kind in BEGUN))


def of_the_gone(started: rec.RunStarted) -> rec.RunStarted:
    """The same begun by him, at the time at which everything here is written."""
    return started.but(owner=GONE, parent={**started.parent, "since": "1"} if started.parent else {})


def taken(app: Holdfast, clock: HandClock) -> list[str]:
    """What a worker may take once everybody who fell silent counts as gone."""
    list(claimable(app.engine, AGENTS, [QUEUE], Looks(app.engine)))
    clock.ahead_s += LEASE_S + 1
    return [head.run_id for head in claimable(app.engine, AGENTS, [QUEUE], Looks(app.engine))]


STOPPED = [
    rec.RunBlocked(error={"type": "DeadlyRun", "message": "3 processes died"}),
    rec.RunPaused(by="ann"),
    rec.RunFailed(error={"type": "ValueError", "message": "card declined"}),
    rec.RunFailed(error={"type": "ChildStopped", "message": "child run 'top.2' stopped: it is blocked"}),
    rec.RunWaiting(waits="go on without it?", steps=["2"]),
]
GOES_ON = [
    rec.RunResumed(owner=GONE, why="taken over"),
    rec.RunReleased(reason="its worker stops"),
    rec.RunWaiting(waits="child", steps=["1"]),
    rec.RunFailed(error={"type": "ChildStopped", "message": "child run 'top.1' stopped: it was blocked"}),
]
INSIDE = [
    rec.RunResumed(owner=GONE, why="taken over"),
    rec.RunWaiting(waits="a time", wake_us=1),
    rec.RunReleased(reason="resumed by ann"),
]


@pytest.mark.parametrize("inside", INSIDE, ids=lambda record: record.kind)
@pytest.mark.parametrize(("above", "found"), [*((one, []) for one in STOPPED), *((one, ["top"]) for one in GOES_ON)])
def test_a_run_is_taken_for_one_inside_it_unless_something_else_has_stopped_it(
    above: rec.Record, found: list[str], inside: rec.Record
) -> None:
    clock = HandClock()
    with Holdfast(store := MemoryStore(), clock=clock, lease=LEASE_S) as app:
        begun(store)
        write(store, "top.1", inside)
        write(store, "top", above)
        assert taken(app, clock) == found


class Reading(MemoryStore):
    """Counts the journals that are read."""

    read = 0

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        self.read += 1
        return super().load(run_id)


def seen_by(app: Holdfast, looks: Looks | None = None) -> list[str]:
    return [head.run_id for head in claimable(app.engine, ["spender", "counts", "calls", "asks"], [QUEUE], looks or Looks(app.engine))]


def test_a_parent_that_asks_about_its_budget_is_not_taken_for_the_child_that_let_go_before_somebody_has_answered() -> None:
    @hf.step
    async def count(number: int) -> int:
        return number

    @hf.agent
    async def counts() -> int:
        return sum([await count(number) for number in range(4)])

    @hf.agent
    async def spender() -> int:
        return await counts()

    with Holdfast(store := Reading()) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(spender, run_id="top", budget=hf.Budget(steps=2), wait=False)
        looks = Looks(app.engine)
        assert [app.show(run_id).status for run_id in ("top", "top.1")] == ["waiting", "queued"]
        store.read = 0
        assert [seen_by(app, looks) for _ in range(10)] == [[]] * 10
        assert store.read == 1, "what stands as it stood is not read again"
        app.resume("top", budget=hf.Budget(steps=9))
        assert seen_by(app, looks) == ["top"]
        assert app.resume_here("top", [spender, counts]) == 6


def test_a_letter_about_a_child_that_is_not_waited_for_has_the_journal_read_once_and_one_that_is_stays_looked_at() -> None:
    @hf.agent
    async def asks() -> bool:
        return await hf.ask("inside?")

    @hf.agent
    async def calls() -> bool:
        return await asks()

    with Holdfast(store := Reading()) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(calls, run_id="top", wait=False)
        looks = Looks(app.engine)
        for child, reads in (("top.9", 1), ("top.1", 10)):
            store.post("top", "child", json.dumps({"by": f"run {child}", "child": child}).encode(), 1)
            store.read = 0
            assert [seen_by(app, looks) for _ in range(10)] == [[]] * 10
            assert store.read == reads
        app.cancel("top.1")
        assert seen_by(app, looks) == ["top"], "the child was moved, and neither the parent nor its letters"


def test_a_parent_that_an_edit_led_past_its_child_is_not_taken_when_that_is_answered_and_closes_it_at_its_end() -> None:
    @hf.step
    async def way() -> str:
        return "child"

    @hf.agent
    async def asks() -> bool:
        return await hf.ask("inside?")

    @hf.agent
    async def calls() -> bool:
        return await asks() if await way() == "child" else await hf.ask("above?")

    def play(app: Holdfast) -> None:
        with pytest.raises(hf.RunWaiting):
            app.run(calls, run_id="top", wait=False)

    with Holdfast(MemoryStore()) as app:
        play(app)
        app.edit("top", 1, "none")
        play(app)
        app.answer("top.2", "1", yes=True)
        assert (seen_by(app), app.show("top.2").status) == ([], "queued")
        app.answer("top", "2", yes=True)
        assert seen_by(app) == ["top"]
        assert app.resume_here("top", [calls, asks]) is True
        assert app.show("top.2").status == "cancelled"


def test_a_run_that_kills_whoever_executes_it_is_set_aside_once_though_one_inside_it_has_lost_its_owner() -> None:
    clock = HandClock()
    with Holdfast(store := MemoryStore(), clock=clock, lease=LEASE_S) as app:
        begun(store)
        for nr in range(MOST_LOST):
            for run_id in ("top", "top.1"):
                write(store, run_id, rec.RunResumed(owner=f"far.{nr}", why="taken over", silent=True))
        assert taken(app, clock) == ["top"]
        worker = Worker(app.engine, [parent, child], concurrency=1)
        assert list(worker._orders(1)) == []
        assert app.show("top").status == "blocked"
        again = Worker(app.engine, [parent, child], concurrency=1)
        assert list(again._orders(1)) == []
        assert taken(app, clock) == []
        write(store, "top", rec.RunResumed(owner="", why="resume by ann"))
        assert taken(app, clock) == ["top"]


def opened(kind: str, folder: Path, request: pytest.FixtureRequest) -> Store:
    if kind == "postgres":
        return cast("Store", request.getfixturevalue("postgres_store"))
    return SqliteStore(folder / "runs.db") if kind == "sqlite" else MemoryStore()


@pytest.mark.parametrize("limit", [hf.Limit(queue=QUEUE, running=1), hf.Limit(agent="parent", running=1)], ids=lambda limit: limit.queue)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_a_family_whose_owner_is_gone_is_taken_over_though_a_limit_lets_one_run_execute(
    limit: hf.Limit, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = opened(kind, tmp_path, request)
    clock = HandClock()

    async def main(app: Holdfast) -> None:
        worker = Worker(app.engine, [parent, child], concurrency=2)
        working = asyncio.create_task(worker.work())
        async with asyncio.timeout(BOUND_S):
            while app.show("top").status != "done":
                await asyncio.sleep(0.01)
                clock.ahead_s += LEASE_S / 150
        worker.stop()
        await working

    with Holdfast(store, clock=clock, lease=LEASE_S, limits=[limit]) as app:
        begun(store)
        asyncio.run(main(app))
        assert app.show("top.1").status == "done"


# --- runs of the gone that nobody here can go on with ---------------------------------------------------------------

STRANGE = rec.RunStarted(agent="strange", fingerprint="1:f", origin="old", owner=GONE, queue=QUEUE)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_run_of_the_gone_whose_agent_nobody_has_is_put_back_in_line_and_holds_no_place(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store, clock = opened(kind, tmp_path, request), HandClock()

    async def main(app: Holdfast) -> None:
        worker = Worker(app.engine, [child], concurrency=1)
        working = asyncio.create_task(worker.work())
        async with asyncio.timeout(BOUND_S):
            while app.show("new").status != "done":
                await asyncio.sleep(0.01)
                clock.ahead_s += LEASE_S / 150
            assert unserved(app.engine, in_line(app.engine)) == {"no worker has agent strange": 1}
        worker.stop()
        await working

    with Holdfast(store, clock=clock, lease=LEASE_S, limits=[hf.Limit(queue=QUEUE, running=1)]) as app:
        write(store, "old", STRANGE)
        app.submit(child, 1, run_id="new")
        asyncio.run(main(app))
        head = store.head("old")
        assert head is not None
        assert (head.status, head.owner) == ("queued", None)
        assert "does not have agent strange" in head.note


def test_a_run_of_the_gone_in_a_queue_that_is_paused_is_put_back_in_line_too() -> None:
    clock = HandClock()
    with Holdfast(store := MemoryStore(), clock=clock, lease=LEASE_S) as app:
        begun(store)
        for _ in range(2):
            assert list(claimable(app.engine, AGENTS, [], Looks(app.engine), held=[QUEUE])) == []
            clock.ahead_s += LEASE_S + 1
        head = store.head("top")
        assert head is not None
        assert (head.status, head.owner) == ("queued", None)
        assert f"queue {QUEUE} is paused" in head.note
        assert taken(app, clock) == ["top"]


def test_who_was_not_looked_at_for_long_is_not_taken_for_silent_before_a_lease_has_passed() -> None:
    clock = HandClock()
    with Holdfast(store := MemoryStore(), clock=clock, lease=LEASE_S) as app:
        begun(store)
        store.enroll(GONE)
        looks = Looks(app.engine)
        found: list[list[str]] = []
        for waited_s in (0.0, LEASE_S + 1, *[LEASE_S / 10] * 11):  # a store that is away lets nobody look, and nobody renew
            clock.ahead_s += waited_s
            found.append([head.run_id for head in claimable(app.engine, AGENTS, [QUEUE], looks)])
        assert found[:11] == [[]] * 11
        assert ["top"] in found[11:]


def test_a_run_of_the_living_or_of_another_queue_stays_where_it_is() -> None:
    clock = HandClock()
    with Holdfast(store := MemoryStore(), clock=clock, lease=LEASE_S) as app:
        write(store, "elsewhere", STRANGE.but(queue="other"))
        write(store, "living", STRANGE.but(owner="far.living"))
        store.enroll("far.living")
        stood = [store.load("elsewhere"), store.load("living")]
        looks = Looks(app.engine)
        for _ in range(20):
            store.renew("far.living")
            assert list(claimable(app.engine, AGENTS, [QUEUE], looks)) == []
            clock.ahead_s += LEASE_S / 5
        assert [store.load("elsewhere"), store.load("living")] == stood


def test_a_run_that_was_taken_meanwhile_is_not_put_back() -> None:
    with Holdfast(store := MemoryStore()) as app:
        write(store, "old", STRANGE)
        seen = store.head("old")
        assert seen is not None
        write(store, "old", rec.RunResumed(owner="far.other", why="taken over"))
        _put_back(app.engine, seen, "")
        head = store.head("old")
        assert head is not None
        assert (head.owner, head.seq) == ("far.other", 2)


def test_that_a_run_was_put_back_in_line_does_not_hide_that_it_kills() -> None:
    back = (rec.RunResumed(owner="", why="taken over"), rec.RunReleased(reason="its process is gone"))
    again = (*back, rec.RunResumed(owner="w", why="queued"))
    assert len(deaths(Journal("old").seal([STRANGE, *again, *again, *back], at_us=1).rows)) == 3
