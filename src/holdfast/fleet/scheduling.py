"""Leave the runs of schedules to workers when their times come: every worker does, and one of them is the first.

The id of such a run tells its time, so the same time twice is one run, however many workers there are and however often they crash. How far
a schedule has come tells a meter of the store, which begins when there is the schedule, and moves on to a time once its run is recorded: so
nothing depends on runs that may be removed. A store without meters tells since when there is a schedule by a run of its own, which does
nothing. What stands in the future was told by a clock that was ahead: it is not believed, and another one begins in its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count, islice
from typing import Any, TypeVar

from holdfast._clock import to_datetime
from holdfast.errors import HoldfastError, Misuse, RunConflict, RunPruned, StoreError
from holdfast.running.engine import Engine, Order
from holdfast.running.ordering import in_line, ordered
from holdfast.running.runner import attend_async
from holdfast.running.submitting import submit
from holdfast.schedules import LATE_S, PORTION, TAG, Schedule
from holdfast.store import Metered
from holdfast.verbs.decorators import Agent, agent

MOST_REST_S = 30.0
"""How long is rested at the most before the clock is looked at again: it may have been set."""

AWAY_S = 2.0
"""How long is rested where the store cannot be reached."""

MOST_METERS = 10
"""Meters of one schedule, one after the other was moved on by a clock that was ahead; where none is left, it goes on from now."""

T = TypeVar("T")

log = logging.getLogger("holdfast")


@agent(name="holdfast.schedule")
async def _begun(name: str, identity: str) -> None:
    """Since when there is this schedule."""


class Timetable:
    """The schedules of a worker, and how far each has come; what takes time is done in these threads, or those of the event loop."""

    def __init__(self, engine: Engine, schedules: Sequence[Schedule], threads: Executor | None = None) -> None:
        names = [schedule.name for schedule in schedules]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise Misuse(f"two schedules are named {twice!r}; nothing was begun. Give each a name of its own: Schedule(..., name=...)")
        self._engine, self._schedules, self._threads = engine, schedules, threads
        self._behind: dict[str, datetime] = {}
        for schedule in schedules:
            _refuse_what_cannot_be_run(schedule)

    async def keep(self) -> None:
        """Leave each run to a worker when its time has come, until this is cancelled."""
        while True:
            rest_s = MOST_REST_S
            for schedule in self._schedules:
                try:
                    rest_s = min(rest_s, await self._look(schedule))
                except StoreError as error:
                    log.warning("schedule %s: the store cannot be used, trying again in %g s: %s", schedule.name, AWAY_S, error)
                    rest_s = AWAY_S
                except Exception as error:  # noqa: BLE001 (one that cannot go on must not end the others, nor itself unheard)
                    log.error("schedule %s: its time is not kept now: %s: %s", schedule.name, type(error).__name__, error)  # noqa: TRY400
            await asyncio.sleep(rest_s)

    async def _look(self, schedule: Schedule) -> float:
        """Leave to workers what is due, or a portion of it, and give how long it takes until the next time."""
        now = to_datetime(self._engine.clock.now_us())
        behind = self._behind.get(schedule.name)
        if behind is None or not self._is_believed(behind):
            behind = await self._since(schedule)
        behind = min(behind, now)  # a clock that was ahead once must not silence it; what was left then is known by its id
        due = await self._done(lambda: schedule.times.due(behind, now))
        for time in due:
            await self._done(partial(self._leave, schedule, time))
        more = len(due) >= PORTION
        self._behind[schedule.name] = due[-1] if more else now
        return 0.0 if more else max(0.0, (next(schedule.times.after(now)) - now).total_seconds())

    async def _since(self, schedule: Schedule) -> datetime:
        """How far this schedule, as it is, has come."""
        if isinstance(self._engine.store, Metered):
            return (await self._done(partial(self._meter, self._engine.store, schedule)))[1]
        for name in _markers(self._mark(schedule)):
            order = Order(agent=_of(_begun), run_id=name, args=(schedule.name, self._identity(schedule)))
            with suppress(RunPruned):  # then the next tells it
                await attend_async(self._engine, order)
                head = self._engine.store.head(order.run_id)
                assert head is not None
                if self._is_believed(since := to_datetime(head.created_us)):
                    return since
        raise AssertionError("there is always one more")

    def _meter(self, store: Metered, schedule: Schedule) -> tuple[str, datetime]:
        """The first meter of a schedule that is believed, and where it stands."""
        now_us = self._engine.clock.now_us()
        meters = [f"schedule {mark}" for mark in islice(_markers(self._mark(schedule)), MOST_METERS)]
        found = ((meter, to_datetime(store.stands(meter, now_us))) for meter in meters)
        return next((one for one in found if self._is_believed(one[1])), (meters[-1], to_datetime(now_us)))

    def _is_believed(self, moment: datetime) -> bool:
        """Whether it has come, as far as clocks agree."""
        return moment <= to_datetime(self._engine.clock.now_us()) + timedelta(seconds=LATE_S)

    async def _done(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, job)

    def _mark(self, schedule: Schedule) -> str:
        return f"{schedule.name}-{self._identity(schedule)}"

    def _identity(self, schedule: Schedule) -> str:
        return schedule.identity(_order(schedule, to_datetime(0)).encoded())

    def _leave(self, schedule: Schedule, time: datetime) -> None:
        with suppress(RunPruned):  # it was run, and removed since
            try:
                submit(self._engine, _order(schedule, time))
            except RunConflict as error:
                log.warning("schedule %s: the run of %s is there with other arguments, and stays: %s", schedule.name, time, error)
        if isinstance(self._engine.store, Metered):
            meter, _ = self._meter(self._engine.store, schedule)  # somebody may have moved the one of before too far
            self._engine.store.advance(meter, round(time.timestamp() * 1e6))


def _order(schedule: Schedule, time: datetime) -> Order:
    """The run of a time: the same, whoever leaves it."""
    run_id = f"{schedule.name}-{time:%Y%m%dT%H%M%SZ}"
    tags = {**schedule.tags, TAG: schedule.name}
    order = ordered(schedule.agent, schedule.args, wait=False, options={"run_id": run_id, "tags": tags}, said="hf.Schedule")
    return in_line(order, queue=schedule.queue, priority=schedule.priority, key=schedule.key)


def _refuse_what_cannot_be_run(schedule: Schedule) -> None:
    """Refuse now, not at night, what does not fit the agent or cannot be recorded."""
    try:
        _order(schedule, to_datetime(0)).encoded()
    except (TypeError, ValueError, HoldfastError) as error:
        raise Misuse(f"schedule {schedule.name!r} cannot be run, and nothing was begun: {error}") from error


def _markers(name: str) -> Iterator[str]:
    """The ids of the runs that may tell since when there is a schedule, one after the other was removed."""
    return (f"{name}-{life}" if life > 1 else name for life in count(1))


def _of(fn: Any) -> Agent[..., Any]:
    assert isinstance(fn, Agent)
    return fn
