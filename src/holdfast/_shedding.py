"""What a run that stays can do without: details that neither replay, undo, a doubt nor a check needs; pure.

No record goes, so that nothing that counts them changes: seqs, times, costs and the order of outcomes stay. What goes is the bytes in
them: arguments of safe steps that have an outcome, what a failed attempt said once another has succeeded, and results and states that
changed code has superseded. Arguments enter the chain by their digest and can go without a trace in it; where anything else goes the
records from there on are sealed anew. Of effects everything stays: whether they happened, and with what, is for people to see.

States that replay sets, one at each recorded boundary, stay all of them: code between two boundaries may have read any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from . import _records as rec
from ._chain import GENESIS, chain, prunable, record_of
from ._journal import Journal
from ._ledger import Ledger
from ._models import Models
from ._replay import History
from .store import Head, Row

PRUNED = "(pruned)"
"""What stands for the message of an attempt's error."""

UNLIKE = frozenset({"head", "broken", "_unsettled"})
"""What of a journal a prune moves, or what only repeats another part."""


class Lighter(NamedTuple):
    """The rows of a run without what it can do without: all of them, those that changed, and how many bytes of how many rows went."""

    rows: list[Row]
    changed: list[Row]
    touched: int
    freed: int


def lighter(head: Head, rows: Sequence[Row], *, before_us: int) -> Lighter:
    """The same run with fewer details in records from before then."""
    needs = _Needs(Journal.load(head, rows), [record_of(row) for row in rows])
    light = [needs.lighten(row) if row.at_us < before_us else row for row in rows]
    freed = [size(old) - size(new) for old, new in zip(rows, light, strict=True)]
    sealed = list(_sealed(head.run_id, light))
    changed = [new for old, new in zip(rows, sealed, strict=True) if old != new]
    return Lighter(sealed, changed, sum(map(bool, freed)), sum(freed))


def size(row: Row) -> int:
    """The bytes of data in a row."""
    return len(row.body) + len(row.value or b"") + len(row.args or b"")


def replays_alike(before: Journal, after: Journal) -> bool:
    """Whether a run goes on in the same way from both: everything that was folded from the records is the same but for shed details."""
    names = [name for name in Journal.__slots__ if name not in UNLIKE]
    one, other = (journal.head._replace(seq=0, digest=b"") for journal in (before, after))
    return one == other and all(_held(getattr(before, name)) == _held(getattr(after, name)) for name in names)


class _Needs:
    """What of a run's records is needed."""

    def __init__(self, journal: Journal, records: Sequence[rec.Record]) -> None:
        self.effects = {one.step_id for one in records if getattr(one, "effect", False) or isinstance(one, rec.DoubtOpened)}
        self.effects |= {one.step_id for one in records if isinstance(one, rec.MessageTaken)}  # what it said may be received again
        self.open = {step_id for step_id, found in journal.histories.items() if found.outcome is None}
        self.done = {step_id for step_id, found in journal.histories.items() if isinstance(found.outcome, rec.StepDone)}
        self.outcomes = {found.outcome_seq for found in _histories(journal)} | {gone.seq for gone in journal.behind.values()}
        self.states = {seq for saved in journal.states.values() for seq, _ in saved}

    def lighten(self, row: Row) -> Row:
        """The row without what nobody needs."""
        record = record_of(row)
        if isinstance(record, rec.StateSaved):
            return row if row.seq in self.states else row._replace(value=None)
        if not record.step_id or record.step_id in self.effects or record.step_id in self.open:
            return row
        match record:
            case rec.AttemptFailed() if record.step_id in self.done:
                return _smaller(row, row._replace(body=rec.to_body(record.but(error=_stub(record.error)))))
            case rec.StepDone() if row.seq not in self.outcomes:
                return row._replace(args=None, value=None)
            case _ if prunable(record):
                return row._replace(args=None)
        return row


def _stub(error: rec.Json) -> rec.Json:
    return {"type": error.get("type"), "message": PRUNED}


def _smaller(row: Row, light: Row) -> Row:
    return light if size(light) < size(row) else row


def _sealed(run_id: str, rows: Iterable[Row]) -> Iterator[Row]:
    """The rows, chained anew; as long as nothing but arguments went, that changes nothing."""
    digest = GENESIS
    for row in rows:
        digest = chain(digest, run_id, row)
        yield row if row.digest == digest else row._replace(digest=digest)


def _histories(journal: Journal) -> Iterator[History]:
    yield from journal.histories.values()
    yield from (found for _, found in journal.superseded)
    for gone in journal.behind.values():
        yield from gone.forgotten.values()


def _held(value: Any) -> Any:
    """What a part of a journal holds, so that two can be compared."""
    match value:
        case History():
            return _essence(value)
        case rec.Record():
            return repr(value)
        case dict():
            return {key: _held(one) for key, one in value.items()}
        case list() | tuple():
            return [_held(one) for one in value]
        case _ if dataclasses.is_dataclass(value):
            return {field.name: _held(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case Ledger() | Models():
            return {name: _held(getattr(value, name)) for name in value.__slots__}
    return value


def _essence(history: History) -> dict[str, Any]:
    """A step's history without what may go: the arguments of a safe step with an outcome, what a failed attempt said."""
    held = {field.name: getattr(history, field.name) for field in dataclasses.fields(history)}
    if not history.effect and history.outcome is not None:
        held["args"] = None
        held["outcome"] = history.outcome.but(args=None)
    if not history.effect and isinstance(history.outcome, rec.StepDone) and isinstance(history.trouble, rec.AttemptFailed):
        held["trouble"] = history.trouble.but(error={})
    return {name: _held(value) for name, value in held.items()}
