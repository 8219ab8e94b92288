"""Time-outs that are recorded when they fire, so that replay cancels at the same place.

On an event loop the time-out cancels what runs inside. A thread cannot be cancelled: there it is raised at the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from holdfast._duration import Duration, seconds
from holdfast.errors import ReplayMismatch, Unwinding
from holdfast.life.run import Scope
from holdfast.records import kinds as rec
from holdfast.verbs.branches import async_scope, blocking_scope

REPLAY_POLL_S = 0.01
"""How often a time-out that is over looks whether replay has come to its end."""


class _Block:
    """A time-out in a scope: `fired` once it cancels, `doomed` where the journal says that it will."""

    def __init__(self, duration: Duration, scope: Scope) -> None:
        self._after_s = seconds(duration, "hf.timeout")
        self._scope = scope
        self.step_id = scope.reserve()
        self.fired = False
        history = scope.run.journal.histories.get(self.step_id)
        if history is not None and history.name:
            raise scope.run.stop(ReplayMismatch(scope.run.id, self.step_id, history.name, "calls hf.timeout"))
        self.seq = history.outcome_seq if history else 0
        self.doomed = self.seq > 0
        self._started_us = 0

    def _open(self) -> None:
        self._scope.run.requested.add(self.step_id)
        self._started_us = self._scope.run.read_time(self._scope)
        self._scope.blocks.append(self)

    def left_s(self) -> float:
        """How long until it fires; it was set when the block was first entered, before any crash."""
        return (self.deadline_us() - self._scope.run.clock.now_us()) / 1e6

    def deadline_us(self) -> int:
        """When its time is over."""
        return self._started_us + int(self._after_s * 1e6)

    def over(self) -> TimeoutError:
        """What is raised where it has fired."""
        return TimeoutError(f"what is inside took longer than the {self._after_s:g} s of hf.timeout")

    def due(self) -> bool:
        """Whether it should fire now: the time is over and replay has come to its end."""
        return not self.fired and self.left_s() <= 0 and self._scope.run.at_live_edge()


class timeout(_Block):  # noqa: N801 (reads as a verb: `async with hf.timeout("5s")`)
    """Cancel what runs inside after `duration` and raise TimeoutError; recorded, so that replay cancels at the same place."""

    def __init__(self, duration: Duration, /) -> None:
        super().__init__(duration, async_scope("timeout"))
        self._inner = asyncio.timeout(None)
        self._over = False
        self._before = 0
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._open()
        task = asyncio.current_task()
        self._before = task.cancelling() if task is not None else 0
        await self._inner.__aenter__()
        self._watch = asyncio.get_running_loop().create_task(self._fire_recorded() if self.doomed else self._fire_when_due())

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and (self.fired or self.doomed):
                kind, error, trace = await self._last_moment()
            elif kind is not None and issubclass(kind, asyncio.CancelledError):
                await self._another_end()
            elif kind is not None and self._inner.expired():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # a cancellation that a commit held back belongs to this block
            await self._inner.__aexit__(kind, error, trace)
        except TimeoutError as over:
            if self._scope.run.ended is not None:
                raise self._scope.run.ended from over  # the time-out could not be recorded, so the agent must not see it
            await self._spent()
            raise self.over() from over
        finally:
            self._over = True
            self._scope.blocks.remove(self)
            if self._watch is not None and not self.fired:
                self._watch.cancel()

    async def _another_end(self) -> None:
        """Somebody else's cancellation ends the block while its time-out is recorded, or was: its own cancellation ends here, too.

        Live it would reach the code behind the block, which on replay is not there yet when the time-out has its turn.
        """
        task = asyncio.current_task()
        if task is not None and (self.fired or self.doomed) and task.cancelling() - self._before > self._inner.expired():
            with contextlib.suppress(asyncio.CancelledError):
                if self._watch is not None:
                    await asyncio.wait([self._watch])
                await asyncio.sleep(0)

    async def _spent(self) -> None:
        """Two time-outs that fired together cancel twice, and only one cancellation is left to go through both: the other ends here."""
        task = asyncio.current_task()
        if task is not None and task.cancelling() <= self._before:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if task.cancelling() > self._before:
                    raise  # somebody else wants the task to end

    async def _last_moment(self) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
        """The block has come to its end while the time-out is being recorded, or was: it counts, live and on replay."""
        try:
            if self._watch is not None:
                await asyncio.wait([self._watch])
            await asyncio.sleep(0)
        except asyncio.CancelledError as late:
            return type(late), late, late.__traceback__
        return None, None, None

    async def _fire_recorded(self) -> None:
        await self._scope.run.turnstile.turn(self.seq)
        self._fire()

    async def _fire_when_due(self) -> None:
        run = self._scope.run
        while not self.due():  # noqa: ASYNC110 (time itself is waited for, and the clock may be a test's)
            await asyncio.sleep(max(self.left_s(), REPLAY_POLL_S))
        if run.ended is None:
            self.fired = True
            try:
                seq = await run.committer.commit_async(run.journal, run.with_riders([rec.TimeoutFired(step_id=self.step_id)]))
                await run.turnstile.turn(seq)
            except Unwinding as ended:
                run.unwind(ended)
            self._fire()

    def _fire(self) -> None:
        self.fired = True
        if self._inner.when() is None and not self._over:
            self._inner.reschedule(asyncio.get_running_loop().time())


class timeout_blocking(_Block):  # noqa: N801 (reads as a verb: `with hf.timeout("5s")`)
    """Raise TimeoutError at the first step after `duration`; recorded, so that replay raises at the same place."""

    def __init__(self, duration: Duration, /) -> None:
        super().__init__(duration, blocking_scope("timeout"))

    def __enter__(self) -> None:
        self._open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._scope.blocks.remove(self)
