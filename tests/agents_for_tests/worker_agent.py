"""A worker that is made to be killed, and those who leave runs to it, answer, settle doubts, hold back and cancel.

It is served by `serving.py`; what the worker executes is in `worker_app.py`. It ends when all runs of its cast are done, and a further one
behind them, or when one of them has it told to stop. Exit status: 0 as it should be; anything else is a defect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import holdfast as hf
from agents_for_tests import sweep_agent, worker_app
from agents_for_tests.sweep_agent import lines
from holdfast._clock import SystemClock
from holdfast.app import app as app_room
from holdfast.cli import commands
from holdfast.cli.stopping import pause
from holdfast.cli.working import worker
from holdfast.errors import HoldfastError
from holdfast.fleet import claiming, heeding
from holdfast.fleet import worker as worker_room
from holdfast.fleet.scheduling import Timetable
from holdfast.operating.advice import DEADLY
from holdfast.running import lease
from holdfast.stores import sqlite
from holdfast.verbs import waits

APP = Path(worker_app.__file__)
LOADED = (sqlite,)
"""What a child need not import for itself."""
HOUR_US = 3_600_000_000
LOOK_S = 0.005
FURTHER = "a-last"
"""A further run of a key: it goes through, or somebody holds its place for ever."""


class Left(NamedTuple):
    """A run that is left to the worker; its id is its argument."""

    agent: Any
    run_id: str
    queue: str = "default"
    key: str = ""


class Cast(NamedTuple):
    """Runs that are played together, by how many at a time, and how late it is when they are."""

    runs: Sequence[Left]
    room: int = 4
    hours: int = 0


CUSTOMERS = tuple(Left(worker_app.order, run_id, "narrow", run_id[0]) for run_id in ("a-1", "a-2", "b-1"))
CASTS = {
    "orders": Cast(CUSTOMERS),
    "sells": Cast(CUSTOMERS, hours=3),
    "further": Cast([]),
    "talks": Cast([
        Left(worker_app.asking, "asks"), Left(worker_app.napping, "naps"), Left(worker_app.calling, "calls"),
        Left(worker_app.signing, "signs"),
    ]),
    "stops": Cast([*CUSTOMERS[:2], Left(worker_app.ringing, "rings"), Left(worker_app.napping, "naps")]),
    "kills": Cast([CUSTOMERS[0], Left(worker_app.killing, "kills"), Left(worker_app.asking, "asks")], room=1),
}  # fmt: skip


class CaseClock(SystemClock):
    """The time of a case, which begins at half past an hour, and so many hours later."""

    hours = 0

    def __init__(self) -> None:
        file = sweep_agent.folder / "clock"
        if not file.exists():
            now_us = super().now_us()
            written = file.with_suffix(f".{os.getpid()}")
            written.write_text(str(HOUR_US // 2 - now_us % HOUR_US))
            written.rename(file)
        self._ahead_us = int(file.read_text())

    def now_us(self) -> int:
        return super().now_us() + self._ahead_us + self.hours * HOUR_US


def hurry() -> None:
    """Look often, so that nothing takes long; and let a run that sleeps park, however short that is."""
    worker_room.POLL_S, claiming.ORPHANS_S, heeding.LOOK_S = LOOK_S, LOOK_S * 2, LOOK_S * 4
    lease.LETTERS_S, lease.TICK_S = LOOK_S * 2, LOOK_S
    waits.SHORT_S = 0.0
    clocked: Any = app_room
    clocked.SystemClock = CaseClock
    printing: Any = worker_room
    printing.print_of = lambda *_: "the same"  # all have this code; to read it takes a third of a life


# --- those around the worker -----------------------------------------------------------------------------------------


def submit(app: hf.Holdfast, cast: Cast) -> None:
    """Leave its runs to the worker, and let its schedules begin."""
    for left in cast.runs:
        app.submit(left.agent, left.run_id, run_id=left.run_id, queue=left.queue, key=left.key)
    if cast.hours:
        timetable = Timetable(app.engine, worker_app.SCHEDULES)
        for schedule in worker_app.SCHEDULES:
            asyncio.run(timetable._since(schedule))


class People(threading.Thread):
    """Answer and settle what is in the inbox, let a queue go on once nobody has a run of it, and end the worker behind the further run."""

    def __init__(self, store: str, cast: Cast) -> None:
        super().__init__(name="people", daemon=True)
        self.store, self.cast = store, cast

    def run(self) -> None:
        with hf.Holdfast(self.store) as app:
            while not self._all_done(app):
                for item in app.inbox():
                    with suppress(HoldfastError):  # the run has moved meanwhile
                        self._settle(app, item)
                if app.held() and not app.runs(queue="narrow", status=["running", "stopped"]):
                    app.resume_queue("narrow")
                time.sleep(LOOK_S * 3)
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            time.sleep(LOOK_S)
        (sweep_agent.folder / "over").touch()
        os.kill(os.getpid(), signal.SIGTERM)

    def _all_done(self, app: hf.Holdfast) -> bool:
        done = {run.run_id for run in app.runs(status="done")}
        if not done.issuperset([*(left.run_id for left in self.cast.runs), *due_ids(self.cast)]):
            return False
        submit(app, Cast([Left(worker_app.order, FURTHER, "narrow", "a")]))
        return FURTHER in done

    def _settle(self, app: hf.Holdfast, item: Any) -> None:
        if item.kind == "ask":
            app.answer(item.run_id, item.step_id, "red", by="test")
        elif item.kind == "doubt" and "did sign(" in item.what:  # others find out by themselves
            landed = next((f"sign-{line['what']}" for line in lines(sweep_agent.folder) if line["key"] == item.key), None)
            verdict: dict[str, Any] = {"not_landed": True} if landed is None else {"landed": landed}
            app.resolve(item.run_id, item.step_id, by="test", **verdict)
        elif item.kind == "blocked" and DEADLY in item.what and item.run_id == "kills":
            (sweep_agent.folder / "spared").touch()
            app.resume(item.run_id, by="test")


def due_ids(cast: Cast) -> Iterator[str]:
    """The ids of the runs that schedules leave: of each time since their beginning, or of the last."""
    if cast.hours:
        clock = CaseClock()
        now_s = int(clock.now_us() // HOUR_US) * 3600
        times = [time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s - 3600 * ago)) for ago in range(cast.hours)]
        yield from (f"hourly-{each}" for each in times)
        yield f"late-{times[0]}"


def run_once(variant: str, store: str = "") -> int:
    """The commands are called as functions: to understand their words takes longer than what they do."""
    os.dup2(2, 1)  # what a command says is not what the server answers
    hurry()
    act, _, name = variant.partition(" ")
    cast = CASTS.get(name, CASTS["sells"])
    match act:
        case "submit":
            with hf.Holdfast(store) as app:
                submit(app, cast)
            return 0
        case "work":
            CaseClock.hours = cast.hours
            People(store, cast).start()
            return worker(APP, queue=["narrow", "default"], concurrency=cast.room, grace="5s", store=store)
        case "hold":
            return pause(queue="narrow", store=store)
        case "release":
            return commands.resume(None, queue="narrow", store=store)
        case "cancel":
            return commands.cancel(None, of_queue="narrow", yes=True, store=store)
    raise AssertionError(f"nobody plays {variant}")


# --- workers that are broken on purpose ------------------------------------------------------------------------------


def break_schedules() -> None:
    """A schedule counts a time as run before its run is recorded."""
    leave = Timetable._leave

    def left(self: Timetable, schedule: Any, time: Any) -> None:
        store: Any = self._engine.store
        store.advance(self._meter(store, schedule)[0], round(time.timestamp() * 1e6))
        leave(self, schedule, time)

    Timetable._leave = left  # type: ignore[method-assign]


def break_limits() -> None:
    """No claim says what must not be exceeded."""
    worker: Any = sys.modules["holdfast.fleet.worker"]
    worker.ceilings = lambda *_: ()


def break_deaths() -> None:
    """Whoever died counts three times."""
    worker: Any = sys.modules["holdfast.fleet.worker"]
    deaths_of = worker.deaths_of
    worker.deaths_of = lambda *args: [death for death in deaths_of(*args) for _ in range(3)]


BREAKS: dict[str, Callable[[], None]] = {
    **sweep_agent.BREAKS, "schedules": break_schedules, "limits": break_limits, "deaths": break_deaths,
}  # fmt: skip
FOR_GOOD = ("",)  # all of them
