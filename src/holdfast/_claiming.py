"""Which runs a worker may take now: those that can go on, and those whose owner is gone.

A child run goes on inside the run that had called it, so the topmost run of a family is what is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import NamedTuple

from . import _records as rec
from ._chain import CHILD_OF, record_of
from ._engine import Engine
from ._journal import Journal
from ._waking import woken
from .store import Head, Query, Roster, Row

MAX_DEPTH = 100
"""How deep runs may be inside runs."""

PAGE = 50
"""Runs in line that are read at a time."""

MAX_OWNED = 10_000
"""Runs that execute somewhere, which are looked through for those whose owner is gone."""

ORPHANS_S = 0.5
"""How often is looked for those."""

WHOLE_S = 30.0
"""How often among all, those of owners that are not even enrolled included."""

TAKEN_OVER = "taken over"
"""What a claim says that took a run from an owner who is gone."""


MOST_DEATHS = 3
"""So many processes may die of a run, without that it gets on, before it is set aside."""

MOST_LOST = 6
"""So many, where some of them have only fallen silent: the network may have been to blame."""

CLAIMS = (rec.RunStarted.kind, rec.RunResumed.kind)
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


def claimable(engine: Engine, agents: Sequence[str], queues: Sequence[str], orphans: Orphans | None = None) -> Iterator[Head]:
    """The runs that can be taken now: those whose owner is gone first, then those that can go on, then those in line."""
    seen: set[str] = set()
    orphaned = (orphans or Orphans(engine)).found()
    for head in chain(orphaned, woken(engine, agent=None), *(_in_line(engine, queue, agents) for queue in queues)):
        top = _topmost(engine, head)
        if top is not None and top.agent in agents and top.queue in queues and top.run_id not in seen:
            seen.add(top.run_id)
            yield top


def _in_line(engine: Engine, queue: str, agents: Sequence[str]) -> Iterator[Head]:
    """The runs of a queue in their turn, those of these agents."""
    lines = [_pages(engine, Query(statuses=["queued"], queue=queue, agent=agent, limit=PAGE)) for agent in agents]
    return merge(*lines, key=lambda head: (head.turn, head.run_id))


def _pages(engine: Engine, query: Query) -> Iterator[Head]:
    """What a query lists, a page at a time; what is taken meanwhile may hide one, which the next look finds."""
    while page := engine.store.heads(query):
        yield from page
        query = query._replace(offset=query.offset + len(page))


class Orphans:
    """Finds the runs whose owner is dead, or has been silent for the lease time, without reading at each look all that execute."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_s = self._whole_s = float("-inf")
        self._empty: dict[str, int] = {}

    def found(self) -> list[Head]:
        """Those of owners that are enrolled; now and then, and at first, of all there are."""
        now_s = self._engine.clock.monotonic_s()
        if now_s < self._next_s:
            return []
        whole = now_s >= self._whole_s or not isinstance(self._engine.store, Roster)
        found = self._among_all() if whole else self._of_the_gone()
        self._next_s = now_s + ORPHANS_S
        self._whole_s = now_s + WHOLE_S if whole else self._whole_s
        return found

    def _among_all(self) -> list[Head]:
        engine = self._engine
        with engine.observer.looking():
            owned = engine.store.heads(Query(statuses=["running"], limit=MAX_OWNED))
        owners = {head.owner for head in owned if head.owner is not None} - {engine.keeper.owner}
        gone = {owner for owner in owners if engine.observer.life_of(owner) != "alive"}
        self._empty.clear()
        return [head for head in owned if head.owner in gone]

    def _of_the_gone(self) -> list[Head]:
        engine = self._engine
        assert isinstance(engine.store, Roster)
        with engine.observer.looking():
            owners = {one.owner: one for one in engine.store.owners() if one.owner != engine.keeper.owner}
        watched = [one for one in owners.values() if self._empty.get(one.owner) != one.beat]
        gone = [one.owner for one in watched if engine.observer.counts_as_gone(one)]
        found: list[Head] = []
        for owner in gone:
            heads = [head for head in engine.store.heads(Query(statuses=["running"], owner=owner, limit=MAX_OWNED)) if head.owner == owner]
            found += heads
            self._empty |= {} if heads else {owner: owners[owner].beat}
        return found


def deaths(rows: Sequence[Row]) -> list[Death]:
    """The owners that were gone, one after the other, since the run last got on: no step had an outcome, and nobody let go of it."""
    found: list[Death] = []
    owner = ""
    for row, gets_on in _getting_on(rows):
        record = record_of(row) if row.kind in CLAIMS else None
        if isinstance(record, rec.RunResumed) and record.why == TAKEN_OVER:
            found.append(Death(owner, proven=not record.silent))
        elif record is not None or gets_on:
            found = []
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


def _topmost(engine: Engine, head: Head) -> Head | None:
    """The run that must be taken for this one to go on; None where somebody has it already."""
    for _ in range(MAX_DEPTH):
        parent = json.loads(head.tags).get(CHILD_OF)
        above = engine.store.head(parent) if parent else None
        if above is None or above.status in ("done", "cancelled"):
            return head
        if above.owner is not None and engine.observer.life_of(above.owner) == "alive":
            return None
        head = above
    return None
