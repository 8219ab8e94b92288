"""Parking: a run unwinds its code only when every branch waits for a person, and nothing can make it go on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests.sites import WatchedMemory, eventually
from holdfast.errors import Unwinding
from holdfast.life.commands import Commit, WaitForPerson
from holdfast.life.drive import drive_async, drive_blocking
from holdfast.life.run import Run, Scope, place
from holdfast.records import kinds as rec
from holdfast.stores.memory import MemoryStore


@pytest.fixture
def store() -> WatchedMemory:
    return WatchedMemory()


@pytest.fixture
def app(store: WatchedMemory) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(store) as opened:
        yield opened


def states(app: hf.Holdfast, name: str) -> list[str]:
    return [line.state for line in app.history("r") if line.call.startswith(f"{name}(")]


def kinds(store: WatchedMemory) -> list[str]:
    loaded = store.load("r")
    assert loaded is not None
    return [row.kind for row in loaded[1]]


@hf.step
async def look(n: int) -> int:
    return n


@hf.effect(in_doubt="ask")
async def send(n: int) -> int:
    return n


@hf.effect(in_doubt="ask")
async def doubtful(n: int) -> int:
    raise ConnectionResetError(n)


@hf.effect(in_doubt="ask")
def doubtful_blocking(n: int) -> int:
    raise ConnectionResetError(n)


def test_parking_unwinds_the_code_and_nothing_is_recorded_meanwhile(app: hf.Holdfast, store: WatchedMemory) -> None:
    log: list[str] = []

    @hf.agent
    async def agent() -> int:
        try:
            return await doubtful(1)
        finally:
            log.append("finally")
            verbs: list[Callable[[], object]] = [
                lambda: look(1),
                hf.now,
                lambda: hf.state({}),
                hf.gather,
                lambda: hf.cleanup(print),
                lambda: send(1),
            ]
            for verb in verbs:
                try:
                    verb()
                except Unwinding as error:
                    log.append(type(error).__name__)

    with pytest.raises(hf.RunWaiting):
        app.run(agent, run_id="r", wait=False)
    assert log == ["finally", *["Parked"] * 6]
    assert kinds(store)[-2:] == ["doubt.opened", "run.waiting"]


@pytest.mark.parametrize("mode", ["async", "def"])
@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_agent_code_cannot_go_on_by_swallowing(app: hf.Holdfast, store: WatchedMemory, mode: str, caught: Any) -> None:
    went_on: list[int] = []

    @hf.step
    def then(n: int) -> int:
        went_on.append(n)
        return n

    @hf.agent
    async def agent() -> int:
        for _ in range(3):
            with contextlib.suppress(caught):
                await doubtful(1)
            with contextlib.suppress(caught):
                then(1)
        return -1

    @hf.agent(name="agent")
    def blocking() -> int:
        for _ in range(3):
            with contextlib.suppress(caught):
                doubtful_blocking(1)
            with contextlib.suppress(caught):
                then(1)
        return -1

    for _ in range(2):
        with pytest.raises(hf.RunWaiting):
            app.run(agent if mode == "async" else blocking, run_id="r", wait=False)
        assert app.show("r").status == "waiting"
    assert went_on == []
    assert kinds(store)[-1] == "run.waiting"


@pytest.mark.parametrize("mode", ["async", "def"])
def test_without_the_check_agent_code_goes_on_by_swallowing(
    app: hf.Holdfast, store: WatchedMemory, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a step that is called and entered without a look at what the run has come to."""
    check, passed = Run.check, list[Run]()

    def careless(run: Run) -> None:
        if run.ended is None or len(passed) >= 2:
            check(run)
        else:
            passed.append(run)

    monkeypatch.setattr(Run, "check", careless)
    with pytest.raises(AssertionError):
        test_agent_code_cannot_go_on_by_swallowing(app, store, mode, BaseException)


def test_a_run_parks_only_when_every_branch_waits(app: hf.Holdfast) -> None:
    calls: list[int] = []
    asked = asyncio.Event()

    @hf.step
    async def slow(n: int) -> int:
        calls.append(n)
        await asyncio.wait_for(asked.wait(), 10)
        await asyncio.sleep(0.1)
        return n

    @hf.agent
    async def agent() -> list[int]:
        async def tell() -> int:
            asyncio.get_running_loop().call_later(0.1, asked.set)
            return await doubtful(1)

        return list(await hf.gather(tell(), slow(2)))

    with pytest.raises(hf.RunWaiting):
        app.run(agent, run_id="r", wait=False)
    assert states(app, "slow") == ["done"]
    doubt = app.inbox()[0].step_id
    app.resolve("r", doubt, landed=1, by="ann")
    assert app.run(agent, run_id="r", wait=False) == [1, 2]
    assert calls == [2]


def test_a_blocking_run_parks_only_when_every_branch_waits(app: hf.Holdfast) -> None:
    calls: list[int] = []

    @hf.step
    def slow(n: int) -> int:
        calls.append(n)
        eventually(lambda: any(line.state == "doubt opened" for line in app.history("r")))
        return n

    @hf.agent
    def agent() -> list[int]:
        return list(hfs.gather(lambda: doubtful_blocking(1), lambda: slow(2)))

    with pytest.raises(hf.RunWaiting):
        app.run(agent, run_id="r", wait=False)
    app.resolve("r", app.inbox()[0].step_id, landed=1, by="ann")
    assert app.run(agent, run_id="r", wait=False) == [1, 2]
    assert calls == [2]


def test_a_def_effect_in_doubt_does_not_stop_the_event_loop_of_the_other_branches(app: hf.Holdfast) -> None:
    calls: list[int] = []

    @hf.step
    async def slow(n: int) -> int:
        calls.append(n)
        await asyncio.sleep(0.2)
        return n

    @hf.agent
    async def agent() -> list[int]:
        async def blocking() -> int:
            await asyncio.sleep(0.05)
            return doubtful_blocking(1)

        return list(await hf.gather(blocking(), slow(2)))

    caught: list[BaseException] = []

    def run() -> None:
        try:
            app.run(agent, run_id="r", wait=False)
        except hf.RunWaiting as waiting:
            caught.append(waiting)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5)
    assert caught, "the run hangs"
    app.resolve("r", app.inbox()[0].step_id, landed=1, by="ann")
    assert app.run(agent, run_id="r", wait=False) == [1, 2]
    assert calls == [2]


@pytest.mark.parametrize("mode", ["async", "def"])
def test_a_person_who_is_faster_than_the_waiter_is_heard(app: hf.Holdfast, mode: str) -> None:
    """Between the record of the question and the waiting there is a moment, and the answer may come in it."""

    def answered_already() -> Any:
        yield Commit([rec.DoubtOpened(step_id="9", name="pay", fingerprint="", reason="", action="ask")])
        yield Commit([rec.DoubtSettled(step_id="9", verdict="landed", by="ann", value=b"1")])
        yield WaitForPerson("9")
        settled = scope().run.journal.histories["9"].settled
        assert settled is not None
        yield Commit([rec.StepDone(step_id="9", name="pay", fingerprint="", effect=True, value=b"1")])
        return settled.by

    def scope() -> Scope:
        found = place.get()
        assert isinstance(found, Scope)
        return found

    @hf.agent
    async def agent() -> str:
        return str(await drive_async(answered_already(), scope().run, scope()))

    @hf.agent(name="agent")
    def blocking() -> str:
        return str(drive_blocking(answered_already(), scope().run, scope()))

    assert app.run(agent if mode == "async" else blocking, run_id="r", wait=False) == "ann"


def asking_beside(limit: int | None) -> tuple[MemoryStore, list[str], Any]:
    """A run whose first branch asks a person, with others beside or behind it."""
    store, worked = MemoryStore(), list[str]()

    @hf.effect(in_doubt="ask")
    async def sign(name: str) -> str:
        raise RuntimeError("no reply")

    @hf.step
    async def work(name: str) -> str:
        worked.append(name)
        return name

    async def branch(name: str) -> str:
        return await sign(name) if name == "a" else await work(name)

    @hf.agent
    async def both() -> list[str]:
        return await hf.map(branch, ["a", "b", "c"], limit=limit)

    return store, worked, both


def test_branches_that_have_not_begun_get_their_chance_before_the_run_parks() -> None:
    store, worked, both = asking_beside(limit=None)
    for _ in range(2):
        with pytest.raises(hf.RunWaiting):
            hf.run(both, run_id="r", store=store, wait=False)
    assert worked == ["b", "c"]


def test_branches_behind_one_that_waits_do_not_keep_the_run_from_parking() -> None:
    store, worked, both = asking_beside(limit=1)
    with pytest.raises(hf.RunWaiting):
        hf.run(both, run_id="r", store=store, wait=False)
    assert worked == []
    with hf.Holdfast(store) as app:
        app.resolve("r", "1.1.1", landed="signed")
    assert hf.run(both, run_id="r", store=store, wait=False) == ["signed", "b", "c"]


def test_a_branch_that_takes_the_place_of_one_that_ended_is_not_cut_off() -> None:
    store, worked, both = asking_beside(limit=2)
    with pytest.raises(hf.RunWaiting):
        hf.run(both, run_id="r", store=store, wait=False)
    assert worked == ["b", "c"]
