"""The usual course of a step: a first attempt that nothing stands against, in a run that is alone; it is followed without a life.

A life is a generator because a step may have to wait, be tried again or be put before a person. Nearly always nothing of that is so:
then `begin` and `end` do in a straight line what the life does before and behind the body, with less Python, and hand over to the life
where anything turns out to be unusual. What is recorded is said in `outcomes`, for both.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

from holdfast._failpoints import reach
from holdfast.errors import LeaseLost, NotKept, ResultNotKept, RunInterrupted, Unwinding
from holdfast.life.calls import Call
from holdfast.life.commands import Life, Settle, Turn
from holdfast.life.doubt import Attempt, Move
from holdfast.life.effects import begun, came_to_pass, effect, from_intent, introduced, judged, was_in_time
from holdfast.life.outcomes import cut_off, entered, notice_change, outcome, started
from holdfast.life.run import Body, Run
from holdfast.life.steps import life, returned, tried, troubled
from holdfast.records import kinds as rec


def begin(call: Call) -> Body | Life[Any]:
    """The body to execute now, of an effect behind its intent; or else the life that sees to what is unusual."""
    run, spec, step_id, journal = call.run, call.spec, call.step_id, call.run.journal
    if not spec.usual or run.in_progress > 1 or run.above is not None or run.holding or run.turnstile.recorded:
        return life(call)
    if step_id in journal.histories or step_id in journal.groups or journal.ledger.limits or call.scope.guarded():
        return life(call)
    run.requested.add(step_id)
    if not call.args_sha:
        call.kept()
    if spec.kept_by is None:
        spec.codec()
    return _intended(call) if spec.effect else entered(call, 1)


def end(call: Call, body: Body, result: Any) -> tuple[Any, Life[Any] | None]:
    """What the step gives, once that is durable; or else the life that goes on behind the body."""
    run, safe = call.run, not call.spec.effect
    if safe:
        run.long_steps.pop(call.step_id, None)
        if result is None:
            notice_change(call, result)
    reach("step.after_body" if safe else "effect.after_body")
    try:
        records, kept = outcome(call, body, result, 1)
    except NotKept:
        return None, returned(call, body, result, 1) if safe else _behind(call, came_to_pass(call, body, result, 1))
    seq = commit_at_once(run, records)
    if seq is None or run.branches or run.calls > 1 or run.turnstile.busy():
        return None, _settled(call, Settle(records) if seq is None else Turn(seq), kept)
    reach("step.after_outcome" if safe else "effect.after_outcome")
    return kept, None


def strayed(call: Call, body: Body, error: BaseException) -> Life[Any]:
    """The life behind a body that raised."""
    return _behind(call, _judged(call, body, error)) if call.spec.effect else _tried_again(call, body, error)


def caught_between(call: Call, error: BaseException) -> None:
    """Stop the run where an effect raises something that is not what became of it: a signal handler's error, in the middle of our own code.

    Whoever caught that could do the effect again, which may have happened. An interruption stays what it is; nothing begins behind it.
    """
    run = call.run
    if isinstance(error, Unwinding | CancelledError | ResultNotKept) or run.ended is not None or run.cancelling is not None:
        return
    history = run.journal.histories.get(call.step_id)
    landed = history is None and call.started_at_us > 0  # what began and is recorded as done is not kept in memory
    if landed or (history is not None and history.says_otherwise(run.journal.head.epoch)):
        why = f"{type(error).__name__} came in the middle of {call.shown()}, and is not what became of it"
        stopped = run.stop(RunInterrupted(run.id, call.step_id, why))
        if isinstance(error, Exception):
            raise stopped from error


def commit_at_once(run: Run, records: Sequence[rec.Record]) -> int | None:
    """Commit in place where the run is alone and nothing rides; None where that cannot be, with nothing written."""
    if run.riders.any() or run.committer.lanes > 1 or run.in_progress > 1:
        return None
    try:
        return run.committer.commit_inline(run.journal, records)
    except BaseException as error:
        note(run, error)
        raise


def note(run: Run, error: BaseException) -> None:
    """What unwinds one step unwinds the whole run, unless it is about another run, which its body has executed."""
    another = isinstance(error, LeaseLost) and error.run_id != run.id
    if isinstance(error, Unwinding) and run.ended is None and not another:
        run.unwind(error)


def _intended(call: Call) -> Body | Life[Any]:
    """The body of an effect, behind its intent; where that could not be written in place or in time, the life tries."""
    run, journal = call.run, call.run.journal
    if journal.superseded or journal.unsettled or journal.unknown or run.concluding:
        return life(call)
    call.key = introduced(call)
    run.effects.add(call.step_id)
    reach("effect.before_intent")
    began_s = run.clock.monotonic_s()
    if commit_at_once(run, (started(call, 1),)) is None:
        return begun(call, 1)
    if not was_in_time(call, began_s):
        return effect(call, Attempt(1))
    if run.cancelling is not None:
        return _behind(call, from_intent(call, 1))
    reach("effect.after_intent")
    return entered(call, 0)


def _settled(call: Call, command: Settle | Turn, kept: Any) -> Life[Any]:
    yield command
    reach("effect.after_outcome" if call.spec.effect else "step.after_outcome")
    return kept


def _tried_again(call: Call, body: Body, error: BaseException) -> Life[Any]:
    yield from troubled(call, body, error, 1)
    return (yield from tried(call, 2))


def _behind(call: Call, moved: Life[Move]) -> Life[Any]:
    return (yield from effect(call, (yield from moved)))


def _judged(call: Call, body: Body, error: BaseException) -> Life[Move]:
    if isinstance(error, Exception):
        return (yield from judged(call, body, error, 1))
    return (yield from cut_off(call, body, error, 1))
