"""Which runs a worker may take now: those that can go on, and those whose owner is gone.

A child run goes on inside the run that had called it, so the topmost run of a family is what is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from heapq import merge
from itertools import chain

from holdfast.errors import Damaged, LeaseLost, Stopped
from holdfast.fleet.deaths import TAKEN_OVER
from holdfast.fleet.waking import Spoken, due
from holdfast.operating.family import above
from holdfast.records import kinds as rec
from holdfast.records.fitting import is_held_up, is_misfit, is_stopped_by, tries
from holdfast.records.journal import Journal
from holdfast.running.engine import Engine
from holdfast.running.letters import awaited_children
from holdfast.running.runner import silent
from holdfast.store import Head, Query, Roster

PAGE = 50
"""Runs in line that are read at a time."""

MOST_LANES = 1_000
"""Lanes without room that a store is told to leave out."""

MAX_OWNED = 10_000
"""Runs that execute somewhere, which are looked through for those whose owner is gone."""

ORPHANS_S = 0.5
"""How often is looked for those."""

WHOLE_S = 30.0
"""How often among all, those of owners that are not even enrolled included."""

MISFITS_S = 1.0
"""How often is looked for runs that wait for fitting code."""

MISFITS_TURN_S = 0.1
"""How long such a look may take, before other runs have their turn; the next one goes on where it ended."""

MISFITS_SHARE = 50
"""So many times as long as it took to look through all of them is nobody looked for."""

MISFITS_PAGE = 500
MOST_KNOWN = 100_000
"""Runs that wait for fitting code of which is remembered whether this one has been tried."""

MOST_CALLERS = 10_000
"""Runs of which is remembered for which runs inside them they wait."""

log = logging.getLogger("holdfast")


class Looks:
    """What stays from one look for runs to the next, and what is learnt in between by whoever takes them."""

    def __init__(self, engine: Engine, misfits: Misfits | None = None) -> None:
        self.orphans, self.misfits, self.spoken, self.callers = Orphans(engine), misfits, Spoken(engine), Callers(engine)
        self.taken = 0
        """How many were taken: those that go on and those in line have their turn alternately, also where there is room for one only."""
        self.full: set[tuple[str, str]] = set()
        """Where there is no room in this look: a field of the head, and its value."""

    def alternating(self, *sources: Iterator[Head]) -> Iterator[Head]:
        """The heads of the source whose turn it is, until one of them is taken; of one that has no more, the turn is the next one's."""
        left = list(sources)
        while left:
            source = left[self.taken % len(left)]
            head = next(source, None)
            if head is None:
                left.remove(source)
            else:
                yield head


def claimable(
    engine: Engine, agents: Sequence[str], queues: Sequence[str], looks: Looks, held: Sequence[str] = ()
) -> Iterator[Head]:  # fmt: skip
    """The runs that can be taken now: those whose owner is gone; then those that can go on or wait for this code, and those in line.

    Nothing of queues that are `held` back is taken; but whose owner is gone there is put back in line, too.
    """
    seen: set[str] = set()
    waiting = looks.misfits.found() if looks.misfits is not None else ()
    going_on = chain(*(due(engine, queue=queue) for queue in queues), looks.spoken.to(), waiting)
    in_line = chain(*(_in_line(engine, queue, agents, looks.full) for queue in queues))
    for head in chain(looks.orphans.found(), looks.alternating(going_on, in_line) if queues else ()):
        top = _topmost(engine, head, looks.callers)
        if top is None or top.queue not in (*queues, *held) or top.run_id in seen:
            continue
        seen.add(top.run_id)
        if top.agent in agents and top.queue in queues:
            yield top
        elif top.owner is not None:
            _put_back(engine, top, f"queue {top.queue} is paused" if top.queue in held else f"its finder does not have agent {top.agent}")


def _put_back(engine: Engine, head: Head, why: str) -> None:
    """Put a run of an owner who is gone back in line: nobody here may take it, and as it stands it would keep its place in a limit."""
    with suppress(LeaseLost, Damaged):  # somebody else has taken it meanwhile; what is damaged is told by others
        found = engine.store.load(head.run_id)
        if found is None or (found[0].epoch, found[0].seq) != (head.epoch, head.seq):
            return
        resumed = rec.RunResumed(owner="", why=TAKEN_OVER, silent=silent(engine, head))
        reason = f"its process {head.owner} is gone, and {why}"
        try:
            engine.committer.commit(Journal.load(*found), [resumed, rec.RunReleased(reason=reason)])
        except Stopped as stopped:
            raise stopped.error from stopped
        log.warning("run %s is put back in line: %s", head.run_id, reason)


def _in_line(engine: Engine, queue: str, agents: Sequence[str], full: AbstractSet[tuple[str, str]]) -> Iterator[Head]:
    """The runs of a queue in their turn, those of these agents."""
    lines = [_line(engine, queue, agent, full) for agent in agents]
    return merge(*lines, key=lambda head: (head.turn, head.run_id))


def _line(engine: Engine, queue: str, agent: str, full: AbstractSet[tuple[str, str]]) -> Iterator[Head]:
    """Those of one agent, a page at a time, without those of which is known meanwhile that there is no room for them."""
    query = Query(statuses=["queued"], queue=queue, agent=agent, limit=PAGE)
    while not full & {("queue", queue), ("agent", agent)} and (page := engine.store.heads(query)):
        yield from page
        lanes = [value for field, value in full if field == "lane"][:MOST_LANES]
        query = query._replace(behind=(page[-1].turn, page[-1].run_id), not_lanes=lanes)


class Orphans:
    """Finds the runs whose owner is dead, or has been silent for the lease time, without reading at each look all that execute."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_s = self._whole_s = float("-inf")
        self._last_s: float | None = None
        self._empty: dict[str, int] = {}

    def found(self) -> list[Head]:
        """Those of owners that are enrolled; now and then, and at first, of all there are."""
        now_s = self._engine.clock.monotonic_s()
        if now_s < self._next_s:
            return []
        whole = now_s >= self._whole_s or not isinstance(self._engine.store, Roster)
        if self._last_s is not None:
            self._engine.observer.back_since(self._last_s)
        found = self._among_all() if whole else self._of_the_gone()
        self._last_s = self._engine.clock.monotonic_s()
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


class Misfits:
    """Finds the runs that wait for fitting code which this code has not tried yet, without reading any journal twice.

    A child run does not fit inside the run that had called it, which has failed by that: it is this one that is tried.
    """

    def __init__(self, engine: Engine, codes: Mapping[str, str], queues: Sequence[str]) -> None:
        self._engine, self._codes, self._queues = engine, {name: code for name, code in codes.items() if code}, queues
        self._next_s, self._took_s = float("-inf"), 0.0
        self._known: dict[str, tuple[int, int, bool]] = {}
        self._callers = Callers(engine)
        self._walk: Iterator[Head | None] | None = None

    def found(self) -> Iterator[Head]:
        """Those that are worth a try; looked for now and then, and for a moment only."""
        now_s = began_s = self._engine.clock.monotonic_s()
        if not self._codes or now_s < self._next_s:
            return
        walk = self._walk = self._walk or self._walked()
        while now_s < began_s + MISFITS_TURN_S:
            try:
                head = next(walk)
            except StopIteration:
                self._rest(now_s)
                return
            self._took_s += self._engine.clock.monotonic_s() - now_s
            if head is not None:
                yield head
            now_s = self._engine.clock.monotonic_s()

    def _rest(self, now_s: float) -> None:
        self._next_s = now_s + max(MISFITS_S, self._took_s * MISFITS_SHARE)
        self._walk, self._took_s = None, 0.0

    def _walked(self) -> Iterator[Head | None]:
        """All that are blocked, the newest first; None for one that is not worth a try."""
        query = Query(statuses=["blocked"], limit=MISFITS_PAGE)
        while page := self._engine.store.heads(query):
            for head in page:
                yield self._to_be_tried(head)
            until_us = page[-1].updated_us + 1
            alike = sum(head.updated_us + 1 == until_us for head in page)
            query = query._replace(idle_before_us=until_us, offset=alike + (query.offset if query.idle_before_us == until_us else 0))

    def _to_be_tried(self, head: Head) -> Head | None:
        top = _topmost(self._engine, head, self._callers) if is_misfit(head) else None
        if top is None or top.agent not in self._codes or top.queue not in self._queues or not is_held_up(top):
            return None
        epoch, seq, tried = self._known.get(top.run_id, (0, 0, False))
        if (epoch, seq) != (top.epoch, top.seq):
            tried = self._has_tried(top)
            self._known.pop(top.run_id, None)
            if len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[top.run_id] = (top.epoch, top.seq, tried)
        return None if tried else top

    def _has_tried(self, head: Head) -> bool:
        """Whether this code was tried where the run stands; one that cannot be read, or is gone, is not worth it either."""
        try:
            found = self._engine.store.load(head.run_id)
            return found is None or self._codes[head.agent] in {one.code for one in tries(found[1])}
        except (Damaged, ValueError):
            return True


class Callers:
    """Knows for which runs inside them waiting runs wait, without reading a journal twice as it stands."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, tuple[int, int, frozenset[str]]] = {}

    def goes_on(self, above: Head, inside: Head) -> bool:
        """Whether a run may be taken because one inside it can go on: one that waits only where it waits for that one.

        Else it would stop where it stands, and be taken again, without end. One that failed, only where that one alone had stopped it.
        """
        if above.status == "waiting":
            return inside.run_id in self._awaited(above)
        return above.status in ("queued", "running") or is_stopped_by(above, inside.run_id)

    def _awaited(self, head: Head) -> frozenset[str]:
        known = self._known.pop(head.run_id, None)
        if known is None or known[:2] != (head.epoch, head.seq):
            known = (head.epoch, head.seq, self._read(head.run_id))
        if len(self._known) >= MOST_CALLERS:
            del self._known[next(iter(self._known))]
        self._known[head.run_id] = known
        return known[2]

    def _read(self, run_id: str) -> frozenset[str]:
        with suppress(Damaged):  # it cannot go on; the inbox says why
            found = self._engine.store.load(run_id)
            return frozenset(awaited_children(Journal.load(*found)) if found is not None else ())
        return frozenset()


def _topmost(engine: Engine, head: Head, callers: Callers) -> Head | None:
    """The run that must be taken for this one to go on; None where somebody has it already, or it does not go on for this one."""
    inside = head
    for each in above(engine.store, head):
        if not callers.goes_on(each, inside) or (each.owner is not None and engine.observer.life_of(each.owner) == "alive"):
            return None
        inside = each
    return inside
