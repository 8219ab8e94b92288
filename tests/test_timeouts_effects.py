"""What a time-out makes of an effect: whether it happened is in doubt only where it may have."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, an_hour_later, crashing, dies_at, lines, play
from holdfast.errors import StoreFailed
from holdfast.life.run import place
from holdfast.records.journal import Journal
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore


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

    It is the intent of the first attempt, or of the second after the first raised `before`: so long after it that the time-out is not
    written in one transaction with that intent, on a busy machine either.
    """
    store, paid, ends, failures = Gated(), list[str](), list[str](), [before] if before else []

    @hf.effect(in_doubt="resend", retry=hf.Retry(base="400ms", on=Exception))
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


def test_a_doubt_that_the_time_was_over_for_is_put_before_a_person_when_the_run_has_nothing_else_to_do() -> None:
    store = dies_at("step.done", "2")

    @hf.effect(in_doubt="resend")
    def pay() -> None:
        pass

    @hf.agent
    def agent() -> str:
        try:
            with hfs.timeout("1m"):
                pay()
        except TimeoutError:
            return "late"
        return "paid"

    with pytest.raises(StoreFailed):
        play(store, agent)
    store.mend()
    with pytest.raises(hf.RunWaiting, match=r"did pay\(\) at step 2 happen"):
        an_hour_later(store, agent)
    with hf.Holdfast(store) as app:
        assert [(item.kind, item.step_id) for item in app.inbox()] == [("doubt", "2")]
        app.resolve("r", "2", not_landed=True)
    assert an_hour_later(store, agent) == "late"
