"""Who resumes or answers a child run that nobody goes on with is told what its parent stands at, and what helps (`family.hindrance`)."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from crashing import play
from holdfast.cli.fleet import hindered_line
from holdfast.cli.page import Line
from holdfast.stores.memory import MemoryStore

BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    BROKEN.clear()
    BROKEN.add("child")


@hf.step
async def breaks() -> int:
    if "child" in BROKEN:
        raise LookupError("no")
    return 1


@hf.agent
async def child() -> int:
    return await breaks()


@hf.agent
async def parent() -> int:
    return await child()


@hf.agent
async def lenient() -> int:
    try:
        return await child()
    except LookupError:
        return await hf.ask("how many?", int)


@hf.agent
async def asks() -> bool:
    return await hf.ask("inside?")


@hf.agent
async def planned() -> bool:
    return await asks()


def stopped(agent: Any) -> MemoryStore:
    store = MemoryStore()
    with pytest.raises((LookupError, hf.RunWaiting)):
        play(store, agent)
    return store


def line(app: hf.Holdfast, run_id: str) -> str:
    """What `holdfast show` says of it first."""
    found = hindered_line(app.store, app.store.head(run_id))
    return " ".join(one.text for one in found if isinstance(one, Line))


def test_a_child_that_failed_with_its_parent_goes_on_when_that_one_is_resumed() -> None:
    store = stopped(parent)
    with hf.Holdfast(store) as app:
        told = "'r.1' goes on inside run 'r', which is failed"
        assert app.resume("r.1") == f"it is recorded; {told}. What helps is: holdfast resume r"
        assert app.resume("r.1", budget=hf.Budget(steps=9)).endswith("What helps is: holdfast resume r")
        assert (line(app, "r.1"), app.show("r.1").next_commands) == (told, ["holdfast resume r --here APP.py"])
        BROKEN.clear()
        assert app.resume("r") == "the run is ready for whoever runs its agent next"
        assert line(app, "r.1") == ""
        assert app.resume_here("r", [parent, child]) == 1


def test_a_child_of_a_paused_parent_names_that_pause() -> None:
    store = stopped(planned)
    with hf.Holdfast(store) as app:
        assert line(app, "r.1") == ""
        app.pause("r", by="ann", reason="lunch")
        assert line(app, "r.1") == "'r.1' goes on inside run 'r', which is paused by ann: lunch"
        assert app.resume("r.1") == "it is recorded, and run 'r' stays paused by ann: lunch; it goes on after: holdfast resume r"
        assert app.show("r.1").status == "queued"
        assert app.ready() == []
        app.resume("r")
        assert sorted(run.run_id for run in app.ready()) == ["r", "r.1"]
        assert app.answer("r.1", "1", yes=True).startswith("the run is ready to go on")


def test_a_child_that_its_parent_has_gone_on_without_is_not_called_ready_and_can_be_executed_by_itself() -> None:
    store = stopped(lenient)
    with hf.Holdfast(store) as app:
        told = app.resume("r.1")
        assert told.startswith("it is recorded, but run 'r' has gone on without 'r.1', which is closed when that one ends")
        assert told.endswith("To execute it by itself: holdfast resume r.1 --here APP.py")
        assert app.ready() == []
        assert app.show("r.1").next_commands == ["holdfast resume r.1 --here APP.py", "holdfast cancel r.1"]
        app.answer("r", "2", 7)
        assert app.resume_here("r", [lenient, child]) == 7
        assert (app.show("r.1").status, line(app, "r.1")) == ("cancelled", "")


def test_children_that_cannot_go_on_do_not_hide_the_runs_that_can() -> None:
    store = stopped(parent)
    with hf.Holdfast(store) as app:
        app.submit(child, run_id="other")
        app.resume("r.1")
        for limit in (1, 2, 100):
            assert [run.run_id for run in app.ready(limit=limit)] == ["other"]


def test_a_child_that_let_go_because_of_its_parents_budget_names_what_that_one_waits_for() -> None:
    BROKEN.clear()

    @hf.agent
    async def twice() -> int:
        return await breaks() + await breaks()

    @hf.agent
    async def spender() -> int:
        return await twice()

    with hf.Holdfast(MemoryStore()) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(spender, run_id="r", budget=hf.Budget(steps=1), wait=False)
        assert line(app, "r.1").startswith("'r.1' goes on inside run 'r', which waits: 1 step of 1 step spent")
        assert app.show("r.1").next_commands == ["holdfast show r"]
        assert app.resume("r.1").endswith("What helps is: holdfast show r")
