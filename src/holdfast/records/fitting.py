"""Which code has failed to fit a run as it stands, by the run's own records; pure.

A run that was blocked because the code takes another path, or cannot read what is recorded, waits for a process whose code does. Whose code
has been tried stands in its records, so nobody tries twice, whoever asks and whatever crashes. What a try adds does not make an earlier one
fit. Only somebody's word, or a run that begins anew, makes all of them worth another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import ChildStopped, ReplayMismatch, UndecodableResult
from holdfast.large.packing import bare
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.store import Head, Row

MISFITS = tuple(one.__qualname__ for one in (ReplayMismatch, UndecodableResult))
"""The errors by which code is known not to fit."""

CHILD = ChildStopped.__qualname__
ANEW = frozenset(one.kind for one in (rec.RunAccepted, rec.RunContinued, rec.RunForked, rec.RunRepaired, rec.StepEdited, rec.StateEdited))
LOOKED_AT = frozenset(one.kind for one in (rec.RunStarted, rec.RunResumed, rec.RunBlocked, rec.RunFailed))


SHOWN = 5
"""Tries that are told of, the last ones."""


class Try(NamedTuple):
    """A process whose code did not fit; no print where it is not known."""

    owner: str
    code: str


def is_misfit(head: Head) -> bool:
    """Whether a run is blocked because the code does not fit, as its head tells."""
    return head.status == "blocked" and head.note.partition(":")[0] in MISFITS


def is_held_up(head: Head) -> bool:
    """Whether the code may be to blame that a run does not go on: that of its own, or of a child run."""
    return is_misfit(head) or (head.status == "failed" and head.note.partition(":")[0] == CHILD)


def is_stopped_by(head: Head, child: str) -> bool:
    """Whether a run has failed because this child run could not go on."""
    return head.status == "failed" and head.note.startswith(f"{CHILD}: child run {child!r} ")


def misfits(record: rec.RunBlocked | rec.RunFailed) -> bool:
    """Whether code that does not fit ended the run here, its own or that of a child run."""
    return record.error.get("type") in (*MISFITS, CHILD)


def tries(rows: Sequence[Row]) -> list[Try]:
    """The processes that have tried a run in vain since somebody's word, the last first; each print once."""
    found: dict[str, Try] = {}
    last = ""
    for row in reversed(bare(rows)):
        if row.kind in ANEW:
            break
        record = record_of(row) if row.kind in LOOKED_AT else None
        if isinstance(record, rec.RunBlocked | rec.RunFailed):
            if not misfits(record):
                break
            last = record.code
            found.setdefault(last, Try("", last))
        elif isinstance(record, rec.RunStarted | rec.RunResumed):
            if not record.owner:
                break
            if last in found and not found[last].owner:
                found[last] = Try(record.owner, last)
    return list(found.values())


def told(rows: Sequence[Row]) -> str:
    """What a run that is blocked by its code waits for, in words; nothing for one that something else blocks."""
    tried = [f"{one.owner or 'an unknown process'}{f' (code {one.code})' if one.code else ''}" for one in tries(rows)]
    more = f" and {len(tried) - SHOWN} more" if len(tried) > SHOWN else ""
    return f". It waits for a worker whose code fits, or for an operator; tried in vain: {', '.join(tried[:SHOWN])}{more}" if tried else ""
