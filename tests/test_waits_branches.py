"""Waits in branches, races and time-outs: what the run goes on without is closed, on record, and out of the inbox."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, lines, records
from holdfast.errors import Refusal
from holdfast.records import kinds as rec
from holdfast.store import Store
from test_waits import CALLS, HOUR_US, MODES, Stage, _kept, _no_calls, agents, look, store

__all__ = ["_no_calls", "store"]


async def _both() -> list[str]:
    return list(await hf.gather(hf.ask("colour?", str), hf.ask("size?", str)))


def _both_blocking() -> list[str]:
    return list(hfs.gather(lambda: hfs.ask("colour?", str), lambda: hfs.ask("size?", str)))


BOTH = agents(_both, _both_blocking)


@pytest.mark.parametrize("mode", MODES)
def test_two_branches_ask_at_once_and_are_answered_in_any_order(store: Store, mode: str) -> None:
    stage = Stage(store, BOTH[mode])
    assert sorted(stage.parks().split("; ")) == ["colour?", "size?"]
    ids = {record.question: record.step_id for record in records(store) if isinstance(record, rec.AskOpened)}
    stage.answer(ids["size?"], "XL")
    assert stage.parks() == "colour?"
    assert stage.inbox() == [f"ask {ids['colour?']}"]
    stage.answer(ids["colour?"], "red")
    assert stage.run() == ["red", "XL"]


async def _race() -> str:
    async def patience() -> str:
        await hf.sleep("1h")
        return "too late"

    first = await hf.first(hf.ask("colour?", str), patience())
    return f"{first} {look('then')} {await hf.ask('sure?')}"


def _race_blocking() -> str:
    def patience() -> str:
        hfs.sleep("1h")
        return "too late"

    first = hfs.first(lambda: hfs.ask("colour?", str), patience)
    return f"{first} {look('then')} {hfs.ask('sure?')}"


RACING = agents(_race, _race_blocking)


def asked(stage: Stage) -> dict[str, str]:
    return {record.question: record.step_id for record in records(stage.store) if isinstance(record, rec.AskOpened)}


@pytest.mark.parametrize("mode", MODES)
def test_a_question_that_loses_a_race_is_closed(store: Store, mode: str) -> None:
    stage = Stage(store, RACING[mode])
    assert "colour?" in stage.parks()
    stage.clock.at_us += HOUR_US
    assert stage.parks() == "sure?"
    ids = asked(stage)
    assert stage.inbox() == [f"ask {ids['sure?']}"]
    assert f"ask.closed {ids['colour?']}" in lines(store)
    with pytest.raises(Refusal, match="is closed, the run went on without an answer; nothing was changed"):
        stage.answer(ids["colour?"], "red")
    assert stage.parks() == "sure?"
    stage.answer(ids["sure?"], value=True)
    assert stage.run() == "too late then True"
    assert CALLS == ["then"]


@pytest.mark.parametrize("mode", MODES)
def test_a_sleep_that_loses_a_race_wakes_nobody(store: Store, mode: str) -> None:
    stage = Stage(store, RACING[mode])
    stage.parks()
    stage.answer(asked(stage)["colour?"], "red")
    assert stage.parks() == "sure?"
    head = store.head("r")
    assert head is not None
    assert head.wake_us is None
    stage.answer(asked(stage)["sure?"], value=False)
    assert stage.run() == "red then False"


async def _timed() -> str:
    try:
        async with hf.timeout("1h"):
            look("inside")
            return await hf.ask("colour?", str)
    except TimeoutError:
        return f"{look('then')} {await hf.ask('sure?')}"


def _timed_blocking() -> str:
    try:
        with hfs.timeout("1h"):
            look("inside")
            return hfs.ask("colour?", str)
    except TimeoutError:
        return f"{look('then')} {hfs.ask('sure?')}"


TIMED = agents(_timed, _timed_blocking)


@pytest.mark.parametrize("mode", MODES)
def test_a_question_inside_a_time_out_is_closed_when_it_fires(store: Store, mode: str) -> None:
    stage = Stage(store, TIMED[mode])
    assert stage.parks() == "colour?"
    head = store.head("r")
    assert head is not None
    assert head.wake_us == stage.clock.at_us + HOUR_US
    stage.clock.at_us += HOUR_US
    assert stage.parks() == "sure?"
    ids = asked(stage)
    assert stage.inbox() == [f"ask {ids['sure?']}"]
    assert lines(store).count(f"ask.closed {ids['colour?']}") == 1
    stage.answer(ids["sure?"], value=True)
    assert stage.run() == "then True"
    assert CALLS == ["inside", "then"]


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_inside_a_time_out_comes_in_time(store: Store, mode: str) -> None:
    stage = Stage(store, TIMED[mode])
    stage.parks()
    stage.answer(asked(stage)["colour?"], "red")
    assert stage.run() == "red"


def test_two_branches_that_receive_the_same_name_do_not_share_a_message(store: Store) -> None:
    @hf.agent
    async def waiting() -> list[str]:
        return list(await hf.gather(hf.receive("note", str), hf.receive("note", str)))

    stage = Stage(store, waiting)
    stage.parks()
    stage.send("note", "a")
    assert stage.parks() == "waits for message note"
    stage.send("note", "b")
    assert sorted(stage.run()) == ["a", "b"]


def test_changed_code_that_asks_something_else_is_answered_anew(store: Store) -> None:
    wording = ["may I?"]

    @hf.agent
    def waiting() -> str:
        first = hfs.ask(wording[0])
        return f"{first} {hfs.ask('sure?')}"

    stage = Stage(store, waiting)
    stage.parks()
    wording[0] = "may I, please?"
    assert stage.parks() == "may I, please?"
    stage.answer("1", value=True)
    assert stage.parks() == "sure?"
    stage.answer("2", value=True)
    wording[0] = "shall I?"
    with pytest.raises(hf.ReplayMismatch):
        stage.run()
    with _kept(stage.app()) as app:
        app.accept("r", by="ann")
    assert stage.parks() == "shall I?"
    stage.answer("1", value=False)
    assert stage.parks() == "sure?"
    stage.answer("2", value=False)
    assert stage.run() == "False False"


def test_changed_code_that_waits_for_something_else_begins_anew(store: Store) -> None:
    waits: list[Any] = [lambda: hfs.sleep("1h"), lambda: hfs.receive("note", str, timeout="3h", default="none")]

    @hf.agent
    def waiting() -> Any:
        return waits[0]()

    stage = Stage(store, waiting)
    stage.parks()
    del waits[0]
    stage.clock.at_us += HOUR_US
    assert stage.parks().startswith("waits for message note until")
    head = store.head("r")
    assert head is not None
    assert head.wake_us == stage.clock.at_us + 3 * HOUR_US + 1_000_000


def test_undo_of_a_run_that_asks(store: Store) -> None:
    undone: list[str] = []

    @hf.effect(in_doubt="ask", undo=lambda result, what: undone.append(what))
    def book(what: str) -> str:
        return what

    @hf.agent
    def waiting() -> str:
        book("room")
        hfs.sleep("0.001s")
        return f"{hfs.ask('sure?')} {hfs.receive('note', str)}"

    stage = Stage(store, waiting)
    stage.parks()
    with _kept(stage.app()) as app:
        app.cancel("r", undo=True, by="ann")
    assert stage.inbox() == []
    with pytest.raises(hf.RunCancelled):
        stage.run()
    assert undone == ["room"]


class Browser:
    """A session that is opened when the code begins and closed in `finally`."""

    opened = closed = 0

    def __enter__(self) -> Self:
        Browser.opened += 1
        return self

    def __exit__(self, *_: object) -> None:
        Browser.closed += 1


@pytest.mark.parametrize("mode", MODES)
def test_a_session_closed_while_the_run_waits_does_not_break_replay_and_cleanup_runs_once(store: Store, mode: str) -> None:
    Browser.opened = Browser.closed = 0

    async def log_in() -> str:
        hf.cleanup(CALLS.append, "clean")
        with Browser():
            look("log in")
            code = await hf.ask("the code that was sent to you?", str)
            return look(f"enter {code}")

    def log_in_blocking() -> str:
        hf.cleanup(CALLS.append, "clean")
        with Browser():
            look("log in")
            code = hfs.ask("the code that was sent to you?", str)
            return look(f"enter {code}")

    stage = Stage(store, agents(log_in, log_in_blocking)[mode])
    for opened in (1, 2):
        stage.parks()
        assert (Browser.opened, Browser.closed, CALLS) == (opened, opened, ["log in"])
    stage.answer("2", "1234")
    assert stage.run() == "enter 1234"
    assert (Browser.opened, Browser.closed, CALLS) == (3, 3, ["log in", "enter 1234", "clean"])


def test_on_ask_is_called_for_each_question_and_again_after_a_crash_before_it_was_known(store: Store) -> None:
    told: list[tuple[str, str, str, Any]] = []

    def on_ask(*asked: Any) -> None:
        told.append(asked)
        if len(told) == 1:
            raise Crash

    @hf.agent
    def waiting() -> str:
        return f"{hfs.ask('sure?', details=[7])} {hfs.ask('really?')}"

    stage = Stage(store, waiting, on_ask=on_ask)
    with suppress(Crash):
        stage.run()
    stage.parks()
    stage.parks()
    assert told == [("r", "1", "sure?", [7])] * 2
    stage.answer("1", value=True)
    stage.parks()
    assert told[2:] == [("r", "2", "really?", None)]


def test_an_error_in_on_ask_is_logged_and_the_run_waits(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*asked: Any) -> None:
        raise OSError("no network")

    async def wrong(*asked: Any) -> None: ...

    @hf.agent
    async def waiting() -> bool:
        return await hf.ask("sure?")

    with hf.Holdfast("memory:", on_ask=broken) as app, pytest.raises(hf.RunWaiting):
        app.run(waiting, run_id="r", wait=False)
    assert "no network" in caplog.text
    with pytest.raises(hf.Misuse, match="on_ask= takes a `def` function"):
        hf.Holdfast("memory:", on_ask=wrong)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_failed_because_nobody_answered_asks_anew_when_it_is_run_again(store: Store, mode: str) -> None:
    async def impatient() -> str:
        return look("a") + await hf.ask("colour?", str, timeout="1h") + await hf.receive("note", str, timeout="1h")

    def impatient_blocking() -> str:
        return look("a") + hfs.ask("colour?", str, timeout="1h") + hfs.receive("note", str, timeout="1h")

    stage = Stage(store, agents(impatient, impatient_blocking)[mode])
    for waits in ("colour?", "waits for message note"):
        assert stage.parks().startswith(waits)
        stage.clock.at_us += HOUR_US + 2_000_000
        with pytest.raises(TimeoutError):
            stage.run()
        assert stage.parks().startswith(waits)
        if waits == "colour?":
            stage.answer("2", "red")
    stage.send("note", "!")
    assert stage.run() == "ared!"
    assert CALLS == ["a"]


def test_a_wait_in_a_thread_that_loses_a_race_is_told_of_no_time_out() -> None:
    caught: list[str] = []

    @hfs.step
    def quick() -> str:
        return "quick"

    def loser() -> str:
        try:
            return hfs.ask("colour?", str)
        except Exception as error:
            caught.append(type(error).__name__)
            raise

    @hfs.agent
    def agent() -> str:
        return hfs.first(loser, quick)

    with hfs.Holdfast("memory:") as app:
        for _ in range(2):
            assert app.run(agent, run_id="r", wait=False) == "quick"
    assert caught == []
