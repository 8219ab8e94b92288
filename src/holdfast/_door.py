"""What is looked at before a new step begins: whether the run may go on at all.

What the journal says was cancelled before it had an outcome must not begin; nor a blocking step whose time is over. Before the first
new step of a resumed run, what it relies on is compared with what it was. Before every body, where the run has a budget, it is looked
whether a limit is reached.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from . import _records as rec
from ._asking import consult, is_asked
from ._commands import Commit, Hang, Life, Pause, Turn
from ._ledger import BUDGET, Reached
from ._run import Run
from ._watch import compare
from .errors import BudgetExceeded, RunInterrupted

if TYPE_CHECKING:
    from ._steps import Call

MOMENT_S = 0.005
"""How often a branch looks whether the question that another one is putting has been stored."""


def pass_the_door(call: Call) -> Life[None]:
    """Go on only if nothing stands against a new step."""
    if call.run.unchecked:
        yield from compare(call)
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


def within_budget(call: Call) -> Life[None]:
    """Go on only while the budget allows it; where a limit is reached, a person is asked, or the run ends here.

    Nothing has begun: a recorded cancellation of this wait needs no record of its own, and any other stops the run.
    """
    run, history = call.run, call.run.journal.histories.get(call.step_id)
    further = history is not None and history.failures > 0
    try:
        while not run.concluding and (reached := run.journal.ledger.reached(run.clock.now_us(), further=further)) is not None:
            yield from _more(call, reached)
    except asyncio.CancelledError as error:
        if run.ended is None and not call.scope.cause():
            raise run.stop(RunInterrupted(run.id, call.step_id)) from error
        raise


def _more(call: Call, reached: Reached) -> Life[None]:
    """Return once the limits have changed; where nobody raises them, the run fails in a way that its code cannot catch."""
    run = call.run
    told = reached.told()
    if run.journal.ledger.on_limit == "fail":
        raise run.stop(BudgetExceeded(run.id, reached.name, told))
    about, mine = _the_question(run, f"{reached.name} {reached.limit} {run.journal.ledger.changes}")
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
