"""Which runs a worker may take now: those that can go on, and those whose owner is gone.

A child run goes on inside the run that had called it, so the topmost run of a family is what is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from . import _records as rec
from ._chain import CHILD_OF, record_of
from ._engine import Engine
from ._waking import ready
from .store import Head, Query, Row

MAX_DEPTH = 100
"""How deep runs may be inside runs."""

MAX_OWNED = 10_000
"""Runs that execute somewhere, which are looked through for those whose owner is gone."""

TAKEN_OVER = "taken over"
"""What a claim says that took a run from an owner who is gone."""


def claimable(engine: Engine, agents: Sequence[str], limit: int) -> list[str]:
    """The ids of runs that can be taken now, those whose owner is gone first, at most `limit` of each kind."""
    found: dict[str, None] = {}
    for head in (*orphaned(engine, agents), *(head for name in agents for head in ready(engine, agent=name, limit=limit))):
        top = _topmost(engine, head)
        if top is not None and top.agent in agents:
            found.setdefault(top.run_id)
    return list(found)


def orphaned(engine: Engine, agents: Sequence[str]) -> Iterator[Head]:
    """The runs of these agents whose owner is dead, or has been silent for the lease time."""
    lives: dict[str, bool] = {engine.keeper.owner: True}
    for head in engine.store.heads(Query(statuses=["running"], limit=MAX_OWNED)):
        if head.owner is not None and head.agent in agents:
            if head.owner not in lives:
                lives[head.owner] = engine.observer.life_of(head.owner) == "alive"
            if not lives[head.owner]:
                yield head


def deadly(rows: Sequence[Row]) -> list[rec.RunResumed]:
    """The claims of a run that ended, one after the other, with the process that had made them, without a single record in between."""
    found: list[rec.RunResumed] = []
    for row in reversed(rows):
        record = record_of(row) if row.kind == rec.RunResumed.kind else None
        if not isinstance(record, rec.RunResumed) or record.why != TAKEN_OVER or record.silent:
            break
        found.append(record)
    return found


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
