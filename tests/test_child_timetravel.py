"""Child runs where their parent goes back: what was done in them is not done again unasked, by an edit in place or by a fork."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, FailingStore, lines, loaded, play, records, status
from holdfast.app import child
from holdfast.errors import Refusal
from holdfast.operating.pruning import Families
from holdfast.records import kinds as rec
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore

LEDGER: list[str] = []
WORLD = {"up": False}
POLICIES = ("ask", "reuse", "repeat")
FATES = ("done", "waiting", "failed")


@pytest.fixture(autouse=True)
def fresh() -> None:
    LEDGER.clear()
    WORLD["up"] = False


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@hf.step
async def plan(what: str) -> str:
    return what


@hf.effect(in_doubt="ask")
async def charge(what: str) -> str:
    LEDGER.append(what)
    return f"receipt-{len(LEDGER)}"


@hf.step
async def reach_network() -> None:
    if not WORLD["up"]:
        raise ConnectionRefusedError("no network")


@hf.agent
async def buy(what: str, fate: str) -> str:
    receipt = await charge(what)
    if fate == "waiting":
        await hf.ask("go on?")
    if fate == "failed":
        await reach_network()
    return receipt


@hf.agent
async def parent(fate: str) -> str:
    """A step to go back to, a child with an effect in it, and a question, so that the run is not done."""
    await plan("first")
    what = await plan("book")
    receipt = await buy(what, fate)
    return receipt if await hf.ask("right?") else ""


def stop(store: Store, fate: str) -> None:
    """Play the parent until it waits or fails; the child has charged once."""
    with pytest.raises(ConnectionRefusedError if fate == "failed" else hf.RunWaiting):
        play(store, parent, fate)
    assert LEDGER == ["book"]
    WORLD["up"] = True


def finish(store: Store, fate: str, run_id: str) -> str:
    """Play a run to its end, with yes for every question and the recorded result for every call that was made before."""
    for _ in range(6):
        try:
            return str(play(store, parent, fate, run_id=run_id))
        except hf.RunWaiting:
            with hf.Holdfast(store, lease=LEASE_S) as app:
                for item in app.inbox():
                    if not item.run_id.startswith(run_id):
                        continue
                    if item.kind == "doubt":
                        app.resolve(item.run_id, item.step_id, landed="receipt-1")
                    else:
                        app.answer(item.run_id, item.step_id, yes=True)
    raise AssertionError("it has no end")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fate", FATES)
def test_an_edit_takes_the_child_of_the_same_call_on(store: Store, fate: str, policy: Any) -> None:
    stop(store, fate)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        said = app.edit("r", 1, "other", effects=policy)
    assert "child runs began after it: r.3" in said
    assert finish(store, fate, "r") == ("receipt-2" if policy == "repeat" else "receipt-1")
    assert Counter(LEDGER) == {"book": 2 if policy == "repeat" else 1}
    runs = {"r.3": "done", "r": "done"} | ({"r.3-1": "done"} if policy == "repeat" else {})
    if policy == "repeat" and fate != "done":
        runs["r.3"] = "cancelled" if fate == "waiting" else "failed"
    with hf.Holdfast(store, lease=LEASE_S) as app:
        assert {run.run_id: run.status for run in app.runs()} == runs


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fate", FATES)
def test_a_fork_knows_what_the_child_did(store: Store, fate: str, policy: Any) -> None:
    stop(store, fate)
    before = loaded(store, "r.3")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=1, effects=policy, new_id="f")
    assert finish(store, fate, "f") == ("receipt-2" if policy == "repeat" else "receipt-1")
    assert Counter(LEDGER) == {"book": 2 if policy == "repeat" else 1}
    assert loaded(store, "r.3") == before
    [begun] = [one for one in records(store, "f") if isinstance(one, rec.ChildStarted)]
    expected = {"child": "f.3", "fork_of": "r.3", "of": ""}
    if policy == "repeat":
        expected = {"child": "f.3", "fork_of": "", "of": ""}
    elif fate == "done":
        expected = {"child": "r.3", "fork_of": "", "of": "r"}
    assert {name: getattr(begun, name) for name in expected} == expected


def test_a_fork_of_a_waiting_child_asks_before_it_charges_again() -> None:
    store = MemoryStore()
    stop(store, "waiting")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=1, new_id="f")
        with pytest.raises(hf.RunWaiting):
            app.run(parent, "waiting", run_id="f", wait=False)
        [asked] = [item for item in app.inbox() if item.run_id == "f.3"]
        assert "the same call was made at step 1 of run r.3" in asked.what
        app.resolve("f.3", "1", not_landed=True)
    assert finish(store, "waiting", "f") == "receipt-2"
    assert LEDGER == ["book", "book"]
    assert (status(store), status(store, "r.3")) == ("waiting", "waiting")


def test_an_engine_that_forgets_superseded_children_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "child_before", lambda call: None)
    for name, fate in (("edit", "done"), ("fork", "waiting")):
        store = MemoryStore()
        LEDGER.clear()
        stop(store, fate)
        with hf.Holdfast(store, lease=LEASE_S) as app:
            run_id = app.fork("r", at=1) if name == "fork" else "r"
            if name == "edit":
                app.edit("r", 1, "other")
        finish(store, fate, run_id)
        assert LEDGER == ["book", "book"], name


@pytest.mark.parametrize("fate", FATES)
def test_other_arguments_are_another_child_and_the_superseded_one_ends_with_its_parent(store: Store, fate: str) -> None:
    stop(store, fate)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.edit("r", 2, "pen")
    finish(store, fate, "r")
    assert LEDGER == ["book", "pen"]
    assert status(store, "r.3-1") == "done"
    assert status(store, "r.3") == {"done": "done", "waiting": "cancelled", "failed": "failed"}[fate]


def test_two_calls_alike_take_on_two_children_in_their_order() -> None:
    store = MemoryStore()

    @hf.agent
    async def twice() -> list[str]:
        await plan("first")
        return [await buy("book", "done"), await buy("book", "done"), *(["x"] if await hf.ask("right?") else [])]

    with pytest.raises(hf.RunWaiting):
        play(store, twice)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.edit("r", 1, "other")
        with pytest.raises(hf.RunWaiting):
            app.run(twice, run_id="r", wait=False)
        app.answer("r", "4", yes=True)
    assert play(store, twice) == ["receipt-1", "receipt-2", "x"]
    assert LEDGER == ["book", "book"]
    assert [one.child for one in records(store) if isinstance(one, rec.ChildStarted)] == ["r.2", "r.3", "r.2", "r.3"]


def test_two_calls_alike_at_once_take_on_two_children() -> None:
    store = MemoryStore()

    async def bought() -> str:
        return await buy("book", "done")

    @hf.agent
    async def twice() -> list[str]:
        await plan("first")
        handle = await hf.start(buy, "book", "done")
        other = await hf.start(buy, "book", "done")
        found = [*await hf.gather(bought(), bought()), await handle.result(), await other.result()]
        return found if await hf.ask("right?") else []

    with pytest.raises(hf.RunWaiting):
        play(store, twice)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.edit("r", 1, "other")
        with pytest.raises(hf.RunWaiting):
            app.run(twice, run_id="r", wait=False)
        app.answer("r", "5", yes=True)
    assert sorted(play(store, twice)) == ["receipt-1", "receipt-2", "receipt-3", "receipt-4"]
    assert LEDGER == ["book"] * 4


def test_a_child_that_was_removed_is_not_begun_again_by_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Families, "beside", lambda *_: "")  # an older version removed it all the same
    store = MemoryStore()
    stop(store, "failed")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=1, new_id="f")
        for _ in range(2):  # the parent, then what it called
            app.prune(hf.Retention(keep_last=0, keep_failed=False), dry_run=False, status="failed")
        assert "r.3" not in {run.run_id for run in app.runs()}
        for _ in range(2):
            with pytest.raises(hf.RunPruned, match=r"'r\.3' had ended"):
                app.run(parent, "failed", run_id="f", wait=False)
    assert LEDGER == ["book"]


def test_a_superseded_child_does_not_outlive_the_generation() -> None:
    store = MemoryStore()

    @hf.agent
    async def outer(number: int) -> int:
        if number == 1:
            what = await plan("book")
            await buy(what, "waiting" if what == "book" else "done")
            hf.continue_as(2)
        return number

    with pytest.raises(hf.RunWaiting):
        play(store, outer, 1)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.edit("r", 1, "pen")
    assert play(store, outer, 1) == 2
    assert (status(store, "r.2"), LEDGER) == ("cancelled", ["book", "pen"])


def test_a_child_that_a_time_out_had_cancelled_is_branched_from_where_the_time_out_is_superseded() -> None:
    store = MemoryStore()

    @hf.agent
    async def slow(what: str) -> str:
        receipt = await charge(what)
        if not WORLD["up"]:
            await asyncio.sleep(60)
        return receipt

    @hf.agent
    async def outer() -> str:
        await plan("first")
        try:
            async with hf.timeout("100ms"):
                return await slow("book")
        except TimeoutError:
            return "late" if await hf.ask("late?") else ""

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    assert status(store, "r.3") == "cancelled"
    WORLD["up"] = True
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.edit("r", 1, "other", effects="reuse")
    assert play(store, outer) == "receipt-1"
    assert LEDGER == ["book"]
    assert status(store, "r.3-1") == "done"


def test_a_child_that_had_begun_before_the_point_stands_with_what_came_of_it() -> None:
    store, ready = MemoryStore(), asyncio.Event()

    @hf.agent
    async def long() -> str:
        receipt = await charge("book")
        ready.set()
        await hf.ask("child?")
        return receipt

    @hf.step
    async def beside() -> str:
        await ready.wait()
        return "beside"

    @hf.agent
    async def outer() -> tuple[str, str]:
        return await hf.gather(long(), beside())

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        with pytest.raises(Refusal, match=r"child run 'r\.1' of step 1 has not come to its end"):
            app.fork("r", at=2)
        app.edit("r", 2, "edited")
        app.answer("r.1", "2", yes=True)
    assert play(store, outer) == ("receipt-1", "edited")
    assert LEDGER == ["book"]
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=2, new_id="f")
    assert play(store, outer, run_id="f") == ("receipt-1", "edited")
    assert LEDGER == ["book"]


def test_the_fork_of_a_child_is_a_run_of_its_own() -> None:
    store = MemoryStore()
    stop(store, "waiting")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.cancel("r")
        app.fork("r.3", at=1, new_id="alone")
        assert app.show("alone").parent is None
        assert {run.run_id for run in app.runs(tags={"child_of": "r"})} == {"r.3"}
        with pytest.raises(hf.RunWaiting):
            app.run(buy, "book", "waiting", run_id="alone", wait=False)
        app.answer("alone", "2", yes=True)
        assert app.run(buy, "book", "waiting", run_id="alone") == "receipt-1"


def test_effects_of_new_children_of_a_fork_have_keys_of_their_own() -> None:
    store, keys = MemoryStore(), list[str]()

    @hf.effect(in_doubt="ask")
    async def keyed() -> None:
        keys.append(hf.key())

    @hf.agent
    async def inner() -> None:
        await keyed()

    @hf.agent
    async def outer() -> None:
        await plan("first")
        await inner()

    play(store, outer)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=1, effects="repeat", new_id="f")
        app.run(outer, run_id="f")
    assert len(set(keys)) == 2


def test_a_named_child_of_a_path_that_was_given_up_keeps_its_name_to_itself() -> None:
    store = MemoryStore()

    @hf.agent
    async def outer() -> str:
        what = await plan("book")
        handle = await hf.start(buy, what, "done", run_id="kid")
        receipt = await handle.result()
        return f"{handle.id} {receipt}" if await hf.ask("right?") else ""

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=0, effects="reuse", new_id="f")
        with pytest.raises(hf.RunWaiting):
            app.run(outer, run_id="f", wait=False)
        app.answer("f", "3", yes=True)
        app.edit("r", 1, "pen")
        with pytest.raises(hf.RunWaiting):
            app.run(outer, run_id="r", wait=False)
        app.answer("r", "3", yes=True)
    assert play(store, outer, run_id="f") == "kid receipt-1"
    assert play(store, outer) == "r.2-1 receipt-2"
    assert LEDGER == ["book", "pen"]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(("kind", "fate"), [
    ("child.started", "done"), ("child.started", "waiting"), ("child.started", "failed"), ("run.forked", "waiting"),
    ("run.forked", "failed"), ("run.resumed", "waiting"), ("step.done", "done"), ("step.done", "failed"),
])  # fmt: skip
def test_a_crash_on_the_way_of_a_forked_child_repeats_nothing(fate: str, kind: str, written: bool) -> None:  # noqa: FBT001
    store = FailingStore(written=written)
    stop(store, fate)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=1, new_id="f", effects="reuse")
    store.fails = lambda row: row.kind == kind and row.step_id in ("", "1", "3")
    with pytest.raises(hf.StoreError):
        play(store, parent, fate, run_id="f")
    assert store.failed
    store.mend()
    assert finish(store, fate, "f") == "receipt-1"
    assert LEDGER == ["book"]
    assert [line for line in lines(store, "f") if line.startswith("child.")] == ["child.started 3"]


@pytest.mark.parametrize("policy", ["ask", "reuse"])
def test_a_fork_knows_what_children_of_children_did(policy: Any) -> None:
    store = MemoryStore()

    @hf.agent
    async def middle() -> str:
        receipt = await buy("book", "done")
        return receipt if await hf.ask("middle?") else ""

    @hf.agent
    async def outer() -> str:
        await plan("first")
        return await middle()

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=1, effects=policy, new_id="f")
        with pytest.raises(hf.RunWaiting, match=r"f\.2.*middle"):
            app.run(outer, run_id="f", wait=False)
        app.answer("f.2", "2", yes=True)
        assert app.run(outer, run_id="f") == "receipt-1"
    assert LEDGER == ["book"]
    assert (status(store, "r.2"), status(store, "r.2.1")) == ("waiting", "done")


def test_cancelling_a_fork_leaves_the_children_of_its_source_alone() -> None:
    store = MemoryStore()
    stop(store, "waiting")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=1, new_id="f")
        app.cancel("f")
        assert (app.show("r").status, app.show("r.3").status) == ("waiting", "waiting")


def test_the_beginning_of_a_run_that_began_anew_is_that_of_its_generation() -> None:
    store = MemoryStore()

    @hf.agent
    async def endless(number: int) -> str:
        receipt = await charge(f"charge {number}")
        if number == 1:
            hf.continue_as(2)
        return receipt if await hf.ask("right?") else ""

    with pytest.raises(hf.RunWaiting):
        play(store, endless, 1)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.fork("r", at=0, effects="reuse", new_id="f")
        with pytest.raises(hf.RunWaiting):
            app.run(endless, 1, run_id="f", wait=False)
    assert LEDGER == ["charge 1", "charge 2"]
