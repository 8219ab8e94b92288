"""Meters, limits and the roster of those who share a store: what each of them counts, with many who count at the same time."""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast as hf
from agents_for_tests.sites import StillClock
from holdfast import Holdfast, _failpoints
from holdfast.errors import Misuse
from holdfast.fleet.worker import Worker
from holdfast.life.metering import Meter
from holdfast.operating import roster
from holdfast.running import submitting
from holdfast.store import Ceiling, Draft, Drawn
from holdfast.stores import _postgres_limits
from holdfast.stores._meters import moved_on
from holdfast.stores._postgres_address import address_of
from holdfast.stores._postgres_line import connect
from holdfast.stores._postgres_text import plain, sql_text
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.metering import claim, resting


@hf.agent
async def greets(name: str) -> str:
    return f"hello {name}"


WINDOW_US = 1_000_000


def used(asked: Sequence[tuple[int, int]], window_us: int = WINDOW_US) -> list[tuple[int, int]]:
    """When how much is used by those who want so much from a moment on, each of whom asks again when he was told to."""
    waiting, stands_us, begun = [(at_us, number, step_us) for number, (at_us, step_us) in enumerate(asked)], 0, list[tuple[int, int]]()
    heapq.heapify(waiting)
    while waiting:
        at_us, number, step_us = heapq.heappop(waiting)
        drawn, (stands_us,) = moved_on([stands_us], [Draft("m", step_us, window_us)], at_us)
        if drawn.left:
            heapq.heappush(waiting, (drawn.at_us, number, step_us))
        else:
            begun.append((drawn.at_us, step_us))
    return begun


def test_a_meter_lets_as_much_through_as_may_be_saved_up_and_then_no_more_than_the_rate() -> None:
    begun = used([(at_us, 100_000) for at_us in range(0, 2_000_000, 10_000)])
    assert [at_us for at_us, _ in begun[:11]] == [*range(0, 100_000, 10_000), 100_000]
    assert [at_us for at_us, _ in begun[11:]] == [*range(200_000, 200_000 + 189 * 100_000, 100_000)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_drawn_no_time_sees_more_than_the_rate_and_what_was_saved_up(seed: int) -> None:
    dice = random.Random(seed)
    begun = used([(dice.randrange(10_000_000), dice.choice([1_000, 50_000, 800_000, WINDOW_US])) for _ in range(60)])
    assert len(begun) == 60
    for number, (since_us, _) in enumerate(begun):
        for until in range(number, 60):
            assert sum(step_us for _, step_us in begun[number : until + 1]) <= begun[until][0] - since_us + WINDOW_US


def test_who_wants_much_gets_it_however_many_want_a_little() -> None:
    little = [(at_us, 50_000) for at_us in range(0, 10_000_000, 40_000)]
    begun = used([*little, (2_000_001, 800_000)])
    assert next(at_us for at_us, step_us in begun if step_us == 800_000) < 4_000_000


def test_what_one_of_several_meters_has_is_left_to_others_until_the_other_has_enough() -> None:
    calls, tokens = Draft("calls", 1_000, WINDOW_US), Draft("tokens", 800_000, WINDOW_US)
    assert moved_on([0, 1_000_000], [calls, tokens], 0) == (Drawn(800_000, 800_000, (calls,)), [0, 1_800_000])
    assert moved_on([0, 1_800_000], [calls, tokens], 0) == (Drawn(800_000, 800_000, (calls, tokens)), [0, 1_800_000])
    assert moved_on([0], [calls], 800_000) == (Drawn(800_000), [801_000])


def test_a_meter_that_a_wrong_clock_moved_is_not_believed() -> None:
    clock, meter_of = StillClock(), partial(Meter, limits=[hf.Limit(resource="calls", amount=10, per="1s")])
    meter = meter_of(MemoryStore(), clock)
    clock.at_us += 86_400_000_000
    assert meter.draw({"calls": 1}, "it")[:2] == ({}, 0.0)
    clock.at_us -= 86_400_000_000
    assert meter.draw({"calls": 1}, "it")[:2] == ({}, 0.1)


def test_a_meter_that_the_clock_of_postgresql_moved_is_not_believed(postgres_store: PostgresStore) -> None:
    other = Draft("other", 1, WINDOW_US)
    for drafts in ([Draft("one", 100_000, WINDOW_US)], [Draft("two", 100_000, WINDOW_US), other]):
        postgres_store.advance(drafts[0].meter, 4_000_000_000_000_000)
        drawn = postgres_store.draw(drafts, at_us=0)
        assert drawn.left == tuple(drafts[1:])
        assert 0 < drawn.wait_us <= 100_000
        assert postgres_store.stands(drafts[0].meter, 0) == drawn.at_us + WINDOW_US


def test_the_smallest_amounts_are_not_free() -> None:
    quick = hf.Limit(resource="bytes", amount=5_000_000, per="1s")
    assert [quick.step_us(amount) for amount in (1, 5, 5_000_000)] == [1, 1, 1_000_000]


@pytest.mark.parametrize("amount", [-5, float("nan"), float("inf"), "x", None, True, 10**30, 10.5])
def test_an_amount_that_there_never_is_is_refused_with_the_name_of_the_step(amount: Any) -> None:
    @hf.step(uses=lambda: {"calls": amount})
    async def greedy() -> None:
        raise AssertionError("it must not begin")

    @hf.agent
    async def asks() -> None:
        await greedy()

    with Holdfast(MemoryStore(), limits=[hf.Limit(resource="calls", amount=10, per="1h")]) as app:
        with pytest.raises(Misuse, match=r"greedy, uses .* of 'calls'.*[Ii]t did not begin"):
            app.run(asks)
        assert app.engine.meter.draw({"calls": 10}, "it")[:2] == ({}, 0.0)


def test_a_meter_tells_how_long_to_wait_and_is_right() -> None:
    clock = StillClock()
    meter = Meter(MemoryStore(), clock, [hf.Limit(resource="calls", amount=2, per="1s")])
    assert [meter.draw({"calls": 1}, "it")[:2] for _ in range(4)] == [({}, 0.0), ({}, 0.0), ({}, 0.5), ({"calls": 1}, 0.5)]
    clock.sleep(0.5)
    assert meter.draw({"calls": 1}, "it")[:2] == ({}, 0.5)
    assert meter.draw({"what has no limit": 1_000_000}, "it")[:2] == ({}, 0.0)


def test_a_worker_tells_once_of_a_resource_that_nobody_has_limited(caplog: pytest.LogCaptureFixture) -> None:
    with Holdfast(MemoryStore(), limits=[hf.Limit(resource="tokens", amount=10)]) as app:
        app.engine.meter.draw({"tokns": 1}, "step 1, asks,")
        assert caplog.messages == []
        Worker(app.engine, [greets], concurrency=1)
        for step in (1, 2):
            app.engine.meter.draw({"tokns": 1, "tokens": 1}, f"step {step}, asks,")
    [told] = caplog.messages
    assert told.startswith("step 1, asks, uses 'tokns', of which no Limit here says how much there is")
    assert told.endswith("there are limits of tokens")


@pytest.mark.parametrize(("amount", "per", "at_once", "in_a_second"), [(5, "1s", 5, 10), (1, "0.2s", 1, 6)])
def test_how_many_may_begin_at_once_and_within_a_second(amount: int, per: str, at_once: int, in_a_second: int) -> None:
    clock, begun_s = StillClock(), list[float]()
    meter = Meter(MemoryStore(), clock, [hf.Limit(resource="calls", amount=amount, per=per)])
    clock.sleep(3600)
    since_us = clock.at_us
    while clock.at_us < since_us + 10_000_000:
        clock.sleep(meter.draw({"calls": 1}, "it").wait_s)
        begun_s.append(round((clock.at_us - since_us) / 1e6, 6))
    assert begun_s.count(0.0) == at_once
    assert max(sum(since_s <= at_s <= since_s + 1 for at_s in begun_s) for since_s in begun_s) == in_a_second
    assert len(begun_s) == amount + 50


class Ahead(MemoryStore):
    """A store with a clock of its own, which is an hour ahead of everybody's."""

    def draw(self, drafts: Sequence[Draft], *, at_us: int) -> Drawn:
        return super().draw(drafts, at_us=at_us + 3_600_000_000)


def test_how_long_to_wait_does_not_depend_on_what_time_it_is_in_the_store() -> None:
    meter = Meter(Ahead(), StillClock(), [hf.Limit(resource="calls", amount=2, per="1s")])
    assert [meter.draw({"calls": 1}, "it")[:2] for _ in range(3)] == [({}, 0.0), ({}, 0.0), ({}, 0.5)]


def test_a_key_none_of_whose_runs_is_in_line_any_more_stands_no_further_back_than_others() -> None:
    with Holdfast(MemoryStore()) as app:
        for number in range(30):
            app.submit(greets, "ann", run_id=f"{number}", key="ann")
        last = app.engine.store.head("29")
        for number in range(30):
            app.cancel(f"{number}")
        for run_id, key in (("again", "ann"), ("other", "bob")):
            app.submit(greets, key, run_id=run_id, key=key)
        again, other = app.engine.store.head("again"), app.engine.store.head("other")
        assert last is not None
        assert again is not None
        assert other is not None
        assert again.turn < other.turn < last.turn


def test_a_name_that_is_too_long_to_be_looked_up_is_refused_when_it_is_given() -> None:
    with Holdfast(MemoryStore()) as app:
        with pytest.raises(Misuse, match=r"key 'kkk.* has 201 characters; 200 are the most"):
            app.submit(greets, "ann", key="k" * 201)
        assert app.runs() == []
    for of in ("queue", "resource"):
        with pytest.raises(Misuse, match=f"{of} of Limit 'kkk.* has 9000 characters; 200 are the most"):
            hf.Limit(**{of: "k" * 9000}, running=1)  # type: ignore[arg-type]  # as somebody without a type checker would


def test_a_time_that_a_limit_on_running_would_not_heed_is_refused() -> None:
    with pytest.raises(Misuse, match="per of Limit is '1s', without resource="):
        hf.Limit(queue="mail", running=2, per="1s")


def test_two_limits_of_one_resource_are_refused() -> None:
    twice = [hf.Limit(resource="calls", amount=amount) for amount in (1, 2)]
    with pytest.raises(Misuse, match="two for one resource"):
        Holdfast(MemoryStore(), limits=twice)


def test_those_who_draw_from_one_meter_of_postgresql_at_the_same_time_get_no_more_than_there_is(postgres_store: PostgresStore) -> None:
    assert "calls" not in _postgres_limits.LOCKED
    one = Draft("one", 60_000_000, 600_000_000)
    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(lambda _: postgres_store.draw([one], at_us=0), range(40)))
    assert Counter((len(one.left), one.wait_us > 0) for one in alone) == {(0, False): 10, (0, True): 1, (1, True): 29}
    drafts = [Draft("calls", 60_000_000, 600_000_000), Draft("more", 1, 600_000_000)]
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda number: postgres_store.draw(drafts[:: 1 if number % 2 else -1], at_us=0), range(40)))
    assert Counter((len(one.left), one.wait_us > 0) for one in drawn) == {(0, False): 10, (1, True): 1, (2, True): 29}


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
        monkeypatch.setattr(submitting, "reach", dies)
        with pytest.raises(KeyboardInterrupt):
            app.submit(greets, "ann", run_id="run")
        assert [run.run_id for run in app.runs()] == (["run"] if point == "submit.after" else [])
        monkeypatch.setattr(submitting, "reach", _failpoints.reach)
        app.submit(greets, "ann", run_id="run")
        assert [(run.run_id, run.status) for run in app.runs()] == [("run", "queued")]
        assert len(app.history("run")) == 1


def test_the_roster_tells_what_workers_say_of_themselves_and_forgets_those_that_died_with_nothing_in_hand(tmp_path: Path) -> None:
    dying = SqliteStore(tmp_path / "runs.db")
    with Holdfast(tmp_path / "runs.db") as app:
        told = roster.introduction(app.engine, agents=["greets"], queues=["default"], concurrency=3, stopping=False)
        assert json.loads(told)["concurrency"] == 3
        dying.enroll("host.dying")
        dying.introduce("host.dying", told)
        (worker,) = app.workers()
        assert (worker.life, worker.agents, worker.concurrency, worker.runs) == ("alive", ("greets",), 3, ())
        roster.forget_dead(app.engine)
        assert len(app.workers()) == 1
        assert [one.dead for one in dying.owners()] == [False]
        dying.close()
        assert [one.life for one in app.workers()] == ["dead"]
        roster.forget_dead(app.engine)
        assert app.workers() == []


def test_who_stops_in_the_middle_of_a_claim_does_not_hold_up_the_others_for_long(postgres_store: PostgresStore) -> None:
    ceiling = Ceiling("queue", "q", 1)
    for run_id in ("a", "b"):
        resting(postgres_store, run_id)
    lost = pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout)
    with closing(connect(address_of(postgres_store.url))) as stopped, lost, stopped.transaction():
        _postgres_limits.reached(stopped, [claim("a", ceiling)])
        assert postgres_store.append([claim("b", ceiling)]) == [None]  # waits for the lock, and gets it
        stopped.execute("SELECT 1")
