"""What an agent knew at one checkpoint, compared with what it knew at another, of the same run or of two.

A checkpoint is a document: the call it stands at with its arguments, the results of all steps by then, the state, and what was spent. Its
difference to another is a list of changes, and where two runs are compared, the first step at which they part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast._ids import RUN_ID
from holdfast.errors import Refusal
from holdfast.operating.patch import Change, compared, same
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.chain import at_position, empty_head, fold_head, verified
from holdfast.records.journal import Journal
from holdfast.records.replay import History
from holdfast.running.engine import Engine
from holdfast.store import Head, Row

NEAR = 3
"""Steps before and behind one that does not exist which an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A checkpoint of a run: after `step_id`, or where the run stands now; `document` is what the agent knew there."""

    run_id: str
    step_id: str
    document: dict[str, Any]

    @property
    def name(self) -> str:
        """RUN@STEP, or RUN."""
        return f"{self.run_id}@{self.step_id}" if self.step_id else self.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first step at which two runs are not the same: its `what` (call, arguments or result) on both sides, None where it has none."""

    step_id: str
    what: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All that differs between two checkpoints, in the order in which the changes lead from the first to the second."""

    left: Side
    right: Side
    changes: list[Change]
    parting: Parting | None

    @property
    def patch(self) -> list[dict[str, Any]]:
        """The same as a JSON patch (RFC 6902) of the first document."""
        return [change.operation() for change in self.changes]


def diff(engine: Engine, left: str, right: str) -> Difference:
    """Compare two checkpoints, each RUN@STEP or RUN."""
    (one, before), (other, after) = _looked_up(engine, left), _looked_up(engine, right)
    changes = list(compared(one.document, other.document))
    parting = None if one.run_id == other.run_id else _parting(before, after)
    return Difference(left=one, right=other, changes=changes, parting=parting)


def _looked_up(engine: Engine, given: str) -> tuple[Side, Journal]:
    run_id, at, step_id = given.partition("@")
    if not RUN_ID.fullmatch(run_id) or (at and not step_id):
        raise Refusal(f"{given!r} is neither RUN@STEP, such as order-47@12, nor RUN; `holdfast history RUN` lists the steps")
    head, rows = loaded(engine, run_id)
    journal = _journal_at(head, rows, step_id)
    return Side(run_id=run_id, step_id=step_id, document=_document(journal, step_id)), journal


def _journal_at(head: Head, rows: Sequence[Row], step_id: str) -> Journal:
    """The run as it was when the last record of a step had been written, or as it is."""
    folded, then, end = empty_head(head.run_id), head, len(rows)
    steps: dict[str, None] = {}
    for index, (row, record) in enumerate(verified(head, rows), 1):
        folded = fold_head(folded, record, row.at_us)
        if getattr(record, "name", ""):
            steps[record.step_id] = None
        if step_id and record.step_id == step_id:
            then, end = at_position(folded, row), index
    if step_id and step_id not in steps:
        raise Refusal(f"run {head.run_id!r} has no step {step_id!r}; {_nearest(list(steps), step_id)}")
    return Journal.load(then, rows[:end], whole=True)


def _nearest(steps: Sequence[str], wanted: str) -> str:
    if not steps:
        return "it has none yet"
    ordered = sorted(steps, key=_order)
    place = sum(_order(step_id) < _order(wanted) for step_id in ordered)
    near = ordered[max(0, place - NEAR) : place + NEAR]
    return f"the nearest it has: {', '.join(near)}"


def _order(step_id: str) -> list[tuple[int, int, str]]:
    """Step ids in the order of their numbers: 2 before 10, 12 before 12.1.1."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"[0-9]+|[^0-9]+", step_id)]


def _document(journal: Journal, step_id: str) -> dict[str, Any]:
    """What the agent knew."""
    started, spent = journal.started, journal.ledger.spent(0)
    assert started is not None
    found: dict[str, Any] = {"agent": {"call": started.agent, "arguments": _json(started.args)}}
    if step_id and step_id in journal.histories:
        at = journal.histories[step_id]
        found["step"] = {"call": at.name, "arguments": _arguments(at)}
    if not step_id:
        found["status"] = journal.head.status
        found |= {"result": _json(journal.verdict.value)} if isinstance(journal.verdict, rec.RunDone) else {}
    return found | {
        "results": {each: _result(history) for each, history in journal.histories.items() if history.name},
        "state": {name: _json(saved.last) for name, saved in journal.states.items()},
        "spent": {"usd": round(spent.usd, 6), "tokens": spent.tokens, "steps": spent.steps, "retries": spent.retries},
    }


def _result(history: History) -> dict[str, Any]:
    """What came of a step, by the name of what was called."""
    match history.outcome:
        case rec.StepDone() as done if done.not_kept:
            return {"call": history.name, "not kept": done.shown}
        case rec.StepDone() as done:
            return {"call": history.name, "result": _json(done.value)}
        case rec.StepFailed() as failed:
            error = {"type": "InDoubt", "message": failed.reason} if failed.doubt else failed.error
            return {"call": history.name, "error": {"type": error.get("type"), "message": error.get("message")}}
    return {"call": history.name, "open": True}


def _arguments(history: History) -> Any:
    args = getattr(history.outcome, "args", None) or history.args
    return _json(args)


def _json(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


def _parting(left: Journal, right: Journal) -> Parting | None:
    """The first step, in the order of their numbers, that is not the same on both sides."""
    for step_id in sorted({*left.histories, *right.histories}, key=_order):
        one, other = _told(left.histories.get(step_id)), _told(right.histories.get(step_id))
        for what in ("call", "arguments", "result"):
            before, after = one.get(what), other.get(what)
            if not same(before, after):
                return Parting(step_id=step_id, what=what, before=before, after=after)
    return None


def _told(history: History | None) -> dict[str, Any]:
    if history is None or not history.name:
        return {}
    came = {name: value for name, value in _result(history).items() if name != "call"}
    return {"call": history.name, "arguments": _arguments(history), "result": came}
