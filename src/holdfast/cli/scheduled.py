"""The command `schedules`: what the schedules of an app file will leave to workers, and what they left last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from holdfast import Holdfast, Schedule
from holdfast._duration import in_words as duration
from holdfast.cli.app_file import declared_in, loaded
from holdfast.cli.exits import Exit
from holdfast.cli.location import StoreMissing, opened
from holdfast.cli.options import JsonOption, StoreOption, examples
from holdfast.cli.page import Cell, Column, Line, Page, Table
from holdfast.cli.screen import Screen
from holdfast.cli.views import STATUS_STYLES, Setting
from holdfast.cli.wording import SECOND_US, ago
from holdfast.schedules import TAG

EPILOG = examples("holdfast schedules app.py", "holdfast schedules app.py --store postgresql://db/runs --json")

COLUMNS = (
    Column("schedule"), Column("times"), Column("queue"), Column("catch-up"), Column("last run", below=True, named=True),
    Column("next", below=True, named=True),
)  # fmt: skip

SHOWN = 3
"""Times to come that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """One schedule; `next` are times to come, in UTC, and `last_run` the one of its runs that changed last, if the store has one."""

    name: str
    agent: str
    cron: str
    every_s: float
    zone: str
    catch_up: str
    queue: str
    priority: int
    key: str
    tags: dict[str, str]
    next: list[str]
    last_run: str | None
    last_status: str | None


def schedules(
    app: Annotated[Path, typer.Argument(metavar="APP.py", help="The file that declares the schedules.")],
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """The schedules of an app file, when their next times are, and their last runs.

    It reads the file and, where there is one, the store; nothing is begun. A worker that has the file keeps the times.
    """
    screen = Screen(store, as_json)
    found = declared_in(loaded(app, stays="nothing was begun"), Schedule)
    setting = screen.setting()
    url, last = _last_runs(store, found)
    views = [_view(schedule, setting.now_us, last.get(schedule.name)) for schedule in found]
    screen.say(_page(app, views, setting), store=url, schedules=views)
    return Exit.FINE


def _last_runs(store: str | None, found: Sequence[Schedule]) -> tuple[str | None, dict[str, tuple[str, str]]]:
    """The store, and of each schedule the run that changed last, its id and its status; nothing where none was named and there is none."""
    try:
        with opened(store) as holdfast:
            return holdfast.store.url, {schedule.name: last for schedule in found for last in _last_run(holdfast, schedule)}
    except StoreMissing:
        if store is not None:
            raise
        return None, {}


def _last_run(holdfast: Holdfast, schedule: Schedule) -> list[tuple[str, str]]:
    return [(run.run_id, run.status) for run in holdfast.runs(tags={TAG: schedule.name}, limit=1)]


def _view(schedule: Schedule, now_us: int, last: tuple[str, str] | None) -> ScheduleView:
    times, now = schedule.times, datetime.fromtimestamp(now_us / SECOND_US, UTC)
    return ScheduleView(
        name=schedule.name, agent=str(getattr(schedule.agent, "name", "")), cron=times.cron, every_s=times.every_s, zone=times.zone,
        catch_up=times.catch_up, queue=schedule.queue, priority=schedule.priority, key=schedule.key, tags=schedule.tags,
        next=[time.isoformat() for time in islice(times.after(now), SHOWN)],
        last_run=last[0] if last else None, last_status=last[1] if last else None,
    )  # fmt: skip


def _page(app: Path, views: Sequence[ScheduleView], setting: Setting) -> Page:
    if not views:
        return [Line(f"{app} declares no schedule. Declare one: hf.Schedule(agent, cron='0 9 * * 1-5')")]
    return [Table(COLUMNS, [_row(view, setting) for view in views])]


def _row(view: ScheduleView, setting: Setting) -> list[Cell]:
    told = f"{view.cron} ({view.zone})" if view.cron else f"every {duration(view.every_s)}"
    last = f"{view.last_run} ({view.last_status})" if view.last_run else "none"
    times = [datetime.fromisoformat(time) for time in view.next]
    coming = [f"{time.astimezone(ZoneInfo(view.zone)):%a %Y-%m-%d %H:%M:%S} ({ago(_us(time), setting.now_us)})" for time in times]
    ran = Cell(last, STATUS_STYLES.get(view.last_status or "", ""))
    return [Cell(view.name), Cell(told), Cell(view.queue), Cell(view.catch_up), ran, Cell(", ".join(coming))]


def _us(time: datetime) -> int:
    return round(time.timestamp() * SECOND_US)
