"""What comes late: an intent whose acknowledgement took longer than the lease, and a store that was away while others seemed silent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import holdfast.sync as hf
from agents_for_tests.sites import HandClock
from holdfast import Holdfast, _steps
from holdfast import _records as rec
from holdfast._claiming import claimable
from holdfast._journal import Journal
from holdfast.errors import LeaseLost
from holdfast.store import Append, Head, Query, Stale
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
    monkeypatch.setattr(_steps, "IN_TIME_S", 10 * LEASE_S)
    assert executed(Slow(HandClock(), taken=True)) == ["paid", "lost"]


def test_an_intent_that_was_late_is_recorded_once_more_and_the_effect_happens_once() -> None:
    store = Slow(HandClock(), taken=False)
    assert executed(store) == ["paid"]
    found = store.load("run")
    assert found is not None
    assert [row.kind for row in found[1]] == ["run.started", "step.started", "step.started", "step.done", "run.done"]


class Away(MemoryStore):
    """A store that cannot be reached for a minute while somebody looks for runs."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock, self.away_s = clock, 0.0

    def heads(self, query: Query) -> list[Head]:
        self.clock.ahead_s += self.away_s
        self.away_s = 0.0
        return super().heads(query)


def orphaned(away_s: float, later_s: float) -> list[str]:
    """The runs that are taken from a silent owner after the store was away for a while."""

    @hf.agent
    def idles() -> None: ...

    with Holdfast(store := Away(clock := HandClock()), clock=clock, lease=LEASE_S) as app:
        store.enroll("another")
        app.submit(idles, run_id="run")
        found = store.load("run")
        assert found is not None
        store.append([Journal.load(*found).seal([rec.RunResumed(owner="another", why="queued")], at_us=clock.now_us())])
        assert list(claimable(app.engine, ["idles"], ["default"])) == []
        store.away_s = away_s
        clock.ahead_s += later_s
        return [head.run_id for head in claimable(app.engine, ["idles"], ["default"])]


def test_who_was_silent_while_the_store_was_away_is_not_held_to_be_gone() -> None:
    assert orphaned(away_s=60.0, later_s=0.0) == []


def test_who_is_silent_while_the_store_is_there_is_gone_after_the_lease() -> None:
    assert orphaned(away_s=0.0, later_s=LEASE_S) == ["run"]
