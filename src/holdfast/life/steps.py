"""The life of a step, from the call to its outcome, as a generator of commands; written once for blocking and async code.

A safe step has one commit, after its body; an effect (`effects.py`) one before it as well. Whatever the journal holds already is given
back, never done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast._failpoints import reach
from holdfast.errors import BranchLost, NotKept, ReplayMismatch
from holdfast.life.calls import Call, shown_call
from holdfast.life.commands import Came, Commit, Hang, Invoke, Life, Settle, Turn
from holdfast.life.door import let_through, overheard, pass_the_door, supplied, within_budget
from holdfast.life.doubt import Uncertain
from holdfast.life.effects import begun, effect, introduced, landed, remember
from holdfast.life.outcomes import (
    broken_off,
    cut_off,
    entered,
    fail_or_wait,
    failed,
    given_back,
    last_moment,
    leaves_no_doubt,
    no_longer_fits,
    notice_change,
    outcome,
    raised_again,
    step_done,
    taken_up_again,
)
from holdfast.life.run import Body
from holdfast.records.replay import Decision, Doubt, Execute, History, Landed, Mismatch, Raise, Return, decide
from holdfast.records.replay import Hang as Hung


def life(call: Call) -> Life[Any]:
    """From the call to its outcome."""
    run, history = call.run, call.run.journal.histories.get(call.step_id)
    decision = _decided(call, history)
    if isinstance(decision, (Execute, Doubt, Landed)) and call.scope.guarded():
        yield from _let_in(call, history)
    match decision:
        case Return():
            yield Turn(decision.seq)
            try:
                return given_back(call, decision.record)
            except (ValueError, NotKept) as error:
                raise (yield from no_longer_fits(call, decision.record, error)) from error
        case Raise():
            yield Turn(decision.seq)
            raise raised_again(call, decision.record)
        case Execute():
            return (yield from _executed(call, decision.attempt))
        case Doubt():
            unread = history is not None and history.unread
            return (yield from effect(call, Uncertain(decision.attempt, decision.reason, live=False, asked=decision.asked, unread=unread)))
        case Landed():
            return (yield from effect(call, landed(call, decision)))
        case Hung():
            yield Turn(decision.seq)
            yield Hang(over=bool(call.scope.cause()))
            raise AssertionError("hanging ends with a cancellation")
        case Mismatch():
            recorded = shown_call(decision.recorded, history.args) if history else decision.recorded
            raise run.stop(ReplayMismatch(run.id, call.step_id, recorded, f"calls {call.shown()}", call.keeping_name(history)))


def _decided(call: Call, history: History | None) -> Decision:
    """What to do with the call, which the run has come to now."""
    run, spec = call.run, call.spec
    run.requested.add(call.step_id)
    call.key = introduced(call) if spec.effect else ""
    if spec.wait is not None and hasattr(spec.wait, "undone"):
        remember(call)
    if history is None and spec.call_id is not None:
        _refuse_moved(call)
    doubtful = spec.effect and not leaves_no_doubt(call)
    grouped = call.step_id in run.journal.groups
    return decide(history, name=spec.name, fingerprint=call.fingerprint, effect=doubtful, grouped=grouped)


def _let_in(call: Call, history: History | None) -> Life[None]:
    """Through the door, and on only if no cancellation is under way."""
    yield from pass_the_door(call)
    yield from last_moment(call, history.attempts if history else 0, doubtful=history is not None and history.may_have_happened())


def _executed(call: Call, attempt: int) -> Life[Any]:
    """The life that fits what was declared; its arguments are written down before a body can change them."""
    call.kept()
    if call.spec.wait is not None:
        return _waited(call, call.spec.wait)
    return begun(call, attempt) if call.spec.effect else _safe(call, attempt)


def _safe(call: Call, attempt: int) -> Life[Any]:
    """One commit, after the body; behind attempts of earlier lives, what is left to wait of their delay."""
    if attempt > 1:
        yield from taken_up_again(call, attempt)
    return (yield from tried(call, attempt))


def tried(call: Call, attempt: int) -> Life[Any]:
    """Run the body until it returns or the policy stops."""
    spec, run = call.spec, call.run
    spec.codec()
    while True:
        if run.journal.ledger.limits or run.above is not None:
            yield from within_budget(call)
        if spec.uses is not None:
            yield from supplied(call)
        body = entered(call, attempt)
        try:
            if spec.breaker is None:
                result = yield Invoke(body, spec.fn, call.args, call.kwargs, spec.timeout_s)
            else:
                yield from let_through(call, spec.breaker)
                result = yield from overheard(call, body, spec.breaker)
        except BaseException as error:  # noqa: BLE001 (a body may raise anything)
            yield from troubled(call, body, error, attempt)
            attempt += 1
            continue
        run.long_steps.pop(call.step_id, None)
        reach("step.after_body")
        notice_change(call, result)
        return (yield from returned(call, body, result, attempt))


def troubled(call: Call, body: Body, error: BaseException, attempt: int) -> Life[None]:
    """A body has raised: it comes back when it is to be tried again."""
    call.run.long_steps.pop(call.step_id, None)
    if not isinstance(error, Exception):
        yield from cut_off(call, body, error, attempt)
    else:
        yield from fail_or_wait(call, body, error, attempt)


def returned(call: Call, body: Body, result: Any, attempt: int) -> Life[Any]:
    """A body has returned."""
    run = call.run
    try:
        records, kept = outcome(call, body, result, attempt)
    except NotKept as error:
        raise (yield from failed(call, body, error, attempt)) from None
    yield Settle(records, run.holding and not body.at_once and not run.concluding)
    reach("step.after_outcome")
    return kept


def _waited(call: Call, wait: Callable[[Call], Life[Came]]) -> Life[Any]:
    """A step that waits for somebody or something; what came is its outcome."""
    body = Body(call)
    body.usage = getattr(wait, "usage", body.usage)  # a child run tells what it has spent
    call.started_at_us = call.run.clock.now_us()
    try:
        came = yield from wait(call)
        value, result = call.spec.codec().keep(came.value)
    except Exception as error:
        raise (yield from failed(call, body, error, 1)) from error
    except (asyncio.CancelledError, BranchLost) as error:
        if call.run.ended is None:
            yield from broken_off(call, 1, error, body.usage)
        fired = [block for block in call.scope.time_outs() if block.fired]
        if isinstance(error, BranchLost) and fired:
            raise fired[0].over() from error  # as on replay
        raise
    reach("wait.before_outcome")
    done = step_done(call, body, value, 1)
    seq = yield Commit((*came.records, done.but(reused=came.reused) if came.reused else done), came.takes)
    reach("wait.after_outcome")
    yield Turn(seq)
    return result


def _refuse_moved(call: Call) -> None:
    """A call with an identity of its own that is recorded under another reply: a task of its own came earlier or later than before."""
    run, call_id = call.run, call.step_id.partition(":")[2]
    for step_id in run.recorded - run.requested:
        found = run.journal.histories.get(step_id)
        if found and step_id.partition(":")[2] == call_id and (found.name, found.fingerprint) == (call.spec.name, call.fingerprint):
            raise run.stop(ReplayMismatch(run.id, call.step_id, f"made as step {step_id}", f"calls {call.shown()} here"))
