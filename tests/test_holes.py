"""Holes that an attack found, by behaviour: what is cancelled, fails or is called at a bad moment is neither lost nor repeated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.sites import HandClock, eventually
from crashing import LEASE_S, Crash, FailingStore, crashing, dies_at, lines, loaded, play, status
from holdfast.errors import ReplayMismatch, StoreFailed
from holdfast.life import turnstile
from holdfast.life.commit import Ticket
from holdfast.life.run import Run
from holdfast.records.journal import Journal, _called_after
from holdfast.running import lease
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(20)  # most of these holes were hangs


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TICK_S", 0.005)
    monkeypatch.setattr(lease, "LETTERS_S", 0.02)
    monkeypatch.setattr(turnstile, "STALL_S", 0.2)


@hf.step
async def same(n: int) -> int:
    return n


@hf.agent
async def adds() -> int:
    return await same(1) + await same(2)


def test_a_cancellation_survives_a_crash_before_it_is_recorded_and_the_resumed_run_does_not_hang() -> None:
    store, started = dies_at("run.cancelled"), asyncio.Event()

    @hf.step
    async def slow() -> int:
        started.set()
        await asyncio.sleep(60)
        return 1

    @hf.agent
    async def agent() -> int:
        return await slow()

    async def cancelled() -> None:
        with hf.Holdfast(store, lease=LEASE_S) as app:
            handle = await app.start(agent, run_id="r")
            await started.wait()
            handle.cancel(by="ann")
            with pytest.raises(StoreFailed):
                await handle.result()

    asyncio.run(cancelled())
    store.mend()
    assert lines(store)[-1] == "step.broken_off 1"
    assert [letter.kind for letter in store.letters(["r"])] == ["cancel"]
    with pytest.raises(hf.RunCancelled, match="ann"):
        play(store, agent)
    assert (status(store), store.letters(["r"])) == ("cancelled", [])


def test_a_run_that_is_cancelled_before_it_has_begun_does_not_begin() -> None:
    store = MemoryStore()

    async def cancelled() -> None:
        with hf.Holdfast(store) as app:
            handle = await app.start(adds, run_id="r")
            handle.cancel()
            with pytest.raises(asyncio.CancelledError):
                await handle.result()

    asyncio.run(cancelled())
    assert store.load("r") is None


def test_a_def_step_beside_an_async_one_is_given_back_without_holding_up_the_other() -> None:
    store, lives = MemoryStore(), list[str]()

    @hf.step
    def quick(n: int) -> int:
        return n

    @hf.step
    async def slow(n: int) -> int:
        await asyncio.sleep(0.05)
        return n

    async def late() -> int:
        await asyncio.sleep(0.01)
        return quick(1)

    @hf.agent
    async def agent() -> int:
        both = await hf.gather(late(), slow(2))
        lives.append("lived")
        if len(lives) == 1:
            raise Crash
        return sum(both)

    crashing(lambda: play(store, agent))
    assert play(store, agent) == 3


def stray_effects() -> tuple[MemoryStore, list[str]]:
    """An agent that returns while one effect that nobody awaits is under way, and another is about to begin."""
    store, log = MemoryStore(), list[str]()
    tasks: list[asyncio.Task[Any]] = []

    @hf.effect(in_doubt="ask")
    async def pay(name: str) -> str:
        log.append(f"begins {name}")
        await asyncio.sleep(0.1)
        log.append(f"paid {name} while {status(store)}")
        return name

    async def later() -> None:
        await asyncio.sleep(0.03)
        await hf.step(pay, call_id="late")("late")

    @hf.agent
    async def agent() -> int:
        tasks.extend([asyncio.create_task(pay("early")), asyncio.create_task(later())])
        await asyncio.sleep(0.01)
        return 1

    async def both() -> None:
        with hf.Holdfast(store) as app:
            handle = await app.start(agent, run_id="r")
            with contextlib.suppress(hf.RunWaiting):
                await handle.result(timeout="0.4s")
            log.append(status(store))
            await asyncio.wait(tasks, timeout=5)
            await asyncio.gather(*tasks, return_exceptions=True)

    with contextlib.suppress(TimeoutError):
        asyncio.run(both())
    return store, log


def test_a_run_is_not_done_before_a_stray_effect_has_ended_and_none_begins_after_the_agent_returned() -> None:
    store, log = stray_effects()
    assert log == ["begins early", "paid early while running", "done"]
    assert lines(store) == ["run.started", "step.started 1", "step.done 1", "run.done"]


def test_without_the_guard_a_stray_effect_begins_after_the_agent_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "concluding", property(lambda self: False, lambda self, value: None), raising=False)
    _, log = stray_effects()
    assert "begins late" in log


def test_without_the_wait_a_run_ends_before_its_stray_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "effects", property(lambda self: set(), lambda self, value: None), raising=False)
    _, log = stray_effects()
    assert log[:2] == ["begins early", "paid early while waiting"]


def answering(*, with_effect: bool) -> tuple[MemoryStore, list[str], Any]:
    """An agent whose first step fails in its first life, and which calls something in answer to that."""
    store, calls = MemoryStore(), list[str]()

    @hf.step
    async def fragile() -> int:
        calls.append("fragile")
        if calls.count("fragile") == 1:
            raise OSError("storm")
        return 1

    async def release() -> None:
        calls.append("release")

    answer: Any = hf.effect(in_doubt="ask")(release) if with_effect else hf.step(release)

    @hf.agent
    async def agent() -> int:
        try:
            return await fragile() + await same(2)
        finally:
            await answer()

    with pytest.raises(OSError, match="storm"):
        play(store, agent)
    return store, calls, agent


def test_safe_steps_called_in_answer_to_a_failure_are_forgotten_when_the_failure_is_cleared() -> None:
    store, calls, agent = answering(with_effect=False)
    assert play(store, agent) == 3
    assert play(store, agent) == 3
    assert calls == ["fragile", "release", "fragile", "release"]


def test_a_run_that_answered_a_failure_with_an_effect_is_blocked_when_the_failure_is_cleared() -> None:
    store, calls, agent = answering(with_effect=True)
    for _ in range(2):
        with pytest.raises(ReplayMismatch):
            play(store, agent)
    assert (status(store), calls.count("release")) == ("blocked", 1)


def test_without_the_look_for_effects_the_answer_to_a_failure_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_all(journal: Journal, step_id: str, failure: Any) -> None:
        for found in [found for found in journal.histories if _called_after(found, step_id.split(".")[:-1], failure.called)]:
            del journal.histories[found]

    store, calls, agent = answering(with_effect=True)
    monkeypatch.setattr(Journal, "_retire", forget_all)
    play(store, agent)
    assert calls.count("release") == 2


def test_a_doubt_with_an_endless_reason_reads_the_same_live_and_on_replay() -> None:
    store, seen = MemoryStore(), list[str]()

    @hf.effect(in_doubt="fail")
    async def pay() -> int:
        raise RuntimeError("x" * 20_000)

    @hf.step
    async def then() -> int:
        if len(seen) == 1:
            raise Crash
        return 2

    @hf.agent
    async def agent() -> int:
        try:
            return await pay()
        except hf.InDoubt as doubt:
            seen.append(str(doubt))
        return await then()

    crashing(lambda: play(store, agent))
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert len(seen[0]) < 3000


def test_an_effect_that_raises_an_error_without_readable_text_is_in_doubt_like_any_other() -> None:
    store, caught = MemoryStore(), list[str]()

    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        raise Unreadable

    @hf.agent
    async def agent() -> int:
        try:
            return await pay()
        except Exception as error:
            caught.append(type(error).__name__)
            raise

    with pytest.raises(hf.RunWaiting, match="Unreadable"):
        play(store, agent)
    with hf.Holdfast(store) as app:
        app.resolve("r", "1", landed=5, by="ann")
    assert (play(store, agent), caught) == (5, [])


def repeated_ids() -> tuple[list[int], Any]:
    """Two calls with one id, and a third whose id looks like the second's number; crashed and gone on with."""
    store, paid, lives = MemoryStore(), list[int](), list[str]()

    @hf.effect(in_doubt="resend")
    async def pay(n: int) -> int:
        paid.append(n)
        return n

    @hf.agent
    async def agent() -> list[int]:
        found = [await hf.step(pay, call_id=call_id)(n) for n, call_id in enumerate(["a", "a", "a#2", "a%232"])]
        lives.append("lived")
        if len(lives) == 1:
            raise Crash
        return found

    crashing(lambda: play(store, agent))
    return paid, play(store, agent)


def test_a_call_id_with_a_number_sign_is_not_taken_for_a_repetition() -> None:
    assert repeated_ids() == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_without_the_escape_a_call_id_with_a_number_sign_is_taken_for_a_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.verbs.decorators.checked_call_id", str)
    with pytest.raises(ReplayMismatch):
        repeated_ids()


def test_a_tool_that_was_retried_under_one_call_id_is_executed_each_time() -> None:
    calls: list[int] = []

    @hf.effect(in_doubt="resend", raises=LookupError)
    async def find(n: int) -> int:
        calls.append(n)
        raise LookupError("no")

    @hf.agent
    async def agent() -> int:
        for _ in range(3):
            with contextlib.suppress(LookupError):
                await hf.step(find, call_id="a")(1)
        return 1

    store = MemoryStore()
    assert (play(store, agent), calls) == (1, [1, 1, 1])
    assert [line for line in lines(store) if "failed" in line] == ["step.failed 0:a", "step.failed 0:a#2", "step.failed 0:a#3"]


@pytest.mark.parametrize(("kind", "step_id", "written"), [("step.done", "2", False), ("step.done", "2", True), ("run.started", "", True)])
def test_a_failing_store_does_not_leave_a_run_with_a_living_owner_for_ever(kind: str, step_id: str, written: bool) -> None:  # noqa: FBT001
    store = dies_at(kind, step_id, written=written)
    with hf.Holdfast(store) as owner, hf.Holdfast(store) as other:
        with pytest.raises(StoreFailed):
            owner.run(adds, run_id="r")
        assert loaded(store)[0].owner == owner.engine.keeper.owner
        store.mend()
        assert other.run(adds, run_id="r") == 3
    assert "run.released" in lines(store)
    assert lines(store).count("step.done 1") == 1


def test_a_word_to_a_run_that_a_failing_store_left_behind_reaches_it() -> None:
    store = dies_at("step.done", "2")
    with hf.Holdfast(store) as owner, hf.Holdfast(store) as other:
        with pytest.raises(StoreFailed):
            owner.run(adds, run_id="r")
        store.mend()
        with contextlib.suppress(hf.RunCancelled):
            other.cancel("r", by="ann")
        with pytest.raises(hf.RunCancelled, match="ann"):
            other.run(adds, run_id="r")
    assert status(store) == "cancelled"


def moved_call() -> tuple[MemoryStore, list[int], Any]:
    """A call of a task of one's own that comes before the next step in its second life, and came after it in its first."""
    store, paid, lives = MemoryStore(), list[int](), list[str]()

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        paid.append(n)
        return n

    async def tool(after: asyncio.Event) -> int:
        if len(lives) == 1:
            await after.wait()
        return await hf.step(pay, call_id="c")(1)

    @hf.agent
    async def agent() -> int:
        lives.append("lives")
        after = asyncio.Event()
        await same(1)
        task = asyncio.create_task(tool(after))
        await asyncio.sleep(0.01)
        await same(2)
        after.set()
        await task
        if len(lives) == 1:
            raise Crash
        return 1

    crashing(lambda: play(store, agent))
    return store, paid, agent


def test_a_call_id_that_moved_behind_another_step_blocks_the_run_and_does_not_repeat_the_effect() -> None:
    store, paid, agent = moved_call()
    with pytest.raises(ReplayMismatch, match="2:c"):
        play(store, agent)
    assert (paid, status(store)) == ([1], "blocked")


@pytest.mark.parametrize(("call_id", "n"), [("c", 5), ("d", 1)])
def test_a_call_that_only_has_the_id_or_the_arguments_of_one_under_another_reply_has_not_moved(call_id: str, n: int) -> None:
    store, paid, lives = MemoryStore(), list[int](), list[str]()

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        paid.append(n)
        return n

    @hf.agent
    async def agent() -> int:
        lives.append("lives")
        await same(1)
        if len(lives) > 1:
            await hf.step(pay, call_id=call_id)(n)
        await same(2)
        await hf.step(pay, call_id="c")(1)
        if len(lives) == 1:
            raise Crash
        return 1

    crashing(lambda: play(store, agent))
    assert (play(store, agent), paid) == (1, [1, n])


def test_without_the_search_for_moved_calls_the_effect_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    store, paid, agent = moved_call()
    monkeypatch.setattr("holdfast.life.steps._refuse_moved", lambda call: None)
    with contextlib.suppress(ReplayMismatch):
        play(store, agent)
    assert paid == [1, 1]


def test_a_letter_is_taken_in_the_same_transaction_as_what_follows_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store, told, enough = dies_at("doubt.settled"), lease._told, list[str]()

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        raise TimeoutError

    @hf.step
    async def tick(n: int) -> bool:
        await asyncio.sleep(0.002)
        return not enough

    async def ticks() -> int:
        n = 0
        while await tick(n):
            n += 1
        return n

    @hf.agent
    async def agent() -> int:
        return (await hf.gather(pay(), ticks()))[0]

    def slowly(run: Run, ticket: Ticket) -> None:
        eventually(lambda: ticket.done)  # another commit of the run takes it along
        told(run, ticket)

    async def answered() -> None:
        with hf.Holdfast(store, lease=LEASE_S) as app:
            handle = await app.start(agent, run_id="r")
            while "doubt.opened 1" not in (lines(store) if store.load("r") else []):  # noqa: ASYNC110 (the store tells nobody)
                await asyncio.sleep(0.005)
            with contextlib.suppress(StoreFailed):  # whoever says it may see that too
                await asyncio.to_thread(lambda: app.resolve("r", "1", landed=7, by="ann"))
            with pytest.raises(StoreFailed):
                await handle.result(timeout="10s")

    monkeypatch.setattr(lease, "_told", slowly)
    asyncio.run(answered())
    monkeypatch.setattr(lease, "_told", told)
    store.mend()
    assert [letter.kind for letter in store.letters(["r"])] == ["settle"]
    enough.append("enough")
    assert play(store, agent) == 7
    assert store.letters(["r"]) == []


def test_a_task_group_that_cancels_a_step_interrupts_the_run_and_does_not_cancel_its_caller() -> None:
    store = MemoryStore()

    @hf.step
    async def fails() -> int:
        raise OSError("no")

    @hf.step
    async def slow() -> int:
        await asyncio.sleep(60)
        return 1

    @hf.agent
    async def agent() -> int:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(slow())
        except* OSError:
            pass
        return 1

    for _ in range(2):
        with pytest.raises(hf.RunInterrupted):
            play(store, agent)
    assert status(store) == "queued"


def test_an_error_that_is_no_exception_is_not_swallowed_by_the_error_of_a_lower_branch() -> None:
    store, went_on = MemoryStore(), list[str]()

    @hf.step
    async def fails() -> int:
        raise OSError("no")

    @hf.step
    async def dies() -> int:
        await asyncio.sleep(0.02)
        raise Crash

    @hf.agent
    async def agent() -> int:
        try:
            await hf.gather(fails(), dies())
        except OSError:
            went_on.append("went on")
        return 1

    crashing(lambda: play(store, agent))
    assert (went_on, status(store)) == ([], "queued")


def unfired() -> tuple[str, list[str]]:
    """A time-out that did not fire, behind it an effect whose process dies; gone on with long after the time-out's time."""
    store, clock, keys = FailingStore(lambda row: row.kind == "step.done"), HandClock(), list[str]()

    @hf.effect(in_doubt="resend")
    async def pay() -> int:
        keys.append(hf.key())
        return 1

    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout("10s"):
                await asyncio.sleep(0.03)  # no step: a connection, a lock
        except TimeoutError:
            return "too slow"
        return f"paid {await pay()}"

    with hf.Holdfast(store, clock=clock, lease=LEASE_S) as app, pytest.raises(StoreFailed):
        app.run(agent, run_id="r")
    store.mend()
    clock.ahead_s = 60.0
    with hf.Holdfast(store, clock=clock, lease=LEASE_S) as app:
        return app.run(agent, run_id="r", wait=False), keys


def test_a_time_out_that_did_not_fire_before_an_intent_does_not_fire_on_replay() -> None:
    result, keys = unfired()
    assert result == "paid 1"
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_without_the_live_edge_a_time_out_fires_before_a_recorded_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "at_live_edge", lambda self: not self.turnstile.replaying)
    with pytest.raises(ReplayMismatch):
        unfired()


def test_a_keyboard_interrupt_as_the_store_returns_stays_one_and_the_run_can_be_gone_on_with() -> None:
    class Interrupting(MemoryStore):
        interrupts = True

        def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
            answers = super().append(batch, wait=wait)
            if self.interrupts and any(row.kind == "step.done" for append in batch for row in append.rows):
                self.interrupts = False
                raise KeyboardInterrupt
            return answers

    store, calls = Interrupting(), list[int]()

    @hf.step
    def noted(n: int) -> int:
        calls.append(n)
        return n

    @hf.agent
    def agent() -> int:
        return noted(1) + noted(2)

    with hf.Holdfast(store) as app:
        with pytest.raises(KeyboardInterrupt):
            app.run(agent, run_id="r")
        with hf.Holdfast(store) as other:
            assert other.run(agent, run_id="r") == 3
    assert calls == [1, 2]
