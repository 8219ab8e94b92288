"""Waiting for a person, a time or a message: what came before is not executed again, and nothing is held meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests.sites import StillClock
from crashing import lines, status
from holdfast.errors import Misuse, Refusal
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

HOUR_US = 3_600_000_000
MODES = ("async", "def")
CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    yield opened
    opened.close()


class Stage:
    """A run on a store with a clock of its own; every call is as if made by another process."""

    def __init__(self, store: Store, agent: Callable[..., Any], **more: Any) -> None:
        self.store, self.agent, self.clock, self.more = store, agent, StillClock(), more

    def app(self) -> hf.Holdfast:
        return hf.Holdfast(self.store, clock=self.clock, **self.more)

    def parks(self) -> str:
        with pytest.raises(hf.RunWaiting) as waiting:
            self.run()
        return waiting.value.waits

    def run(self, *, wait: bool = False) -> Any:
        with _kept(self.app()) as app:
            return app.run(self.agent, run_id="r", wait=wait)

    def answer(self, ask_id: str, value: object, by: str = "ann") -> None:
        with _kept(self.app()) as app:
            app.answer("r", ask_id, value, by=by)

    def send(self, name: str, value: object, **more: Any) -> None:
        with _kept(self.app()) as app:
            app.send("r", name, value, **more)

    def inbox(self) -> list[str]:
        with _kept(self.app()) as app:
            return [f"{item.kind} {item.step_id}" for item in app.inbox()]


class _kept:  # noqa: N801 (reads as a verb)
    """An app whose store stays open when it is closed."""

    def __init__(self, app: hf.Holdfast) -> None:
        self.app = app

    def __enter__(self) -> hf.Holdfast:
        return self.app

    def __exit__(self, *_: object) -> None:
        self.app.engine.committer.close()
        self.app.engine.keeper.close()


@hf.step
def look(what: str) -> str:
    CALLS.append(what)
    return what


def agents(one: Callable[..., Any], other: Callable[..., Any]) -> dict[str, Any]:
    return {"async": hf.agent(name="waiting")(one), "def": hf.agent(name="waiting")(other)}


async def _asks() -> str:
    before = look("before")
    sure = await hf.ask("sure?", details={"cents": 5})
    return f"{before} {sure} {look('after')}"


def _asks_blocking() -> str:
    before = look("before")
    sure = hfs.ask("sure?", details={"cents": 5})
    return f"{before} {sure} {look('after')}"


ASKING = agents(_asks, _asks_blocking)


@pytest.mark.parametrize("mode", MODES)
def test_what_came_before_a_question_is_not_executed_again(store: Store, mode: str) -> None:
    stage = Stage(store, ASKING[mode])
    assert stage.parks() == "sure?"
    assert stage.parks() == "sure?"
    head = store.head("r")
    assert head is not None
    assert (head.status, head.owner) == ("waiting", None)
    assert stage.inbox() == ["ask 2"]
    stage.answer("2", value=True)
    assert stage.run() == "before True after"
    assert stage.run() == "before True after"
    assert CALLS == ["before", "after"]
    assert [line for line in lines(store) if line.startswith("ask")] == ["ask.opened 2", "ask.answered 2"]


@pytest.mark.parametrize("mode", MODES)
def test_the_second_answer_is_an_error_that_names_the_first(store: Store, mode: str) -> None:
    stage = Stage(store, ASKING[mode])
    stage.parks()
    stage.answer("2", value=False)
    recorded = lines(store)
    with pytest.raises(Refusal, match="question '2' of run 'r' was answered by ann: no; nothing was changed"):
        stage.answer("2", value=True, by="bob")
    assert lines(store) == recorded
    assert stage.run() == "before False after"


def test_an_answer_under_way_to_the_owner_is_the_first(store: Store) -> None:
    """The run executes: what is said about its question is a letter until its owner has read it."""
    said: list[str] = []

    @hf.agent
    async def waiting() -> bool:
        async def meanwhile() -> None:
            while not store.load("r") or "ask.opened 1" not in lines(store):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            for value, by in ((True, "ann"), (False, "bob")):
                with suppress(Refusal):
                    said.append(await asyncio.to_thread(app.answer, "r", "1", value, by=by))

        asked, _ = await hf.gather(hf.ask("sure?"), meanwhile())
        return bool(asked)

    with _kept(hf.Holdfast(store)) as app:
        assert app.run(waiting, run_id="r") is True
    assert said == ["the run executes now and takes this into account"]


@pytest.mark.parametrize(("who", "by", "fine"), [("ann", "ann", True), (["ann", "bob"], "bob", True), (["ann"], "eve", False)])
def test_only_those_who_are_asked_may_answer(who: Any, by: str, fine: bool) -> None:  # noqa: FBT001
    @hf.agent
    def waiting() -> bool:
        return hfs.ask("sure?", who=who)

    stage = Stage(MemoryStore(), waiting)
    stage.parks()
    if not fine:
        with pytest.raises(Refusal, match="'1' of run 'r' is for ann to answer, not eve; nothing was changed"):
            stage.answer("1", value=True, by=by)
        assert stage.inbox() == ["ask 1"]
        return
    stage.answer("1", value=True, by=by)
    assert stage.run() is True


async def _asks_in_time() -> str:
    try:
        first = await hf.ask("colour?", str, timeout="1h", default="grey")
        return first + await hf.ask("and?", str, timeout="1h")
    except TimeoutError as error:
        return f"over: {error}"


def _asks_in_time_blocking() -> str:
    try:
        first = hfs.ask("colour?", str, timeout="1h", default="grey")
        return first + hfs.ask("and?", str, timeout="1h")
    except TimeoutError as error:
        return f"over: {error}"


IN_TIME = agents(_asks_in_time, _asks_in_time_blocking)


@pytest.mark.parametrize("mode", MODES)
def test_without_an_answer_in_time_the_default_holds_or_it_is_a_time_out_live_and_on_replay(store: Store, mode: str) -> None:
    stage = Stage(store, IN_TIME[mode])
    assert stage.parks() == "colour?"
    head = store.head("r")
    assert head is not None
    assert head.wake_us == stage.clock.at_us + HOUR_US + 1_000_000
    stage.clock.at_us += HOUR_US + 2_000_000
    assert stage.inbox() == []
    assert stage.parks() == "and?"
    with pytest.raises(Refusal, match="was answered by the clock: no"):
        stage.answer("1", "late")
    stage.clock.at_us += HOUR_US + 2_000_000
    assert stage.run() == "over: nobody answered 'and?' in time"


def test_a_time_out_is_one_on_replay_too(store: Store) -> None:
    @hf.agent
    def waiting() -> str:
        try:
            hfs.receive("note", str, timeout="1h")
        except TimeoutError as error:
            CALLS.append(str(error))
        return hfs.ask("and?", str)

    stage = Stage(store, waiting)
    stage.parks()
    stage.clock.at_us += HOUR_US + 2_000_000
    assert stage.parks() == "and?"
    assert stage.parks() == "and?"
    assert CALLS == ["no message 'note' came in time"] * 2


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_in_time_beats_the_clock_that_comes_later(store: Store, mode: str) -> None:
    stage = Stage(store, IN_TIME[mode])
    stage.parks()
    stage.clock.at_us += HOUR_US - 1
    stage.answer("1", "red")
    stage.clock.at_us += 9 * HOUR_US
    assert stage.parks() == "and?"
    stage.answer("2", "!")
    assert stage.run() == "red!"


async def _sleeps() -> str:
    look("before")
    await hf.sleep("24h")
    return look("after")


def _sleeps_blocking() -> str:
    look("before")
    hfs.sleep("24h")
    return look("after")


SLEEPING = agents(_sleeps, _sleeps_blocking)


@pytest.mark.parametrize("mode", MODES)
def test_a_sleep_keeps_its_end_across_restarts(store: Store, mode: str) -> None:
    stage = Stage(store, SLEEPING[mode])
    began_us = stage.clock.at_us
    assert stage.parks().startswith("sleeps until 2023-11-15")
    for hours in (5, 23):
        stage.clock.at_us = began_us + hours * HOUR_US
        stage.parks()
        head = store.head("r")
        assert head is not None
        assert head.wake_us == began_us + 24 * HOUR_US
    stage.clock.at_us = began_us + 24 * HOUR_US
    assert stage.run() == "after"
    assert CALLS == ["before", "after"]


def test_a_sleeping_run_wakes_by_itself_where_somebody_waits_for_it(store: Store) -> None:
    @hf.agent
    def waiting() -> str:
        hfs.sleep("10s")
        return look("after")

    stage = Stage(store, waiting)
    assert stage.run(wait=True) == "after"
    assert sum(stage.clock.slept) == pytest.approx(10, abs=0.1)
    assert lines(store).count("run.waiting") == 1


def test_a_sleep_ends_at_a_moment_with_a_time_zone_or_is_refused() -> None:
    moment = datetime.fromtimestamp(StillClock().at_us / 1e6, UTC) + timedelta(hours=2)

    @hf.agent
    def until() -> str:
        hfs.sleep(moment)
        return "slept"

    stage = Stage(MemoryStore(), until)
    stage.parks()
    stage.clock.at_us += 2 * HOUR_US
    assert stage.run() == "slept"

    @hf.agent
    def naive() -> None:
        hfs.sleep(moment.replace(tzinfo=None))

    with pytest.raises(Misuse, match="without a time zone; nothing was recorded"):
        hf.run(naive, store="memory:")


async def _receives() -> list[str]:
    return [look("before"), await hf.receive("note", str), await hf.receive("other", str), await hf.receive("note", str)]


def _receives_blocking() -> list[str]:
    return [look("before"), hfs.receive("note", str), hfs.receive("other", str), hfs.receive("note", str)]


RECEIVING = agents(_receives, _receives_blocking)


@pytest.mark.parametrize("mode", MODES)
def test_messages_are_kept_until_they_are_taken_in_order_each_once(store: Store, mode: str) -> None:
    stage = Stage(store, RECEIVING[mode])
    assert stage.parks() == "waits for message note"
    stage.send("other", "early", by="bob")
    assert stage.parks() == "waits for message note"
    for value in ("a", "b", "c"):
        stage.send("note", value)
    assert stage.run() == ["before", "a", "early", "b"]
    assert CALLS == ["before"]
    assert store.letters(["r"]) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_is_sent_again_under_its_key_is_dropped(store: Store, mode: str) -> None:
    stage = Stage(store, RECEIVING[mode])
    stage.parks()
    stage.send("note", "a", key="k-1")
    stage.send("note", "a", key="k-1")
    assert stage.parks() == "waits for message other"
    stage.send("note", "a", key="k-1")
    stage.send("other", "o")
    assert stage.parks() == "waits for message note"
    stage.send("note", "b", key="k-2")
    assert stage.run() == ["before", "a", "o", "b"]


def test_a_message_that_does_not_fit_is_put_aside_and_on_record(store: Store) -> None:
    stage = Stage(store, RECEIVING["def"])
    stage.parks()
    stage.send("note", 7, by="bob")
    stage.send("note", "a")
    assert stage.parks() == "waits for message other"
    with _kept(stage.app()) as app:
        noted = [line.note for line in app.history("r") if line.state == "message taken"]
    assert noted[0] == "note, from bob; put aside: 7 is not what is asked for: text"
    assert len(noted) == 2


class Parcel(BaseModel):
    weight: int


def test_a_message_of_a_program_may_have_more_in_it_than_the_agent_reads() -> None:
    @hf.agent
    def takes() -> int:
        return hfs.receive("parcel", Parcel).weight

    stage = Stage(MemoryStore(), takes)
    stage.parks()
    stage.send("parcel", {"weight": 3, "colour": "red"})
    assert stage.run() == 3


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_has_heard_a_message_for_another_name_does_not_spin(mode: str) -> None:
    store = MemoryStore()
    stage = Stage(store, RECEIVING[mode])
    stage.parks()
    stage.send("other", "early")

    async def attended() -> Any:
        with _kept(hf.Holdfast(store)) as app:
            handle = await app.start(RECEIVING[mode], run_id="r")
            await asyncio.sleep(0.5)
            claims = lines(store).count("run.resumed")
            app.send("r", "note", "a")
            app.send("r", "note", "b")
            return claims, await handle.result(timeout=20)

    claims, result = asyncio.run(attended())
    assert claims <= 3
    assert result == ["before", "a", "early", "b"]


def test_a_run_sends_to_another_once_and_not_to_one_that_is_closed(store: Store) -> None:
    @hf.agent
    def sending() -> list[str]:
        told = []
        for run_id in ("r", "nobody"):
            try:
                hfs.send(run_id, "note", run_id)
            except hf.Undeliverable as error:
                told.append(str(error))
        return told

    stage = Stage(store, RECEIVING["def"])
    stage.parks()
    with _kept(stage.app()) as app:
        for _ in range(2):
            assert [text.partition(":")[0] for text in app.run(sending, run_id="s")] == ["message 'note' was not left for run 'nobody'"]
    assert [letter.kind for letter in store.letters(["r"])] == ["message"]
    assert stage.parks() == "waits for message other"
    with _kept(stage.app()) as app:
        assert [line.note for line in app.history("r") if line.state == "message taken"] == ["note, from run s"]


def test_a_message_for_a_run_that_is_done_or_unknown_changes_nothing(store: Store) -> None:
    stage = Stage(store, ASKING["def"])
    stage.parks()
    stage.answer("2", value=True)
    stage.run()
    recorded = lines(store)
    with pytest.raises(Refusal, match="run 'r' is done and takes no messages any more; nothing was sent"):
        stage.send("note", 1)
    with pytest.raises(Refusal, match="run 'r' is done and stays so; nothing was changed"):
        stage.answer("2", value=False)
    with _kept(stage.app()) as app, pytest.raises(hf.UnknownRun):
        app.send("nobody", "note", 1)
    assert (lines(store), store.letters(["r", "nobody"])) == (recorded, [])


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_waits_can_be_cancelled(store: Store, mode: str) -> None:
    stage = Stage(store, ASKING[mode])
    stage.parks()
    with _kept(stage.app()) as app:
        app.cancel("r", by="ann", reason="never mind")
    assert (status(store), stage.inbox()) == ("cancelled", [])
    with pytest.raises(hf.RunCancelled):
        stage.run()
    assert CALLS == ["before"]


def test_waiting_is_not_executing_for_a_budget(store: Store) -> None:
    agent = hf.agent(name="waiting", budget=hf.Budget(time="1h"))(_asks_blocking)
    stage = Stage(store, agent)
    stage.parks()
    stage.clock.at_us += 100 * HOUR_US
    stage.answer("2", value=True)
    stage.clock.at_us += 100 * HOUR_US
    assert stage.run() == "before True after"
    with _kept(stage.app()) as app:
        assert app.show("r").spent.seconds == 0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: hf.ask("sure?"), hf.NoRun),
        (lambda: hfs.ask("sure?"), hf.NoRun),
        (lambda: hfs.sleep(1), hf.NoRun),
        (lambda: hfs.receive("note", str), hf.NoRun),
        (lambda: hfs.send("r", "note"), hf.NoRun),
        (lambda: hfs.ask(""), Misuse),
        (lambda: hfs.ask("sure?", details={1: 2}), Misuse),
        (lambda: hfs.ask("sure?", details=(1,)), Misuse),
        (lambda: hfs.ask("sure?", details=float("nan")), Misuse),
        (lambda: hfs.ask("sure?", default=True), Misuse),
        (lambda: hfs.ask("sure?", timeout="1h", default=3), Misuse),  # type: ignore[call-overload]
        (lambda: hfs.ask("sure?", asyncio.Event), Misuse),
        (lambda: hfs.send("r", "", 1), Misuse),
        (lambda: hfs.send("r", "note", object()), Misuse),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_recorded(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
    if error is hf.NoRun:
        return
    store = MemoryStore()

    @hf.agent
    def waiting() -> None:
        call()

    with pytest.raises(error):
        hf.run(waiting, run_id="r", store=store)
    assert lines(store) == ["run.started", "run.failed"]


VERBS: list[Callable[[], object]] = [
    lambda: hfs.ask("sure?"), lambda: hfs.sleep(1), lambda: hfs.receive("note", str), lambda: hfs.send("r", "note"),
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_a_wait_inside_a_step_is_refused(verb: Callable[[], object]) -> None:
    @hf.step
    def inside() -> None:
        verb()

    @hf.agent
    def waiting() -> None:
        inside()

    with pytest.raises(hf.NestedStep):
        hf.run(waiting, store="memory:")


@pytest.mark.parametrize("verb", VERBS[:3])
def test_a_wait_that_would_block_the_event_loop_is_refused(verb: Callable[[], object]) -> None:
    @hf.agent
    async def waiting() -> None:
        verb()

    with pytest.raises(Misuse, match="use `import holdfast as hf` and await"):
        hf.run(waiting, store="memory:")


def test_a_question_that_is_not_awaited_is_noticed() -> None:
    store = MemoryStore()

    @hf.agent
    async def waiting() -> str:
        hf.ask("sure?")  # type: ignore[unused-coroutine]
        return "fine"

    with pytest.raises(Misuse, match="await"):
        hf.run(waiting, run_id="r", store=store, wait=False)
    assert lines(store) == ["run.started", "run.failed"]


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_is_there_is_received_without_parking(mode: str) -> None:
    @hf.agent
    async def own() -> str:
        await hf.send("r", "note", "a")
        return await hf.receive("note", str)

    @hf.agent(name="own")
    def blocking() -> str:
        hfs.send("r", "note", "a")
        return hfs.receive("note", str)

    store = MemoryStore()
    with hf.Holdfast(store) as app:
        assert app.run(own if mode == "async" else blocking, run_id="r", wait=False) == "a"
    assert store.letters(["r"]) == []
    assert "run.waiting" not in lines(store)
