"""Schedules: their times, what is caught up with, and that many workers begin each time once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast as hf
from agents_for_tests.sites import StillClock
from holdfast import Holdfast
from holdfast._scheduling import Timetable
from holdfast.schedules import CatchUp, Schedule, Times
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
        tables = [Timetable(app.engine, [hourly], "default") for app in apps]
        for table in tables:
            asyncio.run(table._look(hourly))
        assert started(apps[0]) == []
        clock.at_us += 2 * HOUR_US
        for table in tables:
            asyncio.run(table._look(hourly))
        assert len(started(apps[0])) == 2
        late = Timetable(apps[0].engine, [hourly], "default")
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
            asyncio.run(Timetable(app.engine, [schedule], "default")._look(schedule))
        assert started(app) == []


def test_two_schedules_of_one_name_are_refused() -> None:
    with Holdfast(MemoryStore()) as app, pytest.raises(hf.Misuse, match="two schedules are named 'report'"):
        Timetable(app.engine, [Schedule(report, "Rome", every="1h"), Schedule(report, "Oslo", every="1h")], "default")
