"""How a run ends here: the way in which the agent's code came to its end, turned into the record that says so."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from holdfast._clock import to_datetime
from holdfast._facts import Fact, fact
from holdfast._failpoints import reach
from holdfast.codec.failures import failure, told
from holdfast.errors import (
    BranchLost,
    BudgetExceeded,
    Cancelled,
    ChildStopped,
    Continued,
    Drifted,
    HoldfastError,
    LeaseLost,
    NotAwaited,
    NotKept,
    Parked,
    ReplayMismatch,
    ResultNotKept,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunPaused,
    RunWaiting,
    Stopped,
    StoreError,
    UndecodableResult,
    Unwinding,
)  # fmt: skip
from holdfast.life.asking import closing
from holdfast.life.calls import Call, Spec, shown_call
from holdfast.life.commands import Commit, Life, Pause
from holdfast.life.door import LEAVING
from holdfast.life.run import A_TIME, Run
from holdfast.life.steps import life
from holdfast.records import kinds as rec
from holdfast.records.replay import CLEANUP, DIED, UNDO, History
from holdfast.running.code import print_of
from holdfast.running.undo import asked_by_failure, take_back
from holdfast.verbs.branches import Quit
from holdfast.verbs.continuing import continuation
from holdfast.verbs.decorators import Agent

STRAY_S = 0.05
"""How often a run that has returned looks whether the effects of its stray tasks have ended."""

log = logging.getLogger("holdfast")


@fact()
class Returned(Fact):
    """The agent's code came to its end."""

    value: Any


@fact()
class Raised(Fact):
    """The agent's code was left by an error."""

    error: BaseException


def concluded(run: Run, agent: Agent[..., Any], outcome: Returned | Raised) -> Life[Any]:
    """The life that ends the run; what had ended or cancelled it is looked at here, so that its last commits are not refused."""
    with run.lock:
        run.concluding = True
        ended, cancelling = run.ended, run.cancelling
        run.ended = run.cancelling = None
    if ended is None and cancelling is None and run.above is not None and _was_cancelled(outcome) and run.above.cause():
        cancelling = run.cancelled_from_above()
    if isinstance(ended, Parked | Continued):
        broken_off = run.left_by or _interruption(outcome)
        return conclude(run, agent, outcome, cancelling or broken_off or _late_failure(outcome, ended) or ended)
    stays = _interruption(outcome) if isinstance(ended, Stopped) and isinstance(ended.error, RunInterrupted) else None
    return conclude(run, agent, outcome, stays or ended or cancelling)


def _was_cancelled(outcome: Returned | Raised) -> bool:
    return isinstance(outcome, Raised) and isinstance(outcome.error, asyncio.CancelledError)


def _interruption(outcome: Returned | Raised) -> BaseException | None:
    """Ctrl-C and the like, which stay what they are even where the code was being unwound."""
    error = outcome.error if isinstance(outcome, Raised) else None
    return None if isinstance(error, Exception | Unwinding | asyncio.CancelledError | BaseExceptionGroup) else error


def _late_failure(outcome: Returned | Raised, ended: Parked | Continued) -> Exception | None:
    """An error of a `finally` block takes the place of a continuation, as it would of a return; a parked run comes by there again."""
    error = outcome.error if isinstance(outcome, Raised) else None
    return error if isinstance(ended, Continued) and isinstance(error, Exception) else None


def conclude(run: Run, agent: Agent[..., Any], outcome: Returned | Raised, ended: BaseException | None) -> Life[Any]:
    """Record how the run ended here, and give its result or raise what ended it."""
    if ended is None and isinstance(outcome, Raised):
        ended = outcome.error
    ended = _as_failure(run, ended)
    if _to_be_undone(run, agent, ended):
        ended = yield from _undone(run, ended)
    match ended:
        case None:
            assert isinstance(outcome, Returned)
            return (yield from _returned(run, agent, outcome.value))
        case LeaseLost():
            raise ended
        case Stopped(error=StoreError()):
            raise ended.error from ended
        case Stopped():
            left = run.leaving if isinstance(ended.error, RunInterrupted) else None
            yield _left(run, *_paused_too(run, left or _stopped(run, ended.error)))
            raise (_told_of(run, left) if left is not None else ended.error) from ended.__cause__
        case Parked() | Continued():
            raise (yield from _put_down(run, agent, ended))
        case Cancelled():
            yield from _cleanups(run)
            _close_children(run)
            yield _over(run, rec.RunCancelled(by=ended.by, reason=ended.reason))
            raise _closed(run, outcome, ended)
        case Exception():
            yield from _refuse_unasked(run, ended)
            escaped = sorted(set(_blamed(run.id, ended)))
            yield _left(run, rec.RunFailed(error=failure(_source(run, ended)), escaped=escaped))
            at = f" at step {', '.join(escaped)}" if escaped else ""
            then = "; once that is said," if isinstance(ended, ResultNotKept) else ", and"
            ended.add_note(f"run {run.id!r} failed{at}; finished steps are kept{then} the same line again goes on from there")
            raise ended
        case _:
            with contextlib.suppress(Unwinding):  # an interruption stays what it is, even where it cannot be recorded
                yield _left(run, run.leaving or rec.RunReleased(reason=f"interrupted by {type(ended).__name__}"))
            raise ended


def _paused_too(run: Run, record: rec.Record) -> tuple[rec.Record, ...]:
    """What is recorded of a run that stopped; one that somebody has paused meanwhile is not left to other code by being blocked."""
    paused = run.leaving if isinstance(record, rec.RunBlocked) and isinstance(run.leaving, rec.RunPaused) else None
    return (record, paused) if paused is not None else (record,)


def _as_failure(run: Run, ended: BaseException | None) -> BaseException | None:
    """In a worker, code that raises what would end the process has failed, so its run goes round no further; not where it is broken off."""
    cause = ended.__cause__ if isinstance(ended, Quit) else ended
    if isinstance(ended, LeaseLost) and ended.run_id != run.id:
        return _failed(run, ended)  # of a run that the code has executed: this one is still owned here
    if cause is None or isinstance(cause, Exception | Unwinding | BranchLost) or not _is_own_doing(run) or is_ctrl_c(cause):
        return ended
    return _failed(run, cause)


def _failed(run: Run, cause: BaseException) -> RunFailed:
    failed = RunFailed(run.id, told(cause))
    failed.__cause__ = cause
    return failed


def _is_own_doing(run: Run) -> bool:
    """Whether nobody but the code itself can have broken off a run of a worker."""
    return run.in_worker and run.leaving is None and not run.was_cancelled


def is_ctrl_c(error: BaseException) -> bool:
    """Whether it may be the Ctrl-C of whoever sits there, which Python raises wherever its main thread is at that moment."""
    here = threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt) and here and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _source(run: Run, error: Exception) -> BaseException:
    """What is recorded of an error: of one that only says that this very run has failed, its cause."""
    return error.__cause__ if isinstance(error, RunFailed) and error.run_id == run.id and error.__cause__ is not None else error


def _close_children(run: Run) -> None:
    if run.nest is not None:
        run.nest.close(run)


def _over(run: Run, record: rec.Record) -> Commit:
    """The end of a run for good: every letter that it has heard is taken."""
    return Commit([record], (*run.taking, *run.stale, *run.mail.left()))


def _left(run: Run, *records: rec.Record) -> Commit:
    """The end of this life: letters that change nothing are taken, and what is still to be done stays where it is."""
    return Commit(records, tuple(run.stale))


def _to_be_undone(run: Run, agent: Agent[..., Any], ended: BaseException | None) -> bool:
    """Whether what the run did is taken back now: somebody asked for it, or an error says so that escaped a certain kind of agent."""
    if run.undo.asked is None and agent.on_failure == "undo" and isinstance(ended, Exception):
        if isinstance(ended, Drifted):
            ended.too_late = True
        run.undo.asked = asked_by_failure(ended)
    return run.undo.asked is not None and (ended is None or isinstance(ended, Parked | Continued | Cancelled | Exception))


def _undone(run: Run, ended: BaseException | None) -> Life[BaseException]:
    """Take the run back; gives what ends it then, or what hinders it."""
    yield from _no_strays(run)
    yield from _refuse_unasked(run, ended if isinstance(ended, Exception) else None)
    try:
        return (yield from take_back(run))
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 (conclude decides what every way to end means)
        return error


def _closed(run: Run, outcome: Returned | Raised, ended: Cancelled) -> Exception:
    """What whoever ran it is told: the error that had it undone, or that it is cancelled."""
    error = outcome.error if isinstance(outcome, Raised) else None
    if run.undo.asked is None or not run.undo.asked.error or not isinstance(error, Exception):
        return RunCancelled(run.id, ended.by, ended.reason)
    error.add_note(f"run {run.id!r} is cancelled: {ended.reason}")
    return error


def _no_strays(run: Run) -> Life[None]:
    """What was begun by a task that nobody waited for is not left behind."""
    while run.effects - {waiter.place for waiter in run.waiters}:
        yield Pause(STRAY_S)


def _returned(run: Run, agent: Agent[..., Any], value: Any) -> Life[Any]:
    yield from _refuse_unasked(run)
    unawaited = _unawaited(run)
    if unawaited is not None:
        return (yield from conclude(run, agent, Raised(unawaited), None))
    yield from _no_strays(run)
    try:
        data, kept = agent.codec().keep(value)
    except NotKept as error:
        return (yield from conclude(run, agent, Raised(error), None))
    if run.journal.open_doubts(ended=True):
        run.awaits = set()
        raise (yield from _waiting(run))
    yield from _cleanups(run)
    _close_children(run)
    reach("run.before_done")
    yield _over(run, rec.RunDone(value=data))
    reach("run.after_done")
    return kept


def _put_down(run: Run, agent: Agent[..., Any], ended: Parked | Continued) -> Life[BaseException]:
    """The run lets go of everything: until something wakes it, or to begin anew."""
    return _waiting(run) if isinstance(ended, Parked) else _continued(run, agent, ended)


def _continued(run: Run, agent: Agent[..., Any], ended: Continued) -> Life[BaseException]:
    """Record that the run begins anew, once all that this life of it began has come to its end; a doubt must be settled first."""
    run.ended = ended  # a stray task begins nothing any more
    yield from _refuse_unasked(run)
    unawaited = _unawaited(run)
    if unawaited is not None:
        run.ended = None
        return (yield from conclude(run, agent, Raised(unawaited), None))  # type: ignore[no-any-return]
    while run.in_progress - 1 > len(run.waiters):
        yield Pause(STRAY_S)
    if run.journal.open_doubts(ended=True):
        run.awaits = set()
        return (yield from _waiting(run))
    yield from _cleanups(run)
    _close_children(run)
    left = run.leaving
    reach("continue.before")
    yield _left(run, continuation(run, ended), *([] if left is None else [left]))
    reach("continue.after")
    return ended if left is None else _told_of(run, left)


def _told_of(run: Run, left: rec.RunReleased | rec.RunPaused) -> Exception:
    """What whoever ran it is told: it goes on later, elsewhere."""
    return RunPaused(run.id, left.by, left.reason) if isinstance(left, rec.RunPaused) else RunWaiting(run.id, left.reason, False)


def _waiting(run: Run) -> Life[Exception]:
    """Record what the run waits for; from here on it holds nothing."""
    held_back = any(name.startswith(LEAVING) for name in run.awaits or ())
    if run.leaving is not None and (held_back or isinstance(run.leaving, rec.RunPaused)):
        yield _left(run, run.leaving)
        return _told_of(run, run.leaving)
    doubts, asks = run.journal.open_doubts(ended=True), run.journal.open_asks()
    unwanted, begun = run.unwanted_asks(), run.open_waits()
    asks = [(ask_id, question) for ask_id, question in asks if ask_id not in unwanted]
    parked = list(run.parked.values())
    if run.telling or not (doubts or asks or begun or parked) or any(run.has_mail_for(wait.what) for wait in begun.values()):
        yield _left(run, rec.RunReleased(reason="woken while it parked"))
        return RunWaiting(run.id, "for nothing any more", False)
    comes_to_them = run.journal.undoing is None and bool(asks or begun or parked)
    doubts = [(step_id, history) for step_id, history in doubts if not (comes_to_them and history.unseen())]
    told = [_did_it_happen(step_id, history) for step_id, history in doubts]
    told += [question.opened.question for _, question in asks]
    told += [_wait_told(wait) for wait in begun.values()]
    told += [f"child {RunWaiting(child.run_id, child.told, False).told()}" for child in parked]
    steps = [*(waiting for waiting, _ in (*doubts, *asks)), *begun, *run.parked]
    closed = [one for ask_id in unwanted for one in closing(run.journal, ask_id)]
    reach("park.before")
    yield _left(run, *closed, rec.RunWaiting(waits="; ".join(told), steps=steps, wake_us=run.wakes_us))
    reach("park.after")
    return RunWaiting(run.id, "; ".join(told), bool(doubts or asks or any(child.asks for child in parked)))


def _wait_told(wait: rec.WaitBegun) -> str:
    until = f"until {to_datetime(wait.until_us):%Y-%m-%d %H:%M:%S} UTC" if wait.until_us else ""
    return f"sleeps {until}" if wait.what == A_TIME else f"waits for {wait.what.replace(':', ' ', 1)}{' ' + until if until else ''}"


def _did_it_happen(step_id: str, history: History) -> str:
    told = history.doubt.reason if history.doubt is not None and DIED not in history.doubt.reason else ""
    return f"did {shown_call(history.name, history.args)} at step {step_id} happen?{' (' + told + ')' if told else ''}"


def _stopped(run: Run, error: HoldfastError) -> rec.Record:
    if isinstance(error, RunInterrupted) and _is_own_doing(run):
        return rec.RunFailed(error=failure(error))
    if isinstance(error, RunInterrupted):
        return rec.RunReleased(reason=f"interrupted: {error.why or f'step {error.step_id} was cancelled from outside'}")
    agent = run.agent if isinstance(error, ReplayMismatch | UndecodableResult | ChildStopped) else None
    code = print_of(agent.fn, agent.version) if agent is not None else ""
    reach("block.before")
    if isinstance(error, BudgetExceeded | ResultNotKept | ChildStopped):
        return rec.RunFailed(error=failure(error), code=code)
    return rec.RunBlocked(step_id=getattr(error, "step_id", ""), error=failure(error), code=code)


def _refuse_unasked(run: Run, ended: Exception | None = None) -> Life[None]:
    """Code that ends without having called what was recorded has taken another path."""
    for step_id, history in run.journal.histories.items():
        if step_id in run.requested or step_id.startswith((CLEANUP, UNDO)) or history.lost:
            continue
        if step_id not in run.recorded and not (run.undo.asked and history.effect):  # a lost race: what it did is undone all the same
            continue
        if history.outcome is not None or history.effect or history.child:
            error = ReplayMismatch(run.id, step_id, shown_call(history.name, history.args), "ends without calling it")
            yield _left(run, _stopped(run, error))
            raise error from ended


def _unawaited(run: Run) -> NotAwaited | None:
    """A step whose coroutine was never awaited has not happened, though the code reads as if it had."""
    for step_id, (name, awaiting) in run.unawaited.items():
        if inspect.getcoroutinestate(awaiting) == inspect.CORO_CREATED:
            awaiting.close()
            return NotAwaited(name, step_id.partition(" ")[0])
    return None


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
        stack += getattr(current, "__holdfast_beside__", ())
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
