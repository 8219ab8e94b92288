"""What was recorded after a failure that somebody goes behind: it does not hold up what is done anew, nor is it taken for another call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import play, status
from holdfast.errors import ReplayMismatch
from holdfast.stores.memory import MemoryStore

SOON_S = 1.5
"""Less than it takes until a recorded outcome is passed over that nobody asks for."""


@hf.step
async def note(text: str) -> str:
    return text


class Fragile:
    """A step that fails as often as it is told to."""

    def __init__(self, failures: int = 1) -> None:
        self.failures = failures

    def body(self) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError("storm")
        return "calm"

    def step(self) -> Any:
        async def fragile() -> str:
            return self.body()

        return hf.step(fragile)


def resumed(agent: Callable[..., Any], store: MemoryStore, failures: int = 1) -> Any:
    """The result of a run that fails so often, whether the last life is quick."""
    for _ in range(failures):
        with pytest.raises(OSError, match="storm"):
            play(store, agent)
    began_s = time.monotonic()
    result = play(store, agent)
    assert time.monotonic() - began_s < SOON_S
    return result


def test_branches_that_begin_behind_one_that_had_failed_do_not_hold_it_up(caplog: pytest.LogCaptureFixture) -> None:
    fragile, end = Fragile().step(), Fragile().step()

    async def each(number: int) -> str:
        return str(await fragile()) if number == 1 else await note(str(number))

    @hf.agent
    async def agent() -> list[str]:
        return [*await hf.map(each, [1, 2, 3, 4], limit=1), await end()]

    assert resumed(agent, MemoryStore(), failures=2) == ["calm", "2", "3", "4", "calm"]
    assert caplog.text == ""


def test_threads_that_begin_behind_one_that_had_failed_do_not_hold_it_up(caplog: pytest.LogCaptureFixture) -> None:
    fragile, lock = Fragile(), threading.Lock()

    @hfs.step
    def work(number: int) -> str:
        with lock:
            return fragile.body() if number == 1 else str(number)

    @hfs.agent
    def agent() -> list[str]:
        return hfs.map(work, [1, 2, 3, 4], limit=1)

    assert resumed(agent, MemoryStore()) == ["calm", "2", "3", "4"]
    assert caplog.text == ""


def test_a_race_that_a_failure_had_won_does_not_hold_up_the_step_that_is_done_anew(caplog: pytest.LogCaptureFixture) -> None:
    fragile, end = Fragile().step(), Fragile().step()

    async def falls() -> str:
        return str(await fragile())

    async def races() -> str:
        return await hf.first(falls(), asyncio.sleep(60, "late"))

    @hf.agent
    async def agent() -> list[str]:
        return [*await hf.gather(races(), note("beside")), await end()]

    assert resumed(agent, MemoryStore(), failures=2) == ["calm", "beside", "calm"]
    assert caplog.text == ""


def test_safe_steps_that_answer_the_failure_of_a_branch_are_forgotten_with_it() -> None:
    fragile = Fragile().step()

    async def branch() -> str:
        return str(await fragile())

    async def inner() -> list[str]:
        try:
            return list(await hf.gather(branch(), note("beside")))
        except OSError:
            await note("answered in the branch around it")
            raise

    @hf.agent
    async def agent() -> list[str]:
        try:
            (found,) = await hf.gather(inner())
        except OSError:
            await note("answered in the main line")
            raise
        return [*found, await note("then")]

    assert resumed(agent, MemoryStore()) == ["calm", "beside", "then"]


def test_a_child_that_was_called_in_answer_to_a_failure_is_for_a_person_to_weigh() -> None:
    fragile, paid, store = Fragile().step(), list[str](), MemoryStore()

    @hf.effect(in_doubt="ask")
    async def pay(to: str) -> None:
        paid.append(to)

    @hf.agent
    async def paying(to: str) -> None:
        await pay(to)

    @hf.agent
    async def agent() -> None:
        try:
            await fragile()
        except OSError:
            await paying("the lifeboat")
            raise
        await paying("the crew")

    with pytest.raises(OSError, match="storm"):
        play(store, agent)
    with pytest.raises(ReplayMismatch, match="lifeboat"):
        play(store, agent)
    assert (status(store), paid) == ("blocked", ["the lifeboat"])
