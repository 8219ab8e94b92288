"""The verbs of `Holdfast` that have others execute a run: leave it to a worker, be one, pause a run, a queue or the fleet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

from holdfast._duration import Duration, seconds
from holdfast._turns import QUEUE
from holdfast.app.handle import Handle
from holdfast.errors import Misuse
from holdfast.running.engine import Engine
from holdfast.running.ordering import RunOptions, in_line, ordered
from holdfast.schedules import Schedule
from holdfast.verbs.decorators import Agent

if TYPE_CHECKING:
    from holdfast.fleet.queues import QueueView
    from holdfast.operating.holding import HoldView
    from holdfast.operating.roster import WorkerView

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

WORKERS_ROOM = 10
"""Runs that a worker executes at a time, where nothing else is said."""


def _of_the_program() -> list[Callable[..., Any]]:
    """The agents that the main file of this program knows by name."""
    found = {id(one): one for one in vars(sys.modules["__main__"]).values() if isinstance(one, Agent)}
    if not found:
        raise Misuse("the program's main file knows no agent; nothing was begun. Hand over a list: app.work([agent])")
    return list(found.values())


class Working:
    """What `Holdfast` has for those who share runs between processes."""

    engine: Engine

    @overload
    def submit(
        self, agent: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts,
        queue: str = ..., priority: int = ..., key: str = ..., **options: Unpack[RunOptions],
    ) -> Handle[R]: ...  # fmt: skip
    @overload
    def submit(
        self, agent: Callable[[*Ts], R], /, *args: *Ts,
        queue: str = ..., priority: int = ..., key: str = ..., **options: Unpack[RunOptions],
    ) -> Handle[R]: ...  # fmt: skip
    def submit(
        self, agent: Callable[[*Ts], Any], /, *args: *Ts,
        queue: str = QUEUE, priority: int = 0, key: str = "", **options: Unpack[RunOptions],
    ) -> Handle[Any]:  # fmt: skip
        """Leave a run to a worker and give a handle to it at once; it is recorded by then, and the same id again is the same run.

        In its queue it comes behind runs of a higher priority. Those of one `key`, such as a customer, take turns with those of others.
        """
        from holdfast.running.submitting import submit

        order = ordered(agent, args, wait=False, options=options, beside=("queue", "priority", "key"), said="app.submit")
        submit(self.engine, in_line(order, queue=queue, priority=priority, key=key))
        return Handle(self.engine, order.run_id, agent=order.agent)

    async def work(
        self, agents: Sequence[Callable[..., Any]] | None = None, *, queues: Sequence[str] = (QUEUE,), concurrency: int = WORKERS_ROOM,
        grace: Duration = "30s", schedules: Sequence[Schedule] = (),
    ) -> None:  # fmt: skip
        """Execute runs of these agents, whoever left them here, until this is cancelled; then hand over what is under way.

        Where none are named, they are those that the program's main file knows by name. Steps that are under
        way have the grace time to end; what takes longer is broken off, which leaves a doubt where it is an effect.
        """
        from holdfast.fleet.worker import Worker

        grace_s, agents = seconds(grace, "grace"), _of_the_program() if agents is None else agents
        await Worker(self.engine, agents, queues=queues, concurrency=concurrency, grace_s=grace_s, schedules=schedules).work()

    def workers(self) -> list[WorkerView]:
        """The processes that work on this store, whether they live, and what they execute."""
        from holdfast.operating import roster

        return roster.workers(self.engine)

    def queues(self) -> list[QueueView]:
        """The queues: how many runs of each are in line, execute and are paused, since when, who serves it, and what holds it back."""
        from holdfast.fleet.queues import standing

        return standing(self.engine)

    def pause(self, run_id: str, *, now: bool = False, by: str | None = None, reason: str = "") -> str:
        """Let nobody go on with a run until it is resumed; one that executes stops before its next step, with now=True at once."""
        from holdfast.operating import operate
        from holdfast.operating.telling import somebody

        return operate.pause(self.engine, run_id, now=now, by=by or somebody(), reason=reason)

    def pause_queue(self, queue: str, *, now: bool = False, by: str | None = None, reason: str = "") -> str:
        """Let no worker go on with runs of a queue until `resume_queue`.

        Workers see it within a second. What they execute they let go of before its next step, with now=True at once, which leaves a doubt
        where an effect is broken off. It changes no run beyond that, and concerns no program that executes its runs itself.
        """
        from holdfast.operating import holding
        from holdfast.operating.telling import somebody

        return holding.pause(self.engine, queue, now=now, by=by or somebody(), reason=reason)

    def resume_queue(self, queue: str) -> str:
        """Let runs of a queue go on that `pause_queue` held back; those that were paused one by one stay so."""
        from holdfast.operating import holding

        return holding.resume(self.engine, queue)

    def pause_fleet(self, *, now: bool = False, by: str | None = None, reason: str = "") -> str:
        """The same as `pause_queue`, for all queues; those that were paused by themselves stay so when the fleet goes on."""
        from holdfast.operating import holding
        from holdfast.operating.telling import somebody

        return holding.pause(self.engine, None, now=now, by=by or somebody(), reason=reason)

    def resume_fleet(self) -> str:
        """Let go on what `pause_fleet` held back."""
        from holdfast.operating import holding

        return holding.resume(self.engine, None)

    def held(self) -> list[HoldView]:
        """The queues that are paused, and the fleet if it is, which comes first: by whom, since when, and why."""
        from holdfast.operating import holding

        return holding.held(self.engine)
