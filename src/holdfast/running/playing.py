"""Execute the code of an agent in a run that was taken: from the letters that wait for it to the way in which it ended."""

from __future__ import annotations

import asyncio
from contextvars import Token
from typing import Any

from holdfast.errors import (
    Continued,
    Parked,
    RunInterrupted,
    Stopped,
    UndecodableResult,
    Unwinding,
)  # fmt: skip
from holdfast.large.artifact import Desk, desk
from holdfast.life.drive import drive_async, drive_blocking
from holdfast.life.run import EDGE_S, Group, Place, Run, Scope, active, place
from holdfast.records import kinds as rec
from holdfast.records.replay import UNDO
from holdfast.running.ending import Raised, Returned, concluded
from holdfast.running.engine import Engine, Order
from holdfast.running.lease import CHILD, deliver


async def play_async(engine: Engine, order: Order, run: Run) -> Any:
    stage = _Stage(engine, run)
    try:
        return await _played_async(engine, order, run, stage.open())
    finally:
        stage.close()


async def _played_async(engine: Engine, order: Order, run: Run, scope: Scope) -> Any:
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    run.root = task
    if run.cancelling is not None:
        run.cancel_root(task)
    _take_letters(engine, run)
    try:
        args, kwargs = _arguments(order, run)
        outcome: Returned | Raised = Returned(await order.agent.fn(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 (conclude decides what every way to end means)
        outcome = Raised(error)
    if run.started_here:
        outcome = await _joined(run, scope, outcome)
    run.root, run.was_cancelled = None, task.cancelling() > before
    for _ in range(run.root_cancels):
        task.uncancel()  # what the engine did to unwind the code is not a cancellation from outside
    try:
        return await drive_async(concluded(run, order.agent, outcome), run, scope)
    except RunInterrupted as interrupted:
        bare = isinstance(outcome, Raised) and isinstance(outcome.error, Stopped | asyncio.CancelledError)
        bare = bare or interrupted.step_id.startswith(UNDO)
        if task.cancelling() > before and bare:  # no time-out and no TaskGroup inside: whoever started the run cancels it
            raise asyncio.CancelledError from None
        raise


def _was_broken_off(outcome: Returned | Raised) -> bool:
    return isinstance(outcome, Raised) and not isinstance(outcome.error, Exception)


async def _joined(run: Run, scope: Scope, outcome: Returned | Raised) -> Returned | Raised:
    """The agent's code has ended, and so do the child runs that it started: they are waited for, and their failures count."""
    anew = run.ended if isinstance(run.ended, Continued) else None
    if anew is not None:
        run.ended = None  # as before the end of a run, what it has begun comes to its own
    outcome = await _waited_for(run, scope, Returned(None) if anew is not None else outcome)
    if anew is not None and isinstance(outcome, Returned):
        run.ended = run.ended or anew
        return Raised(anew)
    return outcome


async def _waited_for(run: Run, scope: Scope, outcome: Returned | Raised) -> Returned | Raised:
    with Group(scope, 1, 1) as group:
        group.begun = 1
        run.park_soon()
        while not all(task.done() for task in run.started_here):
            for task in run.started_here if run.ended or run.cancelling or _was_broken_off(outcome) else ():
                task.cancel()
            try:
                await asyncio.wait(run.started_here)
            except asyncio.CancelledError as error:
                outcome = Raised(error)
    errors = [task.exception() for task in run.started_here if not task.cancelled()]
    if isinstance(outcome, Raised):
        return outcome
    return next((Raised(error) for error in errors if error is not None and not getattr(error, "__holdfast_asked__", False)), outcome)


def play_blocking(engine: Engine, order: Order, run: Run) -> Any:
    stage = _Stage(engine, run)
    try:
        scope = stage.open()
        _take_letters(engine, run)
        try:
            args, kwargs = _arguments(order, run)
            outcome: Returned | Raised = Returned(order.agent.fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (conclude decides what every way to end means)
            outcome = Raised(error)
        return drive_blocking(concluded(run, order.agent, outcome), run, scope)
    finally:
        try:
            stage.close()
        except (KeyboardInterrupt, SystemExit):  # it came in the middle of that
            stage.close()
            raise


def _arguments(order: Order, run: Run) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the agent is called with: what was ordered, or what the run has continued with since."""
    continued = run.journal.continued
    if continued is None:
        return order.args, order.kwargs
    try:
        return order.agent.orders.give_back(continued.args or b"{}")
    except ValueError as error:
        raise run.stop(UndecodableResult(run.id, "", f"the arguments of {order.agent.name}", str(error))) from error


def _take_letters(engine: Engine, run: Run) -> None:
    """What was said to the run while nobody owned it, before its code begins."""
    for letter in engine.store.letters([run.id]):
        if letter.kind == CHILD:  # the code has yet to look at the child: once it has, nothing is left of this
            run.heard.add(letter.letter_id)
            run.stale.append(letter.letter_id)
        deliver(run, letter)
    if run.undo.asked is not None:
        run.retrace()
        if run.root is not None:
            run.root.get_loop().call_later(EDGE_S, run.end_when_known, run.root)


def _listen(engine: Engine, run: Run) -> None:
    for letter in engine.store.letters([run.id]):
        deliver(run, letter)


class _Stage:
    """The run is registered while its code executes, and no longer.

    It is no context manager: Ctrl-C between `__enter__` and the block would leave the run registered for ever.
    """

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine, self._run = engine, run
        self._place: Token[Place | None] | None = None
        self._desk: Token[Desk | None] | None = None

    def open(self) -> Scope:
        """Register it, and give the scope of its main line."""
        self._engine.keeper.runs[self._run.id] = self._run
        self._run.listen = lambda: _listen(self._engine, self._run)
        active.add(self._run)
        scope = Scope(self._run, "", None)
        self._place = place.set(scope)
        self._desk = desk.set(Desk(self._engine.store, self._engine.clock, self._run.id, self._run.stop))
        return scope

    def close(self) -> None:
        """Undo as much of that as was done and is not undone yet."""
        if self._place is not None:
            token, self._place = self._place, None
            place.reset(token)
        if self._desk is not None:
            at_desk, self._desk = self._desk, None
            desk.reset(at_desk)
        active.discard(self._run)
        if self._engine.keeper.runs.pop(self._run.id, None) is not None:
            self._engine.committer.enter(-1)
        self._let_go()

    def _let_go(self) -> None:
        """A run whose end was not recorded is released, or else left for others to find its owner dead."""
        journal, keeper = self._run.journal, self._engine.keeper
        try:
            if journal.head.owner == keeper.owner:
                self._engine.committer.commit(journal, [rec.RunReleased(reason="its end could not be recorded")])
        except Unwinding:
            keeper.orphans.add(self._run.id)
        # A task that nobody waited for must not write into a run that is over.
        journal.broken = self._run.ended = journal.broken or Parked()
