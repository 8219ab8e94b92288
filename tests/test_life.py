"""The life of a step and its interruptions: how often it commits, what is durable when, retries, time-outs, cancellation, parking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.sites import WatchedMemory, WatchedSqlite, eventually
from holdfast.errors import Misuse, RunInterrupted
from holdfast.life.commit import Held
from holdfast.stores.sqlite import SqliteStore

NOW = hf.Retry(attempts=3, base=0, on=Exception)


@pytest.fixture
def store() -> WatchedMemory:
    return WatchedMemory()


@pytest.fixture
def app(store: WatchedMemory) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(store) as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def states(app: hf.Holdfast, step_id: str) -> list[str]:
    return [line.state for line in app.history("r") if line.step_id == step_id]


def kinds(store: Any) -> list[str]:
    loaded = store.load("r")
    assert loaded is not None
    return [row.kind for row in loaded[1]]


# --- commits --------------------------------------------------------------------------------------------------------


@hf.step
async def look(n: int) -> int:
    return n


@hf.effect(in_doubt="ask")
async def send(n: int) -> int:
    return n


@hf.step
def look_blocking(n: int) -> int:
    return n


@hf.effect(in_doubt="ask")
def send_blocking(n: int) -> int:
    return n


@hf.agent
async def mixed() -> int:
    return await look(1) + await send(2) + await look(3)


@hf.agent
def mixed_blocking() -> int:
    return look_blocking(1) + send_blocking(2) + look_blocking(3)


@pytest.mark.parametrize("agent", [mixed, mixed_blocking])
def test_a_safe_step_commits_once_and_an_effect_twice(app: hf.Holdfast, store: WatchedMemory, agent: Any) -> None:
    assert app.run(agent, run_id="r") == 6
    assert store.appends == [["run.started"], ["step.done"], ["step.started"], ["step.done"], ["step.done"], ["run.done"]]


def test_the_intent_is_durable_before_the_body_begins(path: Path) -> None:
    seen: list[list[str]] = []

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        other = SqliteStore(path)
        seen.append(kinds(other))
        other.close()
        return n

    @hf.agent
    async def buy() -> int:
        return await pay(1)

    with hf.Holdfast(path) as app:
        app.run(buy, run_id="r")
    assert seen == [["run.started", "step.started"]]


def test_an_effect_whose_intent_cannot_be_written_does_not_begin(app: hf.Holdfast, store: WatchedMemory) -> None:
    began: list[int] = []

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        began.append(n)
        return n

    @hf.agent
    async def buy() -> int:
        return await pay(1)

    store.trips_at = "step.started"
    with pytest.raises(hf.StoreError, match="on purpose"):
        app.run(buy, run_id="r")
    assert began == []
    assert app.run(buy, run_id="r") == 1
    assert began == [1]


@pytest.mark.parametrize("written", [False, True])
def test_a_safe_step_whose_outcome_may_be_lost_returns_nothing_and_is_decided_by_the_journal(
    app: hf.Holdfast, store: WatchedMemory, *, written: bool
) -> None:
    began: list[int] = []
    returned: list[int] = []

    @hf.step
    async def count(n: int) -> int:
        began.append(n)
        return n

    @hf.agent
    async def counting() -> int:
        returned.append(await count(1))
        return 1

    store.trips_at, store.trips_after = "step.done", written
    with pytest.raises(hf.StoreError):
        app.run(counting, run_id="r")
    assert returned == []
    assert app.run(counting, run_id="r") == 1
    assert began == ([1] if written else [1, 1])


# --- long steps -----------------------------------------------------------------------------------------------------


def test_a_long_step_is_seen_by_another_connection_while_it_runs(path: Path) -> None:
    go_on = threading.Event()

    @hf.step
    def slow(n: int) -> int:
        go_on.wait(20)
        return n

    @hf.agent
    def agent() -> int:
        return slow(1)

    with hf.Holdfast(path) as app, hf.Holdfast(path) as other:
        thread = threading.Thread(target=app.run, args=(agent,), kwargs={"run_id": "r"})
        thread.start()
        try:
            eventually(lambda: other.store.head("r") is not None and "step.started" in kinds(other.store))
            current = other.show("r").current
        finally:
            go_on.set()
            thread.join()
        assert current is not None
        assert current.call == "slow(n=1)"
        assert states(app, "1") == ["done"]


def test_a_quick_step_has_no_started_row(app: hf.Holdfast, store: WatchedMemory) -> None:
    app.run(mixed_blocking, run_id="r")
    assert kinds(store).count("step.started") == 1


# --- retries and time-outs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "def"])
def test_a_step_is_retried_by_its_policy_and_every_attempt_is_in_the_history(app: hf.Holdfast, mode: str) -> None:
    left = [OSError("one"), OSError("two")]

    def shaky(n: int) -> int:
        if left:
            raise left.pop(0)
        return n

    @hf.step(retry=NOW, name="shaky")
    async def shaky_async(n: int) -> int:
        return shaky(n)

    @hf.agent
    async def agent() -> int:
        return await shaky_async(1)

    @hf.agent(name="agent")
    def blocking() -> int:
        return hf.step(shaky, retry=NOW)(1)

    assert app.run(agent if mode == "async" else blocking, run_id="r") == 1
    lines = [line for line in app.history("r") if line.step_id == "1"]
    assert [(line.attempt, line.state) for line in lines] == [(1, "attempt failed"), (2, "attempt failed"), (3, "done")]
    assert [line.note for line in lines[:2]] == ["OSError: one", "OSError: two"]


def test_a_step_whose_retries_are_used_up_raises_the_last_error(app: hf.Holdfast) -> None:
    attempts: list[int] = []

    @hf.step(retry=NOW)
    async def broken() -> int:
        attempts.append(1)
        raise OSError(f"number {len(attempts)}")

    @hf.agent
    async def agent() -> int:
        return await broken()

    for _ in range(2):
        with pytest.raises(OSError, match="number"):
            app.run(agent, run_id="r")
    assert len(attempts) == 6
    assert states(app, "1") == ["attempt failed", "attempt failed", "failed"] * 2


def test_a_type_error_is_not_retried_by_default(app: hf.Holdfast) -> None:
    attempts: list[int] = []

    @hf.step(retry=hf.Retry(base=0))
    async def wrong() -> int:
        attempts.append(1)
        raise TypeError("a mistake")

    @hf.agent
    async def agent() -> int:
        return await wrong()

    with pytest.raises(TypeError, match="a mistake"):
        app.run(agent, run_id="r")
    assert attempts == [1]


def test_a_step_that_takes_too_long_raises_a_timeout(app: hf.Holdfast) -> None:
    @hf.step(timeout=0.05)
    async def slow() -> int:
        await asyncio.sleep(30)
        return 1

    @hf.agent
    async def agent() -> str:
        try:
            return str(await slow())
        except TimeoutError:
            return "too slow"

    assert app.run(agent, run_id="r") == "too slow"
    assert states(app, "1") == ["failed"]


def test_an_effect_that_takes_too_long_is_a_doubt(app: hf.Holdfast) -> None:
    @hf.effect(in_doubt="fail", timeout=0.05)
    async def slow() -> int:
        await asyncio.sleep(30)
        return 1

    @hf.agent
    async def agent() -> int:
        return await slow()

    with pytest.raises(hf.InDoubt, match=r"TimeoutError: it took longer than its timeout of 0.05 s"):
        app.run(agent, run_id="r")
    assert app.inbox()[0].kind == "doubt"


def test_a_timeout_on_a_def_body_is_refused() -> None:
    def slow() -> int:
        return 1

    with pytest.raises(Misuse, match="threads cannot be stopped"):
        hf.step(slow, timeout="5s")
    with pytest.raises(Misuse, match="threads cannot be stopped"):
        hf.effect(in_doubt="ask", timeout="5s")(slow)


# --- cancellation ---------------------------------------------------------------------------------------------------


def interrupted(app: hf.Holdfast, agent: Any, began: asyncio.Event) -> None:
    """Start a run and cancel its task once a body has begun."""

    async def main() -> None:
        handle = await app.start(agent, run_id="r")
        await asyncio.wait_for(began.wait(), 10)
        assert handle._task is not None
        handle._task.cancel()
        with pytest.raises((RunInterrupted, asyncio.CancelledError)):
            await handle.result()

    asyncio.run(main())


@pytest.mark.parametrize("effect", [False, True])
def test_cancelling_a_body_records_that_it_was_broken_off(app: hf.Holdfast, *, effect: bool) -> None:
    began, calls = asyncio.Event(), []
    declare: Any = hf.effect(in_doubt="ask") if effect else hf.step

    @declare  # type: ignore[untyped-decorator]
    async def slow() -> int:
        calls.append(1)
        began.set()
        if len(calls) == 1:
            await asyncio.sleep(30)
        return 1

    @hf.agent
    async def agent() -> int:
        return int(await slow())

    interrupted(app, agent, began)
    assert states(app, "1")[-1] == "broken off"
    if effect:
        with pytest.raises(hf.RunWaiting, match="did slow"):
            app.run(agent, run_id="r", wait=False)
        assert calls == [1]
    else:
        assert app.run(agent, run_id="r") == 1
        assert calls == [1, 1]


def test_a_raw_timeout_that_cancels_an_effect_stops_the_run_and_leaves_a_doubt(app: hf.Holdfast) -> None:
    @hf.effect(in_doubt="ask")
    async def slow() -> int:
        await asyncio.sleep(30)
        return 1

    @hf.agent
    async def agent() -> int:
        try:
            async with asyncio.timeout(0.05):
                return await slow()
        except TimeoutError:
            return -1

    with pytest.raises(RunInterrupted):
        app.run(agent, run_id="r")
    with pytest.raises(hf.RunWaiting):
        app.run(agent, run_id="r", wait=False)
    assert states(app, "1").count("broken off") == 1


def test_a_recorded_timeout_that_cancels_an_effect_leaves_a_doubt_that_keeps_the_run_from_being_done(app: hf.Holdfast) -> None:
    calls: list[int] = []

    @hf.effect(in_doubt="resend")
    async def slow() -> int:
        calls.append(1)
        await asyncio.sleep(30)
        return 1

    @hf.agent
    async def agent() -> int:
        try:
            async with hf.timeout(0.1):
                return await slow()
        except TimeoutError:
            return -1

    for _ in range(2):
        with pytest.raises(hf.RunWaiting):
            app.run(agent, run_id="r", wait=False)
    app.resolve("r", "2", not_landed=True, by="ann")
    assert app.run(agent, run_id="r", wait=False) == -1
    assert calls == [1]


def test_a_cancellation_during_the_commit_is_delivered_after_it(path: Path) -> None:
    """Two runs, so that commits go through the committing thread: there a cancellation can arrive in the middle."""
    store = WatchedSqlite(path)
    went_on: list[str] = []
    cancelled: list[bool] = []

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        store.hold = threading.Event()
        return n

    @hf.agent
    async def agent() -> int:
        result = await pay(1)
        went_on.append("after the effect")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return result

    @hf.agent
    async def other(until: int) -> int:
        await asyncio.sleep(30)
        return until

    async def main(app: hf.Holdfast) -> None:
        beside = await app.start(other, 1, run_id="other")
        await asyncio.to_thread(eventually, lambda: "other" in app.engine.keeper.runs)
        handle = await app.start(agent, run_id="r")
        await asyncio.to_thread(store.entered.wait, 10)
        await asyncio.to_thread(eventually, lambda: store.hold is not None and app.engine.committer._lock.locked())
        assert handle._task is not None
        assert beside._task is not None
        handle._task.cancel()
        await asyncio.sleep(0.05)  # long enough for a cancellation that is not held back to show
        in_time = [*went_on, *([] if not handle._task.done() else ["it has ended"])]
        assert store.hold is not None
        store.hold.set()
        assert in_time == []
        with pytest.raises(asyncio.CancelledError):
            await handle.result()
        beside._task.cancel()
        await asyncio.wait([beside._task])

    with hf.Holdfast(store) as app:
        asyncio.run(main(app))
        assert went_on == ["after the effect"]
        assert cancelled == [True]
        assert states(app, "1") == ["done"]


def test_without_holding_it_back_a_cancellation_breaks_into_the_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: what the commit came to is then not known to the life that waits for it."""
    monkeypatch.setattr(Held, "cancel", asyncio.Future.cancel)
    with pytest.raises(AssertionError):
        test_a_cancellation_during_the_commit_is_delivered_after_it(path)
