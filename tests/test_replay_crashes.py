"""Replay after a crash: what is finished is not executed again, and what may have happened stays in doubt."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
from crashing import Crash, crashing, lines, play, records, status
from holdfast.life import steps
from holdfast.records import kinds as rec
from holdfast.records import replay
from holdfast.stores.memory import MemoryStore


def life_after_life(lives: int) -> list[int]:
    """What was executed by a run of ten steps, every second an effect, that dies behind a step in each of its lives but the last."""
    calls: list[int] = []
    deaths: list[int] = []

    @hf.step
    async def look(number: int) -> int:
        calls.append(number)
        return number

    @hf.effect(in_doubt="ask")
    async def pay(number: int) -> int:
        calls.append(number)
        return number

    @hf.agent
    async def agent() -> int:
        total = 0
        for number in range(10):
            total += await (pay(number) if number % 2 else look(number))
            if number == len(deaths) < lives:
                deaths.append(number)
                raise Crash
        return total

    store = MemoryStore()
    for _ in range(lives):
        crashing(lambda: play(store, agent))
    assert play(store, agent) == sum(range(10))
    return calls


def test_finished_steps_are_never_executed_again_whatever_the_number_of_crashes() -> None:
    assert life_after_life(10) == list(range(10))


def test_without_the_journal_everything_is_executed_again_in_every_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: it is the recorded outcome that keeps a step from being executed again."""

    def decide(*args: Any, **kwargs: Any) -> Any:
        decision = replay.decide(*args, **kwargs)
        return replay.Execute(1) if isinstance(decision, replay.Return) else decision

    monkeypatch.setattr(steps, "decide", decide)
    assert life_after_life(2) == [0, 0, 1, *range(10)]


def test_done_run_gives_its_result_and_executes_nothing() -> None:
    calls: list[int] = []

    @hf.agent
    async def agent() -> int:
        calls.append(1)
        return 5

    store = MemoryStore()
    assert [play(store, agent), play(store, agent)] == [5, 5]
    assert calls == [1]


def test_step_that_was_running_when_the_process_died_is_run_again() -> None:
    calls: list[str] = []

    @hf.step
    async def work(name: str) -> str:
        calls.append(name)
        if name == "b" and calls.count("b") == 1:
            raise Crash
        return name

    @hf.agent
    async def agent() -> str:
        return await work("a") + await work("b")

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == "ab"
    assert calls == ["a", "b", "b"]


def resent_and_refused() -> str:
    """An effect that may have happened, resent, and then refused: its first attempt is still not known."""
    tried: list[int] = []

    @hf.effect(in_doubt="resend", retry=hf.Retry(attempts=3, base=0.001))
    async def pay() -> int:
        tried.append(1)
        raise TimeoutError if len(tried) == 1 else ConnectionRefusedError

    @hf.agent
    async def agent() -> str:
        try:
            await pay()
        except Exception as error:  # noqa: BLE001
            return type(error).__name__
        return "paid"

    store = MemoryStore()
    try:
        return str(play(store, agent))
    except hf.RunWaiting:
        failed = [record for record in records(store) if isinstance(record, rec.StepFailed)]
        return f"waiting, {failed[0].error['type']}"


def test_refused_repetition_does_not_end_the_doubt_of_the_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resent_and_refused() == "waiting, InDoubt"
    monkeypatch.setattr("holdfast.records.replay.History.may_have_happened", lambda self: False)
    assert resent_and_refused() == "ConnectionRefusedError"


def broken_off() -> tuple[list[int], str]:
    """What was paid by a run whose effect was cancelled in its body, and that was continued."""
    paid: list[int] = []

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        paid.append(1)
        if len(paid) == 1:
            await asyncio.sleep(5)
        return 1

    @hf.agent
    async def agent() -> int:
        return await asyncio.wait_for(pay(), 0.01)

    store = MemoryStore()
    with pytest.raises(hf.RunInterrupted):
        play(store, agent)
    with suppress(hf.RunWaiting):
        play(store, agent)
    return paid, status(store)


def test_raw_cancel_of_an_effect_is_a_doubt() -> None:
    assert broken_off() == ([1], "waiting")


def test_without_a_decision_for_doubts_what_was_broken_off_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: an effect that is taken for a step."""
    monkeypatch.setattr(replay, "_decide_unfinished", lambda history: replay.Execute(history.attempts + 1))
    assert broken_off() == ([1, 1], "done")


def test_run_does_not_become_done_while_an_effect_that_nobody_awaits_is_under_way() -> None:
    tasks: list[asyncio.Task[int]] = []

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        await asyncio.sleep(0.1)
        return 1

    @hf.agent
    async def agent() -> str:
        tasks.append(asyncio.ensure_future(pay()))
        await asyncio.sleep(0.005)
        return "done"

    store = MemoryStore()
    assert play(store, agent) == "done"
    assert lines(store)[-2:] == ["step.done 1", "run.done"]
