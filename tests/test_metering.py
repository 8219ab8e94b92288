"""Meters, limits and the roster of those who share a store: what each of them counts, with many who count at the same time."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast as hf
from agents_for_tests.sites import StillClock
from holdfast import Holdfast, _failpoints, _roster, _submitting
from holdfast._metering import Meter
from holdfast.errors import Misuse
from holdfast.store import Drawn
from holdfast.stores import _postgres_limits
from holdfast.stores._meters import moved_on
from holdfast.stores._postgres_text import plain, sql_text
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore


@hf.agent
async def greets(name: str) -> str:
    return f"hello {name}"


def test_a_meter_lets_as_much_through_as_may_be_saved_up_and_then_no_more_than_the_rate() -> None:
    stands_us, let_through = 0, list[int]()
    for at_us in range(0, 2_000_000, 10_000):
        drawn, stands_us = moved_on(stands_us, step_us=100_000, within_us=1_000_000, at_us=at_us)
        let_through += [at_us] if drawn.granted else []
    assert len([at_us for at_us in let_through if at_us < 100_000]) == 10
    assert len(let_through) == 20 + 9


def test_more_than_there_ever_is_at_once_can_be_drawn_where_nothing_was_drawn_before() -> None:
    drawn, stands_us = moved_on(0, step_us=5_000_000, within_us=1_000_000, at_us=7)
    assert (drawn.granted, stands_us) == (True, 5_000_007)
    assert moved_on(stands_us, step_us=1, within_us=1_000_000, at_us=8)[0].granted is False


def test_a_meter_tells_how_long_to_wait_and_is_right() -> None:
    clock = StillClock()
    meter = Meter(MemoryStore(), clock, [hf.Limit(resource="calls", amount=2, per="1s")])
    assert [meter.wait_s("calls", 1) for _ in range(2)] == [0.0, 0.0]
    wait_s = meter.wait_s("calls", 1)
    assert 0 < wait_s <= 0.5
    clock.sleep(wait_s)
    assert meter.wait_s("calls", 1) == 0.0
    assert meter.wait_s("what has no limit", 1_000_000) == 0.0


class Ahead(MemoryStore):
    """A store with a clock of its own, which is an hour ahead of everybody's."""

    def draw(self, meter: str, *, step_us: int, within_us: int | None, at_us: int) -> Drawn:
        return super().draw(meter, step_us=step_us, within_us=within_us, at_us=at_us + 3_600_000_000)


def test_how_long_to_wait_does_not_depend_on_what_time_it_is_in_the_store() -> None:
    meter = Meter(Ahead(), StillClock(), [hf.Limit(resource="calls", amount=2, per="1s")])
    assert [meter.wait_s("calls", 1) for _ in range(2)] == [0.0, 0.0]
    assert 0 < meter.wait_s("calls", 1) <= 0.5


def test_two_limits_of_one_resource_are_refused() -> None:
    twice = [hf.Limit(resource="calls", amount=amount) for amount in (1, 2)]
    with pytest.raises(Misuse, match="two for one resource"):
        Holdfast(MemoryStore(), limits=twice)


def test_those_who_draw_from_one_meter_of_postgresql_at_the_same_time_get_no_more_than_there_is(postgres_store: PostgresStore) -> None:
    assert "calls" not in _postgres_limits.STANDS
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda _: postgres_store.draw("calls", step_us=60_000_000, within_us=600_000_000, at_us=0), range(40)))
    assert Counter(one.granted for one in drawn) == {True: 10, False: 30}


@pytest.mark.parametrize("text", ["plain", "a\0b", "\x01", "\0\x01\0", "\x01\x02", "\x01\0\x02"])
def test_any_text_comes_back_from_postgresql_as_it_was(text: str) -> None:
    assert "\0" not in sql_text(text)
    assert plain(sql_text(text)) == text


@pytest.mark.parametrize("point", ["submit.before", "submit.after"])
def test_who_dies_while_leaving_a_run_to_workers_leaves_it_once_when_it_tries_again(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    with Holdfast(MemoryStore()) as app:
        monkeypatch.setattr(_submitting, "reach", dies)
        with pytest.raises(KeyboardInterrupt):
            app.submit(greets, "ann", run_id="run")
        assert [run.run_id for run in app.runs()] == (["run"] if point == "submit.after" else [])
        monkeypatch.setattr(_submitting, "reach", _failpoints.reach)
        app.submit(greets, "ann", run_id="run")
        assert [(run.run_id, run.status) for run in app.runs()] == [("run", "queued")]
        assert len(app.history("run")) == 1


def test_the_roster_tells_what_workers_say_of_themselves_and_forgets_those_that_died_with_nothing_in_hand(tmp_path: Path) -> None:
    dying = SqliteStore(tmp_path / "runs.db")
    with Holdfast(tmp_path / "runs.db") as app:
        told = _roster.introduction(app.engine, agents=["greets"], queues=["default"], concurrency=3, stopping=False)
        assert json.loads(told)["concurrency"] == 3
        dying.enroll("host.dying")
        dying.introduce("host.dying", told)
        (worker,) = app.workers()
        assert (worker.life, worker.agents, worker.concurrency, worker.runs) == ("alive", ("greets",), 3, ())
        _roster.forget_dead(app.engine)
        assert len(app.workers()) == 1
        assert [one.dead for one in dying.owners()] == [False]
        dying.close()
        assert [one.life for one in app.workers()] == ["dead"]
        _roster.forget_dead(app.engine)
        assert app.workers() == []
