"""The two drivers: they carry out the commands of a life, one by awaiting, the other by blocking."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CoroutineType
from typing import Any, Protocol, TypeAlias, TypeVar

from holdfast.errors import BranchLost, NotKept, Parked, Unwinding
from holdfast.life import course
from holdfast.life.calls import Call
from holdfast.life.commands import Commit, Hang, Invoke, Life, Pause, Settle, Turn, WaitForPerson
from holdfast.life.commit import Ticket
from holdfast.life.course import begin, caught_between, end, note, strayed
from holdfast.life.run import Body, Run, Scope, place
from holdfast.life.staying import LOOK_S
from holdfast.life.steps import life
from holdfast.life.waiters import Waiter
from holdfast.records import kinds as rec
from holdfast.store import Transaction

T = TypeVar("T")
Task: TypeAlias = asyncio.Task[Any] | None

FROM_WITHIN = "the body was cancelled from within: something it awaited had been cancelled"


class Witness(Protocol):
    """Whoever tests agents: sees every body begin and end, and lets pauses pass in a time of its own."""

    def body(self, body: Body, fn: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in place of the function."""

    def pause_s(self, run: Run, seconds: float) -> float:
        """How long to pause really."""


witness: Witness | None = None
"""In ordinary life nobody: each body costs one look at this variable."""


async def step_async(call: Call) -> Any:
    """A whole step on the event loop: its usual course, and its life where that is left."""
    run, spec, where = call.run, call.spec, place.get()
    scope = call.scope = where if isinstance(where, Scope) else call.scope
    run.unawaited.pop(call.step_id, None)
    try:
        _enter(run, scope)
        task = asyncio.current_task()
        try:
            if task is not None and task.cancelling() and not scope.cause():
                await asyncio.sleep(0)  # Ctrl-C while a `def` body blocked the loop: it comes before anything of this step is recorded
            begun = begin(call) if scope.task is task else life(call)
            if not isinstance(begun, Body):
                return await _carried_async(begun, run, scope, task)
            try:
                result = await _invoke_async(begun, spec.fn, call.args, call.kwargs, timeout_s=spec.timeout_s, task=task)
            except BaseException as error:  # noqa: BLE001 (everything goes into the life, which decides)
                note(run, error)
                left = strayed(call, begun, error)
            else:
                result, rest = end(call, begun, result)
                if rest is None:
                    return result
                left = rest
            return await _carried_async(left, run, scope, task)
        except BaseException as error:
            if spec.effect:
                caught_between(call, error)
            raise
        finally:
            _leave(run, scope)
            run.effects.discard(call.step_id)
            if run.waiters:
                run.park_soon()
    finally:
        run.calls -= 1


def step_blocking(call: Call) -> Any:
    """The same in this thread."""
    run, spec, scope = call.run, call.spec, call.scope
    _enter(run, scope)
    run.turnstile.come_back(scope)
    try:
        begun = begin(call)
        if not isinstance(begun, Body):
            return _carried_blocking(begun, run, scope)
        try:
            result = _invoke_blocking(begun, spec.fn, call.args, call.kwargs)
        except BaseException as error:  # noqa: BLE001 (everything goes into the life, which decides)
            note(run, error)
            left = strayed(call, begun, error)
        else:
            result, rest = end(call, begun, result)
            if rest is None:
                return result
            left = rest
        return _carried_blocking(left, run, scope)
    except BaseException as error:
        if spec.effect:
            caught_between(call, error)
        raise
    finally:
        _leave(run, scope)
        run.effects.discard(call.step_id)
        if run.blocking and run.waiters:
            run.park_soon()


async def drive_async(life: Life[T], run: Run, scope: Scope) -> T:
    """Carry out a life on the event loop."""
    _enter(run, scope)
    try:
        return await _carried_async(life, run, scope, asyncio.current_task())
    finally:
        _leave(run, scope)
        run.park_soon()


def drive_blocking(life: Life[T], run: Run, scope: Scope) -> T:
    """Carry out a life in this thread."""
    _enter(run, scope)
    run.turnstile.come_back(scope)
    try:
        return _carried_blocking(life, run, scope)
    finally:
        _leave(run, scope)
        if run.blocking:
            run.park_soon()


async def _carried_async(life: Life[T], run: Run, scope: Scope, task: Task) -> T:
    try:
        command = next(life)
        while True:
            answer: Any = None
            due = 0
            try:
                match command:
                    case Invoke(body, fn, args, kwargs, timeout_s):
                        answer = await _invoke_async(body, fn, args, kwargs, timeout_s=timeout_s, task=task)
                    case Settle(records):
                        due = _settle_now(run, command) or await _commit_async(run, records)
                    case Commit(records, takes):
                        answer = (None if takes else course.commit_at_once(run, records)) or await _commit_async(run, records, takes)
                    case Turn(seq):
                        due = seq
                    case _:
                        answer = await _wait_async(run, scope, command)
                if due and not (scope.task is task and run.turnstile.at_once(due)):
                    await run.turnstile.turn(due)
            except BaseException as error:  # noqa: BLE001 (everything goes into the life, which decides)
                note(run, error)
                command = life.throw(error)
            else:
                command = life.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _carried_blocking(life: Life[T], run: Run, scope: Scope) -> T:
    try:
        command = next(life)
        while True:
            answer: Any = None
            try:
                match command:
                    case Invoke(body, fn, args, kwargs):
                        answer = _invoke_blocking(body, fn, args, kwargs)
                    case Settle(records):
                        due = _settle_now(run, command) or _commit_blocking(run, records)
                        _turn_blocking(run, scope, due)
                    case Commit(records, takes):
                        answer = (None if takes else course.commit_at_once(run, records)) or _commit_blocking(run, records, takes)
                    case Turn(seq):
                        _turn_blocking(run, scope, seq)
                    case _:
                        answer = _wait_blocking(run, scope, command)
            except BaseException as error:  # noqa: BLE001 (everything goes into the life, which decides)
                note(run, error)
                command = life.throw(error)
            else:
                command = life.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _enter(run: Run, scope: Scope) -> None:
    if run.above is not None:
        run.heed()
    if run.ended is not None or run.cancelling is not None:
        run.check()
    with run.lock:
        run.in_progress += 1
        scope.lives += 1


def _doom(scope: Scope) -> BaseException:
    """What ends a blocking step that the journal says was never reached: a time-out that fired, or a lost race."""
    return next((block.over() for block in scope.time_outs() if block.doomed), BranchLost())


def _leave(run: Run, scope: Scope) -> None:
    with run.lock:
        run.in_progress -= 1
        scope.lives -= 1


def _settle_now(run: Run, outcome: Settle) -> int | None:
    """Settle an outcome here and now, where that can be: within its own transaction, from memory, or alone."""
    if outcome.within is not None:
        return _commit_within(run, outcome.records, outcome.within)
    return _hold(run, outcome) or course.commit_at_once(run, outcome.records)


def _commit_within(run: Run, records: Sequence[rec.Record], transaction: Transaction) -> int:
    """Commit together with what the body did."""
    try:
        with run.lock:  # what rides must be numbered in the order in which it was looked at
            riders = run.with_riders(())
            run.journal.lent.acquire()
        seq = run.committer.commit_within(run.journal, riders, records, transaction)
    finally:
        with contextlib.suppress(RuntimeError):  # Ctrl-C came before it was taken
            run.journal.lent.release()
    if run.riders.unkept is not None:
        raise _unkept(run, run.riders.unkept)
    return seq


def _hold(run: Run, outcome: Settle) -> int | None:
    """Acknowledge from memory what will be written with the next flush, riders in their order; None where it is written now."""
    if not outcome.may_wait or not run.journal.can_hold():
        return None
    ticket: Ticket | None = None
    with run.lock:
        records = run.with_riders(outcome.records)
        seq = run.journal.hold(records, at_us=run.clock.now_us())
        if seq is None:  # another thread has begun to write meanwhile, and the riders are taken
            ticket = run.committer.submit(run.journal, records)
    if ticket is not None:
        seq = run.committer.settle(ticket)
    if run.riders.unkept is not None:
        raise _unkept(run, run.riders.unkept)
    return seq


async def _commit_async(run: Run, records: Sequence[rec.Record], takes: Sequence[int] = ()) -> int:
    records = run.with_riders(records)
    seq = run.committer.commit_inline(run.journal, records) if run.solo() and not takes else None
    if seq is None:
        seq = await run.committer.commit_async(run.journal, records, takes)
    if run.riders.unkept is not None:
        raise _unkept(run, run.riders.unkept)
    return seq


def _commit_blocking(run: Run, records: Sequence[rec.Record], takes: Sequence[int] = ()) -> int:
    with run.lock:  # what rides must be numbered in the order in which it was looked at
        ticket = run.committer.submit(run.journal, run.with_riders(records), takes)
    seq = run.committer.settle(ticket)
    if run.riders.unkept is not None:
        raise _unkept(run, run.riders.unkept)
    return seq


def _unkept(run: Run, error: NotKept) -> Unwinding:
    """The state cannot be kept: what was to be committed is safe, and the run stops here."""
    run.riders.unkept = None
    return run.stop(error)


async def _invoke_async(
    body: Body, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, timeout_s: float | None, task: Task
) -> Any:
    before = task.cancelling() if task is not None else 0
    if before:
        await asyncio.sleep(0)  # a cancellation that a commit held back is delivered before the body begins
    token = place.set(body)
    try:
        fn = fn if witness is None else witness.body(body, fn)
        result = fn(*args, **kwargs)
        if timeout_s is None and type(result) is CoroutineType:
            answer = await result
        else:
            answer = await _within(result, timeout_s)
    except asyncio.CancelledError as error:
        if task is not None and not task.cancelling():
            raise RuntimeError(FROM_WITHIN) from error
        raise
    except Exception:
        _insist(body, task, before)
        raise
    finally:
        body.over = True
        place.reset(token)
    if task is not None and task.cancelling() > before:
        _insist(body, task, before)
    return answer


def _insist(body: Body, task: Task, before: int) -> None:
    """Where a body kept a recorded cancellation to itself, it is delivered behind the outcome, where replay delivers it."""
    if task is not None and task.cancelling() > before and body.call.scope.cause():
        task.uncancel()
        task.cancel()


async def _within(result: Any, timeout_s: float | None) -> Any:
    if not inspect.isawaitable(result):
        return result
    if timeout_s is None:
        return await result
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await result
    except TimeoutError as error:
        if limit.expired() and not error.args:
            raise TimeoutError(f"it took longer than its timeout of {timeout_s:g} s") from error
        raise


def _invoke_blocking(body: Body, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    token = place.set(body)
    try:
        fn = fn if witness is None else witness.body(body, fn)
        return fn(*args, **kwargs)
    except asyncio.CancelledError as error:
        raise RuntimeError(FROM_WITHIN) from error
    finally:
        body.over = True
        place.reset(token)


def _turn_blocking(run: Run, scope: Scope, seq: int) -> None:
    if run.blocking:
        run.turnstile.turn_blocking(seq, scope)
    else:
        run.turnstile.pass_by(seq)


async def _wait_async(run: Run, scope: Scope, command: Pause | WaitForPerson | Hang) -> Any:
    match command:
        case Pause(seconds):
            return await asyncio.sleep(seconds if witness is None else witness.pause_s(run, seconds))
        case WaitForPerson():
            return await _person_async(run, scope, command)
        case Hang(over):
            return await _hang_async(run, scope, over=over)


def _wait_blocking(run: Run, scope: Scope, command: Pause | WaitForPerson | Hang) -> Any:
    match command:
        case Pause(seconds):
            return run.clock.sleep(seconds)
        case WaitForPerson():
            return _person_blocking(run, scope, command)
        case Hang():
            raise _doom(scope)


async def _hang_async(run: Run, scope: Scope, *, over: bool) -> None:
    """Wait to be cancelled by something recorded: where everything else waits for a person, the run parks all the same."""
    if over:
        await asyncio.sleep(0)
        raise asyncio.CancelledError
    scope.doubts += 1
    try:
        run.park_soon()
        await asyncio.get_running_loop().create_future()
    finally:
        scope.doubts -= 1


async def _person_async(run: Run, scope: Scope, command: WaitForPerson) -> None:
    waiter = _waiting(run, scope, command)
    waiter.future = asyncio.get_running_loop().create_future()
    try:
        run.check()
        if not run.spoken(command.step_id):
            run.park_if_stuck()
            await asyncio.wait([waiter.future], timeout=_patience_s(run, command))
        _raise_if_unwound(waiter)
    finally:
        _waited(run, scope, waiter, looks=command.looks)


def _person_blocking(run: Run, scope: Scope, command: WaitForPerson) -> None:
    waiter = _waiting(run, scope, command)
    try:
        run.check()
        if not run.spoken(command.step_id):
            if run.blocking:
                run.park_if_stuck()
            else:
                run.unwind(Parked())  # it would stop the event loop, and with it all other branches
            _stay_blocking(run, waiter, command)
        _raise_if_unwound(waiter)
        if scope.lost:
            raise BranchLost
    finally:
        _waited(run, scope, waiter, looks=command.looks)


def _stay_blocking(run: Run, waiter: Waiter, command: WaitForPerson) -> None:
    """Wait to be woken, or until the time; a run that stays in place is looked at now and then."""
    patience_s = _patience_s(run, command)
    while run.stay.length_s and (patience_s is None or patience_s > LOOK_S):
        if waiter.event.wait(LOOK_S):
            return
        run.park_if_stuck()
        patience_s = _patience_s(run, command)
    waiter.event.wait(patience_s)


def _patience_s(run: Run, command: WaitForPerson) -> float | None:
    return max(0.0, (command.until_us - run.clock.now_us()) / 1e6) if command.until_us else None


def _waiting(run: Run, scope: Scope, command: WaitForPerson) -> Waiter:
    waiter = Waiter(command.step_id, command.waiting or command.step_id, scope)
    run.waiters.append(waiter)
    scope.doubts += 1
    return waiter


def _waited(run: Run, scope: Scope, waiter: Waiter, *, looks: bool) -> None:
    scope.doubts -= 1
    run.waiters.remove(waiter)
    if not looks or waiter.event.is_set():
        run.stay.begin_anew()


def _raise_if_unwound(waiter: Waiter) -> None:
    if waiter.outcome is not None:
        raise waiter.outcome
