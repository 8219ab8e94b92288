"""Time-outs that are recorded: what they cancel, what they leave alone, and the same after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import LEASE_S, Crash, crashing, lines, play, records, status
from holdfast._clock import SystemClock
from holdfast.life.run import place
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
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


class AnHourLater(SystemClock):
    def now_us(self) -> int:
        return super().now_us() + 3_600_000_000


def an_hour_later(store: MemoryStore, agent: Any) -> Any:
    with hf.Holdfast(store, lease=LEASE_S, clock=AnHourLater()) as app:
        return app.run(agent, run_id="r", wait=False)


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


def time_out_over_an_effect() -> tuple[bool, str]:
    """After the time-out was recorded the process dies; the effect that would have come next must not begin on replay."""
    crashes = [True]

    @hf.effect(in_doubt="fail")
    async def pay() -> str:
        return "paid"

    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout(0.02):
                if crashes:
                    await asyncio.sleep(5)
                return await pay()
        except TimeoutError:
            if crashes:
                crashes.clear()
                raise Crash from None
            return "late"

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    try:
        result = str(play(store, agent))
    except hf.RunWaiting:
        result = "in doubt"
    return "step.started 2" in lines(store), result


def test_what_a_recorded_time_out_cancelled_does_not_begin_on_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert time_out_over_an_effect() == (False, "late")
    monkeypatch.setattr("holdfast.life.run.Scope.to_be_cancelled", lambda self: False)
    begun, _ = time_out_over_an_effect()
    assert begun


BOTH = 2
"""Writes that are under way when the time-out and the intent are."""


class Gated(MemoryStore):
    """Holds up the record of a time-out, and that of an intent, until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.fires, self.fire, self.begin = threading.Event(), threading.Event(), threading.Event()

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        kinds = {row.kind for one in batch for row in one.rows}
        if "timeout.fired" in kinds:
            self.fires.set()
            assert self.fire.wait(10)
        if "step.started" in kinds and self.fires.is_set():
            assert self.begin.wait(10)
        return super().append(batch, wait=wait)

    async def usher(self, main: asyncio.Task[Any], journal: Journal) -> None:
        """Have the time-out stored once the intent is in the queue, and the intent once the time-out has cancelled."""
        while journal.pending < BOTH:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)
        self.fire.set()
        while not main.cancelling():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)
        self.begin.set()


def time_out_during_an_intent(before: Exception | None = None) -> tuple[list[str], list[str]]:
    """The time-out fires while the intent of an effect is being stored: what was paid, and what the run came to, live and on replay.

    It is the intent of the first attempt, or of the second after the first raised `before`.
    """
    store, paid, ends, failures = Gated(), list[str](), list[str](), [before] if before else []

    @hf.effect(in_doubt="resend", retry=hf.Retry(base="40ms", on=Exception))
    async def pay() -> str:
        if failures:
            raise failures.pop()
        paid.append("paid")
        return "paid"

    @hf.agent
    async def agent() -> str:
        scope = place.get()
        assert scope is not None
        try:
            async with hf.timeout(0.01):
                while not store.fires.is_set() and before is None:  # noqa: ASYNC110 (a thread sets it)
                    await asyncio.sleep(0)
                ushers.append(asyncio.create_task(store.usher(asyncio.current_task(), scope.run.journal)))  # type: ignore[arg-type]
                return await pay()
        except TimeoutError:
            if not ends:
                raise Crash from None
            return "late"

    ushers: list[asyncio.Task[None]] = []
    for _ in range(2):
        try:
            ends.append(str(play(store, agent)))
        except (Crash, hf.RunWaiting) as end:
            ends.append(type(end).__name__)
    assert "step.started 2" in lines(store)
    return paid, ends


def test_an_effect_that_is_cancelled_between_its_intent_and_its_body_is_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert time_out_during_an_intent() == ([], ["Crash", "late"])
    assert time_out_during_an_intent(hf.NotLanded()) == ([], ["Crash", "late"])
    monkeypatch.setattr("holdfast.life.effects.last_moment", lambda *_, **__: iter(()))
    assert time_out_during_an_intent() == ([], ["Crash", "RunWaiting"])


def tried_with_a_minute_between(cut_off: Any) -> tuple[list[int], list[str]]:
    """Something cuts an effect off that waits for its next attempt: the attempts, and what the run came to in three lives."""
    store, tried, ends = MemoryStore(), list[int](), list[str]()

    @hf.effect(in_doubt="ask", retry=hf.Retry(base="1m"))
    async def pay() -> int:
        tried.append(1)
        if len(ends) == 2:
            return 1
        raise ConnectionRefusedError("nobody is there")

    @hf.agent
    async def agent() -> str:
        try:
            async with cut_off(0.2):
                return f"paid {await pay()}"
        except TimeoutError:
            if not ends:
                raise Crash from None
            return "late"

    for _ in range(2):
        try:
            ends.append(str(play(store, agent)))
        except (Crash, hf.RunInterrupted, hf.RunWaiting) as end:
            ends.append(type(end).__name__)
    ends.append(str(an_hour_later(store, agent)))
    return tried, ends


def test_an_effect_that_is_cut_off_while_it_waits_for_its_next_attempt_is_no_doubt() -> None:
    assert tried_with_a_minute_between(hf.timeout) == ([1], ["Crash", "late", "late"])
    assert tried_with_a_minute_between(asyncio.timeout) == ([1, 1], ["RunInterrupted", "RunInterrupted", "paid 1"])


@pytest.mark.parametrize(("asks_first", "open_doubts"), [(False, ["2"]), (True, ["1"])])
def test_a_question_that_a_time_out_cuts_off_leaves_a_doubt_only_where_something_had_begun(
    open_doubts: list[str], *, asks_first: bool
) -> None:
    store, paid, in_doubt = MemoryStore(), list[int](), list[Any](["fail"])

    def paying() -> Any:
        async def charge() -> None:
            paid.append(1)
            raise RuntimeError("no reply")

        pay: Any = hf.effect(name="pay", in_doubt=in_doubt[0])(charge)

        @hf.agent(name="paying")
        async def agent() -> str:
            if asks_first:
                with contextlib.suppress(hf.InDoubt):
                    await pay()
            try:
                async with hf.timeout("1m"):
                    await pay()
            except TimeoutError:
                return "late"
            return "in time"

        return agent

    for expected in (hf.RunWaiting,) if asks_first else (hf.InDoubt, hf.RunWaiting):
        with pytest.raises(expected):
            play(store, paying())
        in_doubt[0] = in_doubt[0] if asks_first else "ask"
    with pytest.raises(hf.RunWaiting):
        an_hour_later(store, paying())
    assert "timeout.fired" in " ".join(lines(store))
    with hf.Holdfast(store) as app:
        assert [item.step_id for item in app.inbox()] == open_doubts
        app.resolve("r", open_doubts[0], not_landed=True)
    assert (an_hour_later(store, paying()), paid) == ("late", [1])


def test_an_earlier_attempt_of_such_an_effect_is_as_doubtful_as_it_was() -> None:
    assert time_out_during_an_intent(ConnectionResetError()) == ([], ["Crash", "RunWaiting"])


def test_effect_cancelled_by_a_time_out_is_a_doubt() -> None:
    paid: list[int] = []

    @hf.effect(in_doubt="resend")
    async def pay() -> int:
        paid.append(1)
        await asyncio.sleep(5)
        return 1

    @hf.agent
    async def agent() -> str:
        try:
            async with hf.timeout(0.01):
                await pay()
        except TimeoutError:
            return "late"
        return "in time"

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting, match=r"pay\(\) at step 2"):
        play(store, agent)
    assert paid == [1]
    with hf.Holdfast(store) as app:
        app.resolve("r", "2", landed=1)
    assert play(store, agent) == "late"
    assert paid == [1]


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
