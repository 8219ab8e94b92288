"""Child runs together with everything else: `start` where it does not fit, milestones, generations, following, the rig."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import LEASE_S, FailingStore, lines, play, status
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Rig


@hfs.agent
def def_child(what: str) -> str:
    return hfs.step(str.upper)(what)


def test_start_in_a_def_agent_says_at_once_what_to_do() -> None:
    store = MemoryStore()

    @hfs.agent
    def outer() -> str:
        handle: Any = hfs.start(def_child, "a")
        return str(handle)

    with pytest.raises(hf.Misuse, match=r"'hf\.start' cannot be called in agent 'outer'; nothing was executed.*hf.gather"):
        play(store, outer)
    assert lines(store) == ["run.started", "run.failed"]


def test_start_in_a_branch_says_what_to_do() -> None:
    store = MemoryStore()

    @hf.agent
    async def branch() -> str:
        return "x"

    async def started() -> str:
        return await (await hf.start(branch)).result()

    @hf.agent
    async def outer() -> Any:
        return await hf.gather(started(), started())

    with pytest.raises(hf.Misuse, match=r"hf\.start was called in a branch.*nothing was started. Call the agent itself"):
        play(store, outer)
    assert not [line for line in lines(store) if line.startswith("child.")]


DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@hf.step
async def look(what: str) -> str:
    DONE.append(what)
    return f"seen {what}"


@hf.agent(durability="milestone")
async def held(what: str) -> str:
    return await look(what) + await look(f"{what}{what}")


@hf.agent
async def plain(what: str) -> str:
    return await look(what)


@hf.agent(durability="milestone")
async def holding() -> list[str]:
    first = await look("a")
    return [first, await plain("b"), await look("c"), await held("d")]


@hf.agent
async def flushing() -> list[str]:
    return [await look("a"), await held("b")]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(("agent", "runs", "result"), [
    (holding, {"r": "done", "r.2": "done", "r.4": "done"}, ["seen a", "seen b", "seen c", "seen dseen dd"]),
    (flushing, {"r": "done", "r.2": "done"}, ["seen a", "seen bseen bb"]),
])  # fmt: skip
def test_milestones_of_parent_and_child_lose_nothing_but_what_was_held(
    agent: Any, runs: dict[str, str], result: list[str], *, written: bool
) -> None:
    for number in range(1, 40):
        store, left = FailingStore(written=written), [number]

        def fails(_: object, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == 0

        store.fails = fails
        with contextlib.suppress(hf.StoreError):
            assert play(store, agent) == result
        if not store.failed:
            break
        store.mend()
        assert play(store, agent) == result
        with hf.Holdfast(store, lease=LEASE_S) as app:
            assert {run.run_id: run.status for run in app.runs()} == runs
            assert all(verdict.good for verdict in app.check())
    assert number > 5


def test_a_child_is_begun_only_after_what_its_parent_holds_is_stored() -> None:
    store = MemoryStore()
    seen: list[list[str]] = []

    @hf.step
    async def inside() -> None:
        seen.append(lines(store))

    @hf.agent
    async def inner() -> None:
        await inside()

    @hf.agent(durability="milestone")
    async def outer() -> None:
        await look("a")
        await inner()

    play(store, outer)
    assert seen == [["run.started", "step.done 1", "child.started 2"]]


def test_a_child_may_begin_anew_and_gives_the_result_of_its_last_generation() -> None:
    store = MemoryStore()

    @hf.agent
    async def counting(number: int) -> str:
        await look(str(number))
        if number < 3:
            hf.continue_as(number + 1)
        return "yes" if await hf.ask("enough?") else "no"

    @hf.agent
    async def outer() -> str:
        return f"{await counting(1)} {await look('end')}"

    with pytest.raises(hf.RunWaiting, match=r"child run 'r\.1' waits: enough"):
        play(store, outer)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.answer("r.1", "2", yes=True)
        assert app.show("r.1").generation == 2
    assert play(store, outer) == "yes seen end"
    assert DONE == ["1", "2", "3", "end"]


def test_each_generation_has_children_of_its_own_with_keys_of_their_own() -> None:
    store, keys = MemoryStore(), list[str]()

    @hf.effect(in_doubt="ask")
    async def keyed() -> None:
        keys.append(hf.key())

    @hf.agent
    async def inner(number: int) -> int:
        await keyed()
        return number

    @hf.agent
    async def outer(number: int) -> int:
        found = await inner(7)
        if number < 3:
            hf.continue_as(number + 1)
        return found + number

    assert play(store, outer, 1) == 10
    with hf.Holdfast(store, lease=LEASE_S) as app:
        assert {run.run_id: run.status for run in app.runs()} == dict.fromkeys(("r", "r.1", "r.1-1", "r.1-2"), "done")
    assert len(set(keys)) == 3


def test_children_that_were_started_are_waited_for_before_their_parent_begins_anew() -> None:
    store = MemoryStore()

    @hf.agent
    async def slow() -> str:
        return "yes" if await hf.ask("child?") else "no"

    @hf.agent
    async def outer(number: int) -> int:
        if number == 1:
            await hf.start(slow)
            await look("a")
            hf.continue_as(2)
        return number

    with pytest.raises(hf.RunWaiting, match=r"child run 'r\.1' waits: child"):
        play(store, outer, 1)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.answer("r.1", "1", yes=True)
    assert play(store, outer, 1) == 2
    assert (status(store, "r.1"), DONE) == ("done", ["a"])


def test_the_rig_answers_the_question_of_a_child_and_crashes_in_it() -> None:
    @hf.agent
    async def inner() -> str:
        await look("a")
        return "yes" if await hf.ask("child?") else "no"

    @hf.agent
    async def outer() -> str:
        return await inner()

    with Rig() as rig:
        rig.answers({"child?": True})
        rig.crash(inside="look")
        assert rig.run(outer, run_id="r") == "yes"
        assert (rig.count("look"), rig.count("ask"), rig.status("r.1")) == (2, 1, "done")


def test_the_rig_lets_time_pass_for_a_child() -> None:
    @hf.agent
    async def inner() -> str:
        await hf.sleep("30d")
        return "rested"

    @hf.agent
    async def outer() -> str:
        return await inner()

    with Rig() as rig:
        run_id = rig.start(outer)
        assert rig.status(run_id) == "waiting"
        rig.advance("30d")
        assert rig.result(run_id) == "rested"


def test_who_follows_a_parent_sees_its_steps_and_its_children_have_followers_of_their_own() -> None:
    store = MemoryStore()

    @hf.agent
    async def inner() -> str:
        hf.emit("from the child")
        return await look("a")

    @hf.agent
    async def outer() -> str:
        hf.emit("from the parent")
        return await inner()

    with hf.Holdfast(store) as app:
        app.run(outer, run_id="r")
        kinds = [event.kind for event in app.tail("r")]
        assert [kind for kind in kinds if kind in ("child.started", "step.done", "run.done")] == ["child.started", "step.done", "run.done"]
        emitted = [event.value for event in app.tail("r") if event.kind == "emit"]
        assert [event.value for event in app.tail("r.1") if event.kind == "emit"] == ["from the child"]
        assert emitted == ["from the parent"]
