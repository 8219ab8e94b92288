"""Holes in parking that an attack found, each by its behaviour: a run parks when nothing else is left to do, and only then."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync
from agents_for_tests.sites import eventually
from crashing import dies_at, lines, play, status
from holdfast.errors import StoreFailed
from holdfast.life.mail import Mail
from holdfast.records import kinds as rec
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(20)  # most of these holes were hangs


@hf.effect(in_doubt="ask")
async def doubtful(n: int) -> int:
    raise ConnectionResetError(n)


@hf.step
async def same(n: int) -> int:
    return n


def test_a_race_whose_one_branch_waits_for_a_person_is_won_by_another_and_the_code_goes_on() -> None:
    store, worked = MemoryStore(), list[str]()

    @hf.step
    async def work(name: str) -> str:
        await asyncio.sleep(0.1)
        worked.append(name)
        return name

    @hf.agent
    async def agent() -> str:
        await hf.first(doubtful(1), work("other"))
        return await work("after")

    for _ in range(2):
        with pytest.raises(hf.RunWaiting):
            play(store, agent)
    assert worked == ["other", "after"]
    with hf.Holdfast(store) as app:
        app.resolve("r", "1", not_landed=True, by="ann")
    assert play(store, agent) == "after"
    assert worked == ["other", "after"]


def test_an_effect_that_comes_to_wait_after_the_run_was_interrupted_does_not_hold_it_up() -> None:
    store, paid = MemoryStore(), list[int]()

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        paid.append(n)
        await asyncio.sleep(0.1)
        raise TimeoutError

    @hf.step
    async def slow() -> int:
        await asyncio.sleep(60)
        return 7

    async def cut_off() -> int:
        return await asyncio.wait_for(slow(), 0.03)

    @hf.agent
    async def agent() -> int:
        return sum(await hf.gather(pay(1), cut_off()))

    with pytest.raises(hf.RunInterrupted):
        play(store, agent)
    with pytest.raises((hf.RunWaiting, hf.RunInterrupted)):
        play(store, agent)
    assert paid == [1]


def test_a_run_parks_though_its_main_line_waits_for_a_task_through_a_queue() -> None:
    store = MemoryStore()

    @hf.agent
    async def agent() -> int:
        await same(1)
        queue, done = asyncio.Queue[int](), list[int]()

        async def worker() -> None:
            while True:
                done.append(await hf.step(doubtful, call_id="c")(await queue.get()))
                queue.task_done()

        task = asyncio.create_task(worker())
        queue.put_nowait(1)
        await queue.join()
        task.cancel()
        return done[0]

    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    assert status(store) == "waiting"
    with hf.Holdfast(store) as app:
        assert [item.step_id for item in app.inbox()] == ["1:c"]
        app.resolve("r", "1:c", landed=5, by="ann")
    assert play(store, agent) == 5


def test_on_resume_a_question_in_one_branch_does_not_keep_another_from_going_on() -> None:
    store, worked = dies_at("step.done"), list[str]()

    @hf.step
    async def work() -> int:
        await asyncio.sleep(0.1)
        worked.append("worked")
        return 7

    async def second() -> int:
        return await work()

    @hf.agent
    async def agent() -> int:
        return sum(await hf.gather(doubtful(1), second()))

    with pytest.raises(StoreFailed):
        play(store, agent)
    store.mend()
    assert "doubt.opened 1" in lines(store)
    for _ in range(2):
        with pytest.raises(hf.RunWaiting):
            play(store, agent)
    assert worked == ["worked", "worked"]
    assert lines(store).count("step.done 2.2.1") == 1


def test_code_behind_a_gather_within_a_branch_goes_on_before_the_run_parks() -> None:
    store, worked = MemoryStore(), list[str]()

    @hf.step
    async def slow(n: int) -> int:
        await asyncio.sleep(0.05)
        return n

    @hf.step
    async def then() -> int:
        worked.append("then")
        return 1

    async def nested() -> int:
        await hf.gather(slow(1), slow(2))
        return await then()

    @hf.agent
    async def agent() -> int:
        return sum(await hf.gather(nested(), doubtful(1)))

    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    assert worked == ["then"]


def test_a_run_parks_when_one_of_two_raw_gathers_has_ended_and_the_other_waits() -> None:
    store = MemoryStore()

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        await asyncio.sleep(0.05)
        raise TimeoutError

    @hf.agent
    async def agent() -> int:
        await asyncio.gather(hf.gather(same(1)), hf.gather(pay(1)))
        return 1

    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    assert status(store) == "waiting"


def test_a_time_out_around_an_approval_fires_while_the_run_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.life.run.LETTER_GRACE_US", 0)
    paid: list[int] = []

    @hf.effect(in_doubt="ask", approve=True)
    async def pay(n: int) -> int:
        paid.append(n)
        return n

    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout("0.1s"):
                await pay(1)
        except TimeoutError:
            return "timed out"
        return "paid"

    store = MemoryStore()
    with hf.Holdfast(store) as app:
        assert app.run(agent, run_id="r") == "timed out"
    assert "timeout.fired 1" in lines(store)
    assert paid == []


def test_a_time_out_around_a_doubt_fires_when_a_run_that_had_parked_is_resumed() -> None:
    store, seen = MemoryStore(), list[str]()

    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout("0.1s"):
                await doubtful(1)
        except TimeoutError:
            seen.append("timed out")
            return "timed out"
        return "done"

    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    assert seen == []
    time.sleep(0.11)  # the time-out's own time
    with pytest.raises(hf.RunWaiting):  # for the doubt, which the time-out does not answer
        play(store, agent)
    assert (seen, lines(store).count("timeout.fired 1")) == (["timed out"], 1)
    with hf.Holdfast(store) as app:
        app.resolve("r", "2", landed=1, by="ann")
    assert play(store, agent) == "timed out"


class SlowToTellAnswers(MemoryStore):
    """An answer is on its way into the store until something waits behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.has_more = threading.Event(), lambda: False

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        if any(row.kind == rec.AskAnswered.kind for one in batch for row in one.rows):
            self.writes.set()
            eventually(self.has_more)
        return super().append(batch, wait=wait)


@hf.agent(name="asks")
async def asks() -> str:
    return await hf.ask("colour?", str)


@hf.sync.agent(name="asks")
def asks_def() -> str:
    return hf.sync.ask("colour?", str)


@pytest.mark.parametrize("agent", [asks, asks_def], ids=["async", "def"])
def test_an_answer_that_is_being_recorded_while_the_run_parks_wakes_it(agent: Callable[[], Any]) -> None:
    store = SlowToTellAnswers()

    def answer(run_id: str, ask_id: str, *_: object) -> None:
        store.post(run_id, "answer", json.dumps({"ask": ask_id, "yes": True, "value": '"red"', "by": "ann"}).encode(), 1)
        threading.Thread(target=app.engine.keeper.take_letters).start()
        assert store.writes.wait(10)

    with hf.Holdfast(store, on_ask=answer) as app:
        store.has_more = lambda: bool(app.engine.committer._queue)
        with pytest.raises(hf.RunWaiting):
            app.run(agent, run_id="r", wait=False)
        assert lines(store).count("ask.answered 1") == 1
        assert [run.run_id for run in app.ready()] == ["r"], "it was told, and nobody would ever go on with it"
        assert app.run(agent, run_id="r") == "red"


class SpokenToWhenItWaits(MemoryStore):
    """Lets somebody speak as soon as a run is recorded to wait, before its code knows; tells when it has parked."""

    def __init__(self) -> None:
        super().__init__()
        self.speak: Callable[[], None] = lambda: None
        self.parked = threading.Event()

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        kinds = {row.kind for one in batch for row in one.rows}
        answers = super().append(batch, wait=wait)
        if rec.WaitBegun.kind in kinds:
            self.speak()
        if rec.RunWaiting.kind in kinds:
            self.parked.set()
        return answers


def test_a_message_that_is_being_taken_while_the_run_parks_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store, put, takes = SpokenToWhenItWaits(), Mail.put, threading.Event()

    def slowly_put(mail: Mail, letter_id: int, body: rec.Json) -> str:
        takes.set()
        store.parked.wait(0.3)
        return put(mail, letter_id, body)

    def speak() -> None:
        store.post("r", "message", json.dumps({"name": "note", "value": "red", "by": "ann"}).encode(), 1)
        threading.Thread(target=app.engine.keeper.take_letters).start()
        assert takes.wait(10)

    @hf.agent
    async def receives() -> str:
        return await hf.receive("note", str)

    monkeypatch.setattr(Mail, "put", slowly_put)
    store.speak = speak
    with hf.Holdfast(store) as app:
        assert app.run(receives, run_id="r") == "red"
