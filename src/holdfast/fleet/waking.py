"""Which runs can go on now, found by index: what it costs depends on how many can, not on how many rest in the store.

Three kinds can: those whose time has come, those to which something was said that they wait for (that a child run was moved without
them, too), and those that somebody marked as ready. A message that a run does not wait for yet stays a letter and does not wake it, nor
does the repetition of one that it took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from holdfast.errors import Damaged, Misuse
from holdfast.operating.family import hindrance
from holdfast.records.journal import Journal
from holdfast.running.engine import Engine
from holdfast.running.letters import matters, may_matter_yet
from holdfast.store import Head, Letter, Query

MAX_READY = 100_000
"""Runs that can be asked for at once."""

PAGE = 200
"""Heads that are read at a time."""

MOST_IN_VAIN = 100_000
"""Runs of which is remembered that nothing that was said to them wakes them."""


def ready(engine: Engine, *, agent: str | None, limit: int) -> list[Head]:
    """The heads of runs that nobody executes and that can go on now: first those whose time has come, the earliest first.

    No child whose parent is paused or has failed, or does not wait for it: it goes on inside that one, if at all.
    """
    if not 0 < limit <= MAX_READY:
        raise Misuse(f"limit={limit}: between 1 and {MAX_READY} runs can be asked for at once")
    found: dict[str, Head] = {}
    for head in _candidates(engine, agent, limit):
        if hindrance(engine.store, head) is not None:
            continue
        found.setdefault(head.run_id, head)
        if len(found) == limit:
            break
    return list(found.values())


def due(engine: Engine, *, agent: str | None = None, queue: str | None = None, limit: int = PAGE) -> Iterator[Head]:
    """The runs that wait and whose time has come, the earliest first."""
    query = Query(agent=agent, due_by_us=engine.clock.now_us(), statuses=["waiting"], queue=queue, limit=limit)
    while page := engine.store.heads(query):
        yield from page
        query = query._replace(behind=(page[-1].wake_us or 0, page[-1].run_id))


def _candidates(engine: Engine, agent: str | None, limit: int) -> Iterator[Head]:
    yield from due(engine, agent=agent, limit=limit)
    yield from Spoken(engine).to(agent)
    query = Query(agent=agent, statuses=["queued"], limit=max(limit, PAGE))
    while page := engine.store.heads(query):
        yield from (head for head in page if head.owner is None)
        query = query._replace(offset=query.offset + len(page))


class Spoken:
    """Finds the runs that wait and to which something was said that they wait for, without reading a journal twice for the same words."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._vain: dict[str, tuple[int, int, int]] = {}

    def to(self, agent: str | None = None) -> Iterator[Head]:
        """Those that would do something about it."""
        query = Query(agent=agent, statuses=["waiting"], addressed=True, limit=PAGE)
        while page := self._engine.store.heads(query):
            said: dict[str, list[Letter]] = {head.run_id: [] for head in page}
            for letter in self._engine.store.letters(list(said)):
                said[letter.run_id].append(letter)
            yield from (head for head in page if self._wakes(head, said[head.run_id]))
            query = query._replace(after=page[-1].run_id)

    def _wakes(self, head: Head, letters: Sequence[Letter]) -> bool:
        """Whether a letter matters; that none does holds until there is another one, or the run moves, or a child that is waited for."""
        engine, stands = self._engine, (head.epoch, head.seq, max((letter.letter_id for letter in letters), default=0))
        if self._vain.pop(head.run_id, None) == stands:
            self._vain[head.run_id] = stands
            return False
        journal = self._read(head.run_id) if letters else None
        if journal is not None and any(matters(engine.store, engine.observer, journal, letter) for letter in letters):
            return True
        if journal is None or not any(may_matter_yet(journal, letter) for letter in letters):
            if len(self._vain) >= MOST_IN_VAIN:
                del self._vain[next(iter(self._vain))]
            self._vain[head.run_id] = stands
        return False

    def _read(self, run_id: str) -> Journal | None:
        with suppress(Damaged):  # it cannot go on; the inbox says why
            found = self._engine.store.load(run_id)
            return Journal.load(*found) if found is not None else None
        return None
