"""What came out of random programs that were killed again and again: the code sees the same live and on replay."""

from __future__ import annotations

import threading
import time

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, lines, play, status
from holdfast.stores.memory import MemoryStore

TIME_S = 0.5
"""Long enough for a child to begin, on any machine."""


@hf.step
def see(what: str) -> str:
    return what


@pytest.mark.parametrize("child_id", ["r.2.1.1", "r.2.1.1.1"], ids=["a child", "a child of a child"])
def test_a_time_out_in_one_thread_reaches_a_child_in_another_as_a_time_out(child_id: str) -> None:
    began, fired, views = threading.Event(), threading.Event(), list[str]()

    @hf.agent
    def child() -> str:
        see("begun")
        began.set()
        assert fired.wait(5)
        return see("never")

    @hf.agent
    def between() -> str:
        return child()

    def too_late() -> str:
        assert began.wait(5)
        time.sleep(TIME_S)
        try:
            return see("late")
        finally:
            fired.set()

    @hf.agent
    def agent() -> str:
        seen = "in time"
        try:
            with hfs.timeout(TIME_S):
                hfs.gather(child if child_id == "r.2.1.1" else between, too_late)
        except TimeoutError:
            seen = "late"
        views.append(seen + see(", after"))
        if len(views) == 1:
            raise Crash
        return seen

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert (play(store, agent), views) == ("late", ["late, after"] * 2)
    assert (status(store, child_id), lines(store, child_id)[-1]) == ("cancelled", "run.cancelled")


def test_a_child_that_had_cleaned_up_is_undone_without_waiting_for_somebody_to_ask_for_that(caplog: pytest.LogCaptureFixture) -> None:
    did: list[str] = []

    def unbook(_: str) -> None:
        did.append("undone")

    @hf.effect(in_doubt="ask", undo=unbook)
    async def book() -> str:
        did.append("booked")
        return "r-9"

    @hf.agent
    async def child() -> str:
        hf.cleanup(did.append, "tidied")
        return await book()

    @hf.agent(on_failure="undo")
    async def parent() -> str:
        await child()
        raise ValueError("too dear")

    with pytest.raises(ValueError, match="too dear"):
        play(MemoryStore(), parent)
    assert did == ["booked", "tidied", "undone"]
    assert "nobody asked" not in caplog.text
