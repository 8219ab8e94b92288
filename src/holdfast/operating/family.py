"""Which run a child run goes on with, and so whose queue it is in: the topmost above it that has not ended; and what hinders that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from holdfast.errors import Damaged
from holdfast.records.chain import CHILD_OF
from holdfast.records.fitting import is_stopped_by
from holdfast.records.journal import Journal
from holdfast.running.letters import awaited_children
from holdfast.running.runner import escaped
from holdfast.store import Head, Store

MAX_DEPTH = 100
"""How deep runs may be inside runs."""


def parent_of(head: Head) -> str | None:
    """The run that called it."""
    with suppress(ValueError, AttributeError):  # a head that is damaged
        return json.loads(head.tags).get(CHILD_OF)  # type: ignore[no-any-return]
    return None


def above(store: Store, head: Head) -> Iterator[Head]:
    """The runs inside which it goes on, the nearest first: up to one that nobody called, or whose caller has ended."""
    for _ in range(MAX_DEPTH):
        parent = parent_of(head)
        found = store.head(parent) if parent else None
        if found is None or found.status in ("done", "cancelled"):
            return
        yield found
        head = found


def top_of(store: Store, head: Head) -> Head:
    """The run that it goes on with; itself where nobody called it, or whoever did has ended."""
    return [head, *above(store, head)][-1]


class Hindrance(NamedTuple):
    """A run above that keeps those inside it from going on, in words; `gone_on` where it will not come back to them by itself."""

    above: Head
    told: str
    gone_on: bool


def hindrance(store: Store, head: Head) -> Hindrance | None:
    """Why no worker goes on with a run that is ready: what its parent stands at, or one above that; None where nothing is in its way."""
    inside = head
    for each in above(store, head):
        found = _hindered(store, each, inside.run_id)
        if found is not None:
            return found
        inside = each
    return None


def _hindered(store: Store, caller: Head, inside: str) -> Hindrance | None:
    if caller.status not in ("waiting", "paused", "failed", "blocked") or is_stopped_by(caller, inside):
        return None
    with suppress(Damaged):  # the inbox says so
        found = store.load(caller.run_id)
        journal = Journal.load(*found) if found is not None else None
        if journal is None or inside in awaited_children(journal):
            return None
        if not _comes_back(journal, inside):
            told = f"run {caller.run_id!r} has gone on without {inside!r}, which is closed when that one ends"
            return Hindrance(caller, told, gone_on=True)
    stands = {"waiting": f"waits: {caller.note}", "paused": f"is {caller.note}"}.get(caller.status, f"is {caller.status}")
    return Hindrance(caller, f"{inside!r} goes on inside run {caller.run_id!r}, which {stands}", gone_on=False)


def _comes_back(journal: Journal, child: str) -> bool:
    """Whether the run comes by the call of a child when it goes on, and has no outcome of it: none yet, or it goes behind that."""
    behind = escaped(journal)
    calls = [(step_id, found) for step_id, found in journal.histories.items() if found.child == child]
    return any(found.outcome is None or step_id in behind or journal.undoing is not None for step_id, found in calls)
