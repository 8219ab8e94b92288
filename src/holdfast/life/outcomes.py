"""How a body came to its end, and the records that say so: done, failed, to be tried again, broken off; and what replay makes of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast._failpoints import reach
from holdfast.codec.failures import failure, rebuild
from holdfast.errors import (
    BranchLost,
    CircuitOpen,
    Drifted,
    HoldfastError,
    InDoubt,
    KeyReused,
    LostContext,
    Misuse,
    NestedStep,
    NoRun,
    NotKept,
    Refused,
    ResultNotKept,
    RunInterrupted,
    UndecodableResult,
    Undeliverable,
    WrongMode,
)  # fmt: skip
from holdfast.life.asking import closing
from holdfast.life.calls import Call
from holdfast.life.commands import Commit, Invoke, Life, Pause, Turn
from holdfast.life.door import model_changes, overheard
from holdfast.life.doubt import Together, opened
from holdfast.life.run import Body
from holdfast.life.trying import delay_after, left_to_wait
from holdfast.records import kinds as rec
from holdfast.records.models import is_reply, read
from holdfast.records.replay import CANCEL

OURS = (Undeliverable, CircuitOpen, Drifted, Refused, NotKept, NestedStep, LostContext, WrongMode, NoRun, KeyReused, Misuse)
"""Errors of our own that a body may raise, and that come back as themselves."""

PLAIN = frozenset({str, int, bool, float, type(None), list, dict, tuple})
"""What no SDK replies with."""

log = logging.getLogger("holdfast")
_looked_at: set[str] = set()


def started(call: Call, attempt: int) -> rec.StepStarted:
    """The record that a body begins."""
    args, args_sha = call.kept()
    return rec.StepStarted(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, attempt=attempt,
        effect=call.spec.effect, key=call.key, args=args, args_sha=args_sha,
    )  # fmt: skip


def entered(call: Call, shown: int) -> Body:
    """The inside of a step, from now on; it is `shown` as the attempt with this number if it takes long."""
    body, run = Body(call), call.run
    call.started_at_us = run.clock.now_us()
    if shown:
        reach("step.before_body")
        run.long_steps[call.step_id] = (call, shown)
    return body


def step_done(call: Call, body: Body, value: bytes | None, attempt: int, *, not_kept: str = "", shown: str = "") -> rec.StepDone:
    spec = call.spec
    if spec.effect and not leaves_no_doubt(call):
        args, args_sha = None, ""  # they stand with the intent
    else:
        args, args_sha = (call.text, call.args_sha) if call.args_sha else call.kept()
    return rec.StepDone(
        step_id=call.step_id, name=spec.name, fingerprint=call.fingerprint, attempt=attempt, effect=spec.effect,
        started_us=call.started_at_us, value=value, usage=body.usage, not_kept=not_kept, shown=shown, args=args, args_sha=args_sha,
    )  # fmt: skip


def outcome(call: Call, body: Body, result: object, attempt: int) -> tuple[tuple[rec.Record, ...], Any]:
    """What is recorded of a body that returned, and its result as replay will give it back; raises NotKept."""
    if type(result) not in PLAIN:
        note_usage(call, body, result)
    value, kept = (call.spec.kept_by or call.spec.codec()).keep(result)
    done = step_done(call, body, value, attempt)
    return with_changes(call, done) if body.usage else (done,), kept


def attempt_failed(
    call: Call, body: Body, error: BaseException, attempt: int, *, landed: str, delay_s: float
) -> rec.AttemptFailed:
    return rec.AttemptFailed(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, attempt=attempt, started_us=call.started_at_us,
        error=failure(error), landed=landed, delay_ms=round(delay_s * 1000), usage=body.usage,
    )  # fmt: skip


def with_changes(call: Call, outcome: rec.StepDone | rec.StepFailed) -> tuple[rec.Record, ...]:
    """An outcome behind what its models have changed: both are stored, or neither."""
    return (*model_changes(call, outcome.usage), outcome) if outcome.usage else (outcome,)


def note_usage(call: Call, body: Body, result: object) -> None:
    """What the reply of a known SDK tells of its model and tokens, where the body has not said it itself."""
    if not body.usage and is_reply(result):
        told = {**read(result), "asked": call.asked_model()}
        body.usage.append({name: value for name, value in told.items() if value})


def notice_change(call: Call, result: object) -> None:
    """Tell of a step that gives nothing and has changed its arguments: replay, which does not execute it, will not change them.

    Its first call in this process tells: to write all arguments down once more would cost large ones twice, each time.
    """
    name = call.spec.name
    if result is None and call.bound and name not in _looked_at:
        _looked_at.add(name)
        if call.has_changed():
            log.warning("step %r has changed its arguments and returned nothing: on replay it is not executed, and they stay as they are. "
                        "Let it return what it makes", name)  # fmt: skip


def invoked(call: Call, body: Body, attempt: int) -> Life[Any]:
    """The body; where it is cancelled, that is recorded before the cancellation goes on."""
    try:
        if call.spec.breaker is not None:
            return (yield from overheard(call, body, call.spec.breaker))
        return (yield Invoke(body, call.spec.fn, call.args, call.kwargs, call.spec.timeout_s))
    except Exception:
        raise
    except BaseException as error:  # noqa: BLE001 (it goes on)
        yield from cut_off(call, body, error, attempt)


def cut_off(call: Call, body: Body, error: BaseException, attempt: int) -> Life[NoReturn]:
    """A body was cancelled, or the run is taken down: what is to be recorded of that is, and the cancellation goes on."""
    if call.run.ended is None and not isinstance(error, GeneratorExit):
        yield from broken_off(call, attempt, error, body.usage)
    raise error


def broken_off(call: Call, attempt: int, error: BaseException, usage: Sequence[rec.Json] = (), *, begun: bool = True) -> Life[None]:
    """Record that the body was cancelled, or had not even `begun`, again or at all, and close what it had asked.

    If nothing recorded did it, the run stops here, because replay could not take this path.
    """
    cause = call.scope.cause() if isinstance(error, asyncio.CancelledError | BranchLost) else ""
    record = rec.StepBrokenOff(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, attempt=attempt,
        effect=begun and call.spec.effect and not leaves_no_doubt(call), cause=cause, usage=list(usage),
        started_us=call.started_at_us if begun else 0,
    )  # fmt: skip
    seq = yield Commit([*(closing(call.run.journal, call.step_id) if cause and cause != CANCEL else ()), record])
    if cause:
        yield Turn(seq)
    elif isinstance(error, asyncio.CancelledError):
        raise call.run.stop(RunInterrupted(call.run.id, call.step_id)) from error


def last_moment(call: Call, attempt: int, *, doubtful: bool) -> Life[None]:
    """A cancellation that a commit held back comes before a body begins.

    It is recorded so, and on replay nothing begins either: nothing has happened that anybody could doubt, but for what is `doubtful` of
    earlier attempts.
    """
    if not call.scope.cause():
        return
    try:
        yield Pause(0.0)
    except asyncio.CancelledError as error:
        if call.run.ended is None and call.scope.cause() != CANCEL:
            yield from broken_off(call, attempt, error, begun=doubtful)
        raise


def fail_or_wait(call: Call, body: Body, error: Exception, attempt: int) -> Life[None]:
    """After an error: fail for good, or wait for the next attempt."""
    ours = isinstance(error, HoldfastError) and not isinstance(error, CircuitOpen) and not call.spec.effect
    delay_s = None if ours else delay_after(call, body, error)
    if delay_s is None:
        raise (yield from failed(call, body, error, attempt)) from error
    yield Commit([attempt_failed(call, body, error, attempt, landed="no", delay_s=delay_s)])
    yield from _pause(call, attempt, delay_s)


def taken_up_again(call: Call, attempt: int) -> Life[None]:
    """An attempt failed in an earlier life: what is left of its delay is waited for; where the policy allows no other, that was the end."""
    last = left_to_wait(call)
    if last is None:
        return
    if last.over:
        raise (yield from _fails_with(call, last.failed.error, attempt - 1))
    yield from _pause(call, attempt - 1, last.wait_s)


def _pause(call: Call, attempt: int, delay_s: float) -> Life[None]:
    try:
        yield Pause(delay_s)
    except asyncio.CancelledError as cancelled:
        if call.run.ended is None:
            yield from broken_off(call, attempt, cancelled, begun=False)  # the attempt before did not happen, and the next has not begun
        raise


def failed(call: Call, body: Body, error: Exception, attempt: int) -> Life[BaseException]:
    """Record a failure and give back the error to raise, built the way replay will build it."""
    return (yield from _fails_with(call, failure(error), attempt, body.usage))


def _fails_with(call: Call, error: rec.Json, attempt: int, usage: Sequence[rec.Json] = ()) -> Life[BaseException]:
    record = rec.StepFailed(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, effect=call.spec.effect,
        error=error, attempt=attempt, started_us=call.started_at_us, usage=list(usage),
        **call.called_so_far(), **call.kept_arguments(),
    )  # fmt: skip
    yield Turn((yield Commit(with_changes(call, record))))
    return raised_again(call, record)


def raised_again(call: Call, record: rec.StepFailed) -> BaseException:
    if record.doubt:
        return call.blamed(InDoubt(call.step_id, call.spec.name, record.reason))
    error = rebuild(record.error, raises=(*call.spec.raises, *OURS), step_id=call.step_id, name=call.spec.name)
    history = call.run.journal.histories.get(call.step_id)
    if history is not None and history.child:
        error.add_note(f"raised by child run {history.child!r}, called at step {call.step_id}; `holdfast show {history.child}` tells more")
    return call.blamed(error)


def given_back(call: Call, record: rec.StepDone) -> Any:
    """A recorded result, decoded; ValueError or NotKept where it no longer fits."""
    if record.not_kept:
        raise call.blamed(ResultNotKept(call.run.id, call.step_id, call.spec.name, record.shown, record.not_kept))
    return call.spec.codec().give_back(record.value or b"null")


def no_longer_fits(call: Call, record: rec.StepDone, error: Exception) -> Life[BaseException]:
    """What blocks the run where a recorded result is none of this step any more; a person who had said it is asked again."""
    history = call.run.journal.histories[call.step_id]
    unsaid, edited = history.unsaid, history.edited
    why = str(error)
    if edited is not None:
        why = f"{edited.by} gave it by an edit, and it does not fit: {error}. Edit it again: holdfast edit {call.run.id} {call.step_id}"
    elif unsaid is not None:
        why = f"the result that was given does not fit: {call.unfit(record.value)}"
        yield Commit([opened(call, why, "ask")])
        return call.run.stop(ResultNotKept(call.run.id, call.step_id, call.spec.name, unsaid.shown, why))
    return call.run.stop(UndecodableResult(call.run.id, call.step_id, call.spec.name, why))


def leaves_no_doubt(call: Call) -> bool:
    return isinstance(call.spec.in_doubt, Together)
