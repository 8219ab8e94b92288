"""A verb for many runs: which ones are meant, by the filters that list them, and what became of each.

One that cannot be paused, resumed or cancelled does not stop the others. A run inside another one that is meant too goes with that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast._options import checked_statuses
from holdfast.errors import HoldfastError, StoreBusy, StoreFailed
from holdfast.operating.family import MAX_DEPTH, parent_of, top_of
from holdfast.operating.onward import STOPPED
from holdfast.running.engine import Engine
from holdfast.store import Head, Query

PAGE = 500
"""Heads that are read at a time."""

USUAL = {
    "pause": ("queued", "running", "waiting"),
    "resume": ("paused",),
    "accept": ("blocked",),
    "cancel": ("queued", "running", "waiting", "paused", "blocked", "failed"),
}
"""The statuses that a verb is for, where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which runs: an unset field does not filter."""

    statuses: Sequence[str] = ()
    agent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    idle_s: float | None = None
    queue: str | None = None

    def says_something(self) -> bool:
        """Whether there is any filter in it."""
        return bool(self.statuses or self.tags) or any(each is not None for each in (self.agent, self.idle_s, self.queue))


class Chosen(NamedTuple):
    """The runs that a verb is for, those that go with one of them, and how many more there are than may be touched at a time."""

    runs: list[Head]
    along: list[Head]
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What became of one run: what the verb said, or why it was refused. `status`, its `note` and `queue` are those from before."""

    run_id: str
    agent: str
    status: str
    queue: str
    note: str = ""
    said: str = ""
    refused: str = ""


def chosen(engine: Engine, verb: str, wanted: Wanted, *, limit: int) -> Chosen:
    """The runs that are meant, in the order of their ids."""
    found = list(_matching(engine, wanted, checked_statuses(tuple(wanted.statuses) or USUAL[verb])))
    ids = {head.run_id for head in found}
    along = [head for head in found if _goes_along(engine, head, ids)]
    alone = {head.run_id for head in along}
    runs = [head for head in found if head.run_id not in alone]
    return Chosen(runs[:limit], along, max(0, len(runs) - limit))


def carried_out(runs: Sequence[Head], verb: Callable[[str], str] | None) -> Iterator[Touched]:
    """Say the verb to each, or to none, where it is only to be seen which they are; one answer for each."""
    for head in runs:
        told = Touched(run_id=head.run_id, agent=head.agent, status=head.status, queue=head.queue, note=head.note)
        yield told if verb is None else _said(told, verb)


def _said(told: Touched, verb: Callable[[str], str]) -> Touched:
    said = refused = ""
    try:
        said = verb(told.run_id)
    except (StoreFailed, StoreBusy):
        raise
    except HoldfastError as error:
        refused = str(error)
    return replace(told, said=said, refused=refused)


def _matching(engine: Engine, wanted: Wanted, statuses: Sequence[str]) -> Iterator[Head]:
    before_us = None if wanted.idle_s is None else engine.clock.now_us() - int(wanted.idle_s * 1e6)
    stored = tuple("running" if each == STOPPED else each for each in statuses)
    query = Query(statuses=stored, agent=wanted.agent, tags=tuple(wanted.tags.items()), idle_before_us=before_us, limit=PAGE, after="")
    living = STOPPED not in statuses or "running" in statuses
    while page := engine.store.heads(query):
        query = query._replace(after=page[-1].run_id)
        for head in page:
            if (wanted.queue is None or top_of(engine.store, head).queue == wanted.queue) and (living or not _executes(engine, head)):
                yield head


def _executes(engine: Engine, head: Head) -> bool:
    return head.status == "running" and head.owner is not None and engine.observer.life_of(head.owner) == "alive"


def _goes_along(engine: Engine, head: Head, ids: set[str]) -> bool:
    """Whether a run that it is inside of is meant too."""
    above: Head | None = head
    for _ in range(MAX_DEPTH):
        parent = parent_of(above) if above is not None else None
        if parent is None or parent in ids:
            return parent is not None
        above = engine.store.head(parent)
    return False
