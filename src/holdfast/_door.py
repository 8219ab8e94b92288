"""What is looked at before a new step begins: whether the run may go on at all.

What the journal says was cancelled before it had an outcome must not begin; nor a blocking step whose time is over. Before the first
new step of a resumed run, what it relies on is compared with what it was. Where the run is to be undone, nothing new begins: the call waits
until every other line of execution has come to its live edge too, so that all that was done is known, and then the code is unwound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from . import _records as rec
from ._commands import Commit, Hang, Life, Pause, Turn, WaitForPerson
from ._watch import compare
from .errors import Cancelled, Parked

if TYPE_CHECKING:
    from ._steps import Call

EDGE_S = 0.2
"""How long a call at its live edge waits for the other lines of execution to come to theirs, before it looks whether all is known."""


def pass_the_door(call: Call) -> Life[None]:
    """Go on only if nothing stands against a new step."""
    if call.run.undo.asked is not None and not call.run.concluding:
        yield from _end_at_the_edge(call, call.run.undo.asked)
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


def _end_at_the_edge(call: Call, asked: rec.RunUndoing) -> Life[NoReturn]:
    """Begin nothing; once all that was recorded is known, the code is unwound, even where some of it waits for something else."""
    run = call.run
    if not run.blocking and not call.spec.is_async:
        raise Cancelled(asked.by, asked.reason)  # waiting here would stop the event loop, and with it the other lines
    while not run.knows_all():
        yield WaitForPerson(f"edge:{call.step_id}", run.clock.now_us() + int(EDGE_S * 1e6))
    run.unwind(Parked())
    raise Parked
