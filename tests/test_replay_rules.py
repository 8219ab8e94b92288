"""Replay: the code sees what it saw, in the order in which it saw it. One test for each rule of the design."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
from crashing import Crash, crashing, play, records, status
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.running import ending, runner
from holdfast.stores.memory import MemoryStore

DELAYS: dict[str, float] = {}
"""How long the step of each letter takes; changed between the attempts of a run."""


@hf.step
async def slow(letter: str) -> str:
    await asyncio.sleep(DELAYS.get(letter, 0.0))
    return letter


@hf.step
async def boom(text: str, error: type[Exception] = ValueError) -> str:
    raise error(text)


def test_gather_waits_for_all_branches_and_raises_the_lowest_error() -> None:
    finished: list[str] = []

    async def branch(letter: str, delay_s: float, error: type[Exception] | None) -> None:
        await asyncio.sleep(delay_s)
        if error:
            finished.append(letter)
            await boom(letter, error)
        finished.append(await slow(letter))

    @hf.agent
    async def agent() -> str:
        try:
            await hf.gather(branch("a", 0.004, None), branch("b", 0.002, KeyError), branch("c", 0, ValueError))
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__} after {len(finished)}"
        return "nothing"

    assert play(MemoryStore(), agent) == "KeyError after 3"


def racing() -> tuple[list[str], list[str]]:
    """A race whose loser would go on to an effect; it crashes after the race, and goes on when the loser is the quicker one."""
    effects: list[str] = []
    winners: list[str] = []

    @hf.effect(in_doubt="fail")
    async def pay(who: str) -> str:
        effects.append(who)
        return who

    async def branch(letter: str) -> str:
        await slow(letter)
        await asyncio.sleep(DELAYS["then " + letter])
        return await pay(letter)

    @hf.agent
    async def agent() -> str:
        winner = await hf.first(branch("a"), branch("b"))
        winners.append(winner)
        if len(winners) == 1:
            raise Crash
        return winner

    store = MemoryStore()
    DELAYS.clear()
    DELAYS.update({"a": 0.0, "b": 0.0, "then a": 0.0, "then b": 60})
    crashing(lambda: play(store, agent))
    DELAYS.update({"then a": 0.05, "then b": 0.0})
    play(store, agent)
    return winners, effects


def test_first_records_its_winner_and_the_losers_later_steps_are_never_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert racing() == (["a", "a"], ["a"])
    monkeypatch.setattr("holdfast.life.run.Scope.to_be_cancelled", lambda self: False)
    assert racing() == (["a", "a"], ["a", "b"])


def test_time_out_is_recorded_and_replayed() -> None:
    views: list[list[str]] = []

    @hf.agent
    async def agent() -> int:
        seen: list[str] = []
        views.append(seen)
        try:
            async with hf.timeout(0.02):
                seen.append(await slow("a"))
                seen.append(await slow("b"))
        except TimeoutError:
            seen.append("late")
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    DELAYS.clear()
    DELAYS.update({"b": 5.0})
    crashing(lambda: play(store, agent))
    DELAYS.clear()
    play(store, agent)
    assert views == [["a", "late"], ["a", "late"]]


def test_raw_time_out_that_cancels_a_step_stops_the_run_as_interrupted() -> None:
    tried: list[str] = []

    @hf.step
    async def work() -> str:
        tried.append("work")
        await asyncio.sleep(5 if len(tried) == 1 else 0)
        return "done"

    @hf.agent
    async def agent() -> str:
        before = await slow("a")
        try:
            async with asyncio.timeout(0.01):
                return before + await work()
        except TimeoutError:
            tried.append("a path that replay could not take")
            return before

    store = MemoryStore()
    with pytest.raises(hf.RunInterrupted, match=r"step 2.*hf\.timeout"):
        play(store, agent)
    assert status(store) == "queued"
    assert play(store, agent) == "adone"
    assert tried == ["work", "work"]


def test_random_numbers_are_one_seeded_stream_per_scope() -> None:
    views: list[list[float]] = []

    @hf.step
    async def throw() -> float:
        return hf.current().random.random()

    async def branch() -> float:
        await slow("a")
        return hf.current().random.random()

    @hf.agent
    async def agent() -> int:
        run = hf.current()
        seen = [run.random.random(), await throw(), run.random.random(), *await hf.gather(branch(), branch()), run.uuid().int]
        views.append(seen)
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views[0] == views[1]
    assert len(set(views[0])) == len(views[0])


def test_random_numbers_in_a_body_are_the_same_in_every_attempt() -> None:
    thrown: list[float] = []

    @hf.step(retry=hf.Retry(base=0.001))
    async def throw() -> float:
        thrown.append(hf.current().random.random())
        if len(thrown) == 1:
            raise ConnectionResetError
        return thrown[-1]

    @hf.agent
    async def agent() -> list[float]:
        return [await throw(), await throw()]

    first, second = play(MemoryStore(), agent)
    assert thrown == [first, first, second]
    assert first != second


def test_time_is_recorded_and_uses_no_step_number() -> None:
    views: list[list[Any]] = []

    @hf.agent
    async def agent() -> int:
        seen = [hf.now(), hf.now(), await slow("a"), hf.now()]
        views.append(seen)
        await slow("b")
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    DELAYS.clear()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views[0] == views[1]
    assert [record.step_id for record in records(store) if isinstance(record, rec.StepDone)] == ["1", "2"]


def resumed_after_a_failure() -> list[str]:
    """What was executed by a run that caught a refusal, paid otherwise, failed behind it, and was resumed."""
    calls: list[str] = []

    @hf.effect(in_doubt="ask")
    async def pay(name: str) -> str:
        calls.append(name)
        if calls.count(name) == 1 and name != "fallback":
            raise hf.NotLanded(name)
        return name

    @hf.agent
    async def agent() -> list[str]:
        try:
            caught = await pay("caught")
        except hf.StepFailed:
            caught = await pay("fallback")
        return [caught, await pay("escaped")]

    store = MemoryStore()
    with pytest.raises(hf.StepFailed, match="escaped"):
        play(store, agent)
    with suppress(hf.ReplayMismatch):
        assert play(store, agent) == ["fallback", "escaped"]
    return calls


def test_resuming_a_failed_run_clears_only_the_failure_that_escaped() -> None:
    assert resumed_after_a_failure() == ["caught", "fallback", "escaped", "escaped"]


def test_when_resuming_clears_every_failure_it_is_paid_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: what the agent had caught is tried again, beside what it did instead."""

    def every_failure(journal: Journal) -> list[str]:
        return [step_id for step_id, history in journal.histories.items() if isinstance(history.outcome, rec.StepFailed)]

    monkeypatch.setattr(runner, "escaped", every_failure)
    assert resumed_after_a_failure() == ["caught", "fallback", "escaped", "caught"]


class AgentError(Exception):
    """What an agent makes of a step's failure."""


async def raise_from(name: str, step: Callable[[str], Awaitable[str]]) -> None:
    try:
        await step(name)
    except ValueError as error:
        raise AgentError(name) from error


async def raise_in_handler(name: str, step: Callable[[str], Awaitable[str]]) -> None:
    try:
        await step(name)
    except ValueError:
        raise AgentError(name)  # noqa: B904 (found through __context__)


async def raise_in_group(name: str, step: Callable[[str], Awaitable[str]]) -> None:
    try:
        await step(name)
    except ValueError as error:
        raise ExceptionGroup("several", [KeyError("other"), ExceptionGroup("inner", [error])]) from None


@pytest.mark.parametrize("wrap", [raise_from, raise_in_handler, raise_in_group])
def test_escaped_failure_is_found_through_causes_contexts_and_groups(wrap: Callable[..., Awaitable[None]]) -> None:
    calls: list[str] = []

    @hf.step
    async def shaky(name: str) -> str:
        calls.append(name)
        if calls.count(name) == 1:
            raise ValueError(name)
        return name

    @hf.agent
    async def agent() -> str:
        with suppress(ValueError):
            await shaky("caught")
        await wrap("escaped", shaky)
        return "done"

    store = MemoryStore()
    with pytest.raises((AgentError, ExceptionGroup)):
        play(store, agent)
    assert [record.escaped for record in records(store) if isinstance(record, rec.RunFailed)] == [["2"]]
    assert play(store, agent) == "done"
    assert calls == ["caught", "escaped", "escaped"]


def test_failure_that_a_fallback_had_caught_is_not_cleared_with_the_fallbacks() -> None:
    calls: list[str] = []

    @hf.step
    async def shaky(name: str) -> str:
        calls.append(name)
        if calls.count(name) == 1:
            raise ValueError(name)
        return name

    @hf.agent
    async def agent() -> str:
        try:
            return await shaky("first choice")
        except ValueError:
            return await shaky("fallback")

    store = MemoryStore()
    with pytest.raises(ValueError, match="fallback"):
        play(store, agent)
    assert play(store, agent) == "fallback"
    assert calls == ["first choice", "fallback", "fallback"]


def test_failure_of_another_run_clears_nothing_here() -> None:
    store = MemoryStore()
    calls: list[str] = []

    @hf.agent
    async def other() -> str:
        return await boom("elsewhere")

    with pytest.raises(ValueError) as elsewhere:
        play(store, other, run_id="other")

    @hf.step
    async def shaky() -> str:
        calls.append("shaky")
        raise ValueError("caught")

    @hf.agent
    async def agent() -> str:
        with suppress(ValueError):
            await shaky()
        raise AgentError from elsewhere.value

    for _ in range(3):
        with pytest.raises(AgentError):
            play(store, agent)
    assert calls == ["shaky"]


def test_effect_that_was_refused_is_run_again_when_its_failure_is_cleared() -> None:
    tried: list[int] = []

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        tried.append(1)
        if len(tried) == 1:
            raise hf.NotLanded("closed today")
        return 5

    @hf.agent
    async def agent() -> int:
        return await pay()

    store = MemoryStore()
    with pytest.raises(hf.StepFailed, match="closed today"):
        play(store, agent)
    assert play(store, agent) == 5
    assert len(tried) == 2


def ending_without_what_is_recorded() -> tuple[str, str]:
    """How a run stands, and what its caller is told, when its code ends without having called what is recorded."""
    old = [True]

    @hf.agent
    async def agent() -> str:
        if old:
            old.clear()
            await slow("a")
            raise Crash
        return "ended"

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    try:
        return play(store, agent), status(store)
    except hf.ReplayMismatch as error:
        return str(error), status(store)


def test_code_that_ends_without_calling_what_is_recorded_is_a_mismatch() -> None:
    told, standing = ending_without_what_is_recorded()
    assert 'slow(letter="a")' in told
    assert "ends without calling it" in told
    assert standing == "blocked"


def test_without_the_look_for_what_was_not_called_the_run_becomes_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(ending, "_refuse_unasked", lambda run, ended=None: iter(()))
    assert ending_without_what_is_recorded() == ("ended", "done")


def test_error_that_ends_the_code_too_early_is_told_with_the_mismatch() -> None:
    old = [True]

    @hf.agent
    async def agent() -> str:
        if not old:
            raise KeyError("API_KEY")
        old.clear()
        await slow("a")
        raise Crash

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    with pytest.raises(hf.ReplayMismatch) as found:
        play(store, agent)
    assert isinstance(found.value.__cause__, KeyError)


def test_outcome_that_nobody_asks_for_is_passed_over(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("holdfast.life.turnstile.STALL_S", 0.01)
    old = [True]

    async def branch(letter: str) -> None:
        if letter != "a" or old:
            await slow(letter)

    @hf.agent
    async def agent() -> None:
        await hf.gather(branch("a"), branch("b"))
        if old:
            old.clear()
            raise Crash

    store = MemoryStore()
    DELAYS.clear()
    crashing(lambda: play(store, agent))
    with pytest.raises(hf.ReplayMismatch, match="ends without calling it"):
        play(store, agent)
    assert "nobody asked for the recorded outcome" in caplog.text


def test_errors_are_the_same_live_and_on_replay() -> None:
    class Declined(Exception):
        def __init__(self, code: int) -> None:
            super().__init__(code)
            self.code = code

    @hf.step(raises=Declined)
    async def declared() -> None:
        raise Declined(7)

    @hf.step
    async def undeclared() -> None:
        raise Declined(8)

    views: list[list[str]] = []

    @hf.agent
    async def agent() -> int:
        seen = []
        for step in (declared, undeclared, lambda: boom("text", KeyError), lambda: boom("gone", FileNotFoundError)):
            try:
                await step()
            except Exception as error:  # noqa: BLE001
                seen.append(f"{type(error).__name__}|{error}|{getattr(error, 'code', '')}")
        views.append(seen)
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views[0] == views[1]
    assert [line.partition("|")[0] for line in views[0]] == ["Declined", "StepFailed", "KeyError", "FileNotFoundError"]
    assert views[0][1].startswith("StepFailed|8 (")
