"""A run with children is undone: what each of them did is taken back in its turn, the newest first, once, whatever crashes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import LEASE_S, FailingStore, play, status
from holdfast.app import child as child_room
from holdfast.errors import Refusal
from holdfast.records.chain import record_of
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore

DID: list[str] = []
EVERYTHING = ["do a", "do b", "do c", "do d", "undo d", "undo c", "undo b", "undo a"]


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DID.clear()


def undo_it(result: str, what: str) -> None:
    DID.append(f"undo {what}")


@hf.effect(in_doubt="ask", undo=undo_it)
async def do(what: str) -> str:
    DID.append(f"do {what}")
    return what


@hf.agent
async def grandchild(what: str) -> str:
    return await do(what)


@hf.agent
async def child(first: str, second: str, fate: str) -> str:
    await do(first)
    await grandchild(second)
    if fate == "waiting":
        await hf.ask("go on?")
    if fate == "failed":
        raise ValueError("no")
    return first


@hf.agent
async def parent(fate: str) -> str:
    await do("a")
    await child("b", "c", fate)
    await do("d")
    await hf.ask("right?")
    return "kept"


def stop(store: Store, fate: str) -> list[str]:
    """Play the parent until it waits or fails; gives what is due once it is undone."""
    with pytest.raises(ValueError if fate == "failed" else hf.RunWaiting):
        play(store, parent, fate)
    return [line for line in EVERYTHING if fate == "done" or not line.endswith(" d")]


@pytest.mark.parametrize("fate", ["done", "waiting", "failed"])
def test_what_children_did_is_undone_in_the_order_of_the_outcomes(fate: str) -> None:
    store = MemoryStore()
    due = stop(store, fate)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.cancel("r", undo=True, by="ann")
    with pytest.raises(hf.RunCancelled, match="1 child run undone"):
        play(store, parent, fate)
    assert due == DID
    assert {status(store, run_id) for run_id in ("r", "r.2", "r.2.2")} == {"cancelled"}
    with pytest.raises(hf.RunCancelled):
        play(store, parent, fate)
    assert due == DID


def test_an_engine_that_passes_children_over_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def passed_over(*_: Any) -> Any:
        yield from ()
        return False

    monkeypatch.setattr(child_room.Calling, "undone", passed_over)
    store = MemoryStore()
    due = stop(store, "done")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.cancel("r", undo=True)
    with pytest.raises(hf.RunCancelled):
        play(store, parent, "done")
    assert due != DID


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("fate", ["done", "waiting"])
def test_a_crash_at_any_append_of_an_undo_repeats_and_loses_nothing(fate: str, written: bool) -> None:  # noqa: FBT001
    for number in range(1, 60):
        DID.clear()
        store, left = FailingStore(written=written), [number]
        due = stop(store, fate)
        with hf.Holdfast(store, lease=LEASE_S) as app:
            app.cancel("r", undo=True)

        def fails(_: Any, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == 0

        store.fails = fails
        with pytest.raises((hf.RunCancelled, hf.StoreError)):
            play(store, parent, fate)
        if not store.failed:
            break
        store.mend()
        _finish(store, fate)
        assert due == DID, number
    assert number > 10


def _finish(store: Store, fate: str) -> None:
    for _ in range(4):
        try:
            play(store, parent, fate)
        except hf.RunCancelled:
            return
        except hf.RunWaiting:
            with hf.Holdfast(store, lease=LEASE_S) as app:
                for item in app.inbox():
                    if item.kind == "doubt":  # died between the intent of an undo and its outcome: it is in the ledger, or is not
                        what = "undo " + {"r:undo:1": "a", "r.2:undo:1": "b", "r.2.2:undo:1": "c", "r:undo:3": "d"}[
                            f"{item.run_id}:{item.step_id}"
                        ]
                        app.resolve(item.run_id, item.step_id, **({"landed": None} if what in DID else {"not_landed": True}))
    raise AssertionError("it has no end")


def test_a_doubt_in_a_child_has_its_parent_wait_with_the_undo() -> None:
    store, broken = MemoryStore(), [True]

    def fragile_undo(result: None) -> None:
        DID.append("undo")
        if broken:
            raise RuntimeError("who knows")

    @hf.effect(in_doubt="ask", undo=fragile_undo)
    async def fragile() -> None:
        DID.append("do")

    @hf.agent
    async def inner() -> None:
        await fragile()

    @hf.agent
    async def outer() -> None:
        await inner()
        await hf.ask("right?")

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.cancel("r", undo=True)
        with pytest.raises(hf.RunWaiting, match=r"child run .r\.1. waits"):
            app.run(outer, run_id="r", wait=False)
        assert app.show("r").status == "waiting"
        broken.clear()
        for item in app.inbox():
            if item.kind == "doubt":
                app.resolve(item.run_id, item.step_id, not_landed=True)
    with pytest.raises(hf.RunCancelled):
        play(store, outer)
    assert DID == ["do", "undo", "undo"]


def test_a_run_that_executes_is_undone_with_the_child_that_it_is_in() -> None:
    store, inside = MemoryStore(), asyncio.Event()

    @hf.agent
    async def inner() -> None:
        await do("b")
        inside.set()
        await asyncio.sleep(60)

    @hf.agent
    async def outer() -> None:
        await do("a")
        await inner()

    async def both() -> None:
        with hf.Holdfast(store) as app:
            handle = await app.start(outer, run_id="r")
            await inside.wait()
            app.cancel("r", undo=True)
            with pytest.raises(hf.RunCancelled):
                await handle.result()

    asyncio.run(both())
    assert DID == ["do a", "do b", "undo b", "undo a"]
    assert status(store, "r.2") == "cancelled"


def test_an_agent_that_is_undone_when_it_fails_has_its_children_undone() -> None:
    store = MemoryStore()

    @hf.agent(on_failure="undo")
    async def careful() -> None:
        await child("b", "c", "done")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        play(store, careful)
    assert DID == ["do b", "do c", "undo c", "undo b"]
    assert (status(store), status(store, "r.1")) == ("cancelled", "cancelled")


def test_def_agents_are_undone_with_their_children() -> None:
    store = MemoryStore()

    @hfs.effect(in_doubt="ask", undo=undo_it)
    def act(what: str) -> str:
        DID.append(f"do {what}")
        return what

    @hfs.agent
    def inner(what: str) -> str:
        return act(what)

    @hfs.agent
    def outer() -> None:
        act("a")
        hfs.gather(lambda: inner("b"), lambda: inner("c"))
        hfs.ask("right?")

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.cancel("r", undo=True)
    with pytest.raises(hf.RunCancelled):
        play(store, outer)
    assert sorted(DID) == ["do a", "do b", "do c", "undo a", "undo b", "undo c"]
    assert DID[-1] == "undo a"


def test_a_fork_does_not_stand_on_a_child_that_was_undone_nor_take_its_result() -> None:
    store = MemoryStore()
    stop(store, "done")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.cancel("r", undo=True)
        with pytest.raises(hf.RunCancelled):
            app.run(parent, "done", run_id="r")
        with pytest.raises(Refusal, match="was undone"):
            app.fork("r", at=2)
        DID.clear()
        app.fork("r", at=0, new_id="f")
        with pytest.raises(hf.RunWaiting, match="right"):
            app.run(parent, "done", run_id="f", wait=False)
    assert DID == ["do a", "do b", "do c", "do d"]
    assert record_of(store.load("f.2")[1][0]).kind == "run.started"  # type: ignore[index]


def test_a_child_that_its_parent_had_dropped_is_undone_with_it_all_the_same() -> None:
    """Whoever executed the child may be silent and not proven dead: then it is told with a letter, which nobody has read since."""
    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, parent, "done")
    store.post("r.2", "cancel", json.dumps({"by": "run r", "reason": "step 2 was cancelled"}).encode(), 1)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.cancel("r", undo=True)
    with pytest.raises(hf.RunCancelled, match="2 effects and 1 child run undone"):
        play(store, parent, "done")
    assert EVERYTHING == DID
