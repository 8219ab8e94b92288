"""Races in odd places: in threads that are slow to begin, and around branches of their own."""

from __future__ import annotations

import sys
import threading
import time

import pytest

import holdfast.sync as hfs
from crashing import Crash, crashing, lines, play
from holdfast.life.run import Body, Scope, place
from holdfast.stores.memory import MemoryStore


def until_lost(scope: Scope) -> None:
    """Until somebody else has won, for a few seconds at the most."""
    for _ in range(5000):
        if scope.lost:
            return
        time.sleep(0.001)


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
    before = sys.getswitchinterval()
    sys.setswitchinterval(10)  # the first thread goes as far as it can before the second one begins
    try:
        assert play(store, agent) == "quick"
    finally:
        sys.setswitchinterval(before)
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
