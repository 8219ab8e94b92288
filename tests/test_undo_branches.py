"""Undoing a run with branches: each is replayed to its live edge first, and outcomes are undone in their order."""

from __future__ import annotations

import asyncio
import threading

import pytest

import holdfast as hf
import holdfast.sync
from agents_for_tests.refunds import (
    BROKEN,
    DONE,
    cancel,
    closed,
    later,
    look,
    pay,
    pay_blocking,
    refund,
    refund_blocking,
    resolve,
    start_afresh,
    undone,
)  # fmt: skip
from crashing import FailingStore, dies_at, play
from holdfast.errors import StoreError
from holdfast.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def _fresh() -> None:
    start_afresh()


# --- branches -------------------------------------------------------------------------------------------------------


def test_branches_are_undone_in_the_order_of_their_outcomes() -> None:
    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await hf.gather(later("slow"), pay("quick"), later("slower"))
        raise ValueError

    store = dies_at("run.undoing")
    with pytest.raises(StoreError):
        play(store, agent)
    store.mend()
    paid = [line.split()[1] for line in DONE if line.startswith("pay")]
    assert paid[0] == "quick"
    with pytest.raises(ValueError):
        play(store, agent)
    assert undone() == paid[::-1]


def test_of_two_that_overlapped_the_one_that_ended_last_is_undone_first() -> None:
    paid = asyncio.Event()

    @hf.effect(in_doubt="ask", undo=refund)
    async def pay_slowly(what: str, cents: int = 5) -> str:
        await paid.wait()
        return f"r-{what}"

    async def quickly() -> None:
        await pay("quick")
        paid.set()

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await hf.gather(pay_slowly("slow"), quickly())
        raise ValueError

    with pytest.raises(ValueError):
        play(MemoryStore(), agent)
    assert undone() == ["slow", "quick"]


def test_every_branch_is_replayed_to_its_edge_before_anything_is_undone() -> None:
    @hf.agent
    async def agent() -> None:
        await hf.gather(pay("a"), later("b"))
        await hf.first(later("c"), later("d"))

    store = dies_at("step.started", "3.1.2")
    with pytest.raises(StoreError):
        play(store, agent)
    store.mend()
    cancel(store)
    closed(store, agent)
    assert sorted(undone()) == sorted(line.split()[1] for line in DONE if line.startswith("pay"))


def test_threads_are_replayed_to_their_ends_too() -> None:
    @hf.step
    def peek(what: str) -> None:
        if what in BROKEN:
            raise ValueError(what)

    def branch(what: str) -> str:
        peek(what)
        return pay_blocking(what)

    @hf.agent
    def agent() -> None:
        holdfast.sync.gather(lambda: branch("a"), lambda: branch("b"), lambda: branch("c"))

    store = MemoryStore()
    BROKEN.add("b")
    with pytest.raises(ValueError):
        play(store, agent)
    paid = [line.split()[1] for line in DONE]
    assert sorted(paid) == ["a", "c"]
    cancel(store)
    assert closed(store, agent) == "2 effects undone"
    assert sorted(undone()) == ["a", "c"]


def test_a_branch_that_waits_for_another_does_not_hold_it_up() -> None:
    """On replay the event is never set: whoever would set it is at its live edge."""

    @hf.agent
    async def agent() -> None:
        event = asyncio.Event()
        await hf.gather(waiting(event), setting(event))

    async def waiting(event: asyncio.Event) -> None:
        await pay("a")
        await event.wait()

    async def setting(event: asyncio.Event) -> None:
        await pay("b")
        await look("c")
        event.set()

    store = dies_at("step.done", "1.2.2")
    with pytest.raises(StoreError):
        play(store, agent)
    store.mend()
    cancel(store)
    assert closed(store, agent) == "2 effects undone"
    assert undone() == ["b", "a"]


def test_a_thread_at_its_live_edge_does_not_cut_the_others_short() -> None:
    live, paid = [True], threading.Event()

    @hf.effect(in_doubt="ask", undo=refund_blocking)
    def doubtful_blocking(what: str) -> str:
        raise TimeoutError

    def doubting() -> str:
        if live:
            paid.wait(5)
        return doubtful_blocking("a")

    def paying() -> None:
        pay_blocking("b")
        pay_blocking("c")
        paid.set()

    @hf.agent
    def agent() -> None:
        holdfast.sync.gather(doubting, paying)

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    live.clear()
    cancel(store)
    with pytest.raises(hf.RunWaiting, match="doubtful_blocking"):
        play(store, agent)
    assert undone() == []  # the doubt is the newest
    resolve(store, "1.1.1", landed="found")
    assert closed(store, agent) == "3 effects undone"
    assert undone() == ["a", "c", "b"]


def test_a_def_effect_of_an_async_agent_at_the_live_edge_does_not_cut_the_others_short() -> None:
    """On replay its branch comes to the edge before the other one has been given what it had recorded."""
    live, paid = [True], asyncio.Event()

    @hf.effect(in_doubt="ask", undo=refund_blocking)
    def doubtful_blocking(what: str) -> str:
        raise TimeoutError

    async def blocking() -> str:
        await look("x")
        if live:
            await paid.wait()
        return doubtful_blocking("a")

    async def quick() -> None:
        await later("b")
        paid.set()

    @hf.agent
    async def agent() -> None:
        await hf.gather(blocking(), quick())

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    live.clear()
    cancel(store)
    resolve(store, "1.1.2", not_landed=True)
    assert closed(store, agent) == "1 effect undone"
    assert undone() == ["b"]


def test_the_loser_of_a_race_is_undone_where_it_had_done_something() -> None:
    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await hf.first(pay_then_wait("a"), later("b"))
        raise ValueError

    async def pay_then_wait(what: str) -> str:
        result = await pay(what)
        await asyncio.sleep(30)
        return result

    store = dies_at("step.started", "undo:1.2.2")
    with pytest.raises(StoreError):
        play(store, agent)
    store.mend()
    with pytest.raises(ValueError):
        play(store, agent)
    assert undone() == ["b", "a"]


def test_an_effect_of_a_task_that_nobody_waits_for_is_waited_for_and_undone() -> None:
    tasks: set[asyncio.Task[str]] = set()

    @hf.effect(in_doubt="ask", undo=refund, call_id="stray")
    async def slow(what: str, cents: int = 5) -> str:
        await asyncio.sleep(0.02)
        DONE.append(f"pay {what}")
        return f"r-{what}"

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        tasks.add(asyncio.create_task(slow("stray")))
        await pay("a")
        raise ValueError

    store = FailingStore()
    with pytest.raises(ValueError):
        play(store, agent)
    assert DONE == ["pay a", "pay stray", "refund r-stray stray 5", "refund r-a a 5"]
