"""A call that was made before, on a path that was given up: a person is asked, its result is taken over, or it is made again.

Only a call of the same effect with the same arguments, or under the same business key, is taken for one that was made before. A child run
of the same call is taken on, where it belongs to this run and can go on; of another one the result is taken, or it is branched from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast._clock import to_datetime
from holdfast.records import kinds as rec
from holdfast.records.lineage import label, result_of
from holdfast.records.replay import History

if TYPE_CHECKING:
    from holdfast.life.calls import Call
    from holdfast.records.journal import Journal

SHOWN_RESULT = 200
"""Characters of a recorded result that a question shows."""

SHOWN_CALLS = 5
"""Earlier calls that a question names."""


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
    return not history.child and _would_repeat(call.spec.name, call.fingerprint, call.key if call.spec.key is not None else "", history)


def _would_repeat(name: str, fingerprint: str, key: str, history: History) -> bool:
    """Whether that call is this one: the same arguments, or the same business key."""
    return history.name == name and (history.fingerprint == fingerprint or (bool(key) and key == history.key))


def child_before(call: Call) -> Before | None:
    """The child run of this very call: of the step itself, where another run had begun it, or the first that nobody has taken on."""
    journal = call.run.journal
    if journal.turned is not None and journal.turned.effects == "repeat":
        return None
    mine = journal.histories.get(call.step_id)
    if mine is not None and mine.child:
        return Before(call.step_id, mine)
    same = (pair for pair in journal.superseded if pair[1].child and pair[1].is_of(call.spec.name, call.fingerprint))
    found = next((Before(*pair) for pair in same if pair[1].wanted_by in ("", call.step_id)), None)
    if found is not None:
        found.history.wanted_by = call.step_id  # until it is recorded, a branch beside this one must not take it too
    return found


def takes_over(call: Call, before: Before) -> bool:
    """Whether the recorded result is to be taken, without asking anybody: it is known, fits, and is that of this very call."""
    turned, history = call.run.journal.turned, before.history
    if turned is None or turned.effects != "reuse" or history.fingerprint != call.fingerprint:
        return False
    return history.landed() and not history.result_is_missing() and not call.unfit(result_of(history))


def sent_keys(journal: Journal, step_id: str) -> list[str]:
    """The keys under which the other side may know what a doubt is about: of a call that has not begun, those of earlier ones."""
    asked = journal.histories[step_id]
    if asked.has_begun() or asked.sent:
        return [asked.sent or asked.key]
    others = [*journal.superseded, *journal.open_doubts(ended=True)]
    same = [found for _, found in others if found is not asked and _would_repeat(asked.name, asked.fingerprint, asked.key, found)]
    return [key for key in dict.fromkeys(found.sent or found.key for found in same) if key]


def why_asked(call: Call, before: Before) -> str:
    """What a person must know to say whether the call is to be made again: each earlier one, for any of them may have happened."""
    history = before.history
    same = "the same call" if history.fingerprint == call.fingerprint else f"another call under the same key {history.key}"
    others = [Before(*pair) for pair in call.run.journal.superseded if pair[1] is not history and _is_the_same(call, pair[1])]
    told = [f"; and at {_where(each)}{_when(each.history)}{_fate(each.history)}" for each in others[: SHOWN_CALLS - 1]]
    more = f"; and {len(others) - len(told)} times more" if len(others) > len(told) else ""
    since = _since(call.run.journal.turned)
    return f"{same} was made at {_where(before)}, {since}{_when(history)}{_fate(history)}{''.join(told)}{more}"


def _where(before: Before) -> str:
    return f"step {before.step_id}" + (f" of run {before.history.elsewhere}" if before.history.elsewhere else "")


def _when(history: History) -> str:
    """When it was made, and under which key the other side knows it."""
    when = f"on {to_datetime(history.started_us):%Y-%m-%d %H:%M:%S} UTC" if history.started_us else ""
    key = f"key {history.sent or history.key}" if history.sent or history.key else ""
    told = ", ".join(part for part in (when, key) if part)
    return f" ({told})" if told else ""


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
