"""The life of an effect: the intent, the body, the outcome, and what follows where it is not known whether it happened.

One commit before the body, one after. An effect whose body ended without a clear answer is in doubt, and `doubt.settle` says what follows;
each move leads to the next until there is an outcome. An effect on tables of the store's own database commits together with its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast._failpoints import reach
from holdfast._landing import landing
from holdfast.codec.failures import told
from holdfast.errors import (
    CircuitOpen,
    KeyReused,
    Misuse,
    NotKept,
    Parked,
    Refused,
    ResultNotKept,
    Stopped,
    StoreError,
    StoreFailed,
)  # fmt: skip
from holdfast.life.again import Before, made_before, takes_over, why_asked
from holdfast.life.asking import consult
from holdfast.life.calls import SHOWN, Call
from holdfast.life.commands import Commit, Life, Settle, Turn
from holdfast.life.door import let_through, supplied, within_budget
from holdfast.life.doubt import Attempt, Finished, Found, Move, Uncertain, ask_first, settle
from holdfast.life.outcomes import (
    attempt_failed,
    broken_off,
    entered,
    fail_or_wait,
    failed,
    invoked,
    last_moment,
    leaves_no_doubt,
    note_usage,
    started,
    step_done,
    taken_up_again,
    with_changes,
)
from holdfast.life.run import Body
from holdfast.life.trying import asked_to_wait_s
from holdfast.records.lineage import result_of
from holdfast.records.replay import UNDO, History, Landed
from holdfast.records.unknown import UNREAD
from holdfast.store import Transaction, Transactional, Undone

UNDONE_LIMIT = 20
"""How often a transaction that the server undid, or whose connection was lost, is done again before that is a failure."""

IN_TIME_S = 0.5
"""An intent that is acknowledged so quickly was in time, however short the lease is."""

MOST_INTENTS = 20
"""How often an intent is recorded at the most until it is acknowledged in time."""


def introduced(call: Call) -> str:
    """The key of an effect; one that can be undone is remembered, and so is what becomes of it."""
    if call.spec.undo is not None:
        remember(call)
    return _key(call)


def remember(call: Call) -> None:
    call.run.undo.calls[call.step_id] = call.as_it_is_now()
    call.run.journal.keeps.add(call.step_id)


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


def begun(call: Call, attempt: int) -> Life[Any]:
    if leaves_no_doubt(call):
        _refuse_without_transactions(call)
    return (yield from effect(call, (yield from _first_move(call, attempt))))


def landed(call: Call, settled: Landed) -> Move:
    """What somebody said the result was. Where it does not fit, they are asked again: that it happened was said, so nothing is done."""
    if call.unfit(settled.value):
        return Uncertain(settled.attempt, "it has happened", live=False, asked=True)
    return Found(settled.attempt, settled.value or b"null")


def effect(call: Call, move: Move) -> Life[Any]:
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


def _first_move(call: Call, attempt: int) -> Life[Move]:
    """An effect that has not begun may need a person first: an approval, or a word on the same call that is in doubt elsewhere."""
    history = call.run.journal.histories.get(call.step_id)
    if attempt > 1:
        yield from taken_up_again(call, attempt)
    if attempt > 1 or (history is not None and history.settled is not None and history.is_of(call.spec.name, call.fingerprint)):
        return Attempt(attempt)  # a person has spoken about this very call
    before = made_before(call)
    if before is not None and takes_over(call, before):
        return (yield from _taken_over(call, before))
    if before is None and _may_be_lost(call, history) and not _same_in_doubt(call):
        return Uncertain(0, UNREAD, live=False, unread=True)
    yield from _approved(call)
    why = _same_in_doubt(call)
    if why or before is None:
        return (yield from ask_first(call, why)) if why else Attempt(attempt)
    return (yield from ask_first(call, why_asked(call, before), before.label()))


def _may_be_lost(call: Call, history: History | None) -> bool:
    """Whether a repair may have lost this very call: it could not read everything, and nothing else is recorded of it."""
    return call.run.journal.unknown is not None and (history is None or not history.is_of(call.spec.name, call.fingerprint))


def _taken_over(call: Call, before: Before) -> Life[Move]:
    """The call was made before, and its result holds: recorded as the outcome, nothing is executed."""
    value, call.started_at_us = result_of(before.history) or b"null", call.run.clock.now_us()
    result = call.spec.codec().give_back(value)
    reach("effect.before_reuse")
    seq = yield Commit((step_done(call, Body(call), value, 1).but(reused=before.label()),))
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
        raise (yield from failed(call, Body(call), refused, 1))


def _same_in_doubt(call: Call) -> str:
    """Why the same effect with the same arguments may have happened already at another step, or nothing."""
    for step_id, history in call.run.journal.open_doubts():
        if step_id != call.step_id and (history.name, history.fingerprint) == (call.spec.name, call.fingerprint):
            return f"the same call is in doubt at step {step_id}{f', key {history.key}' if history.key else ''}"
    return ""


def _attempt(call: Call, number: int) -> Life[Move]:
    """An attempt, if nothing stands against it now; where its breaker is open, nothing begins and no intent is written."""
    if call.run.concluding and not call.step_id.startswith(UNDO):
        raise Parked  # the agent has returned: what a stray task would begin now, nobody would wait for
    if call.run.journal.ledger.limits or call.run.above is not None:
        yield from within_budget(call)
    if call.spec.uses is not None:
        yield from supplied(call)
    if call.spec.approve is not None and _is_unread(call):
        yield from _approved(call)
    circuit, carried_out = call.spec.breaker, _together if leaves_no_doubt(call) else _carried_out
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


def _is_unread(call: Call) -> bool:
    """Whether this is the first attempt on record of what a repair may have lost."""
    history = call.run.journal.histories.get(call.step_id)
    return history is not None and history.unread


def _turned_away(call: Call, error: CircuitOpen, number: int) -> Life[Move]:
    """This attempt did not happen; whether an earlier one did may still not be known."""
    body, history = Body(call), call.run.journal.histories.get(call.step_id)
    call.started_at_us = call.run.clock.now_us()
    if history is not None and history.may_have_happened():
        yield Commit([attempt_failed(call, body, error, number, landed="unknown", delay_s=0.0)])
        return Uncertain(number, told(error), live=True, after_s=error.rest_s)
    yield from fail_or_wait(call, body, error, number)
    return Attempt(number + 1)


def _intended(call: Call, number: int) -> Life[None]:
    """The intent. Where its acknowledgement took long, the run may be somebody else's by now, who found it: once more, then, and fenced."""
    for _ in range(MOST_INTENTS):
        began_s = call.run.clock.monotonic_s()
        yield Commit((started(call, number),))
        if was_in_time(call, began_s):
            return
    raise Stopped(StoreFailed("the store", "it takes longer than half a lease to record anything; the effect was not begun"))


def was_in_time(call: Call, began_s: float) -> bool:
    """Whether an intent that is acknowledged now surely was so while the run was ours."""
    took_s = call.run.clock.monotonic_s() - began_s
    return took_s < IN_TIME_S or took_s < call.run.lease_s / 2


def _carried_out(call: Call, number: int) -> Life[Move]:
    """Intent, body, outcome."""
    reach("effect.before_intent")
    yield from _intended(call, number)
    return (yield from from_intent(call, number))


def from_intent(call: Call, number: int) -> Life[Move]:
    """Body and outcome, unless a cancellation came while the intent was written."""
    reach("effect.after_intent")
    history = call.run.journal.histories.get(call.step_id)
    yield from last_moment(call, number, doubtful=history is not None and history.unsure)
    body = entered(call, 0)
    try:
        result = yield from invoked(call, body, number)
    except Exception as error:  # noqa: BLE001 (an effect may raise anything)
        return (yield from judged(call, body, error, number))
    reach("effect.after_body")
    return (yield from came_to_pass(call, body, result, number))


def came_to_pass(call: Call, body: Body, result: Any, number: int) -> Life[Move]:
    """A body has returned: the effect happened, also where its result cannot be kept."""
    note_usage(call, body, result)
    not_kept = ""
    value: bytes | None = None
    try:
        value, result = call.spec.codec().keep(result)
    except NotKept as error:
        not_kept = str(error)
    done = step_done(call, body, value, number, not_kept=not_kept, shown=_shown(result) if not_kept else "")
    yield Settle(with_changes(call, done))
    reach("effect.after_outcome")
    if not_kept:
        raise call.blamed(ResultNotKept(call.run.id, call.step_id, call.spec.name, done.shown, not_kept))
    return Finished(result)


def _shown(result: object) -> str:
    """What a result looks like that could not be kept; it happened, even if not even that can be said of it."""
    try:
        return repr(result)[:SHOWN]
    except Exception as error:  # noqa: BLE001 (code of the user's, which may raise anything)
        return f"a {type(result).__name__}, which cannot be shown either ({type(error).__name__})"


def judged(call: Call, body: Body, error: Exception, number: int) -> Life[Move]:
    """What an error says about the effect: its answer, that it did not happen, or nothing.

    That this attempt did not happen says nothing about an earlier one that was resent without having been found out.
    """
    verdict = landing(error, call.spec.raises, call.spec.errors)
    match "unknown" if verdict == "not_landed" and call.run.journal.histories[call.step_id].unsure else verdict:
        case "answer":
            raise (yield from failed(call, body, error, number)) from error
        case "not_landed":
            yield from fail_or_wait(call, body, error, number)
            return Attempt(number + 1)
        case "unknown":
            yield Commit([attempt_failed(call, body, error, number, landed="unknown", delay_s=0.0)])
            return Uncertain(number, told(error), live=True, after_s=asked_to_wait_s(call, error))


def _settled(call: Call, doubt: Uncertain) -> Life[Move]:
    try:
        return (yield from settle(call, doubt))
    except asyncio.CancelledError as error:
        if call.run.ended is None:
            history = call.run.journal.histories.get(call.step_id)
            yield from broken_off(call, doubt.number, error, begun=doubt.unread or (history is not None and history.has_begun()))
        raise


def _found(call: Call, found: Found) -> Life[Move]:
    """The result that a probe or a person knew becomes the outcome."""
    result = call.spec.codec().give_back(found.value)
    seq = yield Commit((step_done(call, Body(call), found.value, found.number),))
    yield Turn(seq)
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
            yield from fail_or_wait(call, body, undone.why, number)
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
            result = yield from invoked(call, body, number)
            reach("transaction.after_body")
            note_usage(call, body, result)
            value, result = call.spec.codec().keep(result)
        except Exception as error:
            raise Undone(error, transaction.again(error)) from error
        yield Settle(with_changes(call, step_done(call, body, value, number)), within=transaction)
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


def _refuse_without_transactions(call: Call) -> None:
    store = call.run.committer.store
    if not isinstance(store, Transactional):
        raise Misuse(
            f"{call.spec.name!r} commits with its outcome in one transaction, and the store {store.url} has no tables of yours; nothing "
            f"was done. Keep the runs in the PostgreSQL of those tables: store='postgresql://...'"
        )
