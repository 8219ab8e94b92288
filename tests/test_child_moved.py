"""A parent learns that its child was moved by somebody else: it is found among those that can go on, once, and not in vain."""

from __future__ import annotations

import json
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, dies_at, play, status
from holdfast.errors import HoldfastError, StoreFailed
from holdfast.running import letters as letters_room
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore


@hf.agent
async def careful() -> str:
    return f"{await hf.ask('first?', str)} {await hf.ask('second?', str)}"


@hf.agent
async def planned() -> str:
    return await careful()


@hf.agent
async def above() -> str:
    return await planned()


AGENTS: list[Any] = [careful, planned, above]


def parked(store: Store, agent: Any = planned) -> None:
    with pytest.raises(hf.RunWaiting):
        play(store, agent)


def ready(store: Store) -> list[str]:
    with hf.Holdfast(store, lease=LEASE_S) as app:
        return [run.run_id for run in app.ready()]


def resumed(store: Store, run_id: str) -> object:
    with hf.Holdfast(store, lease=LEASE_S) as app:
        try:
            return app.resume_here(run_id, AGENTS, where="here", wait=False)
        except hf.RunWaiting:
            return "waits"


def answered(store: Store, run_id: str, ask_id: str, value: str) -> None:
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.answer(run_id, ask_id, value)


def letters(store: Store, run_id: str = "r") -> list[str]:
    return [json.loads(letter.body)["child"] for letter in store.letters([run_id])]


def test_a_parent_is_found_once_its_child_is_answered_and_once_it_is_done_elsewhere() -> None:
    store = MemoryStore()
    parked(store)
    assert ready(store) == []
    answered(store, "r.1", "1", "a")
    assert sorted(ready(store)) == ["r", "r.1"]
    assert resumed(store, "r.1") == "waits"
    assert ready(store) == []
    answered(store, "r.1", "2", "b")
    assert resumed(store, "r.1") == "a b"
    assert (ready(store), letters(store)) == (["r"], ["r.1"])
    assert resumed(store, "r") == "a b"
    assert (ready(store), letters(store), status(store)) == ([], [], "done")


def test_each_child_that_is_moved_leaves_one_letter_whatever_else_is_there() -> None:
    store = MemoryStore()

    @hf.agent
    async def both() -> tuple[str, ...]:
        return await hf.gather(careful(), careful())

    parked(store, both)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.send("r", "hello", 1, by="ann")
        children = sorted(item.run_id for item in app.inbox())
        for child in children:
            app.answer(child, "1", "a")
            app.cancel(child)
    assert len(set(children)) == 2
    assert [json.loads(letter.body)["child"] for letter in store.letters(["r"]) if letter.kind == "child"] == children


def test_the_way_up_is_gone_step_by_step() -> None:
    store = MemoryStore()
    parked(store, above)
    for ask_id, value in (("1", "a"), ("2", "b")):
        answered(store, "r.1.1", ask_id, value)
        resumed(store, "r.1.1")
    for run_id in ("r.1", "r"):
        assert ready(store) == [run_id]
        assert resumed(store, run_id) == "a b"
    assert ready(store) == []


def test_a_parent_that_parks_again_does_not_keep_its_letters() -> None:
    store = MemoryStore()
    parked(store)
    answered(store, "r.1", "1", "a")
    assert resumed(store, "r") == "waits"
    assert (ready(store), letters(store)) == ([], [])
    answered(store, "r.1", "2", "b")
    assert resumed(store, "r") == "a b"


def test_show_tells_that_the_child_has_moved() -> None:
    store = MemoryStore()
    parked(store)
    with hf.Holdfast(store) as app:
        assert app.show("r").waits == "child run 'r.1' waits: first?"
        app.cancel("r.1")
        assert app.show("r").waits == "child run 'r.1' is cancelled by now: it can go on"


@pytest.mark.parametrize("written", [False, True])
def test_a_cancel_that_crashes_tells_the_parent_before(*, written: bool) -> None:
    store = dies_at("run.cancelled", written=written)
    parked(store)
    with hf.Holdfast(store, lease=LEASE_S) as app, pytest.raises(HoldfastError):
        app.cancel("r.1")
    store.mend()
    assert (status(store, "r.1"), ready(store)) == (("cancelled", ["r"]) if written else ("waiting", []))


def test_a_parent_that_looks_while_a_child_is_cancelled_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    parked(store)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        commit = app.engine.committer.commit

        def looks_before(*args: Any) -> Any:
            assert resumed(store, "r") == "waits"
            assert letters(store) == []
            return commit(*args)

        monkeypatch.setattr(app.engine.committer, "commit", looks_before)
        app.cancel("r.1")
    assert ready(store) == ["r"]


def test_without_the_letter_nobody_finds_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    parked(store)
    monkeypatch.setattr("holdfast.operating.telling.tell_parent", lambda *_, **__: None)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.cancel("r.1")
    assert ready(store) == []
    monkeypatch.setattr("holdfast.operating.telling.tell_parent", letters_room.tell_parent)
    parked(other := MemoryStore())
    with hf.Holdfast(other, lease=LEASE_S) as app:
        app.cancel("r.1")
    assert ready(other) == ["r"]


def test_a_child_that_its_own_parent_cancels_leaves_no_letter() -> None:
    store = MemoryStore()

    @hf.agent
    async def hasty() -> str:
        try:
            async with hf.timeout(0.2):
                return await careful()
        except TimeoutError:
            return "late"

    with hf.Holdfast(store, lease=LEASE_S) as app:
        assert app.run(hasty, run_id="r") == "late"
    assert (status(store, "r.2"), letters(store)) == ("cancelled", [])


def test_a_child_whose_parent_cannot_be_told_does_not_go_on_and_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    parked(store)
    answered(store, "r.1", "1", "a")
    for letter in store.letters(["r"]):
        store._letters.pop(letter.letter_id)  # as if the parent had looked

    def full(*_: object) -> int:
        raise StoreFailed(store.url, "the disk is full")

    with hf.Holdfast(store, lease=LEASE_S) as app:
        with monkeypatch.context() as broken:
            broken.setattr(store, "post", full)
            with pytest.raises(StoreFailed):
                app.resume_here("r.1", AGENTS, wait=False)
        app.engine.keeper.release_orphans()
        assert status(store, "r.1") == "queued"
    assert resumed(store, "r.1") == "waits"
