"""Child runs beside the code: `hf.start` inside a run; and what children cost, counted to their parents while they run and after."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, dies_at, lines, play, records, status
from holdfast.errors import StoreFailed
from holdfast.records import kinds as rec
from holdfast.stores.memory import MemoryStore

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@hf.step
async def look(what: str) -> str:
    done.append(what)
    hf.usage(usd=1.0, input_tokens=10)
    if what == "fail":
        raise ValueError("no such thing")
    return what


@hf.agent
async def child(*whats: str) -> str:
    return "".join([await look(what) for what in whats])


@hf.agent
async def asking() -> str:
    return await hf.ask("colour?", str)


def test_a_started_child_runs_beside_the_code_and_replays_in_order() -> None:
    store, dies = MemoryStore(), [True]

    @hf.agent
    async def outer() -> list[str]:
        handles = [await hf.start(child, "a", "b"), await hf.start(child, "c", run_id="named")]
        found = [await look("d"), *[await handle.result() for handle in handles]]
        if dies:
            raise Crash
        return [*found, handles[0].id, handles[1].status()]

    crashing(lambda: play(store, outer))
    dies.clear()
    assert play(store, outer) == ["d", "ab", "c", "r.1", "done"]
    assert sorted(done) == ["a", "b", "c", "d"]
    assert status(store, "named") == "done"


def test_a_parent_waits_for_the_children_that_it_started_and_their_failures_count() -> None:
    store = MemoryStore()

    @hf.agent
    async def outer(what: str) -> str:
        await hf.start(child, what)
        return "over"

    assert play(store, outer, "a") == "over"
    assert done == ["a"]
    with pytest.raises(ValueError, match="no such thing"):
        play(store, outer, "fail", run_id="s")
    assert status(store, "s") == "failed"


def test_a_started_child_that_waits_parks_its_parent_once_that_has_nothing_else_to_do() -> None:
    store = MemoryStore()

    @hf.agent
    async def outer(joins: str) -> str:
        handle = await hf.start(asking)
        await look("a")
        return await handle.result() if joins else "over"

    for run_id, joins in (("r", "yes"), ("s", "")):
        with pytest.raises(hf.RunWaiting, match=rf"child run '{run_id}.1' waits"):
            play(store, outer, joins, run_id=run_id)
        with hf.Holdfast(store) as app:
            app.answer(f"{run_id}.1", "1", "red")
        assert play(store, outer, joins, run_id=run_id) == ("red" if joins else "over")
    assert done == ["a", "a"]


def test_a_child_that_was_started_has_begun_before_its_parent_parks() -> None:
    store = dies_at("child.started")

    @hf.agent
    async def parent() -> str:
        handle = await hf.start(child, "a", "b")
        await hf.ask("Go on?")
        return await handle.result()

    with pytest.raises(StoreFailed):
        play(store, parent)
    store.mend()
    with pytest.raises(hf.RunWaiting, match="waits: Go on"):  # nothing is left to be written before it waits
        play(store, parent)
    assert (status(store), status(store, "r.1")) == ("waiting", "done")


def test_the_time_out_of_a_result_is_recorded_and_the_child_goes_on() -> None:
    store, gate = MemoryStore(), asyncio.Event()

    @hf.agent
    async def held() -> str:
        await gate.wait()
        return await look("late")

    @hf.agent
    async def outer() -> str:
        handle = await hf.start(held)
        try:
            return await handle.result(timeout=0.02)
        except TimeoutError:
            gate.set()
            return f"late: {await handle.result()}"

    assert play(store, outer) == "late: late"
    assert "timeout.fired 2" in lines(store)


def test_a_handle_cancels_its_child_as_a_step() -> None:
    store = MemoryStore()

    @hf.agent
    async def forever() -> None:
        await look("begun")
        await asyncio.Event().wait()

    @hf.agent
    async def outer() -> str:
        handle = await hf.start(forever)
        while not done:  # noqa: ASYNC110 (the child is somewhere else in this loop)
            await asyncio.sleep(0.01)
        handle.cancel(reason="enough")
        try:
            await handle.result()
        except hf.RunCancelled as error:
            return f"{error.by}: {error.reason}"
        return "not cancelled"

    assert play(store, outer) == play(store, outer) == "run r: enough"
    assert (status(store, "r.1"), done) == ("cancelled", ["begun"])


def test_start_in_a_branch_and_an_agent_in_a_body_are_refused() -> None:
    @hf.agent
    async def branching() -> None:
        async def branch() -> None:
            await hf.start(child, "a")

        await hf.gather(branch())

    @hf.step
    async def body() -> str:
        return await child("a")

    @hf.agent
    async def nesting() -> str:
        return await body()

    with pytest.raises(hf.Misuse, match="in a branch"):
        play(MemoryStore(), branching)
    with pytest.raises(hf.NestedStep):
        play(MemoryStore(), nesting)
    assert done == []


def test_cancelling_an_executing_parent_cancels_its_children() -> None:
    store, begun = MemoryStore(), threading.Event()

    @hf.agent
    async def forever() -> None:
        await look("begun")
        begun.set()
        await asyncio.Event().wait()

    @hf.agent
    async def outer() -> None:
        await hf.start(forever)
        await hf.gather(forever(), forever())

    with hf.Holdfast(store) as app:
        canceller = threading.Thread(target=lambda: (begun.wait(), app.cancel("r", by="ann")))
        canceller.start()
        with pytest.raises(hf.RunCancelled):
            app.run(outer, run_id="r")
        canceller.join()
    assert {status(store, run_id) for run_id in ("r", "r.1", "r.2", "r.3")} == {"cancelled"}


def test_cancelling_a_def_parent_ends_its_child_at_its_next_step() -> None:
    store, begun, told = MemoryStore(), threading.Event(), threading.Event()

    @hfs.agent
    def inner() -> None:
        begun.set()
        assert told.wait(20)
        hfs.sleep(30)

    @hfs.agent
    def outer() -> None:
        inner()

    with hf.Holdfast(store) as app:

        def cancel() -> None:
            begun.wait()
            app.cancel("r", by="ann")
            app.engine.keeper.take_letters()
            told.set()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(hf.RunCancelled):
            app.run(outer, run_id="r")
        canceller.join()
    assert (status(store), status(store, "r.1")) == ("cancelled", "cancelled")


def test_what_a_child_spent_counts_to_its_parent_once() -> None:
    store, broken = MemoryStore(), [True]

    @hf.agent
    async def inner() -> str:
        found = await look("a") + await look("b")
        if broken:
            raise ValueError("not yet")
        return found + await look("c")

    @hf.agent
    async def outer() -> float:
        await inner()
        return hf.current().spent.usd

    with pytest.raises(ValueError):
        play(store, outer)
    broken.clear()
    assert play(store, outer) == 3.0
    with hf.Holdfast(store) as app:
        assert (app.show("r").usd, app.show("r").spent.tokens, app.show("r.1").usd) == (3.0, 30, 3.0)
    assert sum(rec.cost_usd(one.usage) for one in records(store) if isinstance(one, rec.StepDone | rec.StepFailed)) == 3.0


def test_a_limit_of_the_parent_is_asked_about_there_while_the_child_has_spent_it() -> None:
    store = MemoryStore()

    @hf.agent(budget=hf.Budget(usd=2))
    async def outer() -> str:
        return await middle()

    @hf.agent
    async def middle() -> str:
        return await child("a", "b", "c")

    with pytest.raises(hf.RunWaiting, match=r"\$2.00 of \$2.00 spent"):
        play(store, outer)
    assert (done, status(store), status(store, "r.1.1")) == (["a", "b"], "waiting", "queued")
    with hf.Holdfast(store) as app:
        app.answer("r", "budget", yes=True)
    assert play(store, outer) == "abc"
    assert done == ["a", "b", "c"]


def test_a_limit_of_the_parent_that_fails_it_stops_the_child() -> None:
    store = MemoryStore()

    @hf.agent(budget=hf.Budget(usd=1, on_limit="fail"))
    async def outer() -> str:
        return await child("a", "b")

    with pytest.raises(hf.BudgetExceeded, match="'r'"):
        play(store, outer)
    assert (status(store), done) == ("failed", ["a"])
    with hf.Holdfast(store) as app:
        app.resume("r", budget=hf.Budget(usd=5))
    assert play(store, outer) == "ab"
    assert done == ["a", "b"]


def test_a_blocked_child_stops_its_parent_and_both_go_on_once_it_is_accepted() -> None:
    store, new, dies = MemoryStore(), [False], [True]

    @hf.agent
    async def inner() -> str:
        found = await look("new" if new[0] else "old")
        if dies:
            raise Crash
        return found

    @hf.agent
    async def outer() -> str:
        return await inner()

    crashing(lambda: play(store, outer))
    dies.clear()
    new[0] = True
    with pytest.raises(hf.RunFailed, match=r"child run 'r\.1' stopped"):
        play(store, outer)
    assert (status(store), status(store, "r.1")) == ("failed", "blocked")
    with hf.Holdfast(store) as app:
        app.accept("r.1")
    assert play(store, outer) == "new"


def test_a_call_that_changed_code_makes_again_takes_on_the_child_that_there_is() -> None:
    store, new = MemoryStore(), [False]

    @hf.agent
    async def outer() -> str:
        await look("new" if new[0] else "old")
        found = await child("x")
        return found + await asking()

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    new[0] = True
    with pytest.raises(hf.ReplayMismatch):
        play(store, outer)
    with hf.Holdfast(store) as app:
        app.accept("r")
        app.answer("r.3", "1", "red")
    assert play(store, outer) == "xred"
    assert done == ["old", "x", "new"]


def test_start_in_a_def_agent_is_refused_and_one_that_is_not_awaited_is_noticed() -> None:
    @hfs.agent
    def blocking() -> None:
        hfs.start(child, "a")  # type: ignore[unused-coroutine]

    @hf.agent
    async def forgetful(app: str) -> str:
        start: Any = opened.start if app == "app" else hf.start
        start(child, "a")
        return await look("b")

    with hf.Holdfast(MemoryStore()) as opened:
        with pytest.raises(hf.Misuse, match=r"'hf\.start' cannot be called in agent .*nothing was executed"):
            opened.run(blocking, run_id="r")
        for name in ("hf", "app"):
            with pytest.raises(hf.Misuse, match=r"'hf.start' \(step 1\) was called and never awaited"):
                opened.run(forgetful, name, run_id=name)
        assert {run.run_id for run in opened.runs()} == {"r", "hf", "app"}
    assert done == ["b", "b"]


def test_arguments_that_do_not_fit_leave_no_child_behind() -> None:
    @hf.agent
    async def outer(how: str) -> None:
        wrong: Any = 5
        await (child(wrong) if how == "called" else (await hf.start(child, wrong)).result())

    with hf.Holdfast(MemoryStore()) as app:
        for how in ("called", "started"):
            with pytest.raises(hf.NotKept) as caught:
                app.run(outer, how, run_id=how)
            assert not any("tells more" in note for note in caught.value.__notes__)
            assert app.show(how).children == []
