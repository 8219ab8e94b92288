"""A handle to a run of any process: its result or what ended it, where it stands, and cancelling it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from crashing import play
from holdfast.stores.memory import MemoryStore


@dataclass
class Receipt:
    cents: int


@hf.agent
async def buy(cents: int) -> Receipt:
    if cents < 0:
        raise ValueError("no such amount")
    return Receipt(cents)


@hf.agent
async def hangs() -> bool:
    return await hf.ask("Go on?")


def test_the_result_comes_in_the_type_of_the_agent_or_as_plain_json() -> None:
    store = MemoryStore()
    play(store, buy, 7)
    with hf.Holdfast(store) as app:
        assert app.handle("r", buy).wait() == Receipt(7)
        assert app.handle("r").wait() == {"cents": 7}
        assert asyncio.run(app.handle("r", buy).result()) == Receipt(7)
        assert (app.handle("r").id, app.handle("r").status()) == ("r", "done")


def test_a_failure_and_a_cancellation_are_raised() -> None:
    store = MemoryStore()
    with pytest.raises(ValueError, match="no such amount"):
        play(store, buy, -1)
    with pytest.raises(hf.RunWaiting):
        play(store, hangs, run_id="waiting")
    with hf.Holdfast(store) as app:
        with pytest.raises(hf.RunFailed, match="no such amount"):
            app.handle("r").wait()
        app.handle("waiting").cancel(by="ann", reason="enough")
        with pytest.raises(hf.RunCancelled, match="ann"):
            asyncio.run(app.handle("waiting").result())


def test_a_time_out_leaves_the_run_as_it_is() -> None:
    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, hangs)
    with hf.Holdfast(store) as app:
        handle = app.handle("r", hangs)
        with pytest.raises(TimeoutError):
            handle.wait(timeout=0.01)
        with pytest.raises(TimeoutError):
            asyncio.run(handle.result(timeout=0.01))
        assert handle.status() == "waiting"


def test_who_waits_gets_the_result_when_somebody_else_has_finished_the_run(tmp_path: Path) -> None:
    found: list[Any] = []
    with hf.Holdfast(tmp_path / "runs.db") as here, hf.Holdfast(tmp_path / "runs.db") as there:
        with pytest.raises(hf.RunWaiting):
            there.run(hangs, run_id="r", wait=False)
        waiting = threading.Thread(target=lambda: found.append(here.handle("r", hangs).wait(timeout="30s")))
        waiting.start()
        there.answer("r", "1", yes=True)
        there.run(hangs, run_id="r", wait=False)
        waiting.join()
    assert found == [True]


def test_a_run_that_is_not_there_and_what_is_no_agent_are_refused() -> None:
    with hf.Holdfast("memory:") as app:
        with pytest.raises(hf.UnknownRun):
            app.handle("nobody").wait()
        with pytest.raises(hf.UnknownRun):
            app.handle("nobody").cancel()
        with pytest.raises(hf.HoldfastError, match="run id"):
            app.handle("../nobody")
        with pytest.raises(hf.Misuse):
            app.handle("r", len)
        with pytest.raises(hf.Misuse, match="was not started by this handle"):
            app.handle("r").when_ended(print)


def test_waiting_on_the_loop_that_executes_the_run_is_refused() -> None:
    async def main() -> Receipt:
        with hf.Holdfast("memory:") as app:
            handle = await app.start(buy, 5)
            with pytest.raises(hf.Misuse, match="await result"):
                handle.wait()
            found = await handle.result()
            assert await asyncio.to_thread(handle.wait) == found
            return found

    assert asyncio.run(main()) == Receipt(5)


def test_a_time_out_says_which_run_has_no_result_and_that_it_goes_on() -> None:
    async def waits() -> None:
        with hf.Holdfast(MemoryStore()) as app:
            started = await app.start(hangs, run_id="r")
            for _ in range(2):  # while it executes or waits here, and through a handle to it
                with pytest.raises(TimeoutError, match=r"run 'r' has no result after 0.05 s; it goes on"):
                    await started.result(timeout=0.05)
                started = app.handle("r", hangs)
            app.answer("r", "1", yes=True)
            assert await started.result(timeout=20) is True

    asyncio.run(waits())
