"""Child runs and their parents go one without the other only where that changes nothing for the one that stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, Crash
from holdfast.operating import operate, pruning
from holdfast.operating.pruning import Pruning
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

did: list[str] = []
mood: set[str] = set()


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hf.Holdfast]:
    did.clear()
    mood.clear()
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        yield app
        assert app.store.check() == []
        assert all(verdict.good for verdict in app.check())


@hf.effect(in_doubt="ask")
async def pay(what: str) -> str:
    did.append(f"pay {what}")
    return f"paid {what}"


@hf.agent
async def child(what: str) -> str:
    if what == "waits":
        await hf.ask("go on?", bool)
    if what == "fails" and "well" not in mood:
        raise ValueError(what)
    return await pay(what)


@hf.agent
async def parent(*whats: str) -> list[str]:
    found = [await child(what) for what in whats]
    if "crash" in mood:
        raise Crash
    return found


@hf.agent
async def endless(day: int) -> int:
    await child(f"day {day}")
    if "crash" in mood and day == 3:
        raise Crash
    if day < 4:
        hf.continue_as(day + 1)
    return day


def run(app: hf.Holdfast, agent: Any, *args: Any, run_id: str = "r") -> Any:
    with suppress(Crash, hf.RunWaiting, hf.RunFailed, ValueError):
        return app.run(agent, *args, run_id=run_id, wait=False)


def pruned(app: hf.Holdfast, **more: Any) -> Pruning:
    return app.prune(hf.Retention(keep_last=0, **more), dry_run=False, by="ann")


def left(app: hf.Holdfast) -> set[str]:
    return {one.run_id for one in app.runs()}


def test_a_child_stays_as_long_as_its_parent_has_not_ended(app: hf.Holdfast) -> None:
    mood.add("crash")
    run(app, parent, "a", "b")
    report = pruned(app)
    assert [(one.run_id, one.why) for one in report.runs] == [(f"r.{number}", "its parent r has not ended") for number in (1, 2)]
    mood.clear()
    assert run(app, parent, "a", "b") == ["paid a", "paid b"]
    assert pruned(app).removed == 3
    assert left(app) == set()
    assert did == ["pay a", "pay b"]


def test_a_parent_whose_step_has_the_result_would_go_on_even_without_its_child(app: hf.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    mood.add("crash")
    run(app, parent, "a", "b")
    mood.clear()
    monkeypatch.setattr(pruning.Families, "above", lambda *_: "")
    assert pruned(app).removed == 2
    assert run(app, parent, "a", "b") == ["paid a", "paid b"]
    assert did == ["pay a", "pay b"]


def test_a_parent_that_was_killed_before_it_had_the_result_finds_its_child(app: hf.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control is the last line: without the rule the parent cannot go on."""
    monkeypatch.setattr("holdfast.app.child.Calling._account", dying)
    run(app, parent, "a")
    monkeypatch.undo()
    assert app.show("r.1").status == "done"
    assert pruned(app).removed == 0
    with monkeypatch.context() as broken:
        broken.setattr(pruning.Families, "above", lambda *_: "")
        assert app.prune(hf.Retention(keep_last=0), dry_run=True).removed == 1
    assert run(app, parent, "a") == ["paid a"]
    assert did == ["pay a"]


def dying(*_: object) -> None:
    raise Crash


def test_children_of_generations_that_are_over_go(app: hf.Holdfast) -> None:
    mood.add("crash")
    run(app, endless, 1)
    assert pruned(app).removed == 2
    assert left(app) == {"r", "r.1-2"}
    mood.clear()
    assert run(app, endless, 1) == 4
    assert did == ["pay day 1", "pay day 2", "pay day 3", "pay day 4"]


def test_a_child_that_changed_code_superseded_stays_because_it_may_be_taken_on(app: hf.Holdfast) -> None:
    @hf.step
    async def before() -> int:
        return 1

    @hf.agent(name="changed")
    async def old() -> str:
        await child("a")
        raise Crash

    @hf.agent(name="changed")
    async def new() -> str:
        await before()
        return await child("a")

    run(app, old)
    with suppress(hf.HoldfastError):
        app.run(new, run_id="r")
    app.accept("r", by="ann")
    (kept,) = pruned(app).runs
    assert (kept.run_id, kept.what) == ("r.1", "kept")
    assert run(app, new) == "paid a"
    assert did == ["pay a"]


def test_a_parent_stays_as_long_as_a_child_that_it_left_has_not_ended(app: hf.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    run(app, parent, "waits")
    with monkeypatch.context() as later:  # as where the child executes elsewhere, and has yet to hear of it
        later.setattr(operate, "cancel_children", lambda *_: {})
        app.cancel("r", by="ann")
    assert [(one.run_id, one.why) for one in pruned(app).runs] == [("r", "its child r.1 has not ended")]
    with pytest.raises(hf.RunCancelled):
        app.run(child, "waits", run_id="r.1")
    assert pruned(app).removed == 2


def test_a_failed_child_of_a_parent_that_is_gone_does_not_go_on_by_itself(app: hf.Holdfast) -> None:
    @hf.agent
    async def forgiving() -> str:
        with suppress(ValueError):
            await child("fails")
        return "done without it"

    assert run(app, forgiving) == "done without it"
    assert app.show("r.1").status == "failed"
    assert pruned(app).removed == 1
    assert left(app) == {"r.1"}
    mood.add("well")
    with pytest.raises(hf.RunCancelled):
        app.run(child, "fails", run_id="r.1")
    assert did == []
    assert app.show("r.1").status == "cancelled"
