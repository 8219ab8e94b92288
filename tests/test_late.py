"""What comes late: an intent whose acknowledgement took longer than the lease, and a store that was away while others seemed silent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import holdfast.sync as hf
from agents_for_tests.sites import HandClock
from holdfast import Holdfast
from holdfast.errors import LeaseLost
from holdfast.life import effects
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.running.lease import Observer
from holdfast.store import Append, Pulse, Stale
from holdfast.stores.memory import MemoryStore

LEASE_S = 15.0


class Slow(MemoryStore):
    """A store whose acknowledgement of an intent comes after somebody else has taken the run."""

    def __init__(self, clock: HandClock, *, taken: bool) -> None:
        super().__init__()
        self.clock, self.taken = clock, taken
        self.late = 1

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        answers = super().append(batch, wait=wait)
        if self.late and any(row.kind == "step.started" for one in batch for row in one.rows):
            self.late -= 1
            self.clock.ahead_s += LEASE_S
            if self.taken:
                found = self.load("run")
                assert found is not None
                claim = rec.RunResumed(owner="another", why="taken over", silent=True)
                super().append([Journal.load(*found).seal([claim], at_us=self.clock.now_us())])
        return answers


def executed(store: Slow) -> list[str]:
    """What the effect of a run did whose intent was acknowledged late."""
    done: list[str] = []

    @hf.effect(in_doubt="ask")
    def pay() -> str:
        done.append("paid")
        return "r-1"

    @hf.agent
    def pays() -> str:
        return pay()

    with Holdfast(store, clock=store.clock, lease=LEASE_S) as app:
        try:
            app.run(pays, run_id="run")
        except LeaseLost:
            done.append("lost")
    return done


def test_an_effect_does_not_begin_where_the_run_was_taken_over_before_its_intent_was_acknowledged() -> None:
    assert executed(Slow(HandClock(), taken=True)) == ["lost"]


def test_it_would_begin_if_nobody_looked_how_long_that_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "IN_TIME_S", 10 * LEASE_S)
    assert executed(Slow(HandClock(), taken=True)) == ["paid", "lost"]


def test_an_intent_that_was_late_is_recorded_once_more_and_the_effect_happens_once() -> None:
    store = Slow(HandClock(), taken=False)
    assert executed(store) == ["paid"]
    found = store.load("run")
    assert found is not None
    assert [row.kind for row in found[1]] == ["run.started", "step.started", "step.started", "step.done", "run.done"]


class Away(MemoryStore):
    """A store that cannot be reached for a while when somebody asks for a pulse."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock, self.away_s = clock, 0.0

    def pulse(self, owner: str) -> Pulse | None:
        self.clock.ahead_s += self.away_s
        self.away_s = 0.0
        return super().pulse(owner)


def life_after(away_s: float, later_s: float) -> str:
    """What is held of an owner that has not renewed, after the store was away for a while."""
    store = Away(clock := HandClock())
    observer = Observer(store, clock, LEASE_S)
    store.enroll("another")
    assert observer.life_of("another") == "alive"
    store.away_s = away_s
    clock.ahead_s += later_s
    return observer.life_of("another")


def test_who_was_silent_while_the_store_was_away_is_not_held_to_be_gone() -> None:
    assert life_after(away_s=60.0, later_s=0.0) == "alive"


def test_who_is_silent_while_the_store_is_there_is_gone_after_the_lease() -> None:
    assert life_after(away_s=0.0, later_s=LEASE_S) == "expired"
