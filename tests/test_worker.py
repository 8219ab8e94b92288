"""A worker takes runs that were left to it, hands them over when it stops, and takes over from those that died."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import holdfast as hf
import holdfast.sync
from agents_for_tests.sites import StillClock
from holdfast import Holdfast
from holdfast.fleet.worker import Drained, Worker
from holdfast.store import Query
from holdfast.stores.memory import MemoryStore

BOUND_S = 20


class Books:
    """What the bodies have done, and where they wait to be let on."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.entered, self.go_on = threading.Event(), threading.Event()


books = Books()


@pytest.fixture(autouse=True)
def new_books() -> None:
    global books  # noqa: PLW0603 (the agents of this file write into it)
    books = Books()


@hf.step
async def look(what: str) -> str:
    books.done[what] += 1
    return what


@hf.effect(in_doubt="ask")
async def pay(what: str) -> str:
    books.done[what] += 1
    books.entered.set()
    await asyncio.to_thread(books.go_on.wait, BOUND_S)
    return what


@hf.agent
async def buys(what: str) -> str:
    await look(f"{what} first")
    await pay(f"{what} paid")
    return await look(f"{what} last")


@hf.agent
async def looks(what: str) -> str:
    return await look(what)


@hf.step
def peek(what: str) -> str:
    books.done[what] += 1
    return what


@hf.agent
def peeks(what: str) -> str:
    return peek(f"{what} first") + peek(f"{what} last")


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not true():  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.01)


def statuses(app: Holdfast) -> set[str]:
    return {run.status for run in app.runs(limit=1000)}


def test_runs_that_were_left_to_it_are_executed_once() -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            for number in range(20):
                app.submit(looks if number % 2 else peeks, f"{number}", run_id=f"run-{number}")
            app.submit(looks, "1", run_id="run-1")
            assert statuses(app) == {"queued"}
            worker = Worker(app.engine, [looks, peeks], concurrency=4)
            working = asyncio.create_task(worker.work())
            await until(lambda: statuses(app) == {"done"})
            worker.stop()
            assert await working == Drained()

    asyncio.run(main())
    assert set(books.done.values()) == {1}
    assert len(books.done) == 30


def test_the_same_id_with_other_arguments_is_refused() -> None:
    with Holdfast(MemoryStore()) as app:
        app.submit(looks, "1", run_id="run")
        with pytest.raises(hf.RunConflict):
            app.submit(looks, "2", run_id="run")
        assert len(app.history("run")) == 1


def test_a_worker_that_stops_lets_an_effect_end_and_another_one_goes_on_behind_it() -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(buys, "it", run_id="run")
            first = Worker(app.engine, [buys], concurrency=1)
            working = asyncio.create_task(first.work())
            await until(books.entered.is_set)
            first.stop()
            await until(lambda: app.engine.keeper.runs["run"].leaving is not None)
            books.go_on.set()
            assert await working == Drained()
            assert app.show("run").status == "queued"
            assert books.done == {"it first": 1, "it paid": 1}
            second = Worker(app.engine, [buys], concurrency=1)
            working = asyncio.create_task(second.work())
            await until(lambda: statuses(app) == {"done"})
            second.stop()
            await working

    asyncio.run(main())
    assert books.done == {"it first": 1, "it paid": 1, "it last": 1}


def test_what_does_not_end_within_the_grace_time_is_broken_off_and_an_effect_is_in_doubt() -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(buys, "it", run_id="run")
            worker = Worker(app.engine, [buys], concurrency=1, grace_s=0.2)
            working = asyncio.create_task(worker.work())
            await until(books.entered.is_set)
            worker.stop()
            assert await working == Drained(broken_off=("run",), steps={"run": "2 (pay)"})
            books.go_on.set()
            assert app.show("run").status == "queued"
            with pytest.raises(hf.RunWaiting):
                await asyncio.to_thread(lambda: app.run(buys, "it", run_id="run", wait=False))
            assert [item.kind for item in app.inbox()] == ["doubt"]

    asyncio.run(main())
    assert books.done == {"it first": 1, "it paid": 1}


def test_a_paused_run_stops_before_its_next_step_and_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        with Holdfast(tmp_path / "runs.db") as app:
            app.submit(buys, "it", run_id="run")
            worker = Worker(app.engine, [buys], concurrency=1)
            working = asyncio.create_task(worker.work())
            await until(books.entered.is_set)
            app.pause("run", by="ann", reason="look")
            await asyncio.to_thread(app.engine.keeper.take_letters)
            books.go_on.set()
            await until(lambda: statuses(app) == {"paused"})
            assert app.show("run").note == "by ann: look"
            with pytest.raises(hf.RunPaused):
                await asyncio.to_thread(lambda: app.run(buys, "it", run_id="run"))
            await asyncio.sleep(0.5)  # longer than the worker rests between two looks
            assert statuses(app) == {"paused"}
            app.resume("run", by="ann")
            await until(lambda: statuses(app) == {"done"})
            worker.stop()
            await working

    asyncio.run(main())
    assert books.done == {"it first": 1, "it paid": 1, "it last": 1}


def test_no_more_runs_of_a_key_execute_at_a_time_than_the_limit_lets() -> None:
    together: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @hf.step
    async def serve(key: str) -> None:
        together[key] += 1
        most[key] = max(most[key], together[key])
        await asyncio.sleep(0.01)
        together[key] -= 1

    @hf.agent
    async def serves(key: str) -> None:
        await serve(key)

    async def main() -> None:
        with Holdfast(MemoryStore(), limits=[hf.Limit(each_key=True, running=1), hf.Limit(queue="default", running=3)]) as app:
            for number in range(24):
                app.submit(serves, f"k{number % 6}", run_id=f"run-{number}", key=f"k{number % 6}")
            worker = Worker(app.engine, [serves], concurrency=12)
            working = asyncio.create_task(worker.work())
            await until(lambda: statuses(app) == {"done"})
            worker.stop()
            await working

    asyncio.run(main())
    assert set(most.values()) == {1}


def test_runs_of_one_key_do_not_starve_those_of_another() -> None:
    with Holdfast(MemoryStore()) as app:
        for number in range(10):
            app.submit(looks, f"a{number}", run_id=f"a{number}", key="a")
        app.submit(looks, "b", run_id="b", key="b")
        app.submit(looks, "urgent", run_id="urgent", key="a", priority=1)
        order = [head.run_id for head in app.store.heads(Query(statuses=["queued"], queue="default"))]
    assert order[:3] in (["urgent", "a0", "b"], ["urgent", "b", "a0"])


def test_a_rate_is_shared_by_all_steps_that_use_a_resource() -> None:
    clock = StillClock()

    @hf.sync.step(uses="calls")
    def call(number: int) -> int:
        return number

    @hf.sync.agent
    def calls() -> float:
        began_s = clock.now_us() / 1e6
        for number in range(10):
            call(number)
        return clock.now_us() / 1e6 - began_s

    with Holdfast(MemoryStore(), clock=clock, limits=[hf.Limit(resource="calls", amount=2, per="1s")]) as app:
        assert 3.9 < app.run(calls) < 5.1


def test_a_program_that_names_no_agents_works_with_those_of_its_main_file(monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.agent
    async def known() -> int:
        return 7

    async def main(app: Holdfast) -> int:
        working = asyncio.create_task(app.work(concurrency=1))
        async with asyncio.timeout(20):
            result = await app.submit(known, run_id="r").result()
        working.cancel()
        await asyncio.wait([working])
        return result

    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    with Holdfast(MemoryStore()) as app:
        with pytest.raises(hf.Misuse, match="main file knows no agent"):
            asyncio.run(app.work())
        monkeypatch.setattr(program, "known", known, raising=False)
        monkeypatch.setattr(program, "again", known, raising=False)
        assert asyncio.run(main(app)) == 7
