"""A worker: takes runs that can go on, executes them on its event loop or in its threads, and hands them over when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from holdfast._turns import QUEUE
from holdfast.codec.failures import failure, told
from holdfast.errors import (
    HoldfastError,
    LeaseLost,
    Misuse,
    RunCancelled,
    RunPaused,
    RunWaiting,
    StoreBusy,
    StoreError,
    StoreFailed,
    UndecodableResult,
)
from holdfast.fleet.claiming import Looks, Misfits, claimable
from holdfast.fleet.deaths import TAKEN_OVER, Death, deaths_of, too_deadly
from holdfast.fleet.heeding import Heeding
from holdfast.fleet.scheduling import Timetable
from holdfast.life.run import Run
from holdfast.limits import ceilings
from holdfast.operating.advice import DEADLY
from holdfast.operating.operate import UnfitArguments, order_for
from holdfast.operating.roster import forget_dead, introduction
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.journal import Crowded, Journal
from holdfast.running.code import print_of
from holdfast.running.ending import is_ctrl_c
from holdfast.running.engine import Engine, Order
from holdfast.running.ordering import QUEUE_NAME, QUEUE_RULE, not_an_agent
from holdfast.running.runner import Elsewhere, attend_async, attend_blocking, silent
from holdfast.schedules import Schedule
from holdfast.store import Ceiling, Distant, Head, Roster, Row
from holdfast.verbs.decorators import Agent

POLL_S = 0.2
"""How often a worker with room looks for runs that can go on, unless the store wants to be asked less often."""

AWAY_S = 2.0
"""How long it rests where the store cannot be reached."""

GRACE_S = 30.0
"""How long steps that are under way may take to end when the worker stops."""

BREAK_S = 5.0
"""How long code may take that is broken off."""

TELL_S = 1.0
"""How long a worker that has stopped waits for the store to take note of it."""

DESK_THREADS = 3
"""What a worker may ask of the store at a time for itself: to look for runs, to keep its schedules, and to say that it stops."""

MOST_SHUNNED = 10_000
"""Runs that cannot go on here, and ceilings that were reached, which are remembered."""

T = TypeVar("T")

log = logging.getLogger("holdfast")


class Drained(NamedTuple):
    """How a worker stopped: the runs whose steps it had to break off, those that did not let go at all, and by run the steps, as known."""

    broken_off: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    steps: Mapping[str, str] = MappingProxyType({})


def _refuse_none(agents: Any) -> None:
    """Something that is no list, or holds something else than agents."""
    if not isinstance(agents, Collection) or isinstance(agents, str):
        found = getattr(agents, "name", None) or type(agents).__name__
        raise Misuse(f"app.work was given {found}, not a list of agents; nothing was begun. Hand over a list: app.work([agent])")
    for one in agents:
        if not isinstance(one, Agent):
            raise Misuse(not_an_agent(one, said="app.work", written="[agent]"))


def _refuse_strange(queues: Sequence[str]) -> None:
    """Nobody can leave a run in a queue of such a name, so a worker would wait for nothing."""
    if not queues or isinstance(queues, str):
        raise Misuse(f"queues={queues!r:.80} is no list of queues; nothing was begun")
    for queue in queues:
        if not QUEUE_NAME.fullmatch(queue):
            raise Misuse(f"queue {queue!r:.80}: {QUEUE_RULE}; nothing was begun")


def _last_finished(journal: Journal) -> str:
    """Where a run stood of which no step was seen to begin."""
    done = max(journal.histories.items(), key=lambda item: item[1].outcome_seq, default=None)
    if done is None or not done[1].outcome_seq:
        return "No step of it was seen to begin."
    return f"No step was seen to begin behind step {done[0]} ({done[1].name}), the last that was finished."


def _under_way(run: Run) -> list[str]:
    """The steps of a run, and of those inside it, that have begun and not ended."""
    journal, known = run.journal, dict(run.journal.histories)
    begun = [step_id for step_id, found in known.items() if found.started_epoch == journal.head.epoch]
    intents = [step_id for step_id in begun if known[step_id].outcome is None and known[step_id].trouble is None]
    calls = {step_id: call.spec.name for step_id, (call, _) in dict(run.long_steps).items()}
    named = calls | {step_id: known[step_id].name for step_id in intents}
    below = [f"{step} of run {child.id}" for child in list(run.children.values()) for step in _under_way(child)]
    return [*(f"{step_id} ({name})" for step_id, name in named.items()), *below]


class Worker:
    """Takes runs of these agents and executes up to `concurrency` of them at a time."""

    def __init__(
        self, engine: Engine, agents: Sequence[Callable[..., Any]], *, concurrency: int, queues: Sequence[str] = (QUEUE,),
        grace_s: float = GRACE_S, schedules: Sequence[Schedule] = (),
    ) -> None:  # fmt: skip
        _refuse_none(agents)
        known = [agent for agent in agents if isinstance(agent, Agent)]
        names = [agent.name for agent in known]
        if not names:
            raise Misuse("a worker needs the agents that it is to execute; nothing was begun")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise Misuse(f"two agents are named {twice!r}; nothing was begun. Give each a name of its own: @hf.agent(name=...)")
        if isinstance(schedules, Schedule) or not all(isinstance(one, Schedule) for one in schedules):
            raise Misuse("schedules= takes a list of hf.Schedule; nothing was begun")
        strange = [schedule.name for schedule in schedules if schedule.agent not in known]
        if strange:
            raise Misuse(f"the agent of schedule {strange[0]!r} is none of this worker's ({', '.join(names)}); nothing was begun")
        if concurrency < 1:
            raise Misuse(f"concurrency={concurrency}: a worker executes one run at a time at the least; nothing was begun")
        _refuse_strange(queues)
        self._engine, self._agents, self._names = engine, known, names
        self._queues, self._room, self._grace_s = queues, concurrency, grace_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._shunned: dict[str, tuple[int, int]] = {}
        self.codes = {agent.name: print_of(agent.fn, agent.version) for agent in known}
        self._looks = Looks(engine, Misfits(engine, self.codes, queues))
        self._full_until_s: dict[Ceiling, float] = {}
        self._rests_until_s: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="holdfast-worker")
        self._desk = ThreadPoolExecutor(DESK_THREADS, thread_name_prefix="holdfast-desk")  # the loop's own may be full of the code of runs
        self._asked = set[asyncio.Future[Any]]()
        self._look_s = engine.store.letters_every_s if isinstance(engine.store, Distant) else POLL_S
        self._news, self._stopped = asyncio.Event(), asyncio.Event()
        self._timetable = Timetable(engine, schedules, self._desk)
        self._heeding = Heeding(engine, lambda: self.executes)
        self.stopping = False
        engine.meter.tells = True

    @property
    def executes(self) -> list[str]:
        """The runs that it has now."""
        return list(self._tasks)

    def told(self) -> str:
        """What it does, in a few words."""
        what = f"{', '.join(sorted(self._names))}, {f'up to {self._room} runs' if self._room > 1 else 'one run'} at a time"
        return f"{what}, of queue {', '.join(self._queues)}" if tuple(self._queues) != (QUEUE,) else what

    def under_way(self) -> dict[str, str]:
        """By run that it has now, the steps that have begun and not ended, as far as that is known."""
        runs = {run_id: self._engine.keeper.runs.get(run_id) for run_id in self.executes}
        return {run_id: ", ".join(_under_way(run)) for run_id, run in runs.items() if run is not None}

    def stop(self) -> None:
        """Take nothing more and hand over what is there; on the worker's own loop."""
        self.stopping = True
        self._news.set()
        self._stopped.set()

    async def work(self) -> Drained:
        """Take and execute runs until it is stopped, then let go of them; where this is cancelled, too."""
        timekeeper = asyncio.create_task(self._timetable.keep())
        await self._unless_stopped(self._introduce)
        self._heeding.start()
        try:
            while not self.stopping:
                rest_s = await self._fill()
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest_s):  # `wait_for` of Python 3.11 loses a cancellation that comes with the news
                        await self._news.wait()
        finally:
            self.stopping = True
            timekeeper.cancel()
            self._heeding.stop()
            self._ask_to_leave(at_once=False)
            telling = self._ask(self._introduce)
            drained = await self._drained()
            await asyncio.wait([telling, *self._asked], timeout=TELL_S)
            self._threads.shutdown(wait=False)
            self._desk.shutdown(wait=False)
        return drained

    async def _unless_stopped(self, job: Callable[[], T]) -> T | None:
        """Have something done with the store, in a thread; None where the worker is stopped first: a store may not answer for long."""
        doing, stopped = self._ask(job), asyncio.ensure_future(self._stopped.wait())
        either: list[asyncio.Future[Any]] = [doing, stopped]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        return doing.result() if doing.done() else None

    def _ask(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Have something done in a thread of the worker's own."""
        doing = asyncio.get_running_loop().run_in_executor(self._desk, job)
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may ask for it any more
        self._asked.add(doing)
        doing.add_done_callback(self._asked.discard)
        return doing

    def _introduce(self) -> None:
        """Let `holdfast workers` tell of this one; that nobody could be told is no reason not to work."""
        engine = self._engine
        try:
            engine.keeper.enroll()
            if not self.stopping:
                forget_dead(engine)
            if isinstance(engine.store, Roster):
                told = introduction(
                    engine, agents=self._names, queues=self._queues, concurrency=self._room, stopping=self.stopping, codes=self.codes
                )
                engine.store.introduce(engine.keeper.owner, told)
        except StoreError as error:
            log.warning("the store cannot be told who works on it: %s", error)

    async def _fill(self) -> float:
        """Take as many runs as there is room for; gives how long to rest before the next look."""
        room = self._room - len(self._tasks)
        if room < 1:
            return self._look_s
        try:
            for order in await self._unless_stopped(lambda: list(self._orders(room))) or ():
                self._tasks[order.run_id] = task = asyncio.create_task(self._attend(order))
                task.add_done_callback(partial(self._ended, order.run_id))
        except StoreError as error:
            log.warning("the store cannot be read, trying again in %g s: %s", AWAY_S, error)
            return AWAY_S
        except Exception:
            log.exception("runs cannot be looked for, trying again in %g s", AWAY_S)
            return AWAY_S
        return self._look_s

    def _ended(self, run_id: str, _: object) -> None:
        del self._tasks[run_id]
        self._news.set()

    def _orders(self, room: int) -> Iterator[Order]:
        """What is to be executed next; of what has a ceiling no more than it lets, and nothing while it is known to be reached."""
        asked, looks = Counter[Ceiling](), self._looks
        queues = self._heeding.let_through(self._queues)
        looks.full.clear()
        held = [queue for queue in self._queues if queue not in queues]
        for head in claimable(self._engine, self._names, queues, looks, held):
            above = ceilings(self._engine.meter.limits, head)
            looks.full.update(one[:2] for one in above if asked[one] >= one.most or self._is_full(one))
            if head.run_id in self._tasks or looks.full.intersection(one[:2] for one in above):
                continue
            if (order := self._order(head, above)) is not None:
                asked.update(above)
                looks.taken += 1
                yield order
                room -= 1
            if not room:
                return

    def _is_full(self, ceiling: Ceiling) -> bool:
        return self._full_until_s.get(ceiling, 0.0) > self._engine.clock.monotonic_s()

    def _order(self, head: Head, above: Sequence[Ceiling]) -> Order | None:
        """How to go on with a run; None for one that cannot go on as it stands, which is not tried again before it has moved."""
        run_id, rests_until_s = head.run_id, self._rests_until_s.pop(head.run_id, 0.0)
        if rests_until_s > self._engine.clock.monotonic_s():
            self._rests_until_s[run_id] = rests_until_s
            return None
        if self._shunned.get(run_id) == (head.epoch, head.seq):
            return None
        try:
            found = loaded(self._engine, run_id)
            order = self._ordered(found, head)
            if order is not None and too_deadly(died := deaths_of(self._engine, *found)):
                self._set_aside(Journal.load(*found), died)
                return None
        except (StoreFailed, StoreBusy):
            raise
        except HoldfastError as error:
            self._pass_over(head, str(error))
            return None
        except BaseException as error:  # its code, or a bug: one run must not end the worker, nor hold up the others
            if isinstance(cause := getattr(error, "error", None), StoreError):
                raise cause from error
            self._pass_over(head, told(error))
            return None
        return None if order is None else replace(order, patient=False, ceilings=above, stood=(head.epoch, head.seq))

    def _pass_over(self, head: Head, why: str) -> None:
        self._shun(head.run_id, head)
        log.warning("run %s cannot go on here: %s", head.run_id, why)

    def _ordered(self, found: tuple[Head, Sequence[Row]], head: Head) -> Order | None:
        """With the arguments that the run was begun with; where the code does not take them, and nobody has moved it, it is blocked."""
        try:
            return order_for(self._engine, head.run_id, self._agents, where="this worker", wait=False, found=found)
        except UnfitArguments as error:
            if (found[0].epoch, found[0].seq) == (head.epoch, head.seq):
                self._block(Journal.load(*found), error)
            return None

    def _set_aside(self, journal: Journal, died: Sequence[Death]) -> None:
        """A run that kills those who execute it would go round the fleet: it is blocked, with what is known."""
        proven, last = sum(death.proven for death in died), ", ".join(death.owner for death in reversed(died))
        silent = f", {len(died) - proven} more fell silent" if proven < len(died) else ""
        begun = [step_id for step_id, history in journal.histories.items() if history.started_epoch and history.outcome is None]
        inside = f"The last to begin, without an outcome: step {', '.join(begun[-3:])}." if begun else _last_finished(journal)
        why = f"{proven} processes that executed it died{silent}, and it did not get on meanwhile; the last were {last}. {inside}"
        again = f"`holdfast resume {journal.head.run_id}` tries it again"
        error = {"type": DEADLY, "message": f"{why} Out of memory, or a crash in native code? {again}"}
        with suppress(LeaseLost):  # somebody else has taken it meanwhile
            resumed = rec.RunResumed(owner="", why="set aside", silent=proven < len(died))
            self._engine.committer.commit(journal, [resumed, rec.RunBlocked(error=error)])
            log.error("run %s is blocked: %s", journal.head.run_id, why)

    def _block(self, journal: Journal, error: UnfitArguments) -> None:
        """The code does not fit the arguments that the run was begun with: it waits for code that does, listed as any that does not fit."""
        head = journal.head
        told = failure(UndecodableResult(head.run_id, "", f"the arguments of {head.agent}", error.reason))
        why = TAKEN_OVER if head.owner else head.status
        with suppress(LeaseLost):  # somebody else has taken it meanwhile
            resumed = rec.RunResumed(owner=self._engine.keeper.owner, why=why, silent=silent(self._engine, head))
            self._engine.committer.commit(journal, [resumed, rec.RunBlocked(error=told, code=self.codes[head.agent])])
        log.warning("run %s: %s", head.run_id, error)

    async def _attend(self, order: Order) -> None:
        """Execute a run until it ends, waits or is left; how it ended is recorded with it."""
        try:
            if order.agent.is_async:
                await attend_async(self._engine, order)
            else:
                await asyncio.get_running_loop().run_in_executor(self._threads, attend_blocking, self._engine, order)
        except (Elsewhere, RunWaiting, RunPaused, RunCancelled, LeaseLost) as left:
            self._learn(left)
            log.debug("run %s: %s", order.run_id, left)
        except StoreError as error:
            self._rests_until_s[order.run_id] = self._engine.clock.monotonic_s() + AWAY_S
            log.warning("run %s: the store could not be used, trying again in %g s: %s", order.run_id, AWAY_S, error)
        except Exception as error:  # noqa: BLE001 (the run is what failed, not the worker)
            with suppress(StoreError):
                self._shun(order.run_id, self._engine.store.head(order.run_id))
            log.warning("run %s: %s", order.run_id, told(error))
        except BaseException as error:
            if self._is_meant_for_worker(order, error):
                raise
            self._rests_until_s[order.run_id] = self._engine.clock.monotonic_s() + AWAY_S
            log.warning("run %s was broken off: %s", order.run_id, told(error))

    def _is_meant_for_worker(self, order: Order, error: BaseException) -> bool:
        """Whether somebody cancels or interrupts the worker, and not the code of a run itself."""
        task = asyncio.current_task()
        cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
        interrupted = isinstance(error, KeyboardInterrupt) and order.agent.is_async and (self.stopping or is_ctrl_c(error))
        return cancelled or interrupted

    def _learn(self, left: BaseException) -> None:
        """Where there was no room for a run, those with the same ceiling are passed over for a moment."""
        full = left.__cause__.full if isinstance(left.__cause__, Crowded) else ()
        if len(self._full_until_s) >= MOST_SHUNNED:
            self._full_until_s.clear()
        self._full_until_s |= dict.fromkeys(full, self._engine.clock.monotonic_s() + POLL_S)

    def _shun(self, run_id: str, head: Head | None) -> None:
        """Do not try a run again that stands where it stood, if it does: what hindered it was not recorded with it."""
        if len(self._shunned) >= MOST_SHUNNED:
            self._shunned.clear()
        self._shunned[run_id] = (head.epoch, head.seq) if head is not None else (0, 0)

    async def _drained(self) -> Drained:
        """Let go of what executes: at the next step, after the grace time at once."""
        broken_off = await self._left(self._grace_s, at_once=False)
        steps = self.under_way()
        stuck = await self._left(BREAK_S, at_once=True) if broken_off else ()
        return Drained(broken_off, stuck, steps)

    def _ask_to_leave(self, *, at_once: bool) -> None:
        for run_id in self._tasks:
            run = self._engine.keeper.runs.get(run_id)
            if run is not None and (run.leaving is None or at_once):
                run.leave(run.leaving or rec.RunReleased(reason="its worker stops"), at_once=at_once)

    async def _left(self, patience_s: float, *, at_once: bool) -> tuple[str, ...]:
        """Ask all runs to leave, and wait for them; gives those that did not in that time."""
        until_s = asyncio.get_running_loop().time() + patience_s
        while self._tasks and (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            self._ask_to_leave(at_once=at_once)  # again and again: one may have been claimed a moment ago
            at_once = False
            await asyncio.wait(self._tasks.values(), timeout=min(left_s, POLL_S))
        return tuple(self._tasks)
