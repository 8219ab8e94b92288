"""Runs inside runs: an agent that is called in another one is a step there, and a run of its own.

The parent records `child.started` before the child begins, and the child's outcome as that of the step; in between the child is an
ordinary run with its own journal, lease and keys, played in the same event loop or thread by the same runner. So a crash at any place
leaves a step without an outcome, and whoever takes the parent up again takes the child up: one that is done gives its result and
executes nothing. A child that waits lets go of everything, and its parent's step waits for it to move; one that is cancelled together
with the step that called it is closed for good.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast._duration import Duration
from holdfast._failpoints import reach
from holdfast._ids import RUN_ID
from holdfast.budget import Budget
from holdfast.codec.failures import told
from holdfast.codec.signature import return_annotation
from holdfast.errors import (
    BranchLost,
    BudgetExceeded,
    Cancelled,
    ChildStopped,
    Damaged,
    LeaseLost,
    LostContext,
    Misuse,
    Outspent,
    Parked,
    Refusal,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunPruned,
    RunRepaired,
    RunWaiting,
    StoreError,
    UndecodableResult,
    UndoFailed,
    Unwinding,
    WrongMode,
)  # fmt: skip
from holdfast.large.artifact import Desk, at_desk
from holdfast.life.again import Before, child_before
from holdfast.life.calls import Call, Spec
from holdfast.life.commands import Came, Commit, Invoke, Life, Pause, WaitForPerson
from holdfast.life.door import begin_no_more, within_budget
from holdfast.life.drive import drive_async
from holdfast.life.run import PARK_CHECK_S, Body, Group, Run, Scope, place
from holdfast.life.steps import life
from holdfast.life.waiters import Parking
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.ledger import Outlay
from holdfast.records.replay import History
from holdfast.running.ending import Raised, Returned
from holdfast.running.engine import Engine, Nested, Order
from holdfast.running.runner import attend_async, attend_blocking, called_by, moved, refuse_foreign, refuse_pruned, resting
from holdfast.verbs.branches import async_scope
from holdfast.verbs.decorators import Agent, Step
from holdfast.verbs.timeouts import timeout as time_out

POLL_S = 0.1
"""How often a step looks whether the child that it waits for has moved, while other lines of its run go on."""

KEPT_OF_PARENT = 80
"""Characters of the parent's id with which the id of a child begins, where both together are too long."""

UNUSABLE = (ChildStopped, Damaged, RunPruned, RunRepaired, UndecodableResult)
"""What keeps a child from being taken up, or its result from being read; nothing that code could answer to."""

RAISED = (RunCancelled, RunFailed, RunPruned, BudgetExceeded, Refusal)
"""Errors of a child run, beside the builtin ones and those in `raises=` of its agent, that its parent gets as themselves."""


class Wish(NamedTuple):
    """What the parent wants of a child beyond its arguments."""

    run_id: str = ""
    tags: dict[str, str] | None = None
    budget: Budget | None = None
    threaded: bool = False


class Children:
    """The runs inside the runs of one agent."""

    def __init__(self, engine: Engine, agent: Agent[..., Any]) -> None:
        self.engine, self._agent = engine, agent

    def call(self, agent: Agent[..., Any], scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent as a child run: a step that gives its result."""
        if not scope.run.blocking and not agent.is_async:
            remedy = f"Make {agent.name!r} `async def`, or have it run in a thread: handle = await hf.start({agent.name}, ...)"
            raise WrongMode(agent.name, scope.run.started.agent, remedy)
        return Step(self._spec(agent, Wish(), is_async=agent.is_async))(*args, **kwargs)

    def begin(
        self, agent: Agent[..., Any], args: tuple[Any, ...], *, run_id: str, tags: dict[str, str], budget: Budget | None
    ) -> Started:
        """Start an agent as a child run that executes beside the code that started it."""
        scope = async_scope("start")
        if scope.parent is not None:
            raise Misuse("hf.start was called in a branch, which runs beside others already; nothing was started. Call the agent itself")
        wish = Wish(run_id, tags, budget, threaded=not agent.is_async)
        return Started(self.engine, Call(self._spec(agent, wish, is_async=True), scope, scope.reserve(), args, {}), run_id)

    def drop(self, call: Call, child: str) -> None:
        """Cancel a child whose call was cancelled, as the journal says."""
        _dropped(self.engine, call, child)

    def close(self, run: Run) -> None:
        """Cancel the children that the run did not come to the end of; one that failed stays failed, and cannot go on without it."""
        for child in run.journal.open_children():
            head = self.engine.store.head(child)
            if head is not None and head.status not in ("done", "failed"):
                if head.status != "cancelled":
                    reach("child.before_cancel")
                _closed(self.engine, child, by=f"run {run.id}", reason="its parent has ended")

    def _spec(self, agent: Agent[..., Any], wish: Wish, *, is_async: bool) -> Spec:
        wait = Calling(self.engine, agent, wish)
        returns, raises = return_annotation(agent.fn), (*agent.raises, *RAISED)
        return Spec(fn=agent.fn, name=agent.name, is_async=is_async, raises=raises, returns=returns, wait=wait)


class Calling:
    """One call of a child, as the life of the parent's step; `usage` is what it spent that the parent has not counted yet."""

    def __init__(self, engine: Engine, agent: Agent[..., Any], wish: Wish) -> None:
        self._engine, self._agent, self._wish = engine, agent, wish
        self.usage: list[rec.Json] = []

    def __call__(self, call: Call) -> Life[Came]:
        """From the call to the result of the child, through whatever waits it has in it."""
        plan = planned(self._engine, self._wish, call)
        if plan.before is not None:
            return _taken_over(call, plan.child, plan.before)
        yield from self._begun(call, plan)
        return (yield from self._lived(call, plan.child))

    def _lived(self, call: Call, child: str) -> Life[Came]:
        nested = Nested(call)
        order = self._order(nested, child)
        try:
            parking = resting(self._engine, child)
            if parking is not None:  # to take it up would only have it park again
                yield from self._until_moved(call, parking)
            while True:
                call.run.check()
                reach("child.before_take")
                outcome = yield Invoke(Body(call), self._player(call), (self._engine, order), {}, None)
                reach("child.after_take")
                call.run.children.pop(call.step_id, None)
                if isinstance(outcome, Returned):
                    return Came(outcome.value)
                yield from self._followed(call, nested, outcome.error)
        except UNUSABLE as error:
            raise call.run.stop(ChildStopped(child, f"{error}")) from error
        except (asyncio.CancelledError, BranchLost):
            if call.run.ended is None:
                call.run.parked.pop(call.step_id, None)
            if call.run.ended is None and call.scope.cause():
                _dropped(self._engine, call, child)
            raise
        finally:
            self._account(call, nested)

    def _order(self, nested: Nested, child: str, undo: rec.RunUndoing | None = None) -> Order:
        return Order(
            agent=self._agent, run_id=child, args=nested.call.args, kwargs=nested.call.kwargs, tags=self._wish.tags or {},
            budget=self._wish.budget, wait=False, nested=nested, undo=undo,
        )  # fmt: skip

    def undone(self, call: Call, found: History) -> Life[bool]:
        """Have the child undone, whatever its end was; False where it never began or is another run's. `Parked` where it waits."""
        run, child = call.run, found.child
        if found.elsewhere or (found.outcome is None and self._engine.store.head(child) is None):
            return False
        asked = rec.RunUndoing(by=f"run {run.id}", reason="its parent is undone")
        nested = Nested(Call(call.spec, run.scopes[0], call.step_id, call.args, call.kwargs))
        outcome = yield Invoke(Body(call), self._player(call), (self._engine, self._order(nested, child, asked)), {}, None)
        run.children.pop(call.step_id, None)
        run.outlays.pop(child, None)
        error = outcome.error if isinstance(outcome, Raised) else None
        match error:
            case RunWaiting(parking=Parking() as parking):
                run.parked[call.step_id] = parking
                raise Parked
            case StoreError():
                raise run.stop(error) from error
            case RunInterrupted():
                raise run.stop(RunInterrupted(run.id, call.step_id)) from error
        head = self._engine.store.head(child)
        if head is None or head.status != "cancelled":
            why = f"child run {child!r} could not be undone: {told(error) if isinstance(error, Exception) else error}"
            raise UndoFailed(run.id, call.step_id, call.spec.name, why) from error
        return True

    def _begun(self, call: Call, plan: Plan) -> Life[None]:
        """The child is recorded before it begins, so that there is one child only, whatever crashes."""
        history, found = call.run.journal.histories.get(call.step_id), self._engine.store.load(plan.child)
        if history is None or history.child != plan.child:
            if found is not None:
                refuse_foreign(Journal.load(*found), call)
            with at_desk(Desk(self._engine.store, call.run.clock, plan.child)):
                self._agent.orders.keep(call.args, call.kwargs)  # what cannot be kept is refused before there is a child
            reach("child.before")
            yield Commit([_started(call, plan.child).but(fork_of=plan.fork_of)])
            reach("child.after")
        if plan.fork_of and found is None:
            from holdfast.operating.timetravel import fork_child, word

            said = word(f"run {call.run.id}", f"called at step {call.step_id}", _policy(call))
            fork_child(self._engine, plan.fork_of, plan.child, parent=called_by(call), said=said)

    def _player(self, call: Call) -> Callable[..., Any]:
        if call.run.blocking:
            return _played
        return _threaded if self._wish.threaded else _playing

    def _followed(self, call: Call, nested: Nested, error: BaseException) -> Life[None]:
        """What the way in which a child ended, or stopped, means for its parent; return where the child is to be taken up again."""
        run = call.run
        run.heed()
        match error:
            case RunWaiting() if run.leaving is not None and nested.journal is not None and nested.journal.head.status == "queued":
                yield from begin_no_more(call)  # it was let go of with this run, and goes on with it
            case RunWaiting(parking=Parking() as parking):
                yield from self._until_moved(call, parking)
            case Outspent():
                yield from within_budget(call)
            case LeaseLost():
                pass  # somebody else goes on with it: its result is waited for
            case RunCancelled() if run.cancelling is not None:
                raise run.cancelling
            case RunCancelled() if call.scope.cause():
                raise BranchLost if run.blocking else asyncio.CancelledError
            case RunInterrupted():
                raise run.stop(RunInterrupted(run.id, call.step_id)) from error
            case StoreError():
                raise run.stop(error) from error
            case _:
                if nested.journal is not None and nested.journal.head.status == "blocked":
                    raise run.stop(ChildStopped(nested.journal.head.run_id, f"{error}")) from error
                raise error

    def _until_moved(self, call: Call, parking: Parking) -> Life[None]:
        """Wait for the child; the run parks with it where nothing else is left to do."""
        run = call.run
        run.parked[call.step_id] = parking
        yield Pause(PARK_CHECK_S)  # a branch that has just ended may have something to say before the run parks
        while not moved(self._engine, parking):
            run.check()
            yield WaitForPerson(f"child:{parking.run_id}", run.clock.now_us() + int(POLL_S * 1e6), call.step_id, looks=True)
        del run.parked[call.step_id]
        run.stay.begin_anew()

    def _account(self, call: Call, nested: Nested) -> None:
        """What the child spent since the parent last counted it."""
        run, journal = call.run, nested.journal
        run.children.pop(call.step_id, None)
        if journal is None:
            return
        child = journal.head.run_id
        if run.ended is None:  # else nobody counts it here, and a run above may look for what was spent
            run.outlays.pop(child, None)
        spent = journal.ledger.outlay().plus(run.journal.ledger.charged.get(child, Outlay()), -1)
        if any(spent):
            self.usage.append({"run": child, **{name: value for name, value in spent._asdict().items() if value}})


class Plan(NamedTuple):
    """Which run is the child of a call, and which one it branches from; or whose result is taken instead, with the value."""

    child: str
    fork_of: str = ""
    before: tuple[Before, bytes] | None = None


def planned(engine: Engine, wish: Wish, call: Call) -> Plan:
    """The run that is the child of this call: the one that is recorded, one that was superseded, or a new one.

    What a child on a path that was given up has done must not be done again unasked: it is taken on; where it belongs to another run, or
    is cancelled, its result is taken, or else a branch of it begins, which knows of its effects.
    """
    run = call.run
    history = run.journal.histories.get(call.step_id)
    if history is not None and history.child and not history.elsewhere:
        return Plan(history.child, history.fork_of)
    before = child_before(call)
    if before is None:
        return Plan(_free_id(run, wish, call.step_id))
    child = before.history.child
    found = engine.store.load(child)
    if found is None:
        refuse_pruned(engine, child)
    ended = found is not None and found[0].status == "cancelled"
    if not before.history.elsewhere and not ended:
        return Plan(child)
    value = None if ended else _value_of(before.history, Journal.load(*found) if found is not None else None)
    if value is not None and not call.unfit(value):
        return Plan(child, "", (before, value))
    return Plan(_free_id(run, wish, call.step_id), "" if found is None and before.history.outcome is None else child)


def _free_id(run: Run, wish: Wish, step_id: str) -> str:
    """The id that was wished for, unless a child on a path that was given up has it."""
    had = {history.child for _, history in run.journal.superseded}
    mine = run.journal.histories.get(step_id)
    had |= {mine.child} if mine is not None else set()
    return wish.run_id if wish.run_id and wish.run_id not in had else child_id(run, step_id)


def _value_of(history: History, journal: Journal | None) -> bytes | None:
    """The result of a child run: what its step is recorded with, or what it has come to since."""
    if isinstance(history.outcome, rec.StepDone):
        return history.outcome.value
    verdict = None if journal is None or journal.head.status != "done" else journal.verdict
    return verdict.value if isinstance(verdict, rec.RunDone) else None


def _taken_over(call: Call, child: str, known: tuple[Before, bytes]) -> Came:
    """The same call was made on a path that was given up: its result is taken, nothing is executed."""
    before, value = known
    started = _started(call, child).but(of=before.history.elsewhere)
    return Came(call.spec.codec().give_back(value), (started,), reused=before.label())


def _started(call: Call, child: str) -> rec.ChildStarted:
    return rec.ChildStarted(step_id=call.step_id, child=child, name=call.spec.name, fingerprint=call.fingerprint)


def _policy(call: Call) -> str:
    turned = call.run.journal.turned
    return "ask" if turned is None else turned.effects


def child_id(run: Run, step_id: str) -> str:
    """The id of the child that a step calls; another one after the code of the parent has changed."""
    generation = run.journal.generation
    found = f"{run.id}.{step_id}{f'-{generation}' if generation else ''}"
    if RUN_ID.fullmatch(found):
        return found
    return f"{run.id[:KEPT_OF_PARENT]}.{hashlib.sha256(found.encode()).hexdigest()[:32]}"


async def _playing(engine: Engine, order: Order) -> Returned | Raised:
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        outcome: Returned | Raised = Returned(await attend_async(engine, order))
    except (Exception, Unwinding) as error:  # noqa: BLE001 (the parent's step decides)
        outcome = Raised(error)
    lost = order.nested is not None and bool(order.nested.call.scope.cause())
    if lost and task.cancelling() > before:  # while the child was unwound for its own reasons: it has one task with its parent's branch
        raise asyncio.CancelledError
    return outcome


def _played(engine: Engine, order: Order) -> Returned | Raised:
    try:
        return Returned(attend_blocking(engine, order))
    except (Exception, Unwinding) as error:  # noqa: BLE001 (the parent's step decides)
        return Raised(error)


async def _threaded(engine: Engine, order: Order) -> Returned | Raised:
    """A `def` agent beside an event loop; where its step is cancelled it ends at its next step, and is waited for."""
    work = asyncio.ensure_future(asyncio.to_thread(_played, engine, order))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        nested = order.nested
        child = nested.call.run.children.get(nested.call.step_id) if nested is not None else None
        if child is not None:
            child.heed()
            child.unwind(child.cancelling or Parked())
        await asyncio.wait([work])
        raise


def _closed(engine: Engine, child: str, *, by: str, reason: str) -> None:
    """Cancel a child that nobody waits for any more; what has ended stays as it is, and one that executes elsewhere is told.

    Whoever cancelled it before may have died before he came to the runs below it.
    """
    from holdfast.operating import operate

    head = engine.store.head(child)
    if head is not None and head.status == "cancelled":
        operate.cancel_children(engine, child)
    elif head is not None and head.status != "done":
        with suppress(Refusal):
            operate.cancel(engine, child, by=by, reason=reason)


def _dropped(engine: Engine, call: Call, child: str) -> None:
    _closed(engine, child, by=f"run {call.run.id}", reason=f"step {call.step_id}, which had called it, was cancelled")


def _cancel(run_id: str, reason: str) -> None:
    """The arguments of a cancel, for its fingerprint."""


class Started:
    """A child run that executes beside the code that started it."""

    def __init__(self, engine: Engine, call: Call, run_id: str) -> None:
        self._engine, self._call = engine, call
        run = call.run
        self.run_id = planned(engine, Wish(run_id), call).child
        run.branches += 1
        self._beginning = Group(call.scope, 1, 1)  # the run does not park before the child has had its chance
        run.groups.append(self._beginning)
        self.task = asyncio.get_running_loop().create_task(self._lived(), context=contextvars.copy_context())
        run.started_here.append(self.task)

    async def _lived(self) -> Any:
        run, call = self._call.run, self._call
        call.scope = Scope(run, f"{call.step_id}.0", None)
        run.groups.remove(self._beginning)
        place.set(call.scope)
        try:
            return await drive_async(life(call), run, call.scope)
        finally:
            run.branches -= 1
            call.scope.close()

    async def result(self, timeout: Duration | None) -> Any:
        """The result of the child; the code that waits for it lets its run park meanwhile."""
        scope = async_scope("start")
        if scope.run is not self._call.run:
            raise LostContext(f"result of child run {self.run_id}", "another run than the one that started it")
        if timeout is None:
            return await self._joined(scope)
        async with time_out(timeout):
            return await self._joined(scope)

    async def _joined(self, scope: Scope) -> Any:
        group = Group(scope, 1, 1)
        group.begun = 1
        scope.run.groups.append(group)
        try:
            scope.run.park_soon()
            await asyncio.wait([self.task])
        finally:
            scope.run.groups.remove(group)
        error = None if self.task.cancelled() else self.task.exception()
        if error is not None:
            error.__holdfast_asked__ = True  # type: ignore[attr-defined]
        return self.task.result()

    def status(self) -> str:
        """Where the child stands now."""
        head = self._engine.store.head(self.run_id)
        return "queued" if head is None else head.status

    def cancel(self, *, undo: bool, by: str, reason: str) -> None:
        """Cancel the child, as a step of its parent; one that has ended stays as it is, and one that has not begun does nothing.

        What the code wants is recorded first, and done whenever the code comes by here: after a crash, too.
        """
        if undo:
            raise Misuse("a child run cannot be undone by its parent's code; nothing was changed. Cancel it without undo")
        run, step_id, who = self._call.run, self._call.step_id, by or f"run {self._call.run.id}"
        Step(Spec(fn=_cancel, name="cancel", is_async=False))(self.run_id, reason)
        run.unwanted.setdefault(step_id, Cancelled(who, reason))
        history = run.journal.histories.get(step_id)
        if history is not None and history.child:  # else it has not begun, and a run of that id is none of ours
            reach("child.before_cancel")
            _closed(self._engine, self.run_id, by=who, reason=reason)
