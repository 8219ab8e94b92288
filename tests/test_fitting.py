"""Which code has failed to fit a run: each tries it once, in whatever order they come; nothing else that blocks a run is touched."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

import holdfast as hf
from agents_for_tests.sites import HandClock, StillClock
from holdfast import Holdfast
from holdfast.fleet import claiming
from holdfast.fleet import deaths as deaths_room
from holdfast.fleet.claiming import Misfits
from holdfast.fleet.deaths import deaths
from holdfast.fleet.worker import Worker
from holdfast.operating.operate import UnfitArguments, order_for
from holdfast.operating.roster import may_fit
from holdfast.records import fitting as fitting_room
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.records.fitting import Try, tries
from holdfast.records.journal import Journal
from holdfast.running.runner import Elsewhere, attend_async
from holdfast.store import Head, Query, Row
from holdfast.stores.memory import MemoryStore
from holdfast.verbs.decorators import Agent

Code: TypeAlias = Callable[[str], Coroutine[Any, Any, str]]
BOUND_S = 20
MISMATCH = {"type": "ReplayMismatch", "message": "another path"}
STOPPED = {"type": "ChildStopped", "message": "child run 'c' cannot go on"}
STARTED = rec.RunStarted(agent="serves", fingerprint="1:f", origin="run", owner="first")
WORD = rec.RunResumed(owner="", why="resume by ann")


def claimed(owner: str, why: str = "blocked") -> rec.RunResumed:
    return rec.RunResumed(owner=owner, why=why)


def blocked(code: str) -> rec.RunBlocked:
    return rec.RunBlocked(step_id="1", error=MISMATCH, code=code)


def rows(*records: rec.Record) -> list[Row]:
    return list(Journal("run").seal([STARTED, *records], at_us=1).rows)


# --- what the records say -------------------------------------------------------------------------------------------


def test_who_has_tried_is_told_by_the_records_since_somebodys_word() -> None:
    done = rec.StepDone(step_id="2", name="s", fingerprint="1:f", value=b"1")
    assert tries(rows(blocked("a"))) == [Try("first", "a")]
    assert tries(rows(blocked("a"), claimed("w"), blocked("b"))) == [Try("w", "b"), Try("first", "a")]
    assert tries(rows(blocked("a"), claimed("w"), done, rec.RunWaiting(waits="x"), claimed("v"), blocked("a"))) == [Try("v", "a")]
    assert tries(rows(blocked("a"), WORD, claimed("w"), blocked("b"))) == [Try("w", "b")]
    assert tries(rows(blocked("a"), WORD, rec.RunAccepted(step_id="1", by="ann"))) == []
    assert tries(rows(rec.RunFailed(error=STOPPED, code="a"), claimed("w"), blocked("b"))) == [Try("w", "b"), Try("first", "a")]


def test_what_else_blocks_or_fails_a_run_is_no_try() -> None:
    deadly = rec.RunBlocked(error={"type": "DeadlyRun", "message": "3 processes died"})
    assert tries(rows(blocked("a"), WORD, deadly)) == []
    assert tries(rows(rec.RunFailed(error={"type": "OSError", "message": "full"}))) == []
    assert fitting_room.told(rows(WORD, deadly)) == ""


def test_of_many_tries_the_last_are_told_of() -> None:
    many = [one for name in "abcdefg" for one in (claimed(f"w-{name}"), blocked(name))]
    told = fitting_room.told(rows(*many))
    assert told.endswith("tried in vain: w-g (code g), w-f (code f), w-e (code e), w-d (code d), w-c (code c) and 2 more")


def test_a_run_that_kills_whoever_fits_is_found_out_though_others_do_not_fit_in_between() -> None:
    took, lost = claimed("w"), claimed("v", deaths_room.TAKEN_OVER)
    assert len(deaths(rows(blocked("b"), took, lost, blocked("b"), took, lost, blocked("b"), took, lost))) == 3
    assert len(deaths(rows(took, lost, blocked("b"), WORD, took, lost))) == 1


# --- three codes and nobody fits ------------------------------------------------------------------------------------


@hf.step
async def step_of(code: str) -> str:
    return code


def code(name: str) -> Code:
    """The agent as a deploy has it; `version` makes the difference that files make elsewhere."""

    @hf.agent(name="serves", version=name)
    async def serves(run: str) -> str:
        await step_of(name)
        return name + await hf.receive("word", str)

    return serves


def agent_of(declared: Code) -> Agent[..., Any]:
    assert isinstance(declared, Agent)
    return declared


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not true():  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.005)


class Looked(MemoryStore):
    """Counts the looks for blocked runs, and the journals that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = self.loads = 0

    def heads(self, query: Query) -> list[Head]:
        self.looks += tuple(query.statuses) == ("blocked",) and query.idle_before_us is None
        return super().heads(query)

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        self.loads += 1
        return super().load(run_id)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "MISFITS_S", 0.02)
    monkeypatch.setattr(claiming, "MISFITS_SHARE", 0)
    monkeypatch.setattr("holdfast.fleet.worker.POLL_S", 0.02)


def codes_tried(store: MemoryStore) -> list[str]:
    found = store.load("run")
    assert found is not None
    return [one.code for row in found[1] if isinstance(one := record_of(row), rec.RunBlocked)]


async def fleet(store: Looked, names: Sequence[str], then: Callable[[Holdfast], object]) -> None:
    """A run of code a that nobody has fitting code for, and a worker for each name; until all have looked often after `then`."""
    with ExitStack() as stack:
        apps = [stack.enter_context(Holdfast(store)) for _ in names]
        with pytest.raises(hf.RunWaiting):
            await asyncio.to_thread(lambda: apps[0].run(code("a"), "x", run_id="run", wait=False))
        apps[0].send("run", "word", "!")
        workers = [Worker(app.engine, [code(name)], concurrency=1) for app, name in zip(apps, names, strict=True)]
        working = [asyncio.create_task(worker.work()) for worker in workers]
        await until(lambda: bool(then(apps[0])))
        looks = store.looks + 10 * len(names)
        await until(lambda: store.looks >= looks)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*working)


def test_three_codes_that_do_not_fit_try_once_each_and_then_leave_the_run_alone() -> None:
    store = Looked()
    asyncio.run(fleet(store, ["b", "c", "d", "b", "c", "d"], lambda _: len(codes_tried(store)) >= 3))
    tried = codes_tried(store)
    assert len(tried) == len(set(tried)) == 3
    found = store.load("run")
    assert found is not None
    assert found[0].status == "blocked"
    assert len(found[1]) == 4 + 2 * 3  # begun, step, wait, parked; then a claim and a block for each code
    asyncio.run(fleet_after(store))


async def fleet_after(store: Looked) -> None:
    """A fourth deploy, with the code that fits."""
    with Holdfast(store) as app:
        worker = Worker(app.engine, [code("a")], concurrency=1)
        working = asyncio.create_task(worker.work())
        await until(lambda: app.show("run").status == "done")
        worker.stop()
        await working
        assert app.show("run").result == "a!"


def test_where_the_prints_are_ignored_they_try_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "tries", lambda _: [])
    store = Looked()
    asyncio.run(fleet(store, ["b", "c"], lambda _: len(codes_tried(store)) > 6))
    assert len(codes_tried(store)) > len(set(codes_tried(store)))


def test_where_nobody_looks_for_misfits_nobody_but_the_first_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Misfits, "_to_be_tried", lambda *_: None)
    store = Looked()
    asyncio.run(fleet(store, ["b", "c"], lambda _: codes_tried(store)))
    assert len(codes_tried(store)) == 1


def test_an_operator_who_resumes_lets_everybody_try_once_more() -> None:
    store = Looked()

    def resumed(app: Holdfast) -> bool:
        if len(codes_tried(store)) == 2 and app.show("run").status == "blocked":
            app.resume("run", by="ann")
        return len(codes_tried(store)) == 4

    asyncio.run(fleet(store, ["b", "c"], resumed))
    assert len(codes_tried(store)) == 4


def test_who_comes_after_another_with_the_same_code_does_not_try_it_again() -> None:
    with Holdfast(MemoryStore()) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(code("a"), "x", run_id="run", wait=False)
        head = app.store.head("run")
        assert head is not None
        order = order_for(app.engine, "run", [agent_of(code("b"))], where="here", wait=False)
        late = replace(order, patient=False, stood=(head.epoch, head.seq))
        with pytest.raises(hf.ReplayMismatch):
            app.run(code("b"), "x", run_id="run", wait=False)
        with pytest.raises(Elsewhere):
            asyncio.run(attend_async(app.engine, late))
        with pytest.raises(hf.ReplayMismatch):  # without that look it would
            asyncio.run(attend_async(app.engine, replace(late, stood=None)))


def test_what_has_failed_with_another_worker_meanwhile_is_not_tried_again_unasked() -> None:
    called: list[int] = []

    @hf.effect(in_doubt="ask", raises=ValueError)
    async def pay() -> int:
        called.append(1)
        raise ValueError("declined")

    @hf.agent(name="buys")
    async def buys(what: str) -> str:
        return f"{what}: {await pay()}"

    with Holdfast(MemoryStore()) as app:
        app.submit(buys, "tea", run_id="run")
        head = app.store.head("run")
        assert head is not None
        order = order_for(app.engine, "run", [agent_of(buys)], where="here", wait=False)
        late = replace(order, patient=False, stood=(head.epoch, head.seq))
        with pytest.raises(ValueError, match="declined"):
            asyncio.run(attend_async(app.engine, replace(order, patient=False)))
        with pytest.raises(Elsewhere):
            asyncio.run(attend_async(app.engine, late))
        assert (called, app.show("run").status) == ([1], "failed")
        with pytest.raises(ValueError, match="declined"):  # without that look it would be
            asyncio.run(attend_async(app.engine, replace(late, stood=None)))
        assert called == [1, 1]


def test_who_waits_for_the_result_waits_while_there_is_a_worker_whose_code_has_not_been_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as first, Holdfast(first.store) as second:
            with pytest.raises(hf.RunWaiting):
                await asyncio.to_thread(lambda: first.run(code("a"), "x", run_id="run", wait=False))
            with pytest.raises(hf.ReplayMismatch):
                await asyncio.to_thread(lambda: first.run(code("b"), "x", run_id="run", wait=False))
            with pytest.raises(hf.RunFailed, match="ReplayMismatch"):
                await first.handle("run").result()
            first.send("run", "word", "!")
            with monkeypatch.context() as held:
                held.setattr(Misfits, "found", lambda _: ())
                worker = Worker(second.engine, [code("a")], concurrency=1)
                working = asyncio.create_task(worker.work())
                await until(lambda: any(one.codes for one in first.workers()))
                head = first.store.head("run")
                assert head is not None
                assert may_fit(first.engine, head)
                result = asyncio.ensure_future(first.handle("run").result())
                await asyncio.sleep(0)
            assert await asyncio.wait_for(result, BOUND_S) == "a!"
            worker.stop()
            await working

    asyncio.run(main())


def test_a_run_whose_arguments_the_code_does_not_take_is_listed_and_waits_for_code_that_does() -> None:
    @hf.agent(name="serves", version="n")
    async def counts(run: int) -> str:
        return str(run)

    async def main() -> None:
        with Holdfast(store := MemoryStore()) as first, Holdfast(store) as second, Holdfast(store) as third:
            first.submit(code("a"), "x", run_id="run")
            unfit = [Worker(app.engine, [counts], concurrency=1) for app in (first, second)]
            working = [asyncio.create_task(worker.work()) for worker in unfit]
            await until(lambda: first.show("run").status == "blocked")
            (item,) = first.inbox()
            assert "the arguments of serves does not fit any more" in item.what
            fitting = Worker(third.engine, [code("a")], concurrency=1)
            working.append(asyncio.create_task(fitting.work()))
            await until(lambda: first.show("run").status == "waiting")
            assert len(codes_tried(store)) == 1
            for worker in (*unfit, fitting):
                worker.stop()
            await asyncio.gather(*working)

    asyncio.run(main())


def test_the_refusal_of_arguments_survives_pickling() -> None:
    error = UnfitArguments("run", "serves", "not a number")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_run_that_waits_for_fitting_code_can_be_paused() -> None:
    with Holdfast(MemoryStore()) as app:
        left(app, "run", blocked("theirs"))
        app.pause("run", by="ann")
        assert app.show("run").status == "paused"
        app.resume("run", by="ann")
        assert app.show("run").status == "queued"


# --- families, many runs, other blocks ------------------------------------------------------------------------------


def family(name: str) -> Code:
    child = code(name)

    @hf.agent(name="calls", version=name)
    async def calls(run: str) -> str:
        return "child said " + await child(run)

    return calls


def test_a_run_whose_child_does_not_fit_is_tried_again_with_it() -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as first, Holdfast(first.store) as second:
            with pytest.raises(hf.RunWaiting):
                await asyncio.to_thread(lambda: first.run(family("a"), "x", run_id="run", wait=False))
            (child,) = first.show("run").children
            first.send(child, "word", "!")
            unfit = Worker(first.engine, [family("b"), code("b")], concurrency=1)
            working = asyncio.create_task(unfit.work())
            await until(lambda: first.show("run").status == "failed")
            assert first.show(child).status == "blocked"
            fitting = Worker(second.engine, [family("a"), code("a")], concurrency=1)
            going = asyncio.create_task(fitting.work())
            await until(lambda: first.show("run").status == "done")
            assert first.show("run").result == "child said a!"
            unfit.stop()
            fitting.stop()
            await asyncio.gather(working, going)

    asyncio.run(main())


def test_a_child_that_can_go_on_does_not_have_its_parent_tried_again_and_again() -> None:
    child = code("same")

    def caller(name: str) -> Code:
        @hf.agent(name="calls", version=name)
        async def calls(run: str) -> str:
            await step_of(name)
            return await child(run)

        return calls

    async def main() -> None:
        with Holdfast(store := Looked()) as first, Holdfast(store) as second:
            with pytest.raises(hf.RunWaiting):
                await asyncio.to_thread(lambda: first.run(caller("a"), "x", run_id="run", wait=False))
            first.send(first.show("run").children[0], "word", "!")
            workers = [Worker(app.engine, [caller("b"), child], concurrency=1) for app in (first, second)]
            working = [asyncio.create_task(worker.work()) for worker in workers]
            await until(lambda: bool(codes_tried(store)))
            looks = store.looks + 20
            await until(lambda: store.looks >= looks)
            assert len(codes_tried(store)) == 1
            for worker in workers:
                worker.stop()
            await asyncio.gather(*working)

    asyncio.run(main())


def left(app: Holdfast, run_id: str, last: rec.Record) -> None:
    app.engine.committer.commit(Journal(run_id), [STARTED, last])


def test_of_many_that_wait_no_journal_is_read_twice_and_all_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "MISFITS_PAGE", 7)
    store, clock = Looked(), StillClock()
    with Holdfast(store, clock=clock) as app:
        for number in range(60):
            clock.at_us += number % 3 == 0 and number > 30  # so that many have the same time, and others not
            left(app, f"run-{number}", blocked("mine" if number % 2 else "theirs"))
        misfits = Misfits(app.engine, {"serves": "mine"}, ["default"])
        found = {head.run_id for head in misfits.found()}
        assert found == {f"run-{number}" for number in range(0, 60, 2)}
        assert store.loads == 60
        assert list(misfits.found()) == []  # it has just looked
        clock.at_us += 10_000_000
        assert {head.run_id for head in misfits.found()} == found
        assert store.loads == 60


def test_a_look_takes_a_moment_and_the_next_one_goes_on_where_it_ended() -> None:
    class Slow(Looked):
        def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
            clock.ahead_s += claiming.MISFITS_TURN_S
            return super().load(run_id)

    clock = HandClock()
    with Holdfast(store := Slow(), clock=clock) as app:
        for number in range(3):
            left(app, f"run-{number}", blocked("mine"))
        misfits = Misfits(app.engine, {"serves": "mine"}, ["default"])
        for read in (1, 2, 3):
            assert list(misfits.found()) == []
            assert store.loads == read


@pytest.mark.parametrize(
    "last",
    [
        rec.RunBlocked(error={"type": "DeadlyRun", "message": "3 processes died"}),
        rec.RunBlocked(error={"type": "NotKept", "message": "a state"}),
        rec.RunFailed(error=STOPPED, code="theirs"),
        rec.RunFailed(error={"type": "OSError", "message": "full"}),
        rec.RunPaused(by="ann"),
    ],
    ids=lambda last: f"{last.kind} {getattr(last, 'error', {}).get('type', '')}",
)
def test_what_something_else_holds_up_is_not_touched(last: rec.Record) -> None:
    with Holdfast(MemoryStore()) as app:
        left(app, "run", last)
        assert list(Misfits(app.engine, {"serves": "mine"}, ["default"]).found()) == []


@pytest.mark.parametrize(("codes", "queue"), [({"other": "mine"}, "default"), ({"serves": "mine"}, "mail"), ({"serves": ""}, "default")])
def test_runs_of_other_agents_and_queues_and_a_code_without_a_print_are_passed_over(codes: dict[str, str], queue: str) -> None:
    with Holdfast(MemoryStore()) as app:
        left(app, "run", blocked("theirs"))
        assert list(Misfits(app.engine, codes, [queue]).found()) == []
        assert [head.run_id for head in Misfits(app.engine, {"serves": "mine"}, ["default"]).found()] == ["run"]
