"""Time-outs that are recorded: what they cancel, what they leave alone, and the same after a crash."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import AnHourLater, Crash, crashing, lines, play, records, status
from holdfast.records import kinds as rec
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore


@hf.step
async def quick(text: str = "quick") -> str:
    return text


@hf.step
async def endless() -> str:
    await asyncio.sleep(5)
    return "never"


def test_block_that_is_quick_enough_is_not_disturbed() -> None:
    @hf.agent
    async def agent() -> str:
        async with hf.timeout("5s"):
            return await quick()

    store = MemoryStore()
    assert play(store, agent) == "quick"
    assert "timeout.fired 1" not in lines(store)


def test_time_out_names_what_it_broke_off() -> None:
    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout(0.01):
                await endless()
        except TimeoutError:
            return "late"
        return "in time"

    store = MemoryStore()
    assert play(store, agent) == "late"
    assert [record.cause for record in records(store) if isinstance(record, rec.StepBrokenOff)] == ["1"]


@hf.step
def quick_def() -> None:
    """Where the time-out of a thread comes."""


@hf.agent
async def slow() -> None:
    async with hf.timeout(0.01):
        await endless()


@hf.agent(name="slow")
def slow_def() -> None:
    with hfs.timeout(0.01):
        time.sleep(0.02)
        quick_def()


@pytest.mark.parametrize("agent", [slow, slow_def], ids=["async", "def"])
def test_time_out_says_what_took_too_long_live_and_on_replay(agent: Any) -> None:
    store = MemoryStore()
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"^what is inside took longer than the 0\.01 s of hf\.timeout"):
            play(store, agent)
    with hf.Holdfast(store) as app:
        assert "0.01 s of hf.timeout" in app.show("r").last_error


def test_time_that_went_by_before_a_crash_counts() -> None:
    crashes = [True]

    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout("1m"):
                await quick()
                if crashes:
                    crashes.clear()
                    raise Crash
                return await endless()
        except TimeoutError:
            return "late"

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    with hf.Holdfast(store, clock=AnHourLater()) as app:
        assert app.run(agent, run_id="r") == "late"


@pytest.mark.parametrize("die_in_finally", [False, True])
def test_steps_that_tidy_up_after_a_time_out_are_executed(*, die_in_finally: bool) -> None:
    tidied: list[str] = []

    @hf.step
    async def tidy() -> None:
        tidied.append("tidy")
        if die_in_finally and len(tidied) == 1:
            raise Crash

    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout(0.01):
                try:
                    await endless()
                finally:
                    await tidy()
        except TimeoutError:
            return "late"
        return "in time"

    store = MemoryStore()
    if die_in_finally:
        crashing(lambda: play(store, agent))
    assert play(store, agent) == "late"
    assert len(tidied) == (2 if die_in_finally else 1)


class HeldUp(MemoryStore):
    """Writes the time-out only when the step inside has come to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        if any(row.kind == "timeout.fired" for append in batch for row in append.rows):
            assert self.go.wait(5)
            time.sleep(0.005)
        return super().append(batch, wait=wait)


def test_time_out_that_is_recorded_counts_even_if_the_block_ends_meanwhile() -> None:
    views: list[str] = []
    store = HeldUp()

    @hf.step
    async def just_in_time() -> str:
        await asyncio.sleep(0.03)
        store.go.set()
        return "done"

    @hf.agent
    async def agent() -> int:
        seen = ""
        try:
            async with hf.timeout(0.015):
                seen += await just_in_time()
        except TimeoutError:
            seen += ", late"
        views.append(seen + ", " + await quick("after"))
        if len(views) == 1:
            raise Crash
        return 0

    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views == ["done, late, after"] * 2


def test_a_body_that_swallows_its_cancellation_does_not_undo_the_time_out() -> None:
    views: list[str] = []

    @hf.step
    async def tidy_minded() -> str:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return "what there was"
        return "never"

    @hf.agent
    async def agent() -> int:
        seen = ""
        try:
            async with hf.timeout(0.01):
                seen += await tidy_minded()
                seen += await quick(", more")
        except TimeoutError:
            seen += ", late"
        views.append(seen + ", " + await quick("after"))
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views == ["what there was, late, after"] * 2


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("how", ["gather", "first", "alone"])
def test_two_time_outs_that_fire_at_once_leave_the_same_steps_to_be_done_live_and_on_replay(how: str, *, inside: bool) -> None:
    did: list[str] = []
    views: list[list[str]] = []

    @hf.step
    async def tidy(what: str) -> str:
        did.append(what)
        return what

    async def branch(log: list[str], name: str) -> None:
        try:
            async with hf.timeout(0.01):
                try:
                    await endless()
                finally:
                    if inside:
                        log.append(await tidy(f"inside {name}"))
        except TimeoutError:
            log.append(f"late {name}")
        finally:
            log.append(await tidy(f"behind {name}"))

    @hf.agent
    async def agent() -> int:
        log: list[str] = []
        try:
            async with hf.timeout(0.01):
                if how == "alone":
                    await branch(log, "a")
                else:
                    await getattr(hf, how)(branch(log, "a"), branch(log, "b"))
        except TimeoutError:
            log.append("late")
        views.append([*log, await tidy("after")])
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    once = list(did)
    play(store, agent)
    assert views[0] == views[1]
    assert did == once
    assert {"behind a", "after"} <= set(did)


def test_inner_time_out_leaves_the_outer_block_alone() -> None:
    @hf.agent
    async def agent() -> list[str]:
        seen = []
        async with hf.timeout(5):
            try:
                async with hf.timeout(0.01):
                    await endless()
            except TimeoutError:
                seen.append("inner")
            seen.append(await quick())
        return seen

    assert play(MemoryStore(), agent) == ["inner", "quick"]


def test_outer_time_out_goes_through_the_inner_block() -> None:
    views: list[list[str]] = []

    @hf.agent
    async def agent() -> int:
        seen: list[str] = []
        views.append(seen)
        try:
            async with hf.timeout(0.01):
                try:
                    async with hf.timeout(5):
                        await endless()
                except TimeoutError:
                    seen.append("inner")
        except TimeoutError:
            seen.append("outer")
        seen.append(await quick())
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views == [["outer", "quick"]] * 2


def test_time_out_around_a_gather_cancels_all_its_branches() -> None:
    views: list[str] = []

    async def branch() -> None:
        await quick()
        await endless()

    @hf.agent
    async def agent() -> int:
        try:
            async with hf.timeout(0.01):
                await hf.gather(branch(), branch())
        except TimeoutError:
            views.append("late")
        await quick()
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views == ["late", "late"]
    assert lines(store).count("step.broken_off 2.1.2") == 1


def test_error_of_the_block_is_not_turned_into_a_time_out() -> None:
    @hf.agent
    async def agent() -> str:
        async with hf.timeout(5):
            await quick()
            raise KeyError("own")

    store = MemoryStore()
    with pytest.raises(KeyError, match="own"):
        play(store, agent)
    assert status(store) == "failed"


def test_step_with_a_time_out_of_its_own_raises_it() -> None:
    @hf.step(timeout=0.005)
    async def slow() -> str:
        await asyncio.sleep(5)
        return "never"

    @hf.agent
    async def agent() -> str:
        try:
            return await slow()
        except TimeoutError:
            return "late"

    assert play(MemoryStore(), agent) == "late"


def test_time_out_on_a_def_step_is_refused() -> None:
    with pytest.raises(hf.Misuse, match="threads cannot be stopped"):

        @hf.step(timeout=1)
        def slow() -> str:
            return ""


@pytest.mark.parametrize("die", ["never", "after", "in finally"])
def test_def_agents_time_out_comes_at_the_next_step_and_is_replayed_there(die: str) -> None:
    views: list[list[str]] = []
    crashes = [die]

    @hfs.step
    def work(name: str, seconds: float = 0.0) -> str:
        time.sleep(seconds)
        if crashes == [name]:
            crashes.clear()
            raise Crash
        return name

    @hfs.agent
    def agent() -> list[str]:
        seen: list[str] = []
        views.append(seen)
        try:
            with hfs.timeout(0.01):
                try:
                    seen.append(work("long", 0.015))
                    seen.append(work("too late"))
                finally:
                    seen.append(work("in finally"))
        except TimeoutError:
            seen.append("TimeoutError")
        seen.append(work("after"))
        if crashes == ["after"]:
            raise Crash
        return seen

    store = MemoryStore()
    began_s = time.monotonic()
    if die != "never":
        crashing(lambda: play(store, agent))
    assert play(store, agent) == ["long", "in finally", "TimeoutError", "after"]
    assert time.monotonic() - began_s < 1.0
    assert lines(store).count("timeout.fired 1") == 1
