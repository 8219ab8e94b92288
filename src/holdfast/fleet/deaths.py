"""Which processes have died of a run since it last got on: who was gone when somebody took it over, by its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.operating.family import MAX_DEPTH
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.records.fitting import misfits
from holdfast.records.journal import Journal
from holdfast.running.engine import Engine
from holdfast.store import Head, Row

TAKEN_OVER = "taken over"
"""What a claim says that took a run from an owner who is gone."""

MOST_DEATHS = 3
"""So many processes may die of a run, without that it gets on, before it is set aside."""

MOST_LOST = 6
"""So many, where some of them have only fallen silent: the network may have been to blame."""

CLAIMS = (rec.RunStarted.kind, rec.RunResumed.kind)
STOPS = (rec.RunBlocked.kind, rec.RunFailed.kind)
NOT_ON = frozenset(
    one.kind
    for one in (
        rec.RunResumed, rec.StepStarted, rec.AttemptFailed, rec.DoubtOpened, rec.DoubtSettled, rec.StateSaved, rec.TimeRead, rec.WatchTaken,
        rec.WatchDrifted, rec.ModelChanged, rec.ChildStarted, rec.RunPruned,
    )
)  # fmt: skip
"""What is recorded of a step before it has an outcome, and beside it."""


class Death(NamedTuple):
    """An owner that was gone when its run was taken over; proven, or only silent for the lease time."""

    owner: str
    proven: bool


def deaths(rows: Sequence[Row]) -> list[Death]:
    """The owners that were gone, one after the other, since the run last got on: no step had an outcome, and nobody let go of it.

    That other code did not fit in between, that somebody without its code put it back in line, and who takes the run after that, say
    nothing of those whose code does.
    """
    found: list[Death] = []
    owner = ""
    unfit = False
    for row, gets_on in _getting_on(rows):
        stop = record_of(row) if row.kind in STOPS else None
        if (isinstance(stop, rec.RunBlocked | rec.RunFailed) and misfits(stop)) or (row.kind == rec.RunReleased.kind and not owner):
            unfit = True
            continue
        record = record_of(row) if row.kind in CLAIMS else None
        if isinstance(record, rec.RunResumed) and record.why == TAKEN_OVER:
            found.append(Death(owner, proven=not record.silent))
        elif gets_on or (record is not None and not (unfit and isinstance(record, rec.RunResumed) and record.owner)):
            found = []
        unfit = False
        owner = record.owner if isinstance(record, rec.RunStarted | rec.RunResumed) else owner
    return found


def _getting_on(rows: Sequence[Row]) -> Iterator[tuple[Row, bool]]:
    """Each record, and whether the run got on with it; not where a body saved what had been saved before."""
    saved: set[tuple[str, bytes, bytes | None]] = set()
    for row in rows:
        partial = {(row.step_id, row.body, row.value)} if row.kind == rec.StepPartial.kind else set()
        yield row, row.kind not in NOT_ON and not partial & saved
        saved |= partial


def deaths_of(engine: Engine, head: Head, rows: Sequence[Row]) -> list[Death]:
    """The same for a run that is about to be taken, from an owner who is gone too; it gets on while a run inside it does."""
    found = deaths(rows)
    if head.owner is not None:
        proven = engine.observer.life_of(head.owner) == "dead"
        found.append(Death(head.owner, proven))
    if len(found) < MOST_DEATHS:
        return found
    under = {owner for child in Journal.load(head, rows).open_children() for owner in _got_on_under(engine, child)}
    last = max((place for place, death in enumerate(found) if death.owner in under), default=0)
    return found[last:]


def _got_on_under(engine: Engine, run_id: str, depth: int = MAX_DEPTH) -> set[str]:
    """Whose a run was when it last got on, and those inside it; owners, since the clocks of two machines do not tell what came first."""
    found = engine.store.load(run_id)
    if found is None or not depth:
        return set()
    owner = last = ""
    for row, gets_on in _getting_on(found[1]):
        record = record_of(row) if row.kind in CLAIMS else None
        owner = record.owner if isinstance(record, rec.RunStarted | rec.RunResumed) else owner
        last = owner if gets_on else last
    return {last}.union(*(_got_on_under(engine, child, depth - 1) for child in Journal.load(*found).open_children()))


def too_deadly(found: Sequence[Death]) -> bool:
    """Whether so many died that the run must be what kills them."""
    return sum(death.proven for death in found) >= MOST_DEATHS or len(found) >= MOST_LOST
