"""A worker: takes runs that can go on, executes them on its event loop or in its threads, and hands them over when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from . import _records as rec
from ._chain import QUEUE
from ._claiming import claimable, deadly
from ._decorators import Agent
from ._engine import Engine, Order
from ._journal import Journal
from ._operate import order_for
from ._ordering import not_an_agent
from ._roster import introduction
from ._runner import Elsewhere, attend_async, attend_blocking
from ._scheduling import Timetable
from .errors import HoldfastError, LeaseLost, Misuse, RunCancelled, RunPaused, RunWaiting, StoreError
from .limits import ceilings
from .schedules import Schedule
from .store import Roster

POLL_S = 0.2
"""How often a worker with room looks for runs that can go on."""

AWAY_S = 2.0
"""How long it rests where the store cannot be reached."""

GRACE_S = 30.0
"""How long steps that are under way may take to end when the worker stops."""

BREAK_S = 5.0
"""How long code may take that is broken off."""

MOST_DEATHS = 3
"""So many processes may die in a row of a run, without a record in between, before it is set aside."""

log = logging.getLogger("holdfast")


class Drained(NamedTuple):
    """How a worker stopped: the runs whose steps it had to break off, and those that did not let go at all."""

    broken_off: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()


class Worker:
    """Takes runs of these agents and executes up to `concurrency` of them at a time."""

    def __init__(
        self, engine: Engine, agents: Sequence[Callable[..., Any]], *, concurrency: int, queues: Sequence[str] = (QUEUE,),
        grace_s: float = GRACE_S, schedules: Sequence[Schedule] = (),
    ) -> None:  # fmt: skip
        known = [agent for agent in agents if isinstance(agent, Agent)]
        if len(known) < len(agents):
            raise Misuse(not_an_agent(next(one for one in agents if not isinstance(one, Agent))))
        names = [agent.name for agent in known]
        if not names:
            raise Misuse("a worker needs the agents that it is to execute; nothing was begun")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise Misuse(f"two agents are named {twice!r}; nothing was begun. Give each a name of its own: @hf.agent(name=...)")
        strange = [schedule.name for schedule in schedules if schedule.agent not in known]
        if strange:
            raise Misuse(f"the agent of schedule {strange[0]!r} is none of this worker's ({', '.join(names)}); nothing was begun")
        if concurrency < 1:
            raise Misuse(f"concurrency={concurrency}: a worker executes one run at a time at the least; nothing was begun")
        if not queues:
            raise Misuse("queues= names no queue; nothing was begun")
        self._engine, self._agents, self._names = engine, known, names
        self._queues, self._room, self._grace_s = queues, concurrency, grace_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._shunned: dict[str, tuple[int, int]] = {}
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="holdfast-worker")
        self._news = asyncio.Event()
        self._timetable = Timetable(engine, schedules, queues[0])
        self.stopping = False

    @property
    def executes(self) -> list[str]:
        """The runs that it has now."""
        return list(self._tasks)

    def told(self) -> str:
        """What it does, in a few words."""
        what = f"{', '.join(sorted(self._names))}, up to {self._room} runs at a time"
        return f"{what}, of queue {', '.join(self._queues)}" if tuple(self._queues) != (QUEUE,) else what

    def stop(self) -> None:
        """Take nothing more and hand over what is there; on the worker's own loop."""
        self.stopping = True
        self._news.set()

    async def work(self) -> Drained:
        """Take and execute runs until it is stopped, then let go of them; where this is cancelled, too."""
        timekeeper = asyncio.create_task(self._timetable.keep())
        await asyncio.to_thread(self._introduce)
        try:
            while not self.stopping:
                rest_s = await self._fill()
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), rest_s)
        finally:
            self.stopping = True
            timekeeper.cancel()
            self._ask_to_leave(at_once=False)
            await asyncio.to_thread(self._introduce)
            drained = await self._drained()
            self._threads.shutdown(wait=False)
        return drained

    def _introduce(self) -> None:
        """Let `holdfast workers` tell of this one; that nobody could be told is no reason not to work."""
        engine = self._engine
        try:
            engine.keeper.enroll()
            if isinstance(engine.store, Roster):
                told = introduction(engine, agents=self._names, queues=self._queues, concurrency=self._room, stopping=self.stopping)
                engine.store.introduce(engine.keeper.owner, told)
        except StoreError as error:
            log.warning("the store cannot be told who works on it: %s", error)

    async def _fill(self) -> float:
        """Take as many runs as there is room for; gives how long to rest before the next look."""
        room = self._room - len(self._tasks)
        if room < 1:
            return POLL_S
        try:
            for order in await asyncio.to_thread(lambda: list(self._orders(room))):
                self._tasks[order.run_id] = task = asyncio.create_task(self._attend(order))
                task.add_done_callback(partial(self._ended, order.run_id))
        except StoreError as error:
            log.warning("the store cannot be read, trying again in %g s: %s", AWAY_S, error)
            return AWAY_S
        return POLL_S

    def _ended(self, run_id: str, _: object) -> None:
        del self._tasks[run_id]
        self._news.set()

    def _orders(self, room: int) -> Iterator[Order]:
        """What is to be executed next."""
        for run_id in claimable(self._engine, self._names, self._queues):
            if run_id not in self._tasks and (order := self._order(run_id)) is not None:
                yield order
                room -= 1
            if not room:
                return

    def _order(self, run_id: str) -> Order | None:
        """How to go on with a run; None for one that cannot go on as it stands, which is not tried again before it has moved."""
        found = self._engine.store.load(run_id)
        if found is None or self._shunned.get(run_id) == (found[0].epoch, found[0].seq):
            return None
        try:
            order = order_for(self._engine, run_id, self._agents, where="this worker", wait=False)
            if len(deaths := deadly(found[1])) >= MOST_DEATHS:
                self._set_aside(Journal.load(*found), deaths)
                return None
        except HoldfastError as error:
            self._shunned[run_id] = (found[0].epoch, found[0].seq)
            log.warning("run %s cannot go on here: %s", run_id, error)
            return None
        return replace(order, patient=False, ceilings=ceilings(self._engine.meter.limits, found[0]))

    def _set_aside(self, journal: Journal, deaths: Sequence[rec.RunResumed]) -> None:
        """A run that kills those who execute it would go round the fleet: it is blocked, with what is known."""
        last = ", ".join(death.owner for death in reversed(deaths))
        why = f"it was taken over {len(deaths)} times in a row from processes that had died and recorded nothing; the last were {last}"
        error = {"type": "DeadlyRun", "message": f"{why}. Out of memory, or a crash in native code? `holdfast resume` tries it again"}
        with suppress(LeaseLost):  # somebody else has taken it meanwhile
            resumed = rec.RunResumed(owner="", why="set aside", silent=False)
            self._engine.committer.commit(journal, [resumed, rec.RunBlocked(error=error)])
            log.error("run %s is blocked: %s", journal.head.run_id, why)

    async def _attend(self, order: Order) -> None:
        """Execute a run until it ends, waits or is left; how it ended is recorded with it."""
        try:
            if order.agent.is_async:
                await attend_async(self._engine, order)
            else:
                await asyncio.get_running_loop().run_in_executor(self._threads, attend_blocking, self._engine, order)
        except (Elsewhere, RunWaiting, RunPaused, RunCancelled, LeaseLost) as left:
            log.debug("run %s: %s", order.run_id, left)
        except Exception as error:  # noqa: BLE001 (the run is what failed, not the worker)
            self._shun(order.run_id)
            log.warning("run %s: %s: %s", order.run_id, type(error).__name__, error)

    def _shun(self, run_id: str) -> None:
        """Do not try a run again that stands where it stood, if it does: what hindered it was not recorded with it."""
        with suppress(StoreError):
            head = self._engine.store.head(run_id)
            self._shunned[run_id] = (head.epoch, head.seq) if head is not None else (0, 0)

    async def _drained(self) -> Drained:
        """Let go of what executes: at the next step, after the grace time at once."""
        broken_off = await self._left(self._grace_s, at_once=False)
        stuck = await self._left(BREAK_S, at_once=True) if broken_off else ()
        return Drained(broken_off, stuck)

    def _ask_to_leave(self, *, at_once: bool) -> None:
        for run_id in self._tasks:
            run = self._engine.keeper.runs.get(run_id)
            if run is not None and (run.leaving is None or at_once):
                run.leave(rec.RunReleased(reason="its worker stops"), at_once=at_once)

    async def _left(self, patience_s: float, *, at_once: bool) -> tuple[str, ...]:
        """Ask all runs to leave, and wait for them; gives those that did not in that time."""
        until_s = asyncio.get_running_loop().time() + patience_s
        while self._tasks and (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            self._ask_to_leave(at_once=at_once)  # again and again: one may have been claimed a moment ago
            at_once = False
            await asyncio.wait(self._tasks.values(), timeout=min(left_s, POLL_S))
        return tuple(self._tasks)
