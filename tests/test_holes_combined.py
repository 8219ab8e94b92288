"""Holes that were found where two features meet: each is a scenario that once went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests.sites import StillClock
from crashing import Crash, crashing, lines, play, status
from holdfast.stores.memory import MemoryStore

LATER_US = 60_000_000


class World:
    """A store, a clock that stands still, and what was done outside."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), StillClock()
        self.done: list[str] = []

    def run(self, agent: Any) -> Any:
        with hf.Holdfast(self.store, clock=self.clock) as app:
            return app.run(agent, run_id="r", wait=False)

    def operate(self, verb: str, *args: Any, **options: Any) -> None:
        with hf.Holdfast(self.store, clock=self.clock) as app:
            getattr(app, verb)("r", *args, by="ann", **options)


def test_code_that_goes_back_to_what_it_was_does_not_repeat_an_effect() -> None:
    world, what = World(), ["a"]

    @hf.effect(in_doubt="ask")
    async def pay(thing: str) -> None:
        world.done.append(thing)

    @hf.agent
    async def agent() -> None:
        await pay(what[0])
        raise LookupError

    for what[0] in ("a", "b", "a"):
        with pytest.raises((LookupError, hf.ReplayMismatch)):
            world.run(agent)
        if status(world.store) == "blocked":
            world.operate("accept")
            with pytest.raises(LookupError if what[0] == "b" else hf.RunWaiting):
                world.run(agent)
    assert world.done == ["a", "b"]


def test_an_undo_gets_the_arguments_that_the_effect_was_called_with() -> None:
    world = World()

    def take_back(_: None, items: list[str]) -> None:
        world.done.append(f"back {items}")

    @hfs.effect(in_doubt="ask", undo=take_back)
    def ship(items: list[str]) -> None:
        world.done.append(f"ship {items}")

    @hfs.agent(on_failure="undo")
    def agent() -> None:
        items = ["lamp"]
        ship(items)
        items[:] = ["sofa"]
        raise LookupError

    with pytest.raises(LookupError):
        world.run(agent)
    assert world.done == ["ship ['lamp']", "back ['lamp']"]


def gave_up_waiting(world: World) -> Any:
    """An agent that gave up waiting for an approval, did something else, and then failed."""

    async def refund(_: None, what: str) -> None:
        world.done.append(f"refund {what}")

    @hf.effect(in_doubt="ask", undo=refund)
    async def pay(what: str) -> None:
        world.done.append(f"pay {what}")

    @hf.effect(in_doubt="ask", approve=True)
    async def give() -> None:
        raise AssertionError("nobody agreed")

    @hf.agent
    async def agent() -> None:
        await pay("a")
        try:
            async with hf.timeout("20s"):
                await give()
        except TimeoutError:
            await pay("instead")
        raise LookupError

    return agent


def gave_up_waiting_blocking(world: World) -> Any:
    """The same as a `def` agent."""

    def refund(_: None, what: str) -> None:
        world.done.append(f"refund {what}")

    @hfs.effect(in_doubt="ask", undo=refund)
    def pay(what: str) -> None:
        world.done.append(f"pay {what}")

    @hfs.effect(in_doubt="ask", approve=True)
    def give() -> None:
        raise AssertionError("nobody agreed")

    @hfs.agent
    def agent() -> None:
        pay("a")
        try:
            with hfs.timeout("20s"):
                give()
        except TimeoutError:
            pay("instead")
        raise LookupError

    return agent


@pytest.mark.parametrize("made", [gave_up_waiting, gave_up_waiting_blocking])
def test_a_run_that_gave_up_waiting_for_a_person_can_be_undone(made: Callable[[World], Any]) -> None:
    world = World()
    agent = made(world)
    with pytest.raises(hf.RunWaiting):
        world.run(agent)
    world.clock.at_us += LATER_US
    with pytest.raises(LookupError):
        world.run(agent)
    world.operate("cancel", undo=True)
    with pytest.raises(hf.RunCancelled, match="2 effects undone"):
        world.run(agent)
    assert world.done == ["pay a", "pay instead", "refund instead", "refund a"]


def test_what_changed_outside_is_not_looked_at_before_a_step_that_never_began(tmp_path: Path) -> None:
    world, prices, lives = World(), tmp_path / "prices", list[int]()
    prices.write_text("1")

    @hf.step
    async def look(what: str) -> str:
        return what

    @hf.effect(in_doubt="ask", approve=True)
    async def gift() -> None:
        raise AssertionError("nobody agreed")

    @hf.agent
    async def agent() -> str:
        hf.watch(prices, on_change="fail")
        await look("a")
        try:
            async with hf.timeout("20s"):
                await gift()
        except TimeoutError:
            await look("instead")
        lives.append(1)
        if len(lives) == 1:
            raise Crash
        return "done"

    with pytest.raises(hf.RunWaiting):
        world.run(agent)
    world.clock.at_us += LATER_US
    crashing(lambda: world.run(agent))
    prices.write_text("2")
    assert world.run(agent) == "done"


def test_an_answer_that_comes_too_late_is_taken_when_the_run_parks() -> None:
    world = World()

    @hf.effect(in_doubt="ask", approve=True)
    async def pay(what: str) -> None:
        world.done.append(what)

    @hf.agent
    async def agent() -> None:
        await pay("a")
        await pay("b")

    with pytest.raises(hf.RunWaiting):
        world.run(agent)
    world.operate("answer", "approve:1", yes=True)
    world.store.post("r", "answer", b'{"ask": "approve:1", "yes": true, "by": "bob"}', world.clock.now_us())
    with pytest.raises(hf.RunWaiting):
        world.run(agent)
    assert world.store.letters(["r"]) == []
    assert world.done == ["a"]


def test_a_race_whose_winner_needs_a_person_parks() -> None:
    world, failing = World(), [True]

    @hf.step
    async def think() -> int:
        if failing[0]:
            raise LookupError
        return 1

    @hf.step
    async def slow() -> int:
        await asyncio.Event().wait()
        return 2

    @hf.effect(in_doubt="ask", approve=True)
    async def pay() -> str:
        return "paid"

    async def winner() -> str:
        await think()
        return await pay()

    @hf.agent
    async def agent() -> object:
        return await hf.first(winner(), slow())

    with pytest.raises(LookupError):
        play(world.store, agent)
    failing[0] = False
    with hf.Holdfast(world.store) as app, pytest.raises(hf.RunWaiting):
        app.run(agent, run_id="r", wait=False)
    assert lines(world.store)[-1] == "run.waiting"


def test_two_time_outs_that_are_over_at_once_leave_no_cancellation_behind() -> None:
    world, lives = World(), list[int]()

    @hf.step
    async def slow() -> int:
        lives.append(1)
        if len(lives) == 1:
            raise Crash
        await asyncio.Event().wait()
        return 1

    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout("20s"):
                try:
                    async with hf.timeout("10s"):
                        await slow()
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"
        return "neither"

    crashing(lambda: world.run(agent))
    world.clock.at_us += LATER_US
    first = world.run(agent)
    assert first in ("inner", "outer")
    assert world.run(agent) == first
