"""Threads in odd places: races that are over before one begins, or with branches of their own, and runs that are stopped meanwhile."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, an_hour_later, crashing, dies_at, lines, play, status
from holdfast.errors import ReplayMismatch, StoreFailed
from holdfast.life.run import Body, Scope, place
from holdfast.stores.memory import MemoryStore


def until_lost(scope: Scope) -> None:
    """Until somebody else has won, for a few seconds at the most."""
    for _ in range(5000):
        if scope.lost:
            return
        time.sleep(0.001)


@contextlib.contextmanager
def first_come() -> Iterator[None]:
    """The first thread goes as far as it can before the second one begins."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_a_winner_among_threads_waits_for_its_turn_without_keeping_others_from_the_race(caplog: pytest.LogCaptureFixture) -> None:
    other, lives = threading.Event(), list[str]()

    @hfs.step
    def work(name: str) -> str:
        return name

    def quick() -> str:
        found = work("quick")
        assert lives or other.wait(5)
        return found

    def slow() -> None:
        work("slow")
        other.set()
        scope = place.get()
        assert isinstance(scope, Scope)
        until_lost(scope)
        work("never")

    @hfs.agent
    def agent() -> str | None:
        won = hfs.first(quick, slow)
        lives.append(str(won))
        if len(lives) == 1:
            raise Crash
        return won

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    with first_come():
        assert play(store, agent) == "quick"
    assert "nobody asked" not in caplog.text


def test_a_thread_that_has_lost_its_race_begins_nothing_in_branches_of_its_own_either() -> None:
    paid = list[str]()

    @hfs.step
    def quick() -> str:
        return "quick"

    @hfs.step
    def slow() -> None:
        body = place.get()
        assert isinstance(body, Body)
        until_lost(body.call.scope)

    @hfs.effect(in_doubt="ask")
    def pay(name: str) -> None:
        paid.append(name)

    def loser() -> str:
        slow()
        hfs.gather(lambda: pay("ann"), lambda: pay("bob"))
        return "loser"

    @hfs.agent
    def agent() -> str:
        return hfs.first(loser, quick)

    assert play(MemoryStore(), agent) == "quick"
    assert paid == []


def test_a_race_inside_a_thread_that_had_lost_is_not_decided_on_replay(caplog: pytest.LogCaptureFixture) -> None:
    begun, lives = threading.Event(), list[str]()

    @hfs.step
    def work(name: str) -> str:
        if name == "slow":
            begun.set()
            body = place.get()
            assert isinstance(body, Body)
            until_lost(body.call.scope)
        assert begun.wait(5)
        return name

    @hfs.agent
    def agent() -> str:
        won = hfs.first(lambda: work("quick"), lambda: hfs.first(lambda: work("slow")))
        lives.append(work("then"))
        if len(lives) == 1:
            raise Crash
        return won

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    before = [line for line in lines(store) if line.startswith("step.")]
    assert before == ["step.done 1.1.1", "step.done 1", "step.done 1.2.1.1.1", "step.done 2"]
    assert play(store, agent) == "quick"
    assert [line for line in lines(store) if line.startswith("step.")] == before
    assert "nobody asked" not in caplog.text


def test_an_effect_of_a_thread_that_lost_is_undone_even_if_its_race_is_over_before_it_begins() -> None:
    died, refunded, store = list[int](), list[str](), dies_at("step.done", "1.2.1")

    def refund(receipt: str) -> None:
        refunded.append(receipt)

    @hfs.effect(in_doubt="ask", undo=refund)
    def pay() -> str:
        return "receipt"

    @hfs.step
    def quick() -> str:
        return "quick"

    def racing() -> str:
        found = quick()
        while not died:
            died.extend([1] if store.failed else [])
            time.sleep(0.001)
        return found

    @hfs.agent(on_failure="undo")
    def agent() -> None:
        hfs.first(racing, pay)
        raise LookupError("sold out")

    with pytest.raises(StoreFailed):
        play(store, agent)
    store.mend()
    with first_come():
        with pytest.raises(hf.RunWaiting):
            play(store, agent)
        with hf.Holdfast(store) as app:
            app.resolve("r", "1.2.1", landed="receipt")
        with pytest.raises(LookupError):
            play(store, agent)
    assert (status(store), refunded) == ("cancelled", ["receipt"])


def test_threads_of_a_run_that_is_stopped_do_not_wait_for_what_nobody_will_ask_for_any_more(caplog: pytest.LogCaptureFixture) -> None:
    others, lives = threading.Event(), list[int]()

    @hfs.step
    def work(name: str) -> str:
        assert name != "last" or others.wait(5)
        return name

    def changing() -> None:
        for number in range(4):
            work("other" if len(lives) > 1 and number == 1 else str(number))
        others.set()

    @hfs.agent
    def agent() -> None:
        lives.append(1)
        hfs.gather(lambda: work("last"), changing)
        raise Crash

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    with first_come(), pytest.raises(ReplayMismatch, match="other"):
        play(store, agent)
    assert "nobody asked" not in caplog.text


def test_a_time_out_around_a_wait_fires_even_if_its_thread_comes_by_before_the_others_were_replayed() -> None:
    @hfs.step
    def work() -> str:
        return "worked"

    def waits() -> str:
        try:
            with hfs.timeout(60):
                return hfs.receive("news", str)
        except TimeoutError:
            return "no news"

    @hfs.agent
    def agent() -> tuple[str, str]:
        return hfs.gather(waits, work)

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    with first_come():
        assert an_hour_later(store, agent) == ("no news", "worked")
