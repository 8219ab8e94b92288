"""What is looked at before a new step begins: whether the run may go on at all.

What the journal says was cancelled before it had an outcome must not begin; nor a blocking step whose time is over. Before the first
new step of a resumed run, what it relies on is compared with what it was. Where another model has answered than in earlier lives, that was
recorded with the answer, and here it is decided whether the run goes on with it. Where the run is to be undone, nothing new begins: the
call waits until every other line of execution has come to its live edge too, so that all that was done is known, and then the code is
unwound. Before every body, where the run has a budget, it is looked whether a limit is reached; and where the step has a breaker, whether
that is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.breaker import Circuit, Go, Rest, Word, word_of
from holdfast.errors import BudgetExceeded, Cancelled, CircuitOpen, ModelChanged, Outspent, Parked, RunInterrupted, StoreError
from holdfast.life.asking import closing, consult, is_asked, moot
from holdfast.life.commands import Commit, Hang, Invoke, Life, Pause, Turn, WaitForPerson
from holdfast.life.run import EDGE_S, Body, Run
from holdfast.life.watch import compare
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.ledger import BUDGET, Reached
from holdfast.records.models import Pair

if TYPE_CHECKING:
    from holdfast.life.calls import Call

TRIAL_POLL_S = 0.05
"""How often an attempt looks whether the one that tries a breaker has ended."""

LEAVING = "leaving:"
"""What a line of execution waits for that begins nothing any more."""

MOST_SUPPLY_S = 10.0
"""How long a step waits before it asks again for a resource of which there was not enough."""

LOOK_S = 0.2
"""How often a step that waits for a resource looks whether it is still wanted."""

MOMENT_S = 0.005
"""How often a branch looks whether the question that another one is putting has been stored, or a thread where the others are."""

MOST_MOMENTS = 200
"""How many moments a thread leaves to the others at the most."""

log = logging.getLogger("holdfast")


def pass_the_door(call: Call) -> Life[None]:
    """Go on only if nothing stands against a new step."""
    yield from _cancelled_by_the_journal(call)
    if not call.run.concluding:  # a cleanup of a run that has ended relies on nothing
        if call.run.leaving is not None:
            yield from begin_no_more(call)
        if call.run.undo.asked is not None:
            yield from _end_at_the_edge(call, call.run.undo.asked)
        if call.run.unchecked:
            yield from compare(call)
        if call.run.journal.models.open:
            yield from _models_accepted(call)


def _cancelled_by_the_journal(call: Call) -> Life[None]:
    """What never began because it was cancelled first comes to that again, before anything else is looked at."""
    if call.run.blocking:
        yield from _others_first(call)
        for block in call.scope.time_outs():
            if (block.due() and call.run.undo.asked is None) or (block.doomed and not block.fired):
                block.fired = True
                fired = [*closing(call.run.journal, call.step_id), rec.TimeoutFired(step_id=block.step_id)]
                yield Turn(block.seq if block.doomed else (yield Commit(fired)))
                raise block.over()
    if call.scope.to_be_cancelled() or (call.run.blocking and call.scope.lost):
        _drop_child(call)
        yield Hang()


def _others_first(call: Call) -> Life[None]:
    """Among threads, one whose time is over comes here before the others have been given back what is recorded: then it would not fire."""
    run, blocks, looks = call.run, [block for block in call.scope.time_outs() if not block.fired], MOST_MOMENTS
    if run.undo.asked is not None or any(block.doomed for block in blocks):
        return
    while looks and not run.at_live_edge() and any(block.deadline_us() <= run.clock.now_us() for block in blocks):
        run.check()
        yield Pause(MOMENT_S)
        looks -= 1


def _drop_child(call: Call) -> None:
    """A crash came between what cancels the call of a child and the end of the child."""
    history = call.run.journal.histories.get(call.step_id)
    if history is not None and history.child and history.outcome is None and call.run.nest is not None:
        call.run.nest.drop(call, history.child)


def model_changes(call: Call, usage: Sequence[rec.Json]) -> list[rec.ModelChanged]:
    """What the usage of a live call tells of other models than those of earlier lives; to be stored with its outcome."""
    run, name = call.run, call.spec.name
    changes = []
    for pair, before in run.journal.models.news(name, usage):
        was = ", ".join(map(str, before))
        if run.on_model_change == "warn":
            log.warning("run %s: step %s, %s, has another model: it is %s, it was %s", run.id, call.step_id, name, pair, was)
        changes.append(
            rec.ModelChanged(
                step_id=call.step_id, name=name, asked=pair.asked, answered=pair.answered, before=was, action=run.on_model_change
            )
        )
    return changes


def _models_accepted(call: Call) -> Life[None]:
    """Go on only if every model that answers in the place of another is accepted; a run that changed its mind to "warn" accepts all."""
    run = call.run
    for (name, pair), change in list(run.journal.models.open.items()):
        by, reason = "on_model_change='warn'", ""
        if run.on_model_change == "fail":
            raise call.blamed(ModelChanged(run.id, name, change.before, str(pair)))
        if run.on_model_change == "ask":
            question = f"step {name} has another model: it is {pair}, it was {change.before}. Go on with it?"
            answer = yield from consult(run, f"model:{name}", topic="drift", question=question, about=json.dumps(pair))
            if not answer.yes:
                raise call.blamed(ModelChanged(run.id, name, change.before, str(pair)))
            by, reason = answer.by, answer.reason
        if run.journal.models.open.pop((name, pair), None):  # the first of several branches records it
            yield Commit(acceptance(run.journal, name, pair, by=by, reason=reason))


def acceptance(journal: Journal, name: str, pair: Pair, *, by: str, reason: str) -> list[rec.Record]:
    """What is recorded when a run may go on with a model; a question about it is answered by that."""
    accepted = rec.ModelAccepted(name=name, asked=pair.asked, answered=pair.answered, by=by, reason=reason)
    return [*moot(journal, f"model:{name}", by=by, reason=reason), accepted]


def begin_no_more(call: Call) -> Life[None]:
    """The run is to be left: nothing new begins, and once all that is under way has come to its end, the code is unwound."""
    run = call.run
    if not run.blocking and not call.spec.is_async:  # waiting here would stop the event loop, and with it what is under way
        if run.in_progress <= 1:
            run.unwind(Parked())
            raise Parked
        return
    while run.leaving is not None:
        yield WaitForPerson(f"{LEAVING}{call.step_id}")


def _end_at_the_edge(call: Call, asked: rec.RunUndoing) -> Life[NoReturn]:
    """Begin nothing; once all that was recorded is known, the code is unwound, even where some of it waits for something else."""
    run = call.run
    if not run.blocking and not call.spec.is_async:
        raise Cancelled(asked.by, asked.reason)  # waiting here would stop the event loop, and with it the other lines
    while not run.knows_all():
        yield WaitForPerson(f"edge:{call.step_id}", run.clock.now_us() + int(EDGE_S * 1e6), looks=True)
    run.unwind(Parked())
    raise Parked


def within_budget(call: Call) -> Life[None]:
    """Go on only while the budget allows it; where a limit is reached, a person is asked, or the run ends here."""
    run, history = call.run, call.run.journal.histories.get(call.step_id)
    further = history is not None and history.failures > 0
    while not run.concluding and (reached := _reached(run, further=further)) is not None:
        yield from _before_it_began(call, _more(call, reached))
    above = run.above
    while not run.concluding and above is not None:
        if _reached(above.run, further=False) is not None:
            run.unwind(Outspent())
            raise Outspent
        above = above.run.above


def _reached(run: Run, *, further: bool) -> Reached | None:
    return run.journal.ledger.reached(run.clock.now_us(), further=further, beyond=run.beyond() if run.outlays else None)


def _before_it_began(call: Call, wait: Life[None]) -> Life[None]:
    """A wait before a body: a recorded cancellation of it needs no record of its own, and any other stops the run."""
    try:
        yield from wait
    except asyncio.CancelledError as error:
        if call.run.ended is None and not call.scope.cause():
            raise call.run.stop(RunInterrupted(call.run.id, call.step_id)) from error
        raise


def supplied(call: Call) -> Life[None]:
    """Go on once there is enough of every resource that the step uses, for all who share the store."""
    uses, run = call.spec.uses, call.run
    amounts = {uses: 1.0} if isinstance(uses, str) else dict(uses(*call.args, **call.kwargs)) if uses is not None else {}
    while amounts:
        yield from _before_it_began(call, _still_wanted(call))
        left, wait_s, give_back = run.draw(amounts, f"step {call.step_id}, {call.spec.name},")
        try:
            yield from _before_it_began(call, _waited(call, min(wait_s, MOST_SUPPLY_S) if left == amounts else wait_s))
        except BaseException:
            with contextlib.suppress(StoreError):  # then it counts as used
                give_back()
            raise
        amounts = dict(left)


def _waited(call: Call, wait_s: float) -> Life[None]:
    while wait_s > 0:
        yield Pause(min(wait_s, LOOK_S))
        yield from _still_wanted(call)
        wait_s -= min(wait_s, LOOK_S)


def _still_wanted(call: Call) -> Life[None]:
    """Wait no longer for a resource where the run is to end or to be left: the step has not begun."""
    call.run.check()
    if call.run.leaving is not None and not call.run.concluding:
        yield from begin_no_more(call)


def let_through(call: Call, circuit: Circuit) -> Life[None]:
    """Go on when the breaker lets this attempt begin; `CircuitOpen` where it rests.

    While another attempt tries whether the other side is back, this one waits for it, at most for the time of a rest. A `def` step on
    the event loop cannot: it would stop the one that tries.
    """
    clock, rest_s = call.run.clock, circuit.breaker.rest_s()
    until_s = clock.monotonic_s() + (rest_s if call.spec.is_async or call.run.blocking else 0.0)
    while not isinstance(answer := circuit.admit(call, clock.monotonic_s()), Go):
        if isinstance(answer, Rest):
            raise CircuitOpen(circuit.name, answer.rest_s)
        if clock.monotonic_s() >= until_s:
            raise CircuitOpen(circuit.name, rest_s)
        call.run.check()
        yield from _before_it_began(call, _moment(TRIAL_POLL_S))


def _moment(seconds: float) -> Life[None]:
    yield Pause(seconds)


def overheard(call: Call, body: Body, circuit: Circuit) -> Life[Any]:
    """The body of an attempt that the breaker let through; how it ends is told to the breaker."""
    spec, clock = call.spec, call.run.clock
    word: Word = "nothing"
    try:
        result = yield Invoke(body, spec.fn, call.args, call.kwargs, spec.timeout_s)
        word = "success"
    except Exception as error:
        word = word_of(error, effect=spec.effect, raises=spec.raises, errors=spec.errors, retry=spec.retry)
        raise
    finally:
        circuit.tell(call, word, clock.monotonic_s())
    return result


def _more(call: Call, reached: Reached) -> Life[None]:
    """Return once the limits have changed; where nobody raises them, the run fails in a way that its code cannot catch."""
    run = call.run
    told = reached.told()
    if run.journal.ledger.on_limit == "fail":
        raise run.stop(BudgetExceeded(run.id, reached.name, told))
    about, mine = _the_question(run, run.journal.ledger.about(f"{reached.name} {reached.limit}"))
    while not mine and not is_asked(run, BUDGET, about):
        run.check()
        yield Pause(MOMENT_S)
    grants = {reached.name: reached.granted()}
    answer = yield from consult(
        run, BUDGET, topic=BUDGET, question=reached.question(), about=about, grants=grants, step_id=call.step_id
    )
    if not answer.yes:
        raise run.stop(BudgetExceeded(run.id, reached.name, told, answer.by, answer.reason))


def _the_question(run: Run, about: str) -> tuple[str, bool]:
    """What the question is about, and whether to put it oneself: there is one at a time, however many branches wait for it."""
    with run.lock:
        ledger, asked = run.journal.ledger, run.journal.asks.get(BUDGET)
        if asked is not None and asked.answer is None:
            return asked.opened.about, True
        if ledger.asking and (asked is None or asked.opened.about != ledger.asking):
            return ledger.asking, False
        ledger.asking = about
        return about, True
