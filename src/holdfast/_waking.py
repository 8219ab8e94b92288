"""Which runs can go on now, found by index: what it costs depends on how many can, not on how many rest in the store.

Three kinds can: those whose time has come, those to which something was said that they wait for (that a child run was moved without
them, too), and those that somebody marked as ready. A message that a run does not wait for yet stays a letter and does not wake it, nor
does the repetition of one that it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ._engine import Engine
from ._journal import Journal
from ._letters import matters
from .errors import Damaged, Misuse
from .store import Head, Query

MAX_READY = 100_000
"""Runs that can be asked for at once."""

PAGE = 200
"""Heads that are read at a time."""


def ready(engine: Engine, *, agent: str | None, limit: int) -> list[Head]:
    """The heads of runs that nobody executes and that can go on now: first those whose time has come, the earliest first."""
    if not 0 < limit <= MAX_READY:
        raise Misuse(f"limit={limit}: between 1 and {MAX_READY} runs can be asked for at once")
    found: dict[str, Head] = {}
    for head in _candidates(engine, agent, limit):
        found.setdefault(head.run_id, head)
        if len(found) == limit:
            break
    return list(found.values())


def woken(engine: Engine, *, agent: str | None, limit: int = PAGE) -> Iterator[Head]:
    """The runs that wait and have something to do: their time has come, the earliest first, or something was said to them."""
    query = Query(agent=agent, due_by_us=engine.clock.now_us(), statuses=["waiting"], limit=limit)
    while page := engine.store.heads(query):
        yield from page
        query = query._replace(offset=query.offset + len(page))
    yield from _spoken_to(engine, agent)


def _candidates(engine: Engine, agent: str | None, limit: int) -> Iterator[Head]:
    yield from woken(engine, agent=agent, limit=limit)
    queued = engine.store.heads(Query(agent=agent, statuses=["queued"], limit=limit))
    yield from (head for head in queued if head.owner is None)


def _spoken_to(engine: Engine, agent: str | None) -> Iterator[Head]:
    """The runs that wait and to which something was said that they wait for."""
    query = Query(agent=agent, statuses=["waiting"], addressed=True, limit=PAGE)
    while page := engine.store.heads(query):
        yield from (head for head in page if _wakes(engine, head.run_id))
        query = query._replace(after=page[-1].run_id)


def _wakes(engine: Engine, run_id: str) -> bool:
    with suppress(Damaged):  # it cannot go on; the inbox says why
        found = engine.store.load(run_id)
        journal = Journal.load(*found) if found is not None else None
        letters = engine.store.letters([run_id]) if journal is not None else []
        return journal is not None and any(matters(engine.store, engine.observer, journal, letter) for letter in letters)
    return False

