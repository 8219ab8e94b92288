"""A handle to a run: its result, where it stands, what happens in it, and a way to cancel it, from any process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast._duration import Duration, seconds
from holdfast.errors import Misuse, RunCancelled, RunFailed, UndecodableResult, UnknownRun, WrongMode
from holdfast.life.run import Scope, place
from holdfast.records.away import refuse_away
from holdfast.records.journal import Journal
from holdfast.records.kinds import RunCancelled as CancelledRecord
from holdfast.records.kinds import RunDone
from holdfast.running.engine import Engine
from holdfast.running.runner import poll_s
from holdfast.verbs.decorators import Agent

if TYPE_CHECKING:
    from holdfast.operating.follow import Event

R = TypeVar("R")

_NOT_YET = object()


class Blocked(RunFailed):
    """The run stands as blocked: no result will come before somebody has looked after it."""

    def __str__(self) -> str:
        stands = f"run {self.run_id!r} is blocked; finished steps are kept"
        return f"{self.message} ({stands}, and what helps is told by: holdfast show {self.run_id})"


class Handle(Generic[R]):
    """A run: one that was started here, or that any process executes."""

    def __init__(
        self, engine: Engine, run_id: str, *, agent: Agent[..., Any] | None = None, task: asyncio.Task[R] | None = None
    ) -> None:
        self._engine, self._run_id, self._agent, self._task = engine, run_id, agent, task
        self._followers = 0
        self._afterwards: list[Callable[[], object]] = []

    @property
    def id(self) -> str:
        """The run id."""
        return self._run_id

    async def result(self, *, timeout: Duration | None = None) -> R:
        """Wait for the result; a failure or cancellation of the run is raised, a time-out (`TimeoutError`) leaves the run going."""
        limit_s = None if timeout is None else seconds(timeout, "timeout")
        if self._task is not None:
            ended, _ = await asyncio.wait({self._task}, timeout=limit_s)
            if not ended:
                raise self._late(limit_s)
            return self._task.result()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with self._engine.bell.news([self._run_id]) as news:
            while (found := self._outcome()) is _NOT_YET:
                if limit_s is not None and loop.time() - began_s >= limit_s:
                    raise self._late(limit_s)
                await news.wait_async(poll_s(self._engine))
        return cast("R", found)

    def wait(self, *, timeout: Duration | None = None) -> R:
        """The same, blocking: for code that is on no event loop."""
        self._refuse_on_its_own_loop()
        clock, limit_s = self._engine.clock, None if timeout is None else seconds(timeout, "timeout")
        began_s = clock.monotonic_s()
        with self._engine.bell.news([self._run_id]) as news:
            while (found := self._outcome()) is _NOT_YET:
                if limit_s is not None and clock.monotonic_s() - began_s >= limit_s:
                    raise self._late(limit_s)
                news.wait(clock, poll_s(self._engine))
        return cast("R", found)

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """The records behind the seq `after` and the values that the run emits, as they come, whichever process executes it.

        Ends when nobody executes the run and it is done, cancelled, failed or blocked; while it waits, so does this.
        """
        from holdfast.operating import follow

        follower = follow.Follower(self._engine, self._run_id, after)
        self._followers += 1
        try:
            while self._task is not None and not self._task.done() and not follower.begun():  # noqa: ASYNC110 (the store tells)
                await asyncio.sleep(follow.BRISK_S)
            async for event in follow.follow(follower):
                yield event
        finally:
            self._followers -= 1
            self._ended_here()

    def when_ended(self, fn: Callable[[], object]) -> None:
        """Have `fn` called when the run has ended here, and those who follow it through this handle have seen its end."""
        if self._task is None:
            raise Misuse(f"run {self._run_id!r} was not started by this handle, so it does not end here. Wait for its result instead")
        self._afterwards.append(fn)
        self._task.add_done_callback(lambda _: self._ended_here())

    def status(self) -> str:
        """Where the run stands."""
        from holdfast.operating import views

        return views.show(self._engine, self._run_id).status

    def cancel(self, *, undo: bool = False, by: str = "code", reason: str = "") -> None:
        """Cancel the run for good, and with undo=True undo what it did; one that was started here and has not begun does not begin."""
        from holdfast.operating import operate

        try:
            (operate.undo if undo else operate.cancel)(self._engine, self._run_id, by=by, reason=reason)
        except UnknownRun:
            if self._task is None:
                raise
            self._task.cancel()

    def _late(self, limit_s: float | None) -> TimeoutError:
        return TimeoutError(f"run {self._run_id!r} has no result after {limit_s or 0:g} s; it goes on")

    def _ended_here(self) -> None:
        if self._task is not None and self._task.done() and not self._followers:
            while self._afterwards:
                self._afterwards.pop(0)()

    def _refuse_on_its_own_loop(self) -> None:
        try:
            here: object = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._task is not None and self._task.get_loop() is here:
            raise Misuse(f"wait() would block the event loop that executes run {self._run_id!r}; await result() instead")

    def _outcome(self) -> Any:
        """What the run gave, if it has ended; what ended it otherwise is raised."""
        if self._task is not None and self._task.done():
            return self._task.result()
        head = self._engine.store.head(self._run_id)
        if head is None and self._task is None:
            from holdfast.operating import views

            views.loaded(self._engine, self._run_id)
        if head is None or head.owner is not None:
            return _NOT_YET
        refuse_away(head)
        if head.status in ("failed", "blocked"):
            from holdfast.operating.roster import may_fit

            if may_fit(self._engine, head):
                return _NOT_YET
            raise RunFailed(self._run_id, head.note) if head.status == "failed" else Blocked(self._run_id, f"blocked: {head.note}")
        return self._recorded() if head.status in ("done", "cancelled") else _NOT_YET

    def _recorded(self) -> Any:
        found = self._engine.store.load(self._run_id)
        verdict = Journal.load(*found).verdict if found else None
        match verdict:
            case RunDone():
                return self._decoded(verdict.value or b"null")
            case CancelledRecord():
                raise RunCancelled(self._run_id, verdict.by, verdict.reason)
        return _NOT_YET

    def _decoded(self, value: bytes) -> Any:
        if self._agent is None:
            return json.loads(value)
        try:
            return self._agent.codec().give_back(value)
        except ValueError as error:
            raise UndecodableResult(self._run_id, "result", self._agent.name, str(error)) from error


def to_be_awaited(begin: Callable[[], Handle[Any]]) -> Coroutine[Any, Any, Handle[Any]]:
    """A start that happens when it is awaited; inside a run it is noticed where nobody does, and refused where nobody can."""
    where = place.get()
    run = where.run if isinstance(where, Scope) else None
    if run is not None and run.blocking:
        remedy = "It is a `def` agent: call the other agent itself; beside other work, in a branch: hf.gather(lambda: other(...), ...)"
        raise WrongMode("hf.start", run.started.agent, remedy)

    async def started() -> Handle[Any]:
        if run is not None:
            run.unawaited.pop(place_of, None)
        return begin()

    awaiting, place_of = started(), ""
    if isinstance(where, Scope):
        place_of = f"{where.count + 1} {len(where.run.unawaited)}"
        where.run.unawaited[place_of] = ("hf.start", awaiting)
    return awaiting
