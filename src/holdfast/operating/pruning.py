"""Pruning: runs that a policy does not keep are removed, and those that stay are made lighter; `prune` is the one way in.

Heads say what may go; each run is then loaded and verified before it does. Whatever has an owner, cannot be read, or still has something
that a person must settle stays, and is reported. Removals share a transaction, a few at a time, so that nobody else waits long; each is
fenced by the head that was looked at. Whoever is killed in between can do it again: a run is there whole, or gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from holdfast._failpoints import reach
from holdfast._ids import checked_text
from holdfast._options import STATUSES
from holdfast.errors import Damaged, Refusal, StoreDamaged
from holdfast.large.packing import bare
from holdfast.operating.views import PAGE
from holdfast.records import kinds as rec
from holdfast.records.bodies import from_parts
from holdfast.records.chain import FORK_OF, at_position
from holdfast.records.journal import Journal
from holdfast.records.shedding import Lighter, known_histories, lighter, replays_alike, size
from holdfast.retention import FINAL, Retention, decide
from holdfast.running.engine import Engine
from holdfast.store import Head, Prunable, Query, Removal, Room, Row, Shedding, Shelf, Store, Swept, Tombstone

BATCH = 100
"""Runs that are removed in one transaction at the most."""
BATCH_ROWS = 2_000
"""Records that are removed in one transaction, but for a single run that has more."""
BLOB_GRACE_US = 24 * 3_600_000_000
"""Artifacts that were kept less long ago stay: a process may be about to refer to them."""
WORTH_BYTES = 1_024
"""A run is not rewritten for less: the record that says so takes a quarter of it."""

UNFINISHED = tuple(status for status in STATUSES if status not in FINAL)
"""Of runs that may still need others."""

MOVED = "it moved meanwhile"
DAMAGED = "is damaged: "
UNLIKE = "without these details it would not go on as before: a defect of Holdfast, and nothing was changed"

What = Literal["removed", "lightened", "kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What became of one run that the policy speaks of, or would become; `why` where it was kept in spite of it."""

    run_id: str
    agent: str
    status: str
    what: What
    bytes: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What a prune did, or would do: `bytes` is the data that went, `freed_bytes` what the store has more of free room now.

    `artifacts` are those that no run refers to any more, kept more than a day ago, and are counted apart.

    `size_bytes` is what the store takes up, `free_bytes` how much of that is free.
    """

    policy: str
    done: bool
    looked_at: int
    runs: list[Pruned]
    removed: int
    lightened: int
    kept: int
    bytes: int
    freed_bytes: int
    size_bytes: int
    free_bytes: int
    ids_forgotten: int = 0
    artifacts: int = 0
    artifact_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Who wants what pruned: the policy, the runs it is for (filters of `runs`), and who says so."""

    retention: Retention
    by: str
    reason: str = ""
    dry_run: bool = True
    statuses: Sequence[str] = ()
    agent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


class Plan(NamedTuple):
    """What the heads say: these may be removed, the details of those may go, and so many were looked at."""

    goes: list[Head]
    ages: list[Head]
    looked_at: int
    now_us: int


def prune(engine: Engine, ordered: Ordered, *, compact: bool = False) -> Pruning:
    """Carry a policy out, or say what that would do; whoever prunes on a schedule calls this."""
    plan = planned(engine, ordered)
    before = able(engine.store).room()
    return concluded(engine, ordered, plan, list(carried_out(engine, ordered, plan)), before, compact=compact)


def able(store: Store) -> Prunable:
    """The store, if it can be pruned."""
    if not isinstance(store, Prunable):
        raise Refusal(f"the store {store.url} cannot be pruned; nothing was changed")
    return store


def planned(engine: Engine, ordered: Ordered) -> Plan:
    """What may go, as far as the heads say."""
    able(engine.store)
    checked_text(ordered.by, "by")
    checked_text(ordered.reason, "reason")
    now_us = engine.clock.now_us()
    heads = list(_heads(engine.store, ordered))
    goes, stays = decide(heads, ordered.retention, now_us)
    aged_us = ordered.retention.before_us("details", now_us)
    ages = [head for head in stays if aged_us is not None and head.created_us < aged_us]
    return Plan(goes, ages, len(heads), now_us)


def carried_out(engine: Engine, ordered: Ordered, plan: Plan) -> Iterator[Pruned]:
    """Do it, run by run, or only say it; one answer for each run of the plan."""
    families = Families(engine)
    for batch in _batches(plan.goes):
        yield from _removed(families, ordered, plan, batch)
    for head in plan.ages:
        yield _lightened(engine, ordered, plan, head)


def concluded(engine: Engine, ordered: Ordered, plan: Plan, runs: list[Pruned], before: Room, *, compact: bool) -> Pruning:
    """The end of a prune: what else goes with the runs, and what it has come to."""
    store, forgotten = able(engine.store), 0
    swept = _swept(engine, dry_run=ordered.dry_run)
    if not ordered.dry_run:
        forgotten = _forgotten(store, ordered.retention.before_us("keep_ids", plan.now_us))
        if compact:
            store.compact()
    after = store.room()
    freed = (after.free_bytes - before.free_bytes) + (before.size_bytes - after.size_bytes)
    went = {what: [one for one in runs if one.what == what] for what in ("removed", "lightened", "kept")}
    return Pruning(
        policy=ordered.retention.told(), done=not ordered.dry_run, looked_at=plan.looked_at,
        runs=[one for one in runs if one.bytes or one.what != "lightened"],
        removed=len(went["removed"]), lightened=sum(1 for one in went["lightened"] if one.bytes), kept=len(went["kept"]),
        bytes=sum(one.bytes for one in runs), freed_bytes=0 if ordered.dry_run else max(0, freed), size_bytes=after.size_bytes,
        free_bytes=after.free_bytes, ids_forgotten=forgotten, artifacts=swept.blobs, artifact_bytes=swept.size,
    )  # fmt: skip


def _swept(engine: Engine, *, dry_run: bool) -> Swept:
    """Artifacts that no run refers to any more, and that nobody can be about to refer to."""
    if not isinstance(engine.store, Shelf):
        return Swept(0, 0)
    return engine.store.sweep_blobs(engine.clock.now_us() - BLOB_GRACE_US, dry_run=dry_run)


def _forgotten(store: Prunable, before_us: int | None) -> int:
    if before_us is None:
        return 0
    reach("forget.before")
    forgotten = store.forget(before_us)
    reach("forget.after")
    return forgotten


def _heads(store: Store, ordered: Ordered) -> Iterator[Head]:
    """All runs that the order is for, each once."""
    query = Query(statuses=tuple(ordered.statuses), agent=ordered.agent, tags=tuple(ordered.tags.items()), limit=PAGE, after="")
    return _paged(store, query)


def _paged(store: Store, query: Query) -> Iterator[Head]:
    while page := store.heads(query):
        yield from page
        query = query._replace(after=page[-1].run_id)


def _batches(heads: Iterable[Head]) -> Iterator[list[Head]]:
    """The runs in groups that are quick to remove."""
    batch: list[Head] = []
    for head in heads:
        if batch and (len(batch) == BATCH or sum(one.seq for one in batch) + head.seq > BATCH_ROWS):
            yield batch
            batch = []
        batch.append(head)
    if batch:
        yield batch


class Families:
    """Which children runs know that have not ended, each loaded once as long as it does not move."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._known: dict[str, tuple[Head, frozenset[str]]] = {}
        self._forks: dict[str, str] | None = None

    def above(self, parent: str, child: str) -> str:
        """Why a parent still needs a child, or nothing: it has not ended, and its present generation called it, or may take it on."""
        return self._needs(parent, child, "its parent")

    def beside(self, parent: str, child: str) -> str:
        """Why a fork of its parent still needs a child, or nothing: it has not ended, and may take its result, or branch from it.

        One of them may branch from another that is gone, so all unfinished ones are asked; one that cannot be read speaks for its source.
        """
        found = ((source, self._needs(fork, child, "fork")) for fork, source in self._unfinished_forks().items())
        return next((why for source, why in found if why and (source == parent or DAMAGED not in why)), "")

    def _unfinished_forks(self) -> dict[str, str]:
        """The forks that have not ended, each with what it branches from; looked for once."""
        if self._forks is None:
            unfinished = _paged(self.engine.store, Query(statuses=UNFINISHED, limit=PAGE, after=""))
            self._forks = {head.run_id: source for head in unfinished if (source := _source_of(head))}
        return self._forks

    def _needs(self, run_id: str, child: str, whose: str) -> str:
        head = self.engine.store.head(run_id)
        if head is None or head.status in FINAL:
            return ""
        if run_id not in self._known or self._known[run_id][0] != head:
            try:
                found = self.engine.store.load(run_id)
                journal = None if found is None else Journal.load(*found)
            except (Damaged, StoreDamaged) as error:
                return f"{whose} {run_id} {DAMAGED}{error}"
            self._known[run_id] = head, frozenset(each.child for each in known_histories(journal)) if journal else frozenset()
        return f"{whose} {run_id} has not ended" if child in self._known[run_id][1] else ""

    def below(self, journal: Journal) -> str:
        """Why a run is still needed by a child that it left: one that has not ended is closed because of its parent."""
        for child in journal.open_children():
            head = self.engine.store.head(child)
            if head is not None and head.status not in (*FINAL, "failed"):
                return f"its child {child} has not ended"
        return ""


def _source_of(head: Head) -> str:
    """The run that a fork branches from; nothing for one that is no fork, or whose head is damaged."""
    with suppress(ValueError, AttributeError):
        return str(json.loads(head.tags).get(FORK_OF, ""))
    return ""


def _removed(families: Families, ordered: Ordered, plan: Plan, heads: Sequence[Head]) -> Iterator[Pruned]:
    engine = families.engine
    removals, answers = list[Removal](), list[Pruned]()
    for head in heads:
        looked = _looked_at(families, head)
        if isinstance(looked, str):
            yield _about(head, "kept", why=looked)
            continue
        journal, rows = looked
        removals.append(Removal(head, _grave(journal, ordered, plan.now_us)))
        answers.append(_about(head, "removed", freed=sum(map(size, rows))))
    if ordered.dry_run or not removals:
        yield from answers
        return
    reach("prune.before")
    went = able(engine.store).remove(removals)
    reach("prune.after")
    for gone, answer in zip(went, answers, strict=True):
        yield answer if gone else _about(removals[answers.index(answer)].found, "kept", why=MOVED)


def _grave(journal: Journal, ordered: Ordered, now_us: int) -> Tombstone:
    head, started = journal.head, journal.started
    assert started is not None
    return Tombstone(
        head.run_id, head.agent, started.fingerprint, head.status, head.updated_us, now_us, ordered.by,
        ordered.retention.told() + (f": {ordered.reason}" if ordered.reason else ""),
    )  # fmt: skip


def _looked_at(families: Families, head: Head) -> tuple[Journal, Sequence[Row]] | str:
    """The run, verified, or why it stays in spite of the policy."""
    try:
        found = families.engine.store.load(head.run_id)
        if found is None or found[0] != head:
            return MOVED
        journal = Journal.load(*found)
    except (Damaged, StoreDamaged) as error:
        return f"it is damaged: {error}"
    return _still_needed(families, journal) or (journal, found[1])


def _still_needed(families: Families, journal: Journal) -> str:
    """Why somebody still needs a run that has ended, or nothing; what it left open is looked after where it was moved to."""
    if journal.head.status == "moved":
        return ""
    doubts = journal.open_doubts(ended=True)
    if doubts:
        return f"step {doubts[0][0]}, {doubts[0][1].name}, is in doubt; `holdfast inbox` shows how to settle it"
    if journal.undoing is not None and journal.head.status != "cancelled":
        return "it is to be undone"
    parent = journal.started.parent if journal.started is not None else {}
    ours = (families.above, families.beside) if parent else ()
    return next(filter(None, (needs(parent["run"], journal.head.run_id) for needs in ours)), "") or families.below(journal)


def _lightened(engine: Engine, ordered: Ordered, plan: Plan, head: Head) -> Pruned:
    """Let the details of one run go; one that has an owner is left alone."""
    if head.status == "moving":
        return _about(head, "kept", why="it is being moved")
    if head.owner is not None:
        return _about(head, "kept", why=f"it executes in {head.owner}, or did until that process died")
    aged_us = ordered.retention.before_us("details", plan.now_us)
    assert aged_us is not None
    try:
        found = engine.store.load(head.run_id)
        if found is None or found[0] != head:
            return _about(head, "kept", why=MOVED)
        light = lighter(*found, before_us=aged_us)
        if light.freed < WORTH_BYTES:
            return _about(head, "lightened")
        shedding = _shedding(ordered, plan, found, light)
    except (Damaged, StoreDamaged) as error:
        return _about(head, "kept", why=f"it is damaged: {error}")
    if shedding is None:
        return _about(head, "kept", why=UNLIKE)
    if not ordered.dry_run:
        reach("shed.before")
        if not able(engine.store).shed(shedding):
            return _about(head, "kept", why=MOVED)
        reach("shed.after")
    return _about(head, "lightened", freed=light.freed)


def _shedding(ordered: Ordered, plan: Plan, found: tuple[Head, Sequence[Row]], light: Lighter) -> Shedding | None:
    """What is written; None where the run would not replay as before, which is looked at before anything is."""
    head, rows = found
    before = Journal.load(head, rows)
    last = next((record for record in _prunings(rows)), None)
    pruned = rec.RunPruned(
        by=ordered.by, reason=ordered.reason, policy=ordered.retention.told(), pruned_us=plan.now_us, was=head.digest.hex(),
        rows=light.touched + (last.rows if last else 0), bytes=light.freed + (last.bytes if last else 0),
        dropped=light.dropped + (last.dropped if last else 0),
    )  # fmt: skip
    sealing = Journal(head.run_id)
    sealing.head = at_position(head, light.rows[-1])
    append = sealing.seal([pruned], at_us=head.updated_us)
    try:
        after = Journal.load(append.head, [*light.rows, *append.rows])
    except Damaged:
        return None
    return Shedding(head, light.changed, append, light.drops) if replays_alike(before, after) else None


def _prunings(rows: Sequence[Row]) -> Iterator[rec.RunPruned]:
    """What earlier prunes said, the last first."""
    for row in reversed(bare(rows)):
        if row.kind == rec.RunPruned.kind:
            record = from_parts(kind=row.kind, step_id=row.step_id, body=row.body, value=row.value, args=row.args)
            assert isinstance(record, rec.RunPruned)
            yield record


def _about(head: Head, what: What, *, freed: int = 0, why: str = "") -> Pruned:
    return Pruned(run_id=head.run_id, agent=head.agent, status=head.status, what=what, bytes=freed, why=why)
