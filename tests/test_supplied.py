"""Steps that wait for a resource, before they begin: who gets it when, and what ends the wait (`door.supplied`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast import Holdfast
from holdfast.fleet.worker import Drained, Worker
from holdfast.stores.memory import MemoryStore

BOUND_S = 20
HOURLY = hf.Limit(resource="calls", amount=1, per="1h")


@hf.step(uses="calls")
async def call(name: str) -> str:
    return name


@hf.effect(uses="calls", in_doubt="ask")
def order(name: str) -> str:
    return name


@hf.agent
async def calls(name: str) -> str:
    return await call(name)


@hf.agent
def orders(name: str) -> str:
    return order(name)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not true():  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.01)


def statuses(app: Holdfast) -> dict[str, str]:
    return {run.run_id: run.status for run in app.runs()}


@pytest.mark.parametrize("agent", [calls, orders])
def test_what_ends_or_moves_a_run_reaches_a_step_that_waits_for_a_resource(agent: Callable[[str], object]) -> None:
    async def main() -> None:
        with Holdfast(MemoryStore(), limits=[HOURLY]) as app:
            app.submit(calls, "first", run_id="first")
            worker = Worker(app.engine, [calls, orders], concurrency=8)
            working = asyncio.create_task(worker.work())
            await until(lambda: statuses(app) == {"first": "done"})
            for name in ("cancelled", "paused", "left"):
                app.submit(agent, name, run_id=name)
            await until(lambda: len(app.engine.keeper.runs) == 3)
            app.cancel("cancelled")
            app.pause("paused")
            await until(lambda: statuses(app)["cancelled"] == "cancelled" and statuses(app)["paused"] == "paused")
            worker.stop()
            async with asyncio.timeout(5):
                assert await working == Drained()
            assert statuses(app) == {"first": "done", "cancelled": "cancelled", "paused": "paused", "left": "queued"}
            assert app.inbox() == []
            assert 3590 < app.engine.meter.draw({"calls": 1}, "it").wait_s <= 3600, "what nobody used was given back"

    asyncio.run(main())


@hf.step(uses=lambda amount: {"tokens": amount})
async def use(amount: int) -> int:
    return amount


@hf.agent
async def uses_little(times: int) -> None:
    for _ in range(times):
        await use(50)


@hf.agent
async def uses_much() -> int:
    return await use(800)


def test_who_uses_much_gets_it_while_others_use_little_all_the_time() -> None:
    async def main() -> None:
        with Holdfast(MemoryStore(), limits=[hf.Limit(resource="tokens", amount=1000, per="1s")]) as app:
            for number in range(3):
                app.submit(uses_little, 1000, run_id=f"little-{number}")
            worker = Worker(app.engine, [uses_little, uses_much], concurrency=8)
            working = asyncio.create_task(worker.work())
            await until(lambda: app.engine.meter.draw({"tokens": 1}, "it")[1] > 0)
            app.submit(uses_much, run_id="much")
            await until(lambda: statuses(app)["much"] == "done")
            assert statuses(app) == {"little-0": "running", "little-1": "running", "little-2": "running", "much": "done"}
            worker.stop()
            assert await working == Drained()

    asyncio.run(main())


def test_a_step_that_waits_for_one_resource_leaves_the_other_one_to_others() -> None:
    @hf.step(uses=lambda: {"calls": 1, "machines": 1})
    async def both() -> None:
        """Uses one of each."""

    @hf.agent
    async def wants_both() -> None:
        await both()

    async def main() -> None:
        limits = [HOURLY, hf.Limit(resource="machines", amount=3, per="1h")]
        with Holdfast(MemoryStore(), limits=limits) as app:
            worker = Worker(app.engine, [wants_both], concurrency=8)
            working = asyncio.create_task(worker.work())
            for number in range(4):
                app.submit(wants_both, run_id=f"{number}")
            await until(lambda: sorted(statuses(app).values()) == ["done", "running", "running", "running"])
            worker.stop()
            assert await working == Drained()
            assert [app.engine.meter.draw({"machines": 1}, "it")[:2] for _ in range(2)] == [({}, 0.0)] * 2

    asyncio.run(main())
