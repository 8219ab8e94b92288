"""A handle cancels the child that it stands for, begun or not, and whatever crashes between the wish and the deed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, dies_at, lines, play, status
from holdfast.errors import HoldfastError
from holdfast.stores.memory import MemoryStore

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@hf.step
async def look(what: str) -> str:
    done.append(what)
    return what


@hf.agent
async def child(what: str) -> str:
    return await look(what)


@hfs.agent
def blocking(what: str) -> str:
    @hfs.step
    def see(what: str) -> str:
        done.append(what)
        return what

    return see(what)


@hf.agent
async def outer() -> str:
    handle = await hf.start(child, "a")
    handle.cancel(by="ann", reason="enough")
    try:
        return await handle.result()
    except hf.RunCancelled as error:
        return f"{error.by}: {error.reason}"


def test_a_child_that_has_not_begun_is_cancelled_and_does_nothing() -> None:
    store = MemoryStore()
    assert play(store, outer) == play(store, outer) == "ann: enough"
    assert (status(store, "r.1"), done) == ("cancelled", [])
    assert "run.cancelled" in lines(store, "r.1")


def test_a_child_in_a_thread_that_has_not_begun_is_cancelled() -> None:
    store = MemoryStore()

    @hf.agent
    async def threaded() -> str:
        handle = await hf.start(blocking, "a")
        handle.cancel(reason="enough")
        try:
            return await handle.result()
        except hf.RunCancelled as error:
            return error.reason

    assert play(store, threaded) == "enough"
    assert (status(store, "r.1"), done) == ("cancelled", [])


def test_code_without_steps_is_cancelled_too() -> None:
    store = MemoryStore()

    @hf.agent
    async def forever() -> None:
        await asyncio.Event().wait()

    @hf.agent
    async def parent() -> str:
        handle = await hf.start(forever)
        handle.cancel()
        with pytest.raises(hf.RunCancelled):
            await handle.result()
        return "over"

    assert play(store, parent) == "over"
    assert status(store, "r.1") == "cancelled"


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(("kind", "step_id"), [("step.done", "2"), ("child.started", "1"), ("run.started", ""), ("run.cancelled", "")])
def test_a_cancel_survives_a_crash_at_any_place(kind: str, step_id: str, *, written: bool) -> None:
    store = dies_at(kind, step_id, written=written)
    if kind == "run.started":  # the second one is the child's
        numbers = itertools.count(1)
        store.fails = lambda row: row.kind == kind and next(numbers) == 2
    with pytest.raises(HoldfastError):
        play(store, outer)
    store.mend()
    assert play(store, outer) == "ann: enough"
    assert (status(store, "r.1"), done) == ("cancelled", [])


def test_a_child_that_was_done_stays_done_when_its_parent_comes_by_the_cancel_again() -> None:
    store, dies = MemoryStore(), [True]

    @hf.agent
    async def late() -> str:
        handle = await hf.start(child, "a")
        found = await handle.result()
        handle.cancel()
        if dies:
            raise Crash
        return found

    crashing(lambda: play(store, late))
    dies.clear()
    assert play(store, late) == "a"
    assert (status(store, "r.1"), done) == ("done", ["a"])


def test_a_run_of_that_name_that_is_no_child_is_not_cancelled() -> None:
    store = MemoryStore()

    @hf.agent
    async def waiting() -> str:
        return await hf.ask("well?", str)

    @hf.agent
    async def parent() -> None:
        handle = await hf.start(waiting, run_id="other")
        handle.cancel()

    with pytest.raises(hf.RunWaiting):
        play(store, waiting, run_id="other")
    with pytest.raises(HoldfastError, match="a run of its own"):
        play(store, parent)
    assert status(store, "other") == "waiting"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is told from here on: the tasks that other tests have left behind are told of before."""
    gc.collect()
    caplog.clear()
    return caplog


@pytest.mark.filterwarnings("error")
def test_what_ends_the_children_of_a_cancelled_parent_is_told_once(told: pytest.LogCaptureFixture) -> None:
    store, begun = MemoryStore(), threading.Event()

    @hf.agent
    async def forever() -> None:
        await look("begun")
        begun.set()
        await asyncio.Event().wait()

    @hf.agent
    async def parent() -> None:
        for _ in range(2):
            await hf.start(forever)
        await asyncio.Event().wait()

    with hf.Holdfast(store) as app:
        canceller = threading.Thread(target=lambda: (begun.wait(20), app.cancel("r", by="ann")))
        canceller.start()
        with pytest.raises(hf.RunCancelled):
            app.run(parent, run_id="r")
        canceller.join()
    gc.collect()
    assert [one.getMessage() for one in told.records if one.name == "asyncio"] == []


def test_what_ends_a_child_is_told_once_when_its_parent_fails(told: pytest.LogCaptureFixture) -> None:
    @hf.agent
    async def parent() -> None:
        handle = await hf.start(child, "a")
        handle.cancel()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        play(MemoryStore(), parent)
    gc.collect()
    assert [one.getMessage() for one in told.records if one.name == "asyncio"] == []
