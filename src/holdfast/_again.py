"""A call that was made before, on a path that was given up: a person is asked, its result is taken over, or it is made again.

Only a call of the same effect with the same arguments, or under the same business key, is taken for one that was made before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from . import _records as rec
from ._clock import to_datetime
from ._lineage import label, result_of
from ._replay import History

if TYPE_CHECKING:
    from ._calls import Call

SHOWN_RESULT = 200
"""Characters of a recorded result that a question shows."""


class Before(NamedTuple):
    """The effect that a call would do again."""

    step_id: str
    history: History

    def label(self) -> str:
        """How it is named in what is recorded of the call."""
        return label(self.step_id, self.history)


def made_before(call: Call) -> Before | None:
    """The first effect that this call would repeat and whose result nobody has taken over; none where effects are to be repeated."""
    turned = call.run.journal.turned
    if turned is not None and turned.effects == "repeat":
        return None
    return next((Before(*pair) for pair in call.run.journal.superseded if _is_the_same(call, pair[1])), None)


def _is_the_same(call: Call, history: History) -> bool:
    if history.name != call.spec.name or history.child:
        return False
    return history.fingerprint == call.fingerprint or (call.spec.key is not None and history.key == call.key)


def takes_over(call: Call, before: Before) -> bool:
    """Whether the recorded result is to be taken, without asking anybody: it is known, fits, and is that of this very call."""
    turned, history = call.run.journal.turned, before.history
    if turned is None or turned.effects != "reuse" or history.fingerprint != call.fingerprint:
        return False
    return history.landed() and not history.result_is_missing() and not call.unfit(result_of(history))


def why_asked(call: Call, before: Before) -> str:
    """What a person must know to say whether the call is to be made again."""
    step_id, history = before
    where = f"step {step_id}" + (f" of run {history.elsewhere}" if history.elsewhere else "")
    when = f" (on {to_datetime(history.started_us):%Y-%m-%d %H:%M:%S} UTC)" if history.started_us else ""
    same = "the same call" if history.fingerprint == call.fingerprint else f"another call under the same key {history.key}"
    return f"{same} was made at {where}, {_since(call.run.journal.turned)}{when}{_fate(history)}"


def _since(turned: rec.Record | None) -> str:
    match turned:
        case rec.StepEdited():
            return f"before {turned.by} edited step {turned.step_id}"
        case rec.StateEdited():
            return f"before {turned.by} edited the state at step {turned.at}"
        case rec.RunForked():
            return f"after step {turned.at}, from which this run branches"
    return "before the code changed"


def _fate(history: History) -> str:
    if not history.landed():
        return " (whether it happened is not known)"
    value = result_of(history)
    return f", and returned {value.decode('utf-8', 'replace')[:SHOWN_RESULT]}" if value is not None else ""
