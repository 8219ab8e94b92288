"""The life of a step, from the call to its outcome, as a generator of commands; written once for blocking and async code.

Safe step: one commit, after the body. Effect: one commit before the body (the intent), one after (the outcome). An effect whose body
ended without a clear answer is in doubt, and `doubt.settle` says what follows. Whatever the journal holds already is given back, never
done again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast._failpoints import reach
from holdfast._landing import landing
from holdfast.codec.failures import failure, rebuild, told
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
    Parked,
    Refused,
    ReplayMismatch,
    ResultNotKept,
    RunInterrupted,
    Stopped,
    StoreError,
    StoreFailed,
    UndecodableResult,
    Undeliverable,
    WrongMode,
)  # fmt: skip
from holdfast.life.again import Before, made_before, takes_over, why_asked
from holdfast.life.asking import closing, consult
from holdfast.life.calls import SHOWN, Call, shown_call
from holdfast.life.commands import Came, Commit, Hang, Invoke, Life, Pause, Settle, Turn
from holdfast.life.door import let_through, model_changes, overheard, pass_the_door, supplied, within_budget
from holdfast.life.doubt import Attempt, Finished, Found, Move, Together, Uncertain, ask_first, opened, settle
from holdfast.life.run import Body
from holdfast.life.trying import asked_to_wait_s, delay_after, left_to_wait
from holdfast.records import kinds as rec
from holdfast.records.lineage import result_of
from holdfast.records.models import is_reply, read
from holdfast.records.replay import CANCEL, UNDO, Doubt, Execute, History, Landed, Mismatch, Raise, Return, decide
from holdfast.records.replay import Hang as Hung
from holdfast.store import Transaction, Transactional, Undone

UNDONE_LIMIT = 20
"""How often a transaction that the server undid, or whose connection was lost, is done again before that is a failure."""

OURS = (Undeliverable, CircuitOpen, Drifted, Refused, NotKept, NestedStep, LostContext, WrongMode, NoRun, KeyReused, Misuse)
"""Errors of our own that a body may raise, and that come back as themselves."""

IN_TIME_S = 0.5
"""An intent that is acknowledged so quickly was in time, however short the lease is."""

MOST_INTENTS = 20
"""How often an intent is recorded at the most until it is acknowledged in time."""


def life(call: Call) -> Life[Any]:
    """From the call to its outcome."""
    run, spec = call.run, call.spec
    run.requested.add(call.step_id)
    call.key = _introduced(call) if spec.effect else ""
    if hasattr(spec.wait, "undone"):
        _remember(call)
    history = run.journal.histories.get(call.step_id)
    grouped = call.step_id in run.journal.groups
    _refuse_moved(call, history)
    doubtful = spec.effect and not _leaves_no_doubt(call)
    decision = decide(history, name=spec.name, fingerprint=call.fingerprint, effect=doubtful, grouped=grouped)
    if isinstance(decision, (Execute, Doubt, Landed)) and call.scope.guarded():
        yield from pass_the_door(call)
    match decision:
        case Return():
            yield Turn(decision.seq)
            return (yield from _given_back(call, decision.record))
        case Raise():
            yield Turn(decision.seq)
            raise _raised_again(call, decision.record)
        case Execute():
            return (yield from _executed(call, decision.attempt))
        case Doubt():
            return (yield from _effect(call, Uncertain(decision.attempt, decision.reason, live=False, asked=decision.asked)))
        case Landed():
            return (yield from _effect(call, _landed(call, decision)))
        case Hung():
            yield Turn(decision.seq)
            yield Hang()
            raise AssertionError("hanging ends with a cancellation")
        case Mismatch():
            recorded = shown_call(decision.recorded, history.args) if history else decision.recorded
            raise run.stop(ReplayMismatch(run.id, call.step_id, recorded, f"calls {call.shown()}", call.keeping_name(history)))


def _executed(call: Call, attempt: int) -> Life[Any]:
    """The life that fits what was declared."""
    if call.spec.wait is not None:
        return _waited(call, call.spec.wait)
    return _begun(call, attempt) if call.spec.effect else _safe(call, attempt)


def _begun(call: Call, attempt: int) -> Life[Any]:
    if _leaves_no_doubt(call):
        _refuse_without_transactions(call)
    return (yield from _effect(call, (yield from _first_move(call, attempt))))


def _waited(call: Call, wait: Callable[[Call], Life[Came]]) -> Life[Any]:
    """A step that waits for somebody or something; what came is its outcome."""
    body = Body(call)
    body.usage = getattr(wait, "usage", body.usage)  # a child run tells what it has spent
    call.started_at_us = call.run.clock.now_us()
    try:
        came = yield from wait(call)
        value, result = call.spec.codec().keep(came.value)
    except Exception as error:
        raise (yield from _failed(call, body, error, 1)) from error
    except (asyncio.CancelledError, BranchLost) as error:
        if call.run.ended is None:
            yield from _broken_off(call, 1, error, body.usage)
        raise
    reach("wait.before_outcome")
    done = _done(call, body, value, 1)
    seq = yield Commit((*came.records, done.but(reused=came.reused) if came.reused else done), came.takes)
    reach("wait.after_outcome")
    yield Turn(seq)
    return result


def _introduced(call: Call) -> str:
    """The key of an effect; one that can be undone is remembered, and so is what becomes of it."""
    if call.spec.undo is not None:
        _remember(call)
    return _key(call)


def _remember(call: Call) -> None:
    call.run.undo.calls[call.step_id] = call.as_it_is_now()
    call.run.journal.keeps.add(call.step_id)


def _refuse_moved(call: Call, history: History | None) -> None:
    """A call with an identity of its own that is recorded under another reply: a task of its own came earlier or later than before."""
    if history is not None or call.spec.call_id is None:
        return
    run, call_id = call.run, call.step_id.partition(":")[2]
    for step_id in run.recorded - run.requested:
        found = run.journal.histories.get(step_id)
        if found and step_id.partition(":")[2] == call_id and (found.name, found.fingerprint) == (call.spec.name, call.fingerprint):
            raise run.stop(ReplayMismatch(run.id, call.step_id, f"made as step {step_id}", f"calls {call.shown()} here"))


def _first_move(call: Call, attempt: int) -> Life[Move]:
    """An effect that has not begun may need a person first: an approval, or a word on the same call that is in doubt elsewhere."""
    history = call.run.journal.histories.get(call.step_id)
    if attempt > 1:
        yield from _taken_up_again(call, attempt)
    if attempt > 1 or (history is not None and history.settled is not None and history.is_of(call.spec.name, call.fingerprint)):
        return Attempt(attempt)  # a person has spoken about this very call
    before = made_before(call)
    if before is not None and takes_over(call, before):
        return (yield from _taken_over(call, before))
    yield from _approved(call)
    why = _same_in_doubt(call)
    if why or before is None:
        return (yield from ask_first(call, why)) if why else Attempt(attempt)
    return (yield from ask_first(call, why_asked(call, before), before.label()))


def _taken_over(call: Call, before: Before) -> Life[Move]:
    """The call was made before, and its result holds: recorded as the outcome, nothing is executed."""
    value, call.started_at_us = result_of(before.history) or b"null", call.run.clock.now_us()
    result = call.spec.codec().give_back(value)
    reach("effect.before_reuse")
    seq = yield Commit((_done(call, Body(call), value, 1).but(reused=before.label()),))
    reach("effect.after_reuse")
    yield Turn(seq)
    return Finished(result)


def _approved(call: Call) -> Life[None]:
    """Go on only if a person agrees to this very call."""
    approve = call.spec.approve
    if approve is None or (approve.when is not None and not approve.when(*call.args, **call.kwargs)):
        return
    question = f"may {call.shown()} be executed at step {call.step_id}?"
    answer = yield from consult(
        call.run, f"approve:{call.step_id}", topic="approval", question=question, about=call.fingerprint, timeout_s=approve.timeout_s
    )
    if not answer.yes:
        refused = Refused(answer.by, answer.reason, answer.timed_out)
        raise (yield from _failed(call, Body(call), refused, 1))


def _landed(call: Call, settled: Landed) -> Move:
    """What somebody said the result was; where it does not fit, the doubt is as open as before."""
    unfit = call.unfit(settled.value)
    if unfit:
        return Uncertain(settled.attempt, f"the result that was given does not fit: {unfit}", live=False)
    return Found(settled.attempt, settled.value or b"null")


def _safe(call: Call, attempt: int) -> Life[Any]:
    """Run the body until it returns or the policy stops; one commit, after it."""
    spec, run = call.spec, call.run
    codec = spec.codec()
    if attempt > 1:
        yield from _taken_up_again(call, attempt)
    while True:
        if run.journal.ledger.limits or run.above is not None:
            yield from within_budget(call)
        if spec.uses is not None:
            yield from supplied(call)
        body = Body(call)
        call.started_at_us = run.clock.now_us()
        reach("step.before_body")
        run.long_steps[call.step_id] = (call, attempt)
        try:
            if spec.breaker is None:
                result = yield Invoke(body, spec.fn, call.args, call.kwargs, spec.timeout_s)
            else:
                yield from let_through(call, spec.breaker)
                result = yield from overheard(call, body, spec.breaker)
        except Exception as error:  # noqa: BLE001 (a body may raise anything)
            run.long_steps.pop(call.step_id, None)
            yield from _fail_or_wait(call, body, error, attempt)
            attempt += 1
            continue
        except BaseException as error:
            run.long_steps.pop(call.step_id, None)
            if run.ended is None and not isinstance(error, GeneratorExit):
                yield from _broken_off(call, attempt, error, body.usage)
            raise
        run.long_steps.pop(call.step_id, None)
        reach("step.after_body")
        _note_usage(call, body, result)
        try:
            value, result = codec.keep(result)
        except NotKept as error:
            raise (yield from _failed(call, body, error, attempt)) from None
        may_wait = run.holding and not body.at_once and not run.concluding
        yield Settle(_with_changes(call, _done(call, body, value, attempt)), may_wait)
        reach("step.after_outcome")
        return result


def _invoked(call: Call, body: Body, attempt: int) -> Life[Any]:
    """The body; where it is cancelled, that is recorded before the cancellation goes on."""
    try:
        if call.spec.breaker is not None:
            return (yield from overheard(call, body, call.spec.breaker))
        return (yield Invoke(body, call.spec.fn, call.args, call.kwargs, call.spec.timeout_s))
    except Exception:
        raise
    except BaseException as error:
        if call.run.ended is None and not isinstance(error, GeneratorExit):
            yield from _broken_off(call, attempt, error, body.usage)
        raise


def _broken_off(call: Call, attempt: int, error: BaseException, usage: Sequence[rec.Json] = ()) -> Life[None]:
    """Record that the body was cancelled, and close what it had asked.

    If nothing recorded did it, the run stops here, because replay could not take this path.
    """
    cause = call.scope.cause() if isinstance(error, asyncio.CancelledError | BranchLost) else ""
    record = rec.StepBrokenOff(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, attempt=attempt,
        effect=call.spec.effect and not _leaves_no_doubt(call), cause=cause, usage=list(usage),
    )  # fmt: skip
    seq = yield Commit([*(closing(call.run.journal, call.step_id) if cause and cause != CANCEL else ()), record])
    if cause:
        yield Turn(seq)
    elif isinstance(error, asyncio.CancelledError):
        raise call.run.stop(RunInterrupted(call.run.id, call.step_id)) from error


def _fail_or_wait(call: Call, body: Body, error: Exception, attempt: int) -> Life[None]:
    """After an error: fail for good, or wait for the next attempt."""
    ours = isinstance(error, HoldfastError) and not isinstance(error, CircuitOpen) and not call.spec.effect
    delay_s = None if ours else delay_after(call, body, error)
    if delay_s is None:
        raise (yield from _failed(call, body, error, attempt)) from error
    yield Commit([_attempt_failed(call, body, error, attempt, landed="no", delay_s=delay_s)])
    yield from _pause(call, attempt, delay_s)


def _taken_up_again(call: Call, attempt: int) -> Life[None]:
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
            yield from _broken_off(call, attempt, cancelled)
        raise


def _effect(call: Call, move: Move) -> Life[Any]:
    """Attempt, doubt, settle, until there is an outcome."""
    call.spec.codec()
    call.run.effects.add(call.step_id)
    try:
        while True:
            match move:
                case Attempt():
                    move = yield from _attempt(call, move.number)
                case Uncertain():
                    move = yield from _settled(call, move)
                case Found():
                    move = yield from _found(call, move)
                case Finished():
                    return move.result
    finally:
        call.run.effects.discard(call.step_id)


def _attempt(call: Call, number: int) -> Life[Move]:
    """An attempt, if nothing stands against it now; where its breaker is open, nothing begins and no intent is written."""
    if call.run.concluding and not call.step_id.startswith(UNDO):
        raise Parked  # the agent has returned: what a stray task would begin now, nobody would wait for
    if call.run.journal.ledger.limits or call.run.above is not None:
        yield from within_budget(call)
    if call.spec.uses is not None:
        yield from supplied(call)
    circuit, carried_out = call.spec.breaker, _together if _leaves_no_doubt(call) else _carried_out
    if circuit is None:
        return (yield from carried_out(call, number))
    try:
        yield from let_through(call, circuit)
    except CircuitOpen as error:
        return (yield from _turned_away(call, error, number))
    try:
        return (yield from carried_out(call, number))
    finally:
        circuit.tell(call, "nothing", call.run.clock.monotonic_s())  # in case it came to its end before its body began


def _turned_away(call: Call, error: CircuitOpen, number: int) -> Life[Move]:
    """This attempt did not happen; whether an earlier one did may still not be known."""
    body, history = Body(call), call.run.journal.histories.get(call.step_id)
    call.started_at_us = call.run.clock.now_us()
    if history is not None and history.may_have_happened():
        yield Commit([_attempt_failed(call, body, error, number, landed="unknown", delay_s=0.0)])
        return Uncertain(number, told(error), live=True, after_s=error.rest_s)
    yield from _fail_or_wait(call, body, error, number)
    return Attempt(number + 1)


def _intended(call: Call, number: int) -> Life[None]:
    """The intent. Where its acknowledgement took long, the run may be somebody else's by now, who found it: once more, then, and fenced."""
    clock, in_time_s = call.run.clock, max(call.run.lease_s / 2, IN_TIME_S)
    for _ in range(MOST_INTENTS):
        began_s = clock.monotonic_s()
        yield Commit((started(call, number),))
        if clock.monotonic_s() - began_s < in_time_s:
            return
    raise Stopped(StoreFailed("the store", "it takes longer than half a lease to record anything; the effect was not begun"))


def _carried_out(call: Call, number: int) -> Life[Move]:
    """Intent, body, outcome."""
    reach("effect.before_intent")
    yield from _intended(call, number)
    reach("effect.after_intent")
    body = Body(call)
    call.started_at_us = call.run.clock.now_us()
    try:
        result = yield from _invoked(call, body, number)
    except Exception as error:  # noqa: BLE001 (an effect may raise anything)
        return (yield from _judged(call, body, error, number))
    reach("effect.after_body")
    _note_usage(call, body, result)
    not_kept = ""
    value: bytes | None = None
    try:
        value, result = call.spec.codec().keep(result)
    except NotKept as error:
        not_kept = str(error)
    done = _done(call, body, value, number, not_kept=not_kept, shown=repr(result)[:SHOWN] if not_kept else "")
    yield Settle(_with_changes(call, done))
    reach("effect.after_outcome")
    if not_kept:
        raise call.blamed(ResultNotKept(call.run.id, call.step_id, call.spec.name, done.shown, not_kept))
    return Finished(result)


def _together(call: Call, number: int) -> Life[Move]:
    """Body and outcome in one transaction, without an intent: both are there, or neither. What the server undid is done again."""
    for left in reversed(range(UNDONE_LIMIT)):
        body = Body(call)
        try:
            return (yield from _within_one(call, body, number))
        except Undone as undone:
            if left and undone.again:
                continue
            yield from _fail_or_wait(call, body, undone.why, number)
            return Attempt(number + 1)
    raise AssertionError("the last try returns or raises")


def _within_one(call: Call, body: Body, number: int) -> Life[Move]:
    """One such transaction."""
    reach("transaction.before")
    call.started_at_us = call.run.clock.now_us()
    with _transaction(call) as transaction:
        reach("transaction.begun")
        body.transaction = transaction
        try:
            result = yield from _invoked(call, body, number)
            reach("transaction.after_body")
            _note_usage(call, body, result)
            value, result = call.spec.codec().keep(result)
        except Exception as error:
            raise Undone(error, transaction.again(error)) from error
        yield Settle(_with_changes(call, _done(call, body, value, number)), within=transaction)
    reach("transaction.after")
    return Finished(result)


@contextlib.contextmanager
def _transaction(call: Call) -> Iterator[Transaction]:
    """A transaction of the store's; where it cannot be begun, the run stops here."""
    store = call.run.committer.store
    assert isinstance(store, Transactional), "it was refused before"
    with contextlib.ExitStack() as stack:
        try:
            transaction = stack.enter_context(store.transaction())
        except StoreError as error:
            raise call.run.stop(error) from error
        yield transaction


def _leaves_no_doubt(call: Call) -> bool:
    return isinstance(call.spec.in_doubt, Together)


def _refuse_without_transactions(call: Call) -> None:
    store = call.run.committer.store
    if not isinstance(store, Transactional):
        raise Misuse(
            f"{call.spec.name!r} commits with its outcome in one transaction, and the store {store.url} has no tables of yours; nothing "
            f"was done. Keep the runs in the PostgreSQL of those tables: store='postgresql://...'"
        )


def _judged(call: Call, body: Body, error: Exception, number: int) -> Life[Move]:
    """What an error says about the effect: its answer, that it did not happen, or nothing.

    That this attempt did not happen says nothing about an earlier one that was resent without having been found out.
    """
    verdict = landing(error, call.spec.raises, call.spec.errors)
    match "unknown" if verdict == "not_landed" and call.run.journal.histories[call.step_id].unsure else verdict:
        case "answer":
            raise (yield from _failed(call, body, error, number)) from error
        case "not_landed":
            yield from _fail_or_wait(call, body, error, number)
            return Attempt(number + 1)
        case "unknown":
            yield Commit([_attempt_failed(call, body, error, number, landed="unknown", delay_s=0.0)])
            return Uncertain(number, told(error), live=True, after_s=asked_to_wait_s(call, error))


def _settled(call: Call, doubt: Uncertain) -> Life[Move]:
    try:
        return (yield from settle(call, doubt))
    except asyncio.CancelledError as error:
        if call.run.ended is None:
            yield from _broken_off(call, doubt.number, error)
        raise


def _found(call: Call, found: Found) -> Life[Move]:
    """The result that a probe or a person knew becomes the outcome."""
    result = call.spec.codec().give_back(found.value)
    seq = yield Commit((_done(call, Body(call), found.value, found.number),))
    yield Turn(seq)
    return Finished(result)


def _key(call: Call) -> str:
    """The idempotency key; a business key must not be used for two different calls."""
    declared = call.spec.key
    if declared is None:
        history = call.run.journal.histories.get(call.step_id)
        return (history.key if history else "") or call.run.key_of(call.step_id)
    key = declared if isinstance(declared, str) else declared(*call.args, **call.kwargs)
    name, print_, step_id = call.run.keys.setdefault(key, (call.spec.name, call.fingerprint, call.step_id))
    if (name, print_) != (call.spec.name, call.fingerprint):
        raise KeyReused(key, call.spec.name, step_id)
    return key


def _same_in_doubt(call: Call) -> str:
    """Why the same effect with the same arguments may have happened already at another step, or nothing."""
    for step_id, history in call.run.journal.open_doubts():
        if step_id != call.step_id and (history.name, history.fingerprint) == (call.spec.name, call.fingerprint):
            return f"the same call is in doubt at step {step_id}{f', key {history.key}' if history.key else ''}"
    return ""


def _failed(call: Call, body: Body, error: Exception, attempt: int) -> Life[BaseException]:
    """Record a failure and give back the error to raise, built the way replay will build it."""
    return (yield from _fails_with(call, failure(error), attempt, body.usage))


def _fails_with(call: Call, error: rec.Json, attempt: int, usage: Sequence[rec.Json] = ()) -> Life[BaseException]:
    record = rec.StepFailed(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, effect=call.spec.effect,
        error=error, attempt=attempt, started_us=call.started_at_us, usage=list(usage), called=call.home.count,
        **call.kept_arguments(),
    )  # fmt: skip
    yield Turn((yield Commit(_with_changes(call, record))))
    return _raised_again(call, record)


def _raised_again(call: Call, record: rec.StepFailed) -> BaseException:
    if record.doubt:
        return call.blamed(InDoubt(call.step_id, call.spec.name, record.reason))
    error = rebuild(record.error, raises=(*call.spec.raises, *OURS), step_id=call.step_id, name=call.spec.name)
    history = call.run.journal.histories.get(call.step_id)
    if history is not None and history.child:
        error.add_note(f"raised by child run {history.child!r}, called at step {call.step_id}; `holdfast show {history.child}` tells more")
    return call.blamed(error)


def _given_back(call: Call, record: rec.StepDone) -> Life[Any]:
    """A recorded result, decoded; one that no longer fits blocks the run, unless a person had said it, who is asked again."""
    if record.not_kept:
        raise call.blamed(ResultNotKept(call.run.id, call.step_id, call.spec.name, record.shown, record.not_kept))
    try:
        return call.spec.codec().give_back(record.value or b"null")
    except (ValueError, NotKept) as error:
        history = call.run.journal.histories[call.step_id]
        unsaid, edited = history.unsaid, history.edited
        if edited is not None:
            why = f"{edited.by} gave it by an edit, and it does not fit: {error}. Edit it again: holdfast edit {call.run.id} {call.step_id}"
            raise call.run.stop(UndecodableResult(call.run.id, call.step_id, call.spec.name, why)) from error
        if unsaid is not None:
            why = f"the result that was given does not fit: {call.unfit(record.value)}"
            yield Commit([opened(call, why, "ask")])
            raise call.run.stop(ResultNotKept(call.run.id, call.step_id, call.spec.name, unsaid.shown, why)) from error
        raise call.run.stop(UndecodableResult(call.run.id, call.step_id, call.spec.name, str(error))) from error


def started(call: Call, attempt: int) -> rec.StepStarted:
    """The record that a body begins."""
    return rec.StepStarted(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, attempt=attempt,
        effect=call.spec.effect, key=call.key, **call.kept_arguments(),
    )  # fmt: skip


def _done(call: Call, body: Body, value: bytes | None, attempt: int, *, not_kept: str = "", shown: str = "") -> rec.StepDone:
    spec = call.spec
    args, args_sha = (None, "") if spec.effect and not _leaves_no_doubt(call) else call.kept()
    return rec.StepDone(
        step_id=call.step_id, name=spec.name, fingerprint=call.fingerprint, attempt=attempt, effect=spec.effect,
        started_us=call.started_at_us, value=value, usage=body.usage, not_kept=not_kept, shown=shown, args=args, args_sha=args_sha,
    )  # fmt: skip


def _note_usage(call: Call, body: Body, result: object) -> None:
    """What the reply of a known SDK tells of its model and tokens, where the body has not said it itself."""
    if not body.usage and is_reply(result):
        told = {**read(result), "asked": call.asked_model()}
        body.usage.append({name: value for name, value in told.items() if value})


def _with_changes(call: Call, outcome: rec.StepDone | rec.StepFailed) -> tuple[rec.Record, ...]:
    """An outcome behind what its models have changed: both are stored, or neither."""
    return (*model_changes(call, outcome.usage), outcome) if outcome.usage else (outcome,)


def _attempt_failed(
    call: Call, body: Body, error: BaseException, attempt: int, *, landed: str, delay_s: float
) -> rec.AttemptFailed:
    return rec.AttemptFailed(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, attempt=attempt, started_us=call.started_at_us,
        error=failure(error), landed=landed, delay_ms=round(delay_s * 1000), usage=body.usage,
    )  # fmt: skip
