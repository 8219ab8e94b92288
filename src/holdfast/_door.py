"""What is looked at before a new step begins: whether the run may go on at all.

What the journal says was cancelled before it had an outcome must not begin; nor a blocking step whose time is over. Before the first
new step of a resumed run, what it relies on is compared with what it was. Where another model has answered than in earlier lives, that was
recorded with the answer, and here it is decided whether the run goes on with it. Where the run is to be undone, nothing new begins: the
call waits until every other line of execution has come to its live edge too, so that all that was done is known, and then the code is
unwound.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from . import _records as rec
from ._asking import consult, moot
from ._commands import Commit, Hang, Life, Pause, Turn, WaitForPerson
from ._journal import Journal
from ._models import Pair
from ._watch import compare
from .errors import Cancelled, ModelChanged, Parked

if TYPE_CHECKING:
    from ._steps import Call

EDGE_S = 0.2
"""How long a call at its live edge waits for the other lines of execution to come to theirs, before it looks whether all is known."""

log = logging.getLogger("holdfast")


def pass_the_door(call: Call) -> Life[None]:
    """Go on only if nothing stands against a new step."""
    if not call.run.concluding:  # a cleanup of a run that has ended relies on nothing
        if call.run.undo.asked is not None:
            yield from _end_at_the_edge(call, call.run.undo.asked)
        if call.run.unchecked:
            yield from compare(call)
        if call.run.journal.models.open:
            yield from _models_accepted(call)
    if call.run.blocking:
        for block in call.scope.time_outs():
            if block.due() or (block.doomed and not block.fired):
                block.fired = True
                yield Turn(block.seq if block.doomed else (yield Commit([rec.TimeoutFired(step_id=block.step_id)])))
                raise TimeoutError
    if call.scope.to_be_cancelled() or (call.run.blocking and call.scope.lost):
        yield Hang()
    if call.scope.cause():
        yield Pause(0.0)  # a cancellation that a commit held back comes before an intent


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


def _end_at_the_edge(call: Call, asked: rec.RunUndoing) -> Life[NoReturn]:
    """Begin nothing; once all that was recorded is known, the code is unwound, even where some of it waits for something else."""
    run = call.run
    if not run.blocking and not call.spec.is_async:
        raise Cancelled(asked.by, asked.reason)  # waiting here would stop the event loop, and with it the other lines
    while not run.knows_all():
        yield WaitForPerson(f"edge:{call.step_id}", run.clock.now_us() + int(EDGE_S * 1e6))
    run.unwind(Parked())
    raise Parked
