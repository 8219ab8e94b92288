"""Parallel branches and races, on an event loop and in threads: results, errors, limits, and the same after a crash."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, FailingStore, crashing, dies_at, lines, play, records
from holdfast.errors import StoreFailed, WrongMode
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore
from holdfast.verbs.branches import MAX_BRANCHES


@hf.step
async def double(number: int) -> int:
    return number * 2


@hf.step
def double_now(number: int) -> int:
    return number * 2


@hf.step
async def fail(text: str) -> int:
    raise ValueError(text)


async def twice(number: int) -> int:
    return await double(await double(number))


def test_gather_gives_results_in_the_order_of_its_branches() -> None:
    @hf.agent
    async def agent() -> list[int]:
        return list(await hf.gather(twice(1), double(2), twice(3)))

    assert play(MemoryStore(), agent) == [4, 4, 12]


def test_gather_can_return_errors() -> None:
    @hf.agent
    async def agent() -> list[str]:
        return [repr(result) for result in await hf.gather(double(1), fail("x"), errors="return")]

    assert play(MemoryStore(), agent) == ["2", "ValueError('x')"]


def test_gather_of_nothing_is_nothing() -> None:
    @hf.agent
    async def agent() -> int:
        return len(await hf.gather())

    assert play(MemoryStore(), agent) == 0


def test_error_of_one_branch_leaves_the_others_steps_kept() -> None:
    calls: list[int] = []

    @hf.step
    async def work(number: int) -> int:
        calls.append(number)
        if number == 0 and calls.count(0) == 1:
            raise ValueError("first time")
        return number

    @hf.agent
    async def agent() -> list[int]:
        return list(await hf.gather(*(work(number) for number in range(4))))

    store = MemoryStore()
    with pytest.raises(ValueError, match="first time"):
        play(store, agent)
    assert play(store, agent) == [0, 1, 2, 3]
    assert calls == [0, 1, 2, 3, 0]


def test_map_runs_at_most_so_many_at_a_time() -> None:
    running: list[int] = []
    most: list[int] = []

    @hf.step
    async def work(number: int) -> int:
        running.append(number)
        most.append(len(running))
        await asyncio.sleep(0.001)
        running.remove(number)
        return number

    @hf.agent
    async def agent() -> list[int]:
        return await hf.map(work, range(7), limit=3)

    assert play(MemoryStore(), agent) == list(range(7))
    assert max(most) == 3


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2"])
def test_limit_that_lets_nobody_run_is_refused(limit: object) -> None:
    @hf.agent
    async def agent() -> None:
        await hf.map(double, [1], limit=limit)  # type: ignore[call-overload]

    with pytest.raises(hf.Misuse, match="limit="):
        play(MemoryStore(), agent)


def test_too_many_branches_are_refused() -> None:
    @hf.agent
    async def agent() -> None:
        await hf.map(double, range(MAX_BRANCHES + 1))

    with pytest.raises(hf.Misuse, match="Map in pieces"):
        play(MemoryStore(), agent)


def test_first_gives_the_winner_and_cancels_the_others() -> None:
    left: list[str] = []

    async def patient() -> int:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            left.append("cancelled")
            raise
        return await double(1)

    @hf.agent
    async def agent() -> int:
        return await hf.first(patient(), twice(3))

    store = MemoryStore()
    assert play(store, agent) == 12
    assert left == ["cancelled"]
    assert [record.value for record in records(store) if isinstance(record, rec.StepDone) and record.name == "hf.first"] == [b"1"]


def test_first_raises_the_error_of_the_winner() -> None:
    @hf.agent
    async def agent() -> int:
        return await hf.first(asyncio.sleep(5, 1), fail("lost patience"))

    with pytest.raises(ValueError, match="lost patience"):
        play(MemoryStore(), agent)


def test_first_of_nothing_is_refused() -> None:
    @hf.agent
    async def agent() -> None:
        await hf.first()

    with pytest.raises(hf.Misuse, match="at least one"):
        play(MemoryStore(), agent)


@pytest.mark.parametrize("die_in_finally", [False, True])
def test_loser_may_tidy_up_with_steps(*, die_in_finally: bool) -> None:
    tidied: list[str] = []

    @hf.step
    async def wait_long() -> int:
        await asyncio.sleep(5)
        return 1

    @hf.step
    async def tidy() -> None:
        tidied.append("tidy")

    async def loser() -> int:
        try:
            return await wait_long()
        finally:
            await tidy()

    @hf.agent
    async def agent() -> int:
        return await hf.first(loser(), twice(1))

    store = dies_at("step.done", "1.1.2") if die_in_finally else FailingStore()
    if die_in_finally:
        with pytest.raises(StoreFailed):
            play(store, agent)
        store.mend()
    assert play(store, agent) == 4
    assert len(tidied) == (2 if die_in_finally else 1)


def effect_in_a_lost_branch() -> tuple[list[str], str]:
    """An effect that is cancelled because its branch lost: nobody knows whether it happened."""
    paid: list[str] = []

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        paid.append("pay")
        await asyncio.sleep(5)
        return 1

    async def later() -> int:
        await asyncio.sleep(0.005)
        return await double(2)

    @hf.agent
    async def agent() -> int:
        return await hf.first(pay(), later())

    store = MemoryStore()
    waits = []
    for _ in range(2):
        try:
            play(store, agent)
        except hf.RunWaiting as waiting:
            waits.append(waiting.waits)
    return paid, waits[-1] if len(waits) == 2 else "not waiting"


def test_effect_cancelled_by_a_race_is_a_doubt_and_the_run_is_not_done() -> None:
    paid, waits = effect_in_a_lost_branch()
    assert paid == ["pay"]
    assert "did pay() at step 1 happen?" in waits


def test_without_the_look_for_open_doubts_a_run_is_done_though_its_loser_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    open_doubts = Journal.open_doubts
    monkeypatch.setattr(Journal, "open_doubts", lambda journal, *, ended=False: [] if ended else open_doubts(journal))
    assert effect_in_a_lost_branch() == (["pay"], "not waiting")


def test_branch_is_a_step_called_by_the_agent_or_by_the_branch() -> None:
    @hf.agent
    async def agent() -> list[int]:
        return [*await hf.gather(double(1), twice(2))]

    store = MemoryStore()
    play(store, agent)
    assert sorted(lines(store)[1:-1]) == ["step.done 1", "step.done 2.2.1", "step.done 2.2.2"]


def test_nested_races_and_gathers_are_replayed() -> None:
    calls: list[int] = []

    @hf.step
    async def work(number: int) -> int:
        calls.append(number)
        await asyncio.sleep(number / 1000)
        return number

    async def inner(number: int) -> int:
        return sum(await hf.gather(work(number), work(number + 1)))

    @hf.agent
    async def agent() -> int:
        result = await hf.first(inner(1), inner(20)) + sum(await hf.map(inner, [3, 1]))
        if 99 not in calls:
            calls.append(99)
            raise Crash
        return result

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    before = list(calls)
    assert play(store, agent) == 3 + 7 + 3
    assert calls == before


def test_def_agent_gathers_in_threads_and_replays() -> None:
    threads: set[str] = set()

    @hfs.step
    def work(number: int) -> int:
        threads.add(threading.current_thread().name)
        return number * 2

    crashes = [True]

    @hfs.agent
    def agent() -> list[int]:
        begin = work(1)
        result = [begin, *hfs.gather(lambda: work(2), lambda: work(work(3)))]
        result += hfs.map(work, [10, 20, 30], limit=2)
        if crashes:
            crashes.clear()
            raise Crash
        return result

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    executed = set(threads)
    began_s = time.monotonic()
    assert play(store, agent) == [2, 4, 12, 20, 40, 60]
    assert time.monotonic() - began_s < 1.0
    assert threads == executed
    assert len(threads) >= 3


def test_def_agent_gather_raises_the_lowest_error_when_all_have_finished() -> None:
    finished: list[str] = []

    @hfs.step
    def work(name: str) -> str:
        finished.append(name)
        if name != "c":
            raise KeyError(name)
        return name

    @hfs.agent
    def agent() -> int:
        hfs.gather(lambda: work("a"), lambda: work("b"), lambda: work("c"))
        return 0

    with pytest.raises(KeyError, match="a"):
        play(MemoryStore(), agent)
    assert sorted(finished) == ["a", "b", "c"]


def test_def_agent_race_is_replayed_without_its_loser_going_on() -> None:
    gate = threading.Event()
    paid: list[str] = []
    winners: list[str] = []

    @hfs.step
    def work(name: str) -> str:
        if name == "slow":
            assert gate.wait(5)
        return name

    @hfs.effect(in_doubt="fail")
    def pay(name: str) -> str:
        paid.append(name)
        return name

    def branch(name: str) -> str:
        work(name)
        result = pay(name)
        gate.set()
        return result

    @hfs.agent
    def agent() -> str:
        winner: str = hfs.first(lambda: branch("slow"), lambda: branch("quick"))
        winners.append(winner)
        work("after")
        if len(winners) == 1:
            raise Crash
        return winner

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    paid_before = list(paid)
    began_s = time.monotonic()
    assert play(store, agent) == winners[0]
    assert time.monotonic() - began_s < 1.0
    assert (winners[1], paid) == (winners[0], paid_before)


ASYNC_VERBS: list[Callable[[], object]] = [hf.gather, partial(hf.map, double, []), hf.first, partial(hf.timeout, 1), partial(double, 1)]


@pytest.mark.parametrize("verb", ASYNC_VERBS)
def test_async_verb_in_a_def_agent_fails_at_the_call(verb: Callable[[], object]) -> None:
    @hf.agent
    def agent() -> str:
        return "truthy" if verb() else "falsy"

    with pytest.raises(WrongMode, match="'agent'"):
        play(MemoryStore(), agent)


BLOCKING_VERBS: list[Callable[[], object]] = [hfs.gather, partial(hfs.map, str, []), partial(hfs.first, int), partial(hfs.timeout, 1)]


@pytest.mark.parametrize("verb", BLOCKING_VERBS)
def test_blocking_verb_in_an_async_agent_is_refused(verb: Callable[[], object]) -> None:
    @hf.agent
    async def agent() -> None:
        verb()

    with pytest.raises(WrongMode, match="async def"):
        play(MemoryStore(), agent)


def test_def_steps_in_async_agents_are_replayed_in_their_place() -> None:
    views: list[list[int]] = []
    calls: list[int] = []

    @hf.step
    def now(number: int) -> int:
        calls.append(number)
        return number

    async def branch(number: int) -> int:
        return await double(number) + now(number)

    @hf.agent
    async def agent() -> int:
        seen = [now(1), await double(2), now(3), *await hf.gather(branch(4), branch(5))]
        views.append(seen)
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views == [[1, 4, 3, 12, 15]] * 2
    assert sorted(calls) == [1, 3, 4, 5]


def test_def_effect_in_doubt_does_not_stop_the_other_branches_of_an_async_agent() -> None:
    @hf.effect(in_doubt="ask")
    def pay() -> int:
        raise ConnectionResetError

    @hf.step
    async def work() -> int:
        await asyncio.sleep(0.005)
        return 1

    async def paying() -> int:
        return pay()

    @hf.agent
    async def agent() -> list[int]:
        return list(await hf.gather(work(), paying()))

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    assert "step.done 1" in lines(store)


@pytest.mark.parametrize("mode", ["async", "threads"])
def test_resuming_goes_behind_the_failures_of_all_branches(mode: str) -> None:
    calls: list[int] = []

    def body(number: int) -> int:
        calls.append(number)
        if len(calls) <= 4:
            raise ConnectionError(f"down {number}")
        return number

    @hf.agent
    async def agent() -> list[int]:
        async def look(number: int) -> int:
            return body(number)

        return list(await hf.map(hf.step(look), [1, 2, 3, 4]))

    @hfs.agent
    def blocking() -> list[int]:
        def look(number: int) -> int:
            return body(number)

        return list(hfs.map(hfs.step(look), [1, 2, 3, 4]))

    store = MemoryStore()
    played = agent if mode == "async" else blocking
    with pytest.raises(ConnectionError, match="down 1"):
        play(store, played)
    assert play(store, played) == [1, 2, 3, 4]
    assert sorted(calls) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_failures_that_the_code_has_seen_are_not_gone_behind() -> None:
    calls: list[str] = []

    @hf.step(raises=ValueError)
    async def look(name: str) -> str:
        calls.append(name)
        if len(calls) <= 3:
            raise ValueError(name)
        return name

    @hf.agent
    async def agent() -> str:
        try:
            await hf.gather(look("a"), look("b"))
        except ValueError:
            return await look("c")
        return "no error"

    store = MemoryStore()
    with pytest.raises(ValueError, match="c"):
        play(store, agent)
    assert play(store, agent) == "c"
    assert calls == ["a", "b", "c", "c"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("verb", [hf.gather, hf.first])
def test_branches_that_a_run_that_parks_refuses_are_not_said_to_be_forgotten(verb: Callable[..., Awaitable[object]]) -> None:
    @hf.agent
    async def agent() -> None:
        try:
            await hf.ask("Go on?")
        finally:
            await verb(twice(1), twice(2))

    with pytest.raises(hf.RunWaiting):
        play(MemoryStore(), agent)
    gc.collect()
