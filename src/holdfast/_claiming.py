"""Which runs a worker may take now: those that can go on, and those whose owner is gone.

A child run goes on inside the run that had called it, so the topmost run of a family is what is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain

from . import _records as rec
from ._chain import CHILD_OF, record_of
from ._engine import Engine
from ._waking import woken
from .store import Head, Query, Row

MAX_DEPTH = 100
"""How deep runs may be inside runs."""

PAGE = 50
"""Runs in line that are read at a time."""

MAX_OWNED = 10_000
"""Runs that execute somewhere, which are looked through for those whose owner is gone."""

TAKEN_OVER = "taken over"
"""What a claim says that took a run from an owner who is gone."""


def claimable(engine: Engine, agents: Sequence[str], queues: Sequence[str]) -> Iterator[str]:
    """The ids of runs that can be taken now: those whose owner is gone first, then those that can go on, then those in line."""
    seen: set[str] = set()
    for head in chain(_orphaned(engine), woken(engine, agent=None), *(_in_line(engine, queue, agents) for queue in queues)):
        top = _topmost(engine, head)
        if top is not None and top.agent in agents and top.queue in queues and top.run_id not in seen:
            seen.add(top.run_id)
            yield top.run_id


def _in_line(engine: Engine, queue: str, agents: Sequence[str]) -> Iterator[Head]:
    """The runs of a queue in their turn, those of these agents."""
    lines = [_pages(engine, Query(statuses=["queued"], queue=queue, agent=agent, limit=PAGE)) for agent in agents]
    return merge(*lines, key=lambda head: (head.turn, head.run_id))


def _pages(engine: Engine, query: Query) -> Iterator[Head]:
    """What a query lists, a page at a time; what is taken meanwhile may hide one, which the next look finds."""
    while page := engine.store.heads(query):
        yield from page
        query = query._replace(offset=query.offset + len(page))


def _orphaned(engine: Engine) -> Iterator[Head]:
    """The runs whose owner is dead, or has been silent for the lease time."""
    lives: dict[str, bool] = {engine.keeper.owner: True}
    for head in engine.store.heads(Query(statuses=["running"], limit=MAX_OWNED)):
        if head.owner is not None:
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
