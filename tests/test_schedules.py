"""Schedules: their times, what is caught up with, and that many workers begin each time once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.sites import StillClock
from holdfast import Holdfast
from holdfast._turns import turn_of
from holdfast.fleet.scheduling import MOST_METERS, Timetable
from holdfast.fleet.worker import Worker
from holdfast.schedules import LATE_S, PORTION, CatchUp, Schedule, Times
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore

HOUR_US = 3_600_000_000


@hf.agent
async def report(city: str) -> str:
    return city


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def first(times: Times, behind: str, count: int) -> list[str]:
    found = times.after(at(behind))
    return [f"{next(found):%m-%d %H:%M}" for _ in range(count)]


def test_cron_is_read_in_its_time_zone_through_both_changes_of_the_clock() -> None:
    nine = Times(cron="0 9 * * *", zone="Europe/Berlin")
    assert first(nine, "2026-03-28 00:00", 3) == ["03-28 08:00", "03-29 07:00", "03-30 07:00"]
    assert first(nine, "2026-10-24 00:00", 3) == ["10-24 07:00", "10-25 08:00", "10-26 08:00"]


def test_an_hour_that_the_clock_skips_is_not_lost_and_one_that_it_repeats_counts_once() -> None:
    half_past_two = Times(cron="30 2 * * *", zone="Europe/Berlin")
    assert len(half_past_two.due(at("2026-03-28 12:00"), at("2026-03-29 12:00"))) == 1
    every = Times(cron="30 2 * * *", zone="Europe/Berlin", catch_up="all")
    assert len(every.due(at("2026-10-24 12:00"), at("2026-10-25 12:00"))) == 1


def test_an_interval_does_not_depend_on_when_somebody_looks() -> None:
    for moment in ("2026-01-01 10:01", "2026-01-01 10:59"):
        assert first(Times(every_s=3600), moment, 2) == ["01-01 11:00", "01-01 12:00"]


@pytest.mark.parametrize(("catch_up", "caught"), [("last", ["12:00"]), ("all", ["10:00", "11:00", "12:00"]), ("none", [])])
def test_what_was_missed_is_caught_up_with_as_was_said(catch_up: CatchUp, caught: list[str]) -> None:
    times = Times(cron="0 * * * *", catch_up=catch_up)
    assert [f"{time:%H:%M}" for time in times.due(at("2026-01-01 09:30"), at("2026-01-01 12:30"))] == caught
    assert [f"{time:%H:%M}" for time in times.due(at("2026-01-01 12:30"), at("2026-01-01 13:00"))] == ["13:00"]


@pytest.mark.parametrize("catch_up", ["last", "all", "none"])
def test_times_that_are_noticed_within_a_minute_are_all_run_whatever_becomes_of_missed_ones(catch_up: CatchUp) -> None:
    due = Times(every_s=5, catch_up=catch_up).due(at("2026-01-01 12:00"), at("2026-01-01 12:00") + timedelta(seconds=17))
    assert [f"{time:%H:%M:%S}" for time in due] == ["12:00:05", "12:00:10", "12:00:15"]


@pytest.mark.parametrize(("catch_up", "missed"), [("last", ["11:58:40"]), ("all", ["11:58:00", "11:58:20", "11:58:40"]), ("none", [])])
def test_of_times_that_are_older_than_a_minute_those_are_run_that_were_asked_for(catch_up: CatchUp, missed: list[str]) -> None:
    due = Times(every_s=20, catch_up=catch_up).due(at("2026-01-01 11:57:50"), at("2026-01-01 12:00:00"))
    assert [f"{time:%H:%M:%S}" for time in due] == [*missed, "11:59:00", "11:59:20", "11:59:40", "12:00:00"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "0 0 31 2 *"}, "nothing would ever run: Bad day-of-month"),
        ({"cron": "every day"}, "nothing would ever run"),
        ({"cron": "0 9 * * *", "zone": "Europe/Atlantis"}, "no time zone"),
        ({"cron": "0 9 * * *", "every": "1h"}, "either cron= or every="),
        ({}, "either cron= or every="),
        ({"every": 0}, "a second at the least"),
        ({"every": "1h", "catch_up": "some"}, "'last', 'all' or 'none'"),
        ({"every": "1h", "zone": "Europe/Rome"}, "an interval has no time zone"),
        ({"cron": 5}, "a text of five fields"),
        ({"every": "1h", "tags": "sales"}, "texts by name"),
        ({"every": "1h", "tags": {"schedule": "mine"}}, "name the tag otherwise"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused_when_it_is_declared(options: dict[str, str], said: str) -> None:
    with pytest.raises(hf.Misuse, match=said):
        Schedule(report, "Rome", **options)  # type: ignore[arg-type]  # as somebody without a type checker would


def started(app: Holdfast) -> list[str]:
    return sorted(run.run_id for run in app.runs(agent="report"))


def test_many_workers_begin_each_time_once_and_nothing_before_the_schedule_was(tmp_path: Path) -> None:
    clock = StillClock()
    hourly = Schedule(report, "Rome", every="1h", catch_up="all")
    for path in (None, tmp_path / "runs.db"):
        apps = [Holdfast(MemoryStore() if path is None else path, clock=clock) for _ in range(1 if path is None else 3)]
        tables = [Timetable(app.engine, [hourly]) for app in apps]
        for table in tables:
            asyncio.run(table._look(hourly))
        assert started(apps[0]) == []
        clock.at_us += 2 * HOUR_US
        for table in tables:
            asyncio.run(table._look(hourly))
        assert len(started(apps[0])) == 2
        late = Timetable(apps[0].engine, [hourly])
        clock.at_us += HOUR_US
        asyncio.run(late._look(hourly))
        assert len(started(apps[0])) == 3
        for app in apps:
            app.close()


def test_a_schedule_that_was_changed_begins_anew() -> None:
    clock = StillClock()
    with Holdfast(MemoryStore(), clock=clock) as app:
        for schedule in (Schedule(report, "Rome", every="1h"), Schedule(report, "Oslo", every="1h")):
            clock.at_us += 10 * HOUR_US
            asyncio.run(Timetable(app.engine, [schedule])._look(schedule))
        assert started(app) == []


PLACE: dict[str, Any] = {"queue": "mail", "priority": 5, "key": "sales", "tags": {"team": "sales"}}


def test_workers_of_other_queues_leave_the_very_same_run(tmp_path: Path) -> None:
    clock, left = StillClock(), []
    hourly = Schedule(report, "Rome", every="1h", **PLACE)
    for number, queues in enumerate([("reports", "mail"), ("default",)]):
        with Holdfast(tmp_path / f"{number}.db", clock=clock) as app:
            for hours in (0, 1):
                clock.at_us = StillClock().at_us + hours * HOUR_US
                asyncio.run(Worker(app.engine, [report], concurrency=1, queues=queues, schedules=[hourly])._timetable._look(hourly))
            [run_id] = started(app)
            left.append((run_id, app.store.head(run_id)))
            shown = app.show(run_id)
            assert (shown.status, shown.tags) == ("queued", {"schedule": "report", "team": "sales"})
    assert left[0] == left[1]
    head = left[0][1]
    assert head is not None
    assert (head.queue, head.lane) == ("mail", "sales")
    assert head.turn < turn_of(0, 0)


@pytest.mark.parametrize("changed", PLACE)
def test_another_place_is_another_schedule_and_none_is_the_one_of_before(changed: str) -> None:
    plain, arguments = Schedule(report, "Rome", every="1h"), b'["Rome"]'
    before = json.dumps([asdict(plain.times), arguments.decode()], sort_keys=True)
    assert plain.identity(arguments) == hashlib.sha256(before.encode()).hexdigest()[:10]
    other = Schedule(report, "Rome", every="1h", **{changed: PLACE[changed]})
    assert other.identity(arguments) != plain.identity(arguments)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("queue", "a b", "a queue is named"), ("queue", 5, "queue must be text"), ("priority", "5", "a whole number"),
     ("key", "k" * 201, "200 are the most")],
)  # fmt: skip
def test_a_place_that_cannot_be_is_refused_when_a_worker_starts(option: str, value: object, said: str) -> None:
    strange = Schedule(report, "Rome", every="1h", **{option: value})  # type: ignore[arg-type]  # as somebody without a type checker would
    with Holdfast(MemoryStore()) as app, pytest.raises(hf.Misuse, match=f"schedule 'report' cannot be run, .*{said}"):
        Timetable(app.engine, [strange])


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "files"])
def test_a_worker_that_starts_after_everything_was_pruned_keeps_time_and_runs_nothing_again(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    clock, rare = StillClock(), Schedule(report, "Rome", every="1000h")
    places: dict[str, Store | str] = {"memory": MemoryStore(), "sqlite": f"{tmp_path}/runs.db", "files": f"{tmp_path}/runs/"}
    with Holdfast(places.get(kind) or request.getfixturevalue("postgres_store"), clock=clock) as app:
        for _ in range(2):
            asyncio.run(Timetable(app.engine, [rare])._look(rare))
            clock.at_us += 1000 * HOUR_US
        clock.at_us -= 900 * HOUR_US
        app.cancel(started(app)[0])
        for _ in range(2):
            app.prune(hf.Retention(max_age=0, keep_ids="1h"), dry_run=False)
            clock.at_us += 48 * HOUR_US
        assert app.runs() == []
        table = Timetable(app.engine, [rare])
        asyncio.run(table._look(rare))
        assert started(app) == []
        clock.at_us += 1000 * HOUR_US
        asyncio.run(table._look(rare))
        assert len(started(app)) == 1


def test_a_time_whose_run_was_recorded_by_one_that_died_then_is_run_once_and_the_next_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, store, hourly = StillClock(), MemoryStore(), Schedule(report, "Rome", every="1h", catch_up="all")

    def dies(_: str, __: int) -> None:
        raise KeyboardInterrupt

    with Holdfast(store, clock=clock) as app:
        asyncio.run(Timetable(app.engine, [hourly])._look(hourly))
        clock.at_us += 3 * HOUR_US
        with monkeypatch.context() as patch:
            patch.setattr(store, "advance", dies)
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(Timetable(app.engine, [hourly])._look(hourly))
        assert len(started(app)) == 1
        asyncio.run(Timetable(app.engine, [hourly])._look(hourly))
        assert len(started(app)) == 3


def test_a_clock_that_was_ahead_once_does_not_silence_a_schedule() -> None:
    clock, hourly = StillClock(), Schedule(report, "Rome", every="1h")
    with Holdfast(MemoryStore(), clock=clock) as app:
        for hours in (10_000, 1, -9_000, 1):
            clock.at_us += hours * HOUR_US
            asyncio.run(Timetable(app.engine, [hourly])._look(hourly))
        table = Timetable(app.engine, [hourly])
        for _ in range(2):
            asyncio.run(table._look(hourly))
            clock.at_us += HOUR_US
        assert len(started(app)) == 3


def looked(app: Holdfast, clock: StillClock, schedule: Schedule, hours: int) -> None:
    """A worker that starts then looks once."""
    clock.at_us = StillClock().at_us + hours * HOUR_US
    asyncio.run(Timetable(app.engine, [schedule])._look(schedule))


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_schedule_that_was_begun_by_a_clock_that_was_ahead_catches_up_later(kind: str, tmp_path: Path) -> None:
    clock, hourly = StillClock(), Schedule(report, "Rome", every="1h")
    with Holdfast(MemoryStore() if kind == "memory" else f"{tmp_path}/runs/", clock=clock) as app:
        for hours in (24, 25, 0):
            looked(app, clock, hourly, hours)
        assert len(started(app)) == 1
        looked(app, clock, hourly, 6)
        assert len(started(app)) == 2


def test_a_worker_whose_clock_is_ahead_does_not_have_others_lose_times_when_they_start_again() -> None:
    clock, hourly = StillClock(), Schedule(report, "Rome", every="1h")
    with Holdfast(MemoryStore(), clock=clock) as app:
        right = Timetable(app.engine, [hourly])
        asyncio.run(right._look(hourly))
        looked(app, clock, hourly, 48)
        clock.at_us = StillClock().at_us + HOUR_US
        asyncio.run(right._look(hourly))
        assert len(started(app)) == 2
        looked(app, clock, hourly, 4)
        assert len(started(app)) == 3


def test_clocks_that_are_further_ahead_each_time_do_not_silence_a_schedule() -> None:
    clock, hourly = StillClock(), Schedule(report, "Rome", every="1h")
    with Holdfast(MemoryStore(), clock=clock) as app:
        for meters in range(MOST_METERS + 2, 0, -1):
            looked(app, clock, hourly, 100 * meters)
        before, table = len(started(app)), Timetable(app.engine, [hourly])
        for _ in range(2):
            asyncio.run(table._look(hourly))
            clock.at_us += HOUR_US
        assert len(started(app)) == before + 1


def test_all_missed_times_are_caught_up_with_in_portions() -> None:
    clock, minutely = StillClock(), Schedule(report, "Rome", every="1m", catch_up="all")
    with Holdfast(MemoryStore(), clock=clock) as app:
        table = Timetable(app.engine, [minutely])
        asyncio.run(table._look(minutely))
        clock.at_us += 20 * HOUR_US
        rests = [asyncio.run(table._look(minutely)) for _ in range(13)]
        assert rests[:12] == [0.0] * 12
        assert rests[12] > 0
        assert len({run.run_id for run in app.runs(agent="report", limit=2000)}) == 1200


@pytest.mark.parametrize("catch_up", ["last", "none", "all"])
@pytest.mark.parametrize("options", [{"every_s": 1.0}, {"cron": "* * * * *", "zone": "Europe/Rome"}, {"cron": "0 0 1 * *"}])
def test_a_look_at_a_schedule_of_ten_years_ago_takes_a_moment(options: dict[str, Any], catch_up: CatchUp) -> None:
    times, now = Times(catch_up=catch_up, **options), at("2026-11-01 00:00")
    begun_s = time.process_time()
    due = times.due(at("2016-01-01 00:00"), now)
    assert time.process_time() - begun_s < 1
    missed = {"all": PORTION, "last": 1, "none": 0}[catch_up]
    fresh = [] if catch_up == "all" else [time for time in due if now - time <= timedelta(seconds=LATE_S)]
    assert len(due) == missed + len(fresh)
    assert fresh[-1:] == ([] if catch_up == "all" else [now])


@pytest.mark.parametrize("minutes", range(0, 240, 7))
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "30 2,3 * * *"])
def test_the_next_time_is_later_whenever_somebody_looks_in_the_night_that_repeats_an_hour(cron: str, minutes: int) -> None:
    moment = at("2026-10-24 23:00") + timedelta(minutes=minutes)
    times = list(islice(Times(cron=cron, zone="Europe/Rome").after(moment), 5))
    assert times[0] > moment
    assert times == sorted(set(times))


def test_two_schedules_of_one_name_are_refused() -> None:
    with Holdfast(MemoryStore()) as app, pytest.raises(hf.Misuse, match="two schedules are named 'report'"):
        Timetable(app.engine, [Schedule(report, "Rome", every="1h"), Schedule(report, "Oslo", every="1h")])
