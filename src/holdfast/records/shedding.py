"""What a run that stays can do without: details that neither replay, undo, a doubt nor a check needs; pure.

Records of generations that are over go as a whole: the one with which the next began says how many stood before it, and what the run had
cost by then. Of the others none goes, and seqs, times and the order of outcomes stay what they are; what goes is the bytes in them:
arguments of safe steps that have an outcome, what a failed attempt said once another has succeeded, partial results that no attempt will
ask for, and results and states that changed code or an edit has superseded, but for messages that are received again. Of effects all
stays: whether they happened, and with what, is for people to see. Arguments enter the chain by their digest and can go without a trace in
it; where anything else goes the records from there on are sealed anew.

States that replay sets, one at each recorded boundary, stay all of them: code between two boundaries may have read any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.records import kinds as rec
from holdfast.records.bodies import to_body
from holdfast.records.chain import GENESIS, chain, empty_head, fold_head, prunable, record_of
from holdfast.records.journal import EDITS, Journal
from holdfast.records.ledger import Ledger
from holdfast.records.lineage import Pair, heard
from holdfast.records.models import Models
from holdfast.records.replay import History
from holdfast.store import Head, Row

PRUNED = "(pruned)"
"""What stands for the message of an attempt's error."""

OF_THE_MOMENT = frozenset({"broken", "ceilings", "gate", "held", "_held_bytes", "_held_refs", "holds", "lent", "pending"})
"""What of a journal belongs to the process that has it, and not to the records: everything else is compared."""


class Lighter(NamedTuple):
    """The rows of a run without what it can do without: all of them, those that changed, and how many bytes of how many rows went.

    `drops` are the first and the last seq that are gone altogether, of `dropped` rows.
    """

    rows: list[Row]
    changed: list[Row]
    touched: int
    freed: int
    drops: tuple[int, int] = (0, 0)
    dropped: int = 0


def lighter(head: Head, rows: Sequence[Row], *, before_us: int) -> Lighter:
    """The same run with fewer details in records from before then."""
    rows = list(rows)
    needs = _Needs(Journal.load(head, rows), [(row, record_of(row)) for row in rows])
    light = [needs.lighten(row) if row.at_us < before_us else row for row in rows]
    gone = needs.earlier(before_us)
    if gone:
        light[gone.stop] = _continued(head.run_id, rows, gone)
    freed = [size(old) - (0 if index in gone else size(new)) for index, (old, new) in enumerate(zip(rows, light, strict=True))]
    kept = [index for index in range(len(rows)) if index not in gone]
    sealed = list(_sealed(head.run_id, [light[index] for index in kept]))
    changed = [new for index, new in zip(kept, sealed, strict=True) if rows[index] != new]
    drops = (rows[gone[0]].seq, rows[gone[-1]].seq) if gone else (0, 0)
    return Lighter(sealed, changed, sum(map(bool, freed)), sum(freed), drops, len(gone))


def _continued(run_id: str, rows: Sequence[Row], gone: range) -> Row:
    """The record with which a run began anew, telling what it needs to tell of those before it once they are gone."""
    row, folded, ledger = rows[gone.stop], empty_head(run_id), Ledger()
    for each in rows[: gone.stop]:
        record = record_of(each)
        folded = fold_head(folded, record, each.at_us)
        ledger.fold(record, each.at_us)
        if isinstance(record, rec.RunContinued):
            ledger.carry(record.carried)
    record = record_of(row)
    assert isinstance(record, rec.RunContinued)
    carried = {**record.carried, **({"charged": ledger.charged} if ledger.charged else {})}
    dropped = row.seq - rows[gone.start - 1].seq - 1
    return row._replace(body=to_body(record.but(dropped=dropped, usd=folded.usd, carried=carried)))


def size(row: Row) -> int:
    """The bytes of data in a row."""
    return len(row.body) + len(row.value or b"") + len(row.args or b"")


def replays_alike(before: Journal, after: Journal) -> bool:
    """Whether a run goes on in the same way from both: everything that was folded from the records is the same but for shed details."""
    names = [name for name in Journal.__slots__ if name not in OF_THE_MOMENT and name != "head"]
    one, other = (journal.head._replace(seq=0, digest=b"") for journal in (before, after))
    return one == other and all(_held(getattr(before, name)) == _held(getattr(after, name)) for name in names)


class _Needs:
    """What of a run's records is needed."""

    def __init__(self, journal: Journal, pairs: Sequence[Pair]) -> None:
        self.effects = {one.step_id for _, one in pairs if getattr(one, "effect", False) or isinstance(one, rec.DoubtOpened)}
        self.open = {step_id for step_id, found in journal.histories.items() if found.outcome is None}
        self.done = {step_id for step_id, found in journal.histories.items() if isinstance(found.outcome, rec.StepDone)}
        self.outcomes = {found.outcome_seq for found in known_histories(journal)} | {gone.seq for gone in journal.behind.values()}
        self.outcomes -= {found.outcome_seq for found in journal.histories.values() if found.edited is not None}
        self.edits = [found.edited for found in known_histories(journal) if found.edited is not None]
        self.states = {seq for saved in journal.states.values() for seq, _ in saved}
        self.partials = [record for saved in journal.partials.values() for record in saved.values()]
        self.messages = set(_received_again(journal, pairs))
        self._pairs, self._known = pairs, bool(journal.unread or journal.superseded) or isinstance(journal.turned, EDITS)

    def earlier(self, before_us: int) -> range:
        """Which rows are of generations that are over: those between what the run began with and where it last began anew before then."""
        ends = [index for index, (row, one) in enumerate(self._pairs) if isinstance(one, rec.RunContinued) and row.at_us < before_us]
        made = [index for index, (_, one) in enumerate(self._pairs) if isinstance(one, rec.RunForked)]
        gone = range(max(made, default=0) + 1, ends[-1] if ends else 0)
        edited = any(isinstance(self._pairs[index][1], (*EDITS, rec.RunArrived)) for index in gone)
        told = any(heard(self._pairs[index][1].value)[0] for index in made)  # which of these a call took over, later rows say
        return range(0) if told or (edited and self._known) else gone

    def lighten(self, row: Row) -> Row:
        """The row without what nobody needs."""
        record = record_of(row)
        if isinstance(record, rec.StateSaved):
            return row if row.seq in self.states else row._replace(value=None)
        if isinstance(record, rec.StepPartial):
            return row if record in self.partials else row._replace(value=None)
        return self._lighten_step(row, record)

    def _lighten_step(self, row: Row, record: rec.Record) -> Row:
        if not record.step_id or record.step_id in self.effects or record.step_id in self.open:
            return row
        match record:
            case rec.AttemptFailed() if record.step_id in self.done:
                return _smaller(row, row._replace(body=to_body(record.but(error=_stub(record.error)))))
            case rec.StepDone() if row.seq not in self.outcomes and row.seq not in self.messages:
                return row._replace(args=None, value=None)
            case rec.StepEdited() if record not in self.edits:
                return row._replace(value=None)
            case _ if prunable(record):
                return row._replace(args=None)
        return row


def _received_again(journal: Journal, pairs: Iterable[Pair]) -> Iterator[int]:
    """The outcomes that hold messages which somebody went back behind, and which nobody has received again."""
    run_id, taken = journal.head.run_id, dict[str, str]()
    for row, record in pairs:
        match record:
            case rec.MessageTaken() if not record.unfit:
                taken[record.step_id] = record.again or f"{run_id}/{row.seq}"
            case rec.StepDone() if taken.pop(record.step_id, "") in journal.unread:
                yield row.seq


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


def known_histories(journal: Journal) -> Iterator[History]:
    """The histories that a run knows: of steps that stand, that were superseded, and that may stand again."""
    yield from journal.histories.values()
    yield from (found for _, found in journal.superseded)
    for gone in journal.behind.values():
        yield from gone.forgotten.values()


def _held(value: Any) -> Any:
    """What a part of a journal holds, so that two can be compared."""
    match value:
        case History():
            return _essence(value)
        case rec.RunContinued():  # what it tells of records that are gone is in the head and the ledger
            return repr(value.but(dropped=0, usd=0.0, carried={**value.carried, "charged": {}}))
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
