"""What another run has come to, which a run's code or a body had executed and let escape, is a failure like any other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast as hf
from holdfast import Holdfast, errors
from holdfast.fleet.worker import Worker
from holdfast.stores.memory import MemoryStore

BOUND_S = 20
SAID: dict[str, Callable[[], BaseException]] = {
    "lease": lambda: errors.LeaseLost("other"),
    "waiting": lambda: errors.RunWaiting("other", "for a person."),
    "paused": lambda: errors.RunPaused("other", "ann", ""),
    "cancelled": lambda: errors.RunCancelled("other", "ann", ""),
    "interrupted": lambda: errors.RunInterrupted("other", "1"),
    "mismatch": lambda: errors.ReplayMismatch("other", "1", "a", "b"),
}
entered: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def anew() -> None:
    entered.clear()


@hf.step
async def executes(kind: str) -> str:
    entered[kind] += 1
    error = SAID[kind]()
    raise error


@hf.agent
async def in_a_body(kind: str) -> str:
    return await executes(kind)


@hf.agent
async def in_its_code(kind: str) -> str:
    entered[kind] += 1
    error = SAID[kind]()
    raise error


@pytest.mark.parametrize("agent", [in_a_body, in_its_code], ids=["body", "code"])
@pytest.mark.parametrize("kind", SAID)
def test_the_word_of_another_run_fails_the_run_once(kind: str, agent: Callable[[str], Any]) -> None:
    with Holdfast(MemoryStore()) as app, ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: app.run(agent, kind, run_id="r"))
        assert running.exception(BOUND_S) is not None
        assert app.show("r").status == "failed"
    assert entered == {kind: 1}


@pytest.mark.parametrize("agent", [in_a_body, in_its_code], ids=["body", "code"])
def test_a_worker_does_not_try_it_again_and_again(agent: Callable[[str], Any]) -> None:
    async def until_failed(app: Holdfast) -> None:
        worker = Worker(app.engine, [agent], concurrency=3)
        working = asyncio.create_task(worker.work())
        async with asyncio.timeout(BOUND_S):
            while {run.status for run in app.runs()} != {"failed"}:  # noqa: ASYNC110 (the store tells)
                await asyncio.sleep(0.02)
        worker.stop()
        await working

    with Holdfast(MemoryStore()) as app:
        for kind in SAID:
            app.submit(agent, kind, run_id=kind)
        asyncio.run(until_failed(app))
    assert entered == dict.fromkeys(SAID, 1)
