"""Which runs a worker takes: none is passed over for good, whatever hindered it once, and none goes round the fleet that kills it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import holdfast as hf
from agents_for_tests.sites import HandClock
from holdfast import Holdfast
from holdfast.errors import StoreFailed
from holdfast.fleet.claiming import Orphans
from holdfast.fleet.deaths import deaths
from holdfast.fleet.worker import Worker
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.store import Head, Pulse, Query, Row
from holdfast.stores.memory import MemoryStore

BOUND_S = 20


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not true():  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.01)


@hf.agent
async def greets(name: str) -> str:
    return f"hello {name}"


def test_runs_of_a_key_that_must_wait_do_not_hold_up_those_behind_them() -> None:
    go_on = asyncio.Event()

    @hf.step
    async def serve(key: str) -> None:
        if key == "busy":
            await go_on.wait()

    @hf.agent
    async def serves(key: str) -> None:
        await serve(key)

    async def main() -> None:
        with Holdfast(MemoryStore(), limits=[hf.Limit(each_key=True, running=1)]) as app:
            for number in range(10):
                app.submit(serves, "busy", run_id=f"busy-{number}", key="busy", priority=1)
            app.submit(serves, "other", run_id="other", key="other")
            worker = Worker(app.engine, [serves], concurrency=3)
            working = asyncio.create_task(worker.work())
            await until(lambda: app.show("other").status == "done")
            go_on.set()
            await until(lambda: {run.status for run in app.runs()} == {"done"})
            worker.stop()
            await working

    asyncio.run(main())


class Fickle(MemoryStore):
    """A store that cannot be read when a run is about to be taken, once."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.failed = threading.Event()

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        self.reads += 1
        if self.reads == 2 and not self.failed.is_set():  # the worker reads once before it goes on
            self.failed.set()
            raise StoreFailed(self.url, "it is away")
        return super().load(run_id)


def test_a_run_that_could_not_be_taken_because_the_store_was_away_is_taken_later() -> None:
    async def main() -> None:
        with Holdfast(store := Fickle()) as app:
            app.submit(greets, "ann", run_id="run")
            store.reads = 0
            worker = Worker(app.engine, [greets], concurrency=1)
            working = asyncio.create_task(worker.work())
            await until(store.failed.is_set)
            await until(lambda: app.store.heads(Query(limit=1))[0].status == "done")
            worker.stop()
            await working

    asyncio.run(main())


class Counting(MemoryStore):
    """Counts the heads that it gives, and how often it is asked for one owner."""

    given = pulses = 0

    def pulse(self, owner: str) -> Pulse | None:
        self.pulses += 1
        return super().pulse(owner)

    def heads(self, query: Query) -> list[Head]:
        found = super().heads(query)
        self.given += len(found)
        return found


def owned(store: MemoryStore, run_id: str, owner: str) -> None:
    found = store.load(run_id)
    assert found is not None
    store.append([Journal.load(*found).seal([rec.RunResumed(owner=owner, why="queued")], at_us=1)])


def test_looking_for_runs_of_the_gone_does_not_read_those_of_the_living() -> None:
    clock = HandClock()
    with Holdfast(store := Counting(), clock=clock, lease=15) as app:
        for owner, count in (("far.living", 50), ("far.dying", 2)):
            store.enroll(owner)
            for number in range(count):
                app.submit(greets, "ann", run_id=f"{owner}-{number}")
                owned(store, f"{owner}-{number}", owner)
        store.enroll(near := f"{app.engine.keeper.owner.rpartition('.')[0]}.near")
        orphans = Orphans(app.engine)
        assert orphans.found() == []
        store.given, store.pulses, found = 0, 0, list[Head]()
        for _ in range(20):
            clock.ahead_s += 1.0
            store.renew("far.living")
            store.renew(near)
            found = orphans.found()
        assert {head.owner for head in found} == {"far.dying"}
        assert store.given < 20
        assert store.pulses == 0, "all owners are read at once"


def test_runs_of_an_owner_that_is_not_enrolled_are_found_now_and_then() -> None:
    clock = HandClock()
    with Holdfast(store := Counting(), clock=clock, lease=15) as app:
        app.submit(greets, "ann", run_id="run")
        orphans = Orphans(app.engine)
        orphans.found()
        owned(store, "run", "far.unknown")
        found: list[Head] = []
        for _ in range(70):
            clock.ahead_s += 1.0
            found += orphans.found()
        assert {head.run_id for head in found} == {"run"}


TAKEN, SILENT = (rec.RunResumed(owner="w", why="taken over", silent=silent) for silent in (False, True))
BEGUN = rec.StepStarted(step_id="1", name="look", fingerprint="f", attempt=1, args=b"{}", args_sha="")
DONE = rec.StepDone(step_id="1", name="look", fingerprint="f", value=b"1")
STARTED = rec.RunStarted(agent="a", version="", fingerprint="f", origin="run", owner="w", args=b"{}", args_sha="")


def counted(*records: rec.Record) -> int:
    return len(deaths(Journal("run").seal([STARTED, *records], at_us=1).rows))


def test_processes_that_died_of_a_run_are_counted_since_it_last_got_on() -> None:
    assert counted(TAKEN, TAKEN) == 2
    assert counted(TAKEN, BEGUN, TAKEN, BEGUN) == 2
    assert counted(TAKEN, TAKEN, DONE, TAKEN) == 1
    assert counted(TAKEN, rec.RunReleased(reason="its worker stops"), rec.RunResumed(owner="w", why="queued"), TAKEN) == 1
    assert counted(TAKEN, SILENT, TAKEN) == 3


def test_an_operator_who_resumes_a_run_lets_it_be_tried_afresh() -> None:
    assert counted(TAKEN, TAKEN, TAKEN, rec.RunResumed(owner="", why="resumed"), rec.RunResumed(owner="w", why="queued")) == 0
