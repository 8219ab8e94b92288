"""An agent called in another run is a run of its own there: its result, failure, waits, cost and end belong to its parent's step."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, lines, play, records, status
from holdfast.errors import Refusal
from holdfast.records import kinds as rec
from holdfast.stores.memory import MemoryStore

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@hf.step
async def look(what: str) -> str:
    done.append(what)
    if what == "fail":
        raise ValueError("no such thing")
    return f"seen {what}"


@hf.effect(in_doubt="ask")
async def pay(what: str) -> str:
    done.append(f"pay {what} {hf.key()}")
    return what


@hf.agent
async def child(what: str) -> str:
    return f"{await look(what)} by {hf.current().id} of {hf.current().parent}"


@hf.agent
async def parent(*whats: str) -> list[str]:
    return [await child(what) for what in whats]


def test_a_child_has_an_id_and_a_journal_of_its_own_and_its_call_is_a_step() -> None:
    store = MemoryStore()
    expected = ["seen a by r.1 of r", "seen b by r.2 of r"]
    assert play(store, parent, "a", "b") == expected
    assert lines(store)[1:] == ["child.started 1", "step.done 1", "child.started 2", "step.done 2", "run.done"]
    assert lines(store, "r.2") == ["run.started", "step.done 1", "run.done"]
    assert play(store, parent, "a", "b") == expected
    assert done == ["a", "b"]


@hfs.agent
def def_child(what: str) -> str:
    return hfs.step(str.upper)(what)


@hfs.agent
def def_parent() -> tuple[str, ...]:
    return hfs.gather(lambda: def_child("a"), lambda: def_child("b"))


def test_def_agents_have_def_children_in_branches() -> None:
    store = MemoryStore()
    assert play(store, def_parent) == ("A", "B")
    assert status(store, "r.1.2.1") == "done"


def test_a_def_child_of_an_async_agent_says_what_to_do_and_can_be_started() -> None:
    @hf.agent
    async def mixed(*, start: bool = False) -> str:
        return await (await hf.start(def_child, "a")).result() if start else def_child("a")

    with pytest.raises(hf.Misuse, match=r"hf.start\(def_child"):
        play(MemoryStore(), mixed)

    @hf.agent
    async def starting() -> str:
        handle = await hf.start(def_child, "a")
        return await handle.result()

    assert play(MemoryStore(), starting) == "A"


def test_a_failed_child_raises_in_its_parent_and_both_go_on_from_there() -> None:
    store, broken = MemoryStore(), [True]

    @hf.step
    async def fragile() -> str:
        done.append("fragile")
        if broken:
            raise ValueError("no such thing")
        return "whole"

    @hf.agent
    async def inner() -> str:
        await look("a")
        return await fragile()

    @hf.agent
    async def outer() -> str:
        await look("b")
        return await inner()

    for _ in range(2):
        with pytest.raises(ValueError, match="no such thing") as caught:
            play(store, outer)
        assert "raised by child run 'r.2'" in "".join(caught.value.__notes__)
    assert (status(store), status(store, "r.2")) == ("failed", "failed")
    broken.clear()
    assert play(store, outer) == "whole"
    assert done == ["b", "a", "fragile", "fragile", "fragile"]


def test_code_that_does_not_call_a_child_any_more_which_has_begun_is_a_mismatch() -> None:
    store, path = MemoryStore(), ["old"]

    @hf.agent
    async def dying() -> str:
        await pay("rent")
        raise Crash

    @hf.agent
    async def agent() -> str:
        return await dying() if path == ["old"] else "nothing"

    crashing(lambda: play(store, agent))
    path[0] = "new"
    with pytest.raises(hf.ReplayMismatch, match="ends without calling it"):
        play(store, agent)
    assert (status(store), len(done)) == ("blocked", 1)


def test_a_failure_that_is_caught_is_replayed_without_the_child() -> None:
    store = MemoryStore()

    @hf.agent
    async def outer() -> str:
        try:
            return await child("fail")
        except ValueError as error:
            await hf.ask("go on?")
            return str(error)

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    with hf.Holdfast(store) as app:
        app.answer("r", "2", yes=True)
    assert play(store, outer) == "no such thing"
    assert done == ["fail"]


class Missing(Exception):
    def __init__(self, what: str, code: int = 404) -> None:
        super().__init__(what, code)
        self.what, self.code = what, code


@hf.step(raises=Missing)
async def fetch(what: str) -> str:
    done.append(what)
    raise Missing(what)


@pytest.mark.parametrize(("declared", "caught"), [(Missing, "Missing of reef, 404"), ((), "StepFailed")])
def test_a_parent_catches_an_error_of_its_child_as_the_class_that_the_child_declares(declared: Any, caught: str) -> None:
    store = MemoryStore()

    @hf.agent(raises=declared)
    async def finder(what: str) -> str:
        return await fetch(what)

    @hf.agent
    async def outer() -> str:
        try:
            return await finder("reef")
        except (Missing, hf.StepFailed) as error:
            await hf.ask("go on?")
            return f"Missing of {error.what}, {error.code}" if isinstance(error, Missing) else type(error).__name__

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    with hf.Holdfast(store) as app:
        app.answer("r", "2", yes=True)
    assert (play(store, outer), done) == (caught, ["reef"])


@hf.agent
async def asking(what: str) -> str:
    await look(what)
    return await hf.ask("colour?", str)


@hf.agent
async def family(depth: int) -> str:
    return await (asking("deep") if depth == 0 else family(depth - 1))


@pytest.mark.parametrize("depth", [0, 2])
def test_a_waiting_child_parks_its_parent_and_an_answer_wakes_both(depth: int) -> None:
    store, asked = MemoryStore(), f"r{'.1' * (depth + 1)}"
    with pytest.raises(hf.RunWaiting, match=f"child run '{asked}' waits: colour"):
        play(store, family, depth)
    assert {status(store, f"r{'.1' * level}") for level in range(depth + 2)} == {"waiting"}
    with hf.Holdfast(store) as app:
        app.answer(asked, "2", "red")
    assert play(store, family, depth) == "red"
    assert done == ["deep"]


def test_a_run_that_is_waited_for_goes_on_when_its_grandchild_is_answered() -> None:
    store = MemoryStore()

    async def both() -> Any:
        with hf.Holdfast(store) as app:
            handle = await app.start(family, 1, run_id="r")
            while not any(item.run_id == "r.1.1" for item in app.inbox()) or app.show("r").status != "waiting":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            app.answer("r.1.1", "2", "blue")
            return await handle.result(timeout="20s")

    assert asyncio.run(both()) == "blue"


def test_a_child_that_somebody_else_ended_gives_its_result() -> None:
    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, family, 0)
    with hf.Holdfast(store) as app:
        app.answer("r.1", "2", "red")
        assert app.resume_here("r.1", [cast(Any, asking)], where="here") == "red"
    assert status(store) == "waiting"
    assert play(store, family, 0) == "red"


def test_a_foreign_run_of_the_same_id_is_refused_and_left_alone() -> None:
    store = MemoryStore()
    play(store, child, "a", run_id="r.1")
    with pytest.raises(Refusal, match=r"'r\.1' is a run of its own, not a child of run 'r'"):
        play(store, parent, "a")
    assert status(store, "r.1") == "done"


def test_a_child_cancelled_by_an_operator_raises_in_its_parent_and_again_on_replay() -> None:
    store = MemoryStore()

    @hf.agent
    async def outer() -> str:
        try:
            return await asking("a")
        except hf.RunCancelled as error:
            await look("b")
            return f"{error.by}: {error.reason}"

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    with hf.Holdfast(store) as app:
        app.cancel("r.1", by="ann", reason="no need")
    assert play(store, outer) == "ann: no need"


def test_cancelling_a_parked_parent_cancels_its_children() -> None:
    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, family, 1)
    with hf.Holdfast(store) as app:
        app.cancel("r", by="ann")
    assert [status(store, run_id) for run_id in ("r", "r.1", "r.1.1")] == ["cancelled"] * 3


def test_a_child_whose_parent_is_over_is_closed_when_somebody_takes_it() -> None:
    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, family, 0)
    with hf.Holdfast(store) as app:
        from holdfast.operating import operate

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(operate, "cancel_children", lambda *_: {})  # as if it had died in between
            app.cancel("r", by="ann")
        app.answer("r.1", "2", "red")
        with pytest.raises(hf.RunCancelled, match="its parent is cancelled"):
            app.resume_here("r.1", [cast(Any, asking)], where="here")
    assert status(store, "r.1") == "cancelled"


def test_a_time_out_and_a_lost_race_cancel_the_child_they_cut_off() -> None:
    store = MemoryStore()

    @hf.agent
    async def slow() -> None:
        await look("slow")
        await asyncio.sleep(30)

    @hf.agent
    async def outer() -> str:
        try:
            async with hf.timeout(0.05):
                await slow()
        except TimeoutError:
            pass
        return await hf.first(asking("c"), child("d"))

    expected = "seen d by r.4 of r"
    assert play(store, outer) == expected
    assert status(store, "r.2") == status(store, "r.3") == "cancelled"
    assert [one.by for one in records(store, "r.2") if isinstance(one, rec.RunCancelled)] == ["run r"]
    assert play(store, outer) == expected


def test_keys_of_a_child_derive_from_its_parents_origin() -> None:
    @hf.agent
    async def buying() -> str:
        return await pay("x")

    @hf.agent
    async def outer() -> list[str]:
        return [await buying(), await buying()]

    store = MemoryStore()
    play(store, outer)
    assert len(set(done)) == 2
    assert [one.origin for one in records(store, "r.2") if isinstance(one, rec.RunStarted)] == ["r/2"]


def test_what_cut_off_a_child_does_so_again_on_replay() -> None:
    store, dies = MemoryStore(), [True]

    @hf.agent
    async def slow() -> str:
        await look("slow")
        await asyncio.sleep(30)
        return "never"

    @hf.agent
    async def outer() -> str:
        won = ""
        try:
            async with hf.timeout(0.05):
                await slow()
        except TimeoutError:
            won = await hf.first(slow(), child("d"))
        if dies:
            raise Crash
        return won

    crashing(lambda: play(store, outer))
    dies.clear()
    assert play(store, outer) == "seen d by r.4 of r"
    assert done == ["slow", "slow", "d"]
    assert [status(store, run_id) for run_id in ("r.2", "r.3", "r.4")] == ["cancelled", "cancelled", "done"]


def test_a_def_child_in_a_lost_race_ends_at_its_next_step() -> None:
    store, lost = MemoryStore(), threading.Event()

    @hfs.agent
    def slow() -> str:
        assert lost.wait(20)
        while True:
            hfs.step(str.lower)("x")

    @hfs.agent
    def fast() -> str:
        return hfs.step(str.upper)("a")

    @hfs.agent
    def outer() -> str:
        threading.Timer(0.1, lost.set).start()
        return hfs.first(slow, fast)

    assert play(store, outer) == "A"
    assert status(store, "r.1.1.1") == "cancelled"


def test_operators_see_who_belongs_to_whom() -> None:
    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, family, 0)
    with hf.Holdfast(store) as app:
        assert (app.show("r").parent, app.show("r").children, app.show("r").next_commands[0]) == (None, ["r.1"], "holdfast show r.1")
        assert (app.show("r.1").parent, app.show("r.1").children) == ("r", [])
        assert [(item.run_id, item.parent) for item in app.inbox()] == [("r.1", "r")]
        assert [line.note for line in app.history("r") if line.state == "child run"] == ["r.1"]


def test_an_answer_to_a_child_says_how_the_run_that_called_it_goes_on() -> None:
    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, family, 0)
    with hf.Holdfast(store) as app:
        [item] = app.inbox()
        told = app.answer(item.run_id, item.step_id, "red")
    assert told == "the run is ready to go on, by itself where a process waits for it; else: holdfast resume r --here APP.py"


def test_an_id_that_would_be_too_long_is_shortened_to_one_that_stays_the_same() -> None:
    store, run_id = MemoryStore(), "r" * 127
    play(store, parent, "a", run_id=run_id)
    with hf.Holdfast(store) as app:
        (name,) = app.show(run_id).children
        assert (app.show(name).status, app.show(name).parent, len(name) <= 128) == ("done", run_id, True)


def test_a_child_that_another_process_executes_is_waited_for() -> None:
    store, answered = MemoryStore(), threading.Event()
    with pytest.raises(hf.RunWaiting):
        play(store, family, 0)

    @hf.step
    async def held() -> None:
        answered.set()
        await asyncio.sleep(0.3)

    @hf.agent(name="asking")
    async def elsewhere(what: str) -> str:
        await look(what)
        found = await hf.ask("colour?", str)
        await held()
        return f"{found} elsewhere"

    with hf.Holdfast(store) as app, hf.Holdfast(store) as other:
        app.answer("r.1", "2", "red")
        worker = threading.Thread(target=lambda: other.resume_here("r.1", [cast(Any, elsewhere)], where="there"))
        worker.start()
        assert answered.wait(20)
        assert app.run(family, 0, run_id="r") == "red elsewhere"
        worker.join()
    assert done == ["deep"]


def test_a_child_that_goes_on_waiting_is_not_taken_up_again() -> None:
    store = MemoryStore()

    @hf.agent
    async def outer() -> tuple[str, ...]:
        return await hf.gather(asking("a"), asking("b"))

    with pytest.raises(hf.RunWaiting):
        play(store, outer)
    before = lines(store, "r.2")
    with hf.Holdfast(store) as app:
        app.answer("r.1", "2", "red")
    with pytest.raises(hf.RunWaiting, match=r"child run 'r\.2' waits"):
        play(store, outer)
    assert (status(store, "r.1"), lines(store, "r.2")) == ("done", before)
    with hf.Holdfast(store) as app:
        app.answer("r.2", "2", "blue")
    assert play(store, outer) == ("red", "blue")


def test_runs_can_be_listed_by_the_run_that_called_them() -> None:
    store = MemoryStore()
    play(store, parent, "a", "b")
    with hf.Holdfast(store) as app:
        assert {run.run_id for run in app.runs(tags={"child_of": "r"})} == {"r.1", "r.2"}
        assert [run.tags for run in app.runs() if run.run_id == "r"] == [{}]
        assert all(verdict.good for verdict in app.check())
