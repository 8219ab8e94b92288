"""Drive one run until it is done, waiting or failed.

`attend` is the life of a run in this process, again as a generator of commands: take it (or wait for whoever has it), play it, and if it
waits for a person, come back when something has changed. `conclude` turns the way in which the agent's code ended into the record that
says so. Both are written once; `attend_async` and `attend_blocking` carry them out.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from . import _records as rec
from ._asking import LETTER_GRACE_US
from ._clock import Clock
from ._commands import Commit, Life, Pause
from ._commit import Committer
from ._decorators import Agent
from ._drive import drive_async, drive_blocking
from ._failpoints import reach
from ._journal import Journal, args_digest
from ._lease import Keeper, Observer, deliver
from ._replay import DIED, History
from ._run import Run, Scope, active, place
from ._steps import Call, Spec, life, shown_call
from .codec.failures import failure
from .codec.fingerprint import fingerprint
from .errors import (
    Cancelled,
    HoldfastError,
    LeaseLost,
    NotAwaited,
    NotKept,
    Parked,
    ReplayMismatch,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunInterrupted,
    RunRepaired,
    RunWaiting,
    Stopped,
    StoreError,
    UndecodableResult,
    Unwinding,
)  # fmt: skip
from .store import Head, Store

POLL_S = 0.05
"""How often a process looks whether the run it waits for has moved."""

CLEANUP = "cleanup."

log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What all runs of one opened store share."""

    store: Store
    clock: Clock
    committer: Committer
    keeper: Keeper
    observer: Observer
    resources: Sequence[object]
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What somebody wants to have run."""

    agent: Agent[..., Any]
    run_id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    wait: bool = True
    recorded_arguments: bool = False

    def fingerprint(self) -> str:
        return fingerprint(self.agent.arguments.bind(self.args, self.kwargs))

    def encoded(self) -> bytes:
        return self.agent.orders.keep(self.args, self.kwargs)


class Claim(NamedTuple):
    """Make records durable for a run that nobody plays yet; `LeaseLost` is thrown in where somebody else was faster."""

    journal: Journal
    records: Sequence[rec.Record]


class Play(NamedTuple):
    """Execute the agent in this run; the answer is its result, the error that ended it is thrown in."""

    run: Run


Errand: TypeAlias = Generator[Pause | Claim | Play, Any, Any]


def attend(engine: Engine, order: Order) -> Errand:
    """From the order to its result, through whatever waits the run has in it."""
    announced = False
    while True:
        try:
            taken = yield from _acquire(engine, order)
            return (yield Play(taken)) if isinstance(taken, Run) else _result(order, taken)
        except RunWaiting as waiting:
            if not order.wait:
                raise
            if not announced:
                announced = True
                sys.stderr.write(f"holdfast: {waiting.while_it_waits()}\n")
        except Stopped as stopped:
            raise stopped.error from stopped
        finally:
            engine.keeper.let_go(order.run_id, order)
        yield from _until_moved(engine, order.run_id)


async def attend_async(engine: Engine, order: Order) -> Any:
    """Carry out `attend` on the event loop."""
    errand = attend(engine, order)
    try:
        command = next(errand)
        while True:
            answer: Any = None
            try:
                match command:
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
                    case Claim(journal, records):
                        answer = await engine.committer.commit_async(journal, records)
                    case Play(run):
                        answer = await _play_async(engine, order, run)
            except BaseException as error:  # noqa: BLE001 (everything goes into the errand, which decides)
                command = errand.throw(error)
            else:
                command = errand.send(answer)
    except StopIteration as stop:
        return stop.value


def attend_blocking(engine: Engine, order: Order) -> Any:
    """Carry out `attend` in this thread."""
    errand = attend(engine, order)
    try:
        command = next(errand)
        while True:
            answer: Any = None
            try:
                match command:
                    case Pause(seconds):
                        engine.clock.sleep(seconds)
                    case Claim(journal, records):
                        answer = engine.committer.commit(journal, records)
                    case Play(run):
                        answer = _play_blocking(engine, order, run)
            except BaseException as error:  # noqa: BLE001 (everything goes into the errand, which decides)
                command = errand.throw(error)
            else:
                command = errand.send(answer)
    except StopIteration as stop:
        return stop.value


def _acquire(engine: Engine, order: Order) -> Errand:
    """A run that belongs to this process now, or the journal of one that has ended.

    Whoever waited for a live owner wanted its result: where that is a failure, it is raised, and the failed step is not tried again.
    """
    waited = False
    while True:
        loaded = engine.store.load(order.run_id)
        claim: rec.RunStarted | rec.RunResumed
        if loaded is None:
            journal, claim = Journal(order.run_id), _started(engine, order)
        else:
            journal = Journal.load(*loaded)
            _refuse_conflict(order, journal)
            if journal.head.status in ("done", "cancelled"):
                return journal
            if waited and journal.head.status == "failed":
                raise RunFailed(order.run_id, journal.head.note)
            if not _free(engine, journal.head):
                waited = True
                yield Pause(POLL_S)
                continue
            claim = _resumed(engine, order, journal)
        if not engine.keeper.takes(order.run_id, order):
            waited = True
            yield Pause(POLL_S)
            continue
        try:
            reach("claim.before")
            engine.keeper.enroll()
            yield from _claimed(engine, Claim(journal, [claim]))
            reach("claim.after")
        except LeaseLost:
            continue
        except Stopped as stopped:
            engine.keeper.orphans.add(order.run_id)  # the claim may have gone in, and its reply be lost
            raise stopped.error from stopped
        return Run(
            journal=journal, committer=engine.committer, clock=engine.clock, blocking=not order.agent.is_async,
            resources=engine.resources, lease_s=engine.lease_s,
        )  # fmt: skip


def _claimed(engine: Engine, claim: Claim) -> Errand:
    """From its claim on a run is a lane: runs that start together share their flushes, and the first does not run ahead alone."""
    engine.committer.enter(1)
    try:
        yield claim
    except BaseException:
        engine.committer.enter(-1)
        raise


def _free(engine: Engine, head: Head) -> bool:
    """Whether the run can be taken: nobody owns it, or its owner is dead or has been silent for the lease time."""
    if head.owner is None:
        return True
    if head.owner == engine.keeper.owner:
        return head.run_id not in engine.keeper.runs
    return engine.observer.life_of(head.owner) != "alive"


def silent(engine: Engine, head: Head) -> bool:
    """Whether the run is taken from another owner that is not proven dead."""
    return head.owner not in (None, engine.keeper.owner) and engine.observer.life_of(str(head.owner)) != "dead"


def escaped(journal: Journal) -> list[str]:
    """The steps whose failures ended the run: whoever goes on with it goes behind them."""
    verdict, stopped = journal.verdict, journal.head.status in ("failed", "blocked")
    return list(verdict.escaped) if stopped and isinstance(verdict, rec.RunFailed | rec.RunRepaired) else []


def _started(engine: Engine, order: Order) -> rec.RunStarted:
    args = order.encoded()
    return rec.RunStarted(
        agent=order.agent.name, version=order.agent.version, fingerprint=order.fingerprint(), origin=order.run_id,
        owner=engine.keeper.owner, tags=dict(order.tags), args=args, args_sha=args_digest(args),
    )  # fmt: skip


def _resumed(engine: Engine, order: Order, journal: Journal) -> rec.RunResumed:
    head = journal.head
    why = "taken over" if head.owner else head.status
    return rec.RunResumed(
        owner=engine.keeper.owner, why=why, version=order.agent.version, cleared=escaped(journal), silent=silent(engine, head)
    )


def _refuse_conflict(order: Order, journal: Journal) -> None:
    started = journal.started
    assert started is not None
    same = started.agent == order.agent.name and (order.recorded_arguments or started.fingerprint == order.fingerprint())
    if not same:
        raise RunConflict(order.run_id, shown_call(started.agent, started.args), shown_call(order.agent.name, order.encoded()))
    if journal.head.status == "blocked" and isinstance(journal.verdict, rec.RunRepaired) and not order.recorded_arguments:
        raise RunRepaired(order.run_id, journal.head.note)


def _result(order: Order, journal: Journal) -> Any:
    """What a run that has ended gives: its recorded result, without executing anything."""
    match journal.verdict:
        case rec.RunDone():
            try:
                return order.agent.codec().give_back(journal.verdict.value or b"null")
            except ValueError as error:
                raise UndecodableResult(order.run_id, "result", order.agent.name, str(error)) from error
        case rec.RunCancelled():
            raise RunCancelled(order.run_id, journal.verdict.by, journal.verdict.reason)
    raise AssertionError(f"run {order.run_id} has ended without a verdict")


def _until_moved(engine: Engine, run_id: str) -> Errand:
    """Wait, holding nothing, until somebody has written to the run."""
    before = engine.store.head(run_id)
    while before is not None and before.status == "waiting" and not engine.store.letters([run_id]):
        if before.wake_us and engine.clock.now_us() >= before.wake_us + LETTER_GRACE_US:
            return
        yield Pause(POLL_S)
        if engine.store.head(run_id) != before:
            return


@dataclass(frozen=True, slots=True)
class Returned:
    """The agent's code came to its end."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The agent's code was left by an error."""

    error: BaseException


async def _play_async(engine: Engine, order: Order, run: Run) -> Any:
    with _Stage(engine, run) as scope:
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        run.root = task
        _take_letters(engine, run)
        try:
            outcome: Returned | Raised = Returned(await order.agent.fn(*order.args, **order.kwargs))
        except BaseException as error:  # noqa: BLE001 (conclude decides what every way to end means)
            outcome = Raised(error)
        run.root = None
        for _ in range(run.root_cancels):
            task.uncancel()  # what the engine did to unwind the code is not a cancellation from outside
        try:
            return await drive_async(_concluded(run, order, outcome), run, scope)
        except RunInterrupted:
            bare = isinstance(outcome, Raised) and isinstance(outcome.error, Stopped | asyncio.CancelledError)
            if task.cancelling() > before and bare:  # no time-out and no TaskGroup inside: whoever started the run cancels it
                raise asyncio.CancelledError from None
            raise


def _play_blocking(engine: Engine, order: Order, run: Run) -> Any:
    with _Stage(engine, run) as scope:
        _take_letters(engine, run)
        try:
            outcome: Returned | Raised = Returned(order.agent.fn(*order.args, **order.kwargs))
        except BaseException as error:  # noqa: BLE001 (conclude decides what every way to end means)
            outcome = Raised(error)
        return drive_blocking(_concluded(run, order, outcome), run, scope)


def _take_letters(engine: Engine, run: Run) -> None:
    """What was said to the run while nobody owned it, before its code begins."""
    for letter in engine.store.letters([run.id]):
        deliver(run, letter)


class _Stage:
    """The run is registered while its code executes, and no longer."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine, self._run = engine, run

    def __enter__(self) -> Scope:
        self._engine.keeper.runs[self._run.id] = self._run
        active.add(self._run)
        scope = Scope(self._run, "", None)
        self._token = place.set(scope)
        return scope

    def __exit__(self, *_: object) -> None:
        place.reset(self._token)
        active.discard(self._run)
        self._engine.committer.enter(-1)
        self._engine.keeper.runs.pop(self._run.id, None)
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


def _concluded(run: Run, order: Order, outcome: Returned | Raised) -> Life[Any]:
    """The life that ends the run; what had ended or cancelled it is looked at here, so that its last commits are not refused."""
    with run.lock:
        run.concluding = True
        ended, cancelling = run.ended, run.cancelling
        run.ended = run.cancelling = None
    if isinstance(ended, Parked):
        return conclude(run, order, outcome, cancelling or _interruption(outcome) or ended)
    return conclude(run, order, outcome, ended or cancelling)


def _interruption(outcome: Returned | Raised) -> BaseException | None:
    """Ctrl-C and the like, which stay what they are even where the code was being unwound."""
    error = outcome.error if isinstance(outcome, Raised) else None
    return None if isinstance(error, Exception | Unwinding | asyncio.CancelledError | BaseExceptionGroup) else error


def conclude(run: Run, order: Order, outcome: Returned | Raised, ended: BaseException | None) -> Life[Any]:
    """Record how the run ended here, and give its result or raise what ended it."""
    if ended is None and isinstance(outcome, Raised):
        ended = outcome.error
    match ended:
        case None:
            assert isinstance(outcome, Returned)
            return (yield from _returned(run, order, outcome.value))
        case LeaseLost():
            raise ended
        case Stopped(error=StoreError()):
            raise ended.error from ended
        case Stopped():
            yield Commit([_stopped(ended.error)])
            raise ended.error from ended.__cause__
        case Parked():
            raise (yield from _waiting(run))
        case Cancelled():
            yield from _cleanups(run)
            yield Commit([rec.RunCancelled(by=ended.by, reason=ended.reason)], tuple(run.taking))
            raise RunCancelled(run.id, ended.by, ended.reason)
        case Exception():
            yield from _refuse_unasked(run, ended)
            escaped = sorted(set(_blamed(run.id, ended)))
            yield Commit([rec.RunFailed(error=failure(ended), escaped=escaped)])
            at = f" at step {', '.join(escaped)}" if escaped else ""
            ended.add_note(f"run {run.id!r} failed{at}; finished steps are kept, and the same line again goes on from there")
            raise ended
        case _:
            with contextlib.suppress(Unwinding):  # an interruption stays what it is, even where it cannot be recorded
                yield Commit([rec.RunReleased(reason=f"interrupted by {type(ended).__name__}")])
            raise ended


def _returned(run: Run, order: Order, value: Any) -> Life[Any]:
    yield from _refuse_unasked(run)
    yield from _refuse_unawaited(run)
    while run.effects - run.waiters.keys():  # begun by a task that nobody waited for: it is not left behind
        yield Pause(POLL_S)
    try:
        data, kept = order.agent.codec().keep(value)
    except NotKept as error:
        yield Commit([rec.RunFailed(error=failure(error))])
        raise
    if run.journal.open_doubts(ended=True):
        raise (yield from _waiting(run))
    yield from _cleanups(run)
    reach("run.before_done")
    yield Commit([rec.RunDone(value=data)], tuple(run.taking))
    reach("run.after_done")
    return kept


def _waiting(run: Run) -> Life[RunWaiting]:
    """Record what the run waits for; from here on it holds nothing."""
    doubts, asks = run.journal.open_doubts(ended=True), run.journal.open_asks()
    if not doubts and not asks:
        yield Commit([rec.RunReleased(reason="woken while it parked")])
        return RunWaiting(run.id, "for nothing any more")
    questions = [_did_it_happen(step_id, history) for step_id, history in doubts]
    waits = "; ".join([*questions, *(question.opened.question for _, question in asks)])
    yield Commit([rec.RunWaiting(waits=waits, steps=[waiting for waiting, _ in (*doubts, *asks)], wake_us=run.wakes_us)])
    return RunWaiting(run.id, waits)


def _did_it_happen(step_id: str, history: History) -> str:
    told = history.doubt.reason if history.doubt is not None and DIED not in history.doubt.reason else ""
    return f"did {shown_call(history.name, history.args)} at step {step_id} happen?{' (' + told + ')' if told else ''}"


def _stopped(error: HoldfastError) -> rec.Record:
    if isinstance(error, RunInterrupted):
        return rec.RunReleased(reason=f"interrupted: step {error.step_id} was cancelled from outside")
    return rec.RunBlocked(step_id=getattr(error, "step_id", ""), error=failure(error))


def _refuse_unasked(run: Run, ended: Exception | None = None) -> Life[None]:
    """Code that ends without having called what was recorded has taken another path."""
    for step_id, history in run.journal.histories.items():
        if step_id in run.requested or step_id not in run.recorded or step_id.startswith(CLEANUP) or history.lost:
            continue
        if history.outcome is not None or history.effect:
            error = ReplayMismatch(run.id, step_id, shown_call(history.name, history.args), "ends without calling it")
            yield Commit([_stopped(error)])
            raise error from ended


def _refuse_unawaited(run: Run) -> Life[None]:
    """A step whose coroutine was never awaited has not happened, though the code reads as if it had."""
    for step_id, (name, awaiting) in run.unawaited.items():
        if inspect.getcoroutinestate(awaiting) == inspect.CORO_CREATED:
            awaiting.close()
            error = NotAwaited(name, step_id)
            yield Commit([rec.RunFailed(error=failure(error))])
            raise error


def _blamed(run_id: str, error: BaseException) -> Iterator[str]:
    """The steps of this run whose failures `error` carries: itself, its causes and contexts, and the members of groups.

    What stands behind a step's own failure had been caught when that step was called.
    """
    seen: set[int] = set()
    stack: list[BaseException | None] = [error]
    while stack:
        current = stack.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        blamed_run, step_id = getattr(current, "__holdfast_step__", ("", ""))
        if blamed_run == run_id:
            yield str(step_id)
            continue
        stack += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            stack += current.exceptions


def _cleanups(run: Run) -> Life[None]:
    """Call what was registered, the newest first, each once; one that fails does not hinder the others."""
    scope = run.scopes[0]
    for index in range(len(run.cleanups), 0, -1):
        fn, args, kwargs = run.cleanups[index - 1]
        name = f"cleanup {getattr(fn, '__name__', type(fn).__name__)}"
        spec = Spec(fn=_quiet(fn), name=name, is_async=inspect.iscoroutinefunction(fn))
        try:
            yield from life(Call(spec, scope, f"{CLEANUP}{index}", args, kwargs))
        except Exception as error:  # noqa: BLE001 (recorded with the step; the run still ends)
            log.warning("%s of run %s failed: %s", name, run.id, error)


def _quiet(fn: Callable[..., object]) -> Callable[..., object]:
    """The function without its result, which nobody keeps."""

    def called(*args: object, **kwargs: object) -> object:
        result = fn(*args, **kwargs)
        return _awaited(result) if inspect.isawaitable(result) else None

    return called


async def _awaited(result: Any) -> None:
    await result
