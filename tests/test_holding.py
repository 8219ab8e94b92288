"""What a queue or the fleet is held back by, and how a worker in this process heeds it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

import holdfast as hf
import holdfast.sync
from holdfast import Holdfast
from holdfast.errors import Refusal, StoreFailed
from holdfast.fleet import heeding as heeding_room
from holdfast.fleet.worker import Worker
from holdfast.life.run import place
from holdfast.operating.holding import HoldView
from holdfast.records import kinds as rec
from holdfast.store import Hold
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import StoreConformance
from holdfast.verbs.decorators import Agent

BOUND_S = 20


class Gate:
    """Where steps wait to be let on, and what was done behind it."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.done: list[str] = []


gate = Gate()


@pytest.fixture(autouse=True)
def new_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    global gate  # noqa: PLW0603 (the agents of this file wait there)
    gate = Gate()
    monkeypatch.setattr(heeding_room, "LOOK_S", 0.02)


@hf.step
async def linger(what: str) -> str:
    gate.entered.set()
    while not gate.open.is_set():  # noqa: ASYNC110 (a thread may open it)
        await asyncio.sleep(0.005)
    gate.done.append(f"{what} lingered")
    return what


@hf.step
async def note(what: str) -> str:
    gate.done.append(what)
    return what


@hf.sync.step
def loiter(what: str) -> str:
    gate.entered.set()
    assert gate.open.wait(BOUND_S)
    gate.done.append(f"{what} lingered")
    return what


@hf.sync.step
def jot(what: str) -> str:
    gate.done.append(what)
    return what


@hf.agent
async def works(what: str) -> str:
    await linger(what)
    return await note(what)


@hf.sync.agent
def toils(what: str) -> str:
    loiter(what)
    return jot(what)


@hf.agent
async def calls(what: str) -> str:
    return await works(what)


@hf.agent
async def starts(what: str) -> str:
    child = await hf.start(works, what)
    return await child.result()


@hf.sync.agent
def orders(what: str) -> str:
    return toils(what)


@hf.agent
async def starts_thread(what: str) -> str:
    child = await hf.start(toils, what)
    return await child.result()


@hf.effect(in_doubt="ask")
async def pay(what: str) -> str:
    gate.entered.set()
    await asyncio.sleep(BOUND_S)
    gate.done.append(f"{what} paid")
    return what


@hf.agent
async def pays(what: str) -> str:
    return await pay(what)


@hf.agent
async def has_paid(what: str) -> str:
    return await pays(what)


AGENTS = [works, toils, calls, starts, orders, starts_thread]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not true():  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def worker(app: Holdfast, *queues: str) -> AsyncIterator[Worker]:
    working = Worker(app.engine, [*AGENTS, pays, has_paid], queues=queues or ("default",), concurrency=4)
    task = asyncio.create_task(working.work())
    yield working
    gate.open.set()
    working.stop()
    await task


def stand(app: Holdfast) -> dict[str, str]:
    return {run.run_id: run.status for run in app.runs()}


# --- the verbs ------------------------------------------------------------------------------------------------------


def test_what_is_held_is_told_with_who_said_so_and_why_the_fleet_first() -> None:
    with Holdfast(MemoryStore()) as app:
        app.pause_queue("mail", by="ann", reason="look")
        app.pause_fleet(by="bob", now=True)
        fleet, mail = app.held()
        assert (fleet.queue, fleet.by, fleet.reason, fleet.now) == (None, "bob", "", True)
        assert (mail.queue, mail.by, mail.reason, mail.now) == ("mail", "ann", "look", False)
        assert abs(mail.since_us - app.engine.clock.now_us()) < BOUND_S * 1e6


def test_pausing_and_resuming_twice_say_so_and_change_nothing() -> None:
    with Holdfast(MemoryStore()) as app:
        assert app.resume_queue("mail") == "queue mail is not paused; nothing was changed"
        assert app.pause_queue("mail", by="ann", reason="look").startswith("queue mail is paused: ")
        before = app.held()
        assert app.pause_queue("mail", by="bob").startswith("queue mail is paused already, by ann: look; nothing was changed")
        assert app.held() == before
        assert app.resume_queue("mail") == "queue mail goes on by itself"
        assert app.held() == []


def test_who_wants_it_at_once_after_all_gets_it() -> None:
    with Holdfast(MemoryStore()) as app:
        app.pause_fleet(by="ann")
        assert "at once" in app.pause_fleet(by="bob", now=True)
        assert [(one.by, one.now) for one in app.held()] == [("bob", True)]
        assert "already, by bob" in app.pause_fleet(by="ann")


def test_what_stays_held_is_told_when_something_else_goes_on() -> None:
    with Holdfast(MemoryStore()) as app:
        app.pause_fleet(by="ann")
        app.pause_queue("mail", by="bob")
        assert app.resume_queue("mail") == "queue mail goes on by itself. The fleet stays paused, by ann: holdfast resume --fleet"
        app.pause_queue("mail", by="bob")
        assert app.resume_fleet() == "the fleet goes on by itself. Queue mail stays paused, by bob: holdfast resume --queue mail"


def test_a_name_that_may_be_mistyped_is_asked_about_and_held_all_the_same() -> None:
    with Holdfast(MemoryStore()) as app:
        assert "is that its name?" in app.pause_queue("mial", by="ann")
        app.submit(works, "it", queue="mail")
        assert "is that its name?" not in app.pause_queue("mail", by="ann")
        assert [one.queue for one in app.held()] == ["mail", "mial"]


@pytest.mark.parametrize("queue", ["", "a b", "../x", "x" * 65, 7])
def test_what_cannot_be_a_queue_is_refused(queue: str) -> None:
    with Holdfast(MemoryStore()) as app:
        with pytest.raises(hf.Misuse, match="nothing was changed"):
            app.pause_queue(queue)
        with pytest.raises(hf.Misuse, match="nothing was changed"):
            app.resume_queue(queue)
        assert app.held() == []


def test_a_store_that_cannot_hold_anything_back_says_so(tmp_path: Path) -> None:
    with Holdfast(f"{tmp_path}/folder/") as app:
        with pytest.raises(Refusal, match="cannot hold back a queue or a fleet; nothing was changed: pause runs one by one"):
            app.pause_queue("mail")
        with pytest.raises(Refusal, match="cannot hold back"):
            app.resume_fleet()
        assert app.held() == []


@pytest.mark.parametrize("about", [b"", b"\xff", b"[]", b'{"since_us": "x"}'])
def test_what_cannot_be_read_of_a_hold_holds_all_the_same(about: bytes) -> None:
    class Odd(MemoryStore):
        def held_back(self) -> list[Hold]:
            return [Hold("queue mail", about)]

    with Holdfast(Odd()) as app:
        assert app.held() == [HoldView(queue="mail", by="somebody", reason="", now=False, since_us=0)]


def test_the_suite_notices_a_store_that_keeps_what_is_held_for_itself(tmp_path: Path) -> None:
    class Private(SqliteStore):
        def __init__(self, path: Path) -> None:
            self.hidden = MemoryStore()
            super().__init__(path)

        def hold_back(self, what: str, about: bytes) -> None:
            self.hidden.hold_back(what, about)

        def held_back(self) -> list[Hold]:
            return self.hidden.held_back()

    class Suite(StoreConformance):
        def open(self, folder: Path) -> Private:
            return Private(folder / "runs.db")

    with closing(Suite().open(tmp_path)) as store:
        for promise in (Suite().test_what_is_held_back_stays_so_until_it_is_released_for_whoever_opens_the_store,
                        Suite().test_what_another_holds_back_is_seen_at_once):  # fmt: skip
            with pytest.raises(AssertionError):
                promise(store, tmp_path)


# --- a worker -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
@pytest.mark.parametrize("what", ["queue", "run", "worker"])
def test_a_run_is_left_with_its_children_behind_the_step_under_way_and_goes_on_there(agent: Agent[[str], str], what: str) -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(agent, "it", run_id="run")
            async with worker(app) as working:
                await until(gate.entered.is_set)
                match what:
                    case "queue":
                        app.pause_queue("default", by="ann")
                    case "run":
                        app.pause("run", by="ann")
                        await asyncio.to_thread(app.engine.keeper.take_letters)
                    case _:
                        working.stop()
                await until(lambda: app.engine.keeper.runs["run"].leaving is not None)
                gate.open.set()
                await until(lambda: {run.owner for run in app.runs()} == {None})
                assert stand(app).pop("run") == ("paused" if what == "run" else "queued")
                assert gate.done == ["it lingered"]
                app.resume("run", by="ann") if what == "run" else app.resume_queue("default")
                if what != "worker":
                    await until(lambda: set(stand(app).values()) == {"done"})
            async with worker(app):
                await until(lambda: set(stand(app).values()) == {"done"})

    asyncio.run(main())
    assert gate.done == ["it lingered", "it"]


@pytest.mark.parametrize("what", ["queue", "fleet", "run"])
def test_an_effect_of_a_child_that_is_broken_off_is_a_doubt_when_it_goes_on(what: str) -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(has_paid, "it", run_id="run")
            async with worker(app):
                await until(gate.entered.is_set)
                match what:
                    case "queue":
                        app.pause_queue("default", now=True, by="ann")
                    case "fleet":
                        app.pause_fleet(now=True, by="ann")
                    case _:
                        app.pause("run", now=True, by="ann")
                await until(lambda: {run.owner for run in app.runs()} == {None})
                assert sorted(stand(app).values()) == (["paused", "queued"] if what == "run" else ["queued", "queued"])
                app.resume("run", by="ann") if what == "run" else app.resume_queue("default")
                app.resume_fleet()
                await until(lambda: [item.kind for item in app.inbox()] == ["doubt"])

    asyncio.run(main())
    assert gate.done == []


def test_only_the_queue_that_is_paused_rests_and_runs_paused_one_by_one_stay_so() -> None:
    async def main() -> None:
        gate.open.set()
        with Holdfast(MemoryStore()) as app:
            app.pause_queue("mail", by="ann")
            app.submit(works, "it", run_id="paused", queue="mail")
            app.pause("paused", by="ann")
            app.submit(works, "it", run_id="mail", queue="mail")
            async with worker(app, "mail", "other"):
                for number in range(3):  # each is taken at a later look
                    app.submit(works, "it", run_id=f"other-{number}", queue="other")
                    await until(lambda number=number: stand(app)[f"other-{number}"] == "done")  # type: ignore[misc]
                assert (stand(app)["mail"], stand(app)["paused"]) == ("queued", "paused")
                app.resume_queue("mail")
                await until(lambda: stand(app)["mail"] == "done")
                assert stand(app)["paused"] == "paused"

    asyncio.run(main())


def test_a_worker_that_cannot_see_what_is_held_takes_nothing_and_what_it_has_seen_holds() -> None:
    class Blind(MemoryStore):
        blind = True

        def held_back(self) -> list[Hold]:
            if self.blind:
                raise StoreFailed(self.url, "it is away")
            return super().held_back()

    async def main() -> None:
        store = Blind()
        with Holdfast(store) as app:
            app.submit(works, "it", run_id="run")
            heeding = heeding_room.Heeding(app.engine, list)
            with pytest.raises(StoreFailed):
                heeding.let_through(["default"])
            store.blind = False
            app.pause_queue("mail", by="ann")
            assert heeding.let_through(["default", "mail"]) == ["default"]
            store.blind = True
            with pytest.raises(StoreFailed):
                heeding.let_through(["mail"])
            assert stand(app) == {"run": "queued"}

    asyncio.run(main())


def test_a_child_is_not_paused_without_its_parent() -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(calls, "it", run_id="run")
            async with worker(app):
                await until(gate.entered.is_set)
                (child,) = set(stand(app)) - {"run"}
                with pytest.raises(Refusal, match="goes on inside run 'run'; nothing was changed"):
                    app.pause(child, by="ann")

    asyncio.run(main())


def test_what_somebody_has_paused_is_not_merely_let_go_of_where_both_come_at_once() -> None:
    @hf.step
    async def told_twice() -> int:
        run = place.get().run  # type: ignore[union-attr]
        run.leave(rec.RunPaused(by="ann"))
        run.leave(rec.RunReleased(reason="queue mail was paused"))
        return 1

    @hf.agent
    async def obeys() -> int:
        return await told_twice() + await told_twice()

    with Holdfast(MemoryStore()) as app:
        with pytest.raises(hf.RunPaused):
            app.run(obeys, run_id="r")
        assert app.show("r").status == "paused"
