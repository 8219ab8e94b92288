"""What code may say to its run: current, key, now, cleanup, resource, usage, plain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, dies_at, loaded, play, status
from holdfast.errors import StoreFailed
from holdfast.stores.memory import MemoryStore


@hf.step
async def think(text: str = "") -> str:
    return text


def test_current_tells_who_the_run_is() -> None:
    seen: list[object] = []

    @hf.step
    async def inside() -> str:
        return hf.current().id

    @hf.agent(version="7")
    async def agent() -> str:
        run = hf.current()
        seen.extend([run.id, run.version, run.attempt, run.tags, run.parent])
        return await inside()

    with hf.Holdfast(MemoryStore()) as app:
        assert app.run(agent, run_id="r-1", tags={"customer": "7"}) == "r-1"
    assert seen == ["r-1", "7", 1, {"customer": "7"}, None]


def test_attempt_counts_and_replaying_ends_at_the_live_edge() -> None:
    seen: list[tuple[int, list[bool]]] = []

    @hf.agent
    async def agent() -> int:
        run = hf.current()
        begin = run.replaying
        await think("a")
        middle = run.replaying
        await think("b")
        seen.append((run.attempt, [begin, middle, run.replaying]))
        if len(seen) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert seen == [(1, [False, False, False]), (2, [True, True, False])]


VERBS: list[Callable[[], object]] = [
    hf.current, lambda: hf.state({}), lambda: hf.cleanup(print), lambda: hf.resource(int), lambda: hf.usage(usd=1),
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_verb_outside_a_run_is_refused(verb: Callable[[], object]) -> None:
    with pytest.raises(hf.Misuse):
        verb()


def test_key_outside_an_effect_is_refused() -> None:
    with pytest.raises(hf.NoRun):
        hf.key()

    @hf.step
    async def ask() -> str:
        return hf.key()

    @hf.agent
    async def agent() -> str:
        return await ask()

    with pytest.raises(hf.NoRun):
        play(MemoryStore(), agent)


def test_probe_sees_the_key_of_its_effect() -> None:
    keys: list[str] = []

    async def find() -> hf.Verdict[int]:
        keys.append(hf.key())
        return hf.Landed(1)

    @hf.effect(in_doubt=hf.verify(find, settle=0))
    async def pay() -> int:
        keys.append(hf.key())
        raise ConnectionResetError

    @hf.agent
    async def agent() -> int:
        return await pay()

    assert play(MemoryStore(), agent) == 1
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_now_is_aware_and_the_time_of_the_first_reading() -> None:
    readings: list[datetime] = []

    @hf.agent
    async def agent() -> None:
        readings.append(hf.now())
        await think()
        if len(readings) == 1:
            raise Crash

    store = MemoryStore()
    before = datetime.now(UTC)
    crashing(lambda: play(store, agent))
    after = datetime.now(UTC)
    play(store, agent)
    assert readings[0] == readings[1]
    assert before - timedelta(milliseconds=1) <= readings[0] <= after


def test_now_that_rode_on_no_commit_is_read_again() -> None:
    readings: list[datetime] = []

    @hf.agent
    async def agent() -> None:
        readings.append(hf.now())
        if len(readings) == 1:
            raise Crash
        await think()

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert readings[0] <= readings[1]


def test_now_in_each_branch_is_its_own() -> None:
    views: list[list[datetime]] = []

    async def branch(delay_s: float) -> datetime:
        await asyncio.sleep(delay_s)
        before = hf.now()
        await think()
        return before

    @hf.agent
    async def agent() -> None:
        views.append(list(await hf.gather(branch(0.004), branch(0))))
        if len(views) == 1:
            raise Crash

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views[0] == views[1]
    assert views[0][0] > views[0][1]


def test_cleanup_runs_once_the_newest_first_and_not_when_parked() -> None:
    cleaned: list[str] = []

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        raise ConnectionResetError

    async def close(name: str) -> None:
        cleaned.append(name)

    @hf.agent
    async def agent() -> int:
        hf.cleanup(close, "first")
        hf.cleanup(cleaned.append, "second")
        return await pay()

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    assert cleaned == []
    with hf.Holdfast(store) as app:
        app.resolve("r", "1", landed=3)
    assert play(store, agent) == 3
    assert cleaned == ["second", "first"]
    assert play(store, agent) == 3
    assert cleaned == ["second", "first"]


def test_cleanup_does_not_run_when_the_run_failed_or_crashed() -> None:
    cleaned: list[int] = []
    ends: list[BaseException] = [Crash(), ValueError("failed")]

    @hf.agent
    async def agent() -> str:
        hf.cleanup(cleaned.append, 1)
        if ends:
            raise ends.pop(0)
        return "done"

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    with pytest.raises(ValueError, match="failed"):
        play(store, agent)
    assert cleaned == []
    assert play(store, agent) == "done"
    assert cleaned == [1]


def test_cleanup_that_was_done_before_a_crash_is_not_done_again() -> None:
    cleaned: list[str] = []

    @hf.agent
    async def agent() -> str:
        hf.cleanup(cleaned.append, "old")
        hf.cleanup(cleaned.append, "new")
        return "done"

    store = dies_at("step.done", "cleanup.1")
    with pytest.raises(StoreFailed):
        play(store, agent)
    assert cleaned == ["new", "old"]
    store.mend()
    assert play(store, agent) == "done"
    assert cleaned == ["new", "old", "old"]


def test_cleanup_that_fails_does_not_hinder_the_others(caplog: pytest.LogCaptureFixture) -> None:
    cleaned: list[str] = []

    def bad() -> None:
        raise OSError("gone")

    @hf.agent
    async def agent() -> str:
        hf.cleanup(cleaned.append, "old")
        hf.cleanup(bad)
        return "done"

    store = MemoryStore()
    assert play(store, agent) == "done"
    assert cleaned == ["old"]
    assert "gone" in caplog.text
    assert status(store) == "done"


def test_cleanup_runs_when_the_run_is_cancelled() -> None:
    cleaned: list[str] = []

    async def cancelled() -> None:
        store, begun = MemoryStore(), asyncio.Event()
        with hf.Holdfast(store) as app:

            @hf.agent
            async def agent() -> None:
                hf.cleanup(cleaned.append, "tidy")
                await think()
                begun.set()
                await asyncio.sleep(5)

            handle = await app.start(agent, run_id="r")
            await asyncio.wait_for(begun.wait(), 5)
            handle.cancel(by="ann")
            app.engine.keeper.take_letters()
            with pytest.raises(hf.RunCancelled, match="ann"):
                await handle.result()
            assert status(store) == "cancelled"

    asyncio.run(cancelled())
    assert cleaned == ["tidy"]


class Bank:
    def __init__(self) -> None:
        self.calls = 0


def test_resource_is_handed_over_and_never_recorded() -> None:
    bank = Bank()

    @hf.step
    async def pay(bank: Bank) -> int:
        hf.resource(Bank).calls += 1
        return bank.calls

    @hf.agent
    async def agent() -> int:
        return await pay(hf.resource(Bank))

    store = MemoryStore()
    assert play(store, agent, resources=[bank]) == 1
    assert all(b"calls" not in (row.args or b"") for row in loaded(store)[1])


def test_resource_that_was_not_handed_over_is_an_error() -> None:
    @hf.agent
    async def agent() -> int:
        return hf.resource(Bank).calls

    with pytest.raises(hf.Misuse, match=r"Bank.*resources="):
        play(MemoryStore(), agent, resources=["text"])


def test_usage_is_summed_into_the_run() -> None:
    spent: list[float] = []

    @hf.step
    async def ask(usd: float) -> str:
        hf.usage(model="m", input_tokens=10, output_tokens=5, usd=usd)
        hf.usage(usd=0.25)
        return "answer"

    @hf.step
    async def wrong() -> str:
        hf.usage(usd=0.5)
        raise ValueError("paid for nothing")

    @hf.agent
    async def agent() -> None:
        await ask(1.0)
        spent.append(hf.current().spent.usd)
        try:
            await wrong()
        except ValueError:
            spent.append(hf.current().spent.usd)
        if len(spent) == 2:
            raise Crash
        await ask(2.0)
        spent.append(hf.current().spent.usd)

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert (spent[:2], spent[-1]) == ([1.25, 1.75], 4.0)
    with hf.Holdfast(store) as app:
        assert app.show("r").usd == 4.0


def test_usage_outside_a_step_is_refused() -> None:
    @hf.agent
    async def agent() -> None:
        hf.usage(usd=1)

    with pytest.raises(hf.Misuse, match="inside a step"):
        play(MemoryStore(), agent)


def test_plain_makes_effects_the_plain_functions() -> None:
    @hf.effect(in_doubt="fail")
    async def pay(cents: int) -> str:
        hf.usage(usd=1)
        return f"{cents} under {hf.key()}"

    with hf.plain():
        assert asyncio.run(pay(5)) == "5 under plain"
    with pytest.raises(hf.NoRun, match="pay"):
        _ = pay(5)


def test_verbs_that_do_not_wait_are_the_same_in_def_agents() -> None:
    crashes = [True]

    @hfs.step
    def work() -> float:
        return hfs.current().random.random()

    @hfs.agent
    def agent() -> list[object]:
        seen = [hfs.now().isoformat(), hfs.current().random.random(), work()]
        work()
        if crashes:
            crashes.append(seen)  # type: ignore[arg-type]
            crashes.pop(0)
            raise Crash
        return seen

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    live = crashes.pop()
    assert play(store, agent) == live
