"""Copying a run to another store, into an archive, or from there; the source is left as it is.

A run that has ended comes in as it is, under its own id: it is the same in both places, and stays so. Any other one would go on in two
places, so it comes in as a fork, with an id and keys of its own, from the last point at which nothing was under way; what its source did
after that it knows, as every fork does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from holdfast._failpoints import reach
from holdfast._ids import checked_run_id
from holdfast.errors import Refusal
from holdfast.moving.archive import SUFFIX, Archive, Packed, pack, refuse_unwritable
from holdfast.moving.parcels import Blobs, Watch, carried, is_same, needed, put_in_place
from holdfast.operating.timetravel import BEGINNING, MOST_FORKS, Forked, Word, branched, point
from holdfast.operating.timetravel import word as going_back
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.away import refuse_away
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.records.lineage import ANY_EPOCH
from holdfast.records.replay import UNDO, History
from holdfast.running.engine import Engine
from holdfast.running.runner import escaped, refuse_pruned
from holdfast.store import Append, Repair, Shelf, Store

FINAL = ("done", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """What a copy did, or would do: `new_id` is the run in its new place, `at` the step from which it goes on where it is a fork.

    `digest` is that of an archive; `existed` where the copy was there already.
    """

    run_id: str
    new_id: str
    source: str
    to: str
    status: str
    records: int
    artifacts: int
    artifact_bytes: int
    at: str = ""
    digest: str = ""
    done: bool = True
    existed: bool = False


class Ordered(NamedTuple):
    """Who wants a copy, under which id, and whether only to say what it would be."""

    said: Word
    new_id: str | None = None
    dry_run: bool = False


def word(by: str, reason: str) -> Word:
    """Who copies, and why; what a fork would do again is asked about."""
    return going_back(by, reason, "ask")


def is_archive(place: object) -> bool:
    """Whether a word names an archive."""
    return isinstance(place, str | Path) and str(place).endswith(SUFFIX)


def copy(source: Engine, target: Engine, run_id: str, ordered: Ordered, watch: Watch) -> Copying:
    """Copy a run from one store to another."""
    if is_same(source.store, target.store):
        raise Refusal(f"run {run_id!r} is in {source.store.url} already; nothing was copied. Branch it there: holdfast fork {run_id}")
    return _taken_in(target, _packed(source, run_id), ordered, watch)


def write_out(engine: Engine, run_id: str, path: Path, ordered: Ordered, watch: Watch) -> Copying:
    """Copy a run into an archive."""
    if ordered.new_id is not None:
        raise Refusal("an archive holds the run under its own id; nothing was copied. Give another id when it is read back")
    packed, written = _packed(engine, run_id), list[str]()
    if ordered.dry_run:
        refuse_unwritable(path)
    sizes = _sizes(packed)
    if not ordered.dry_run:
        for _ in watch(pack(path, packed, written), 1 + len(packed.rows) + len(sizes), "writing files"):
            pass
    return _report(packed, str(path), packed.head.run_id, digest="".join(written), done=not ordered.dry_run)


def read_back(engine: Engine, path: Path, ordered: Ordered, watch: Watch) -> Copying:
    """Take the run of an archive in; everything in it is checked first."""
    archive = Archive(path)
    try:
        return _taken_in(engine, archive.packed(), ordered, watch, digest=str(archive.manifest["digest"]))
    finally:
        archive.close()


def _packed(engine: Engine, run_id: str) -> Packed:
    head, rows = loaded(engine, run_id)
    refuse_away(head)
    Journal.load(head, rows)
    return Packed(head, rows, engine.store if isinstance(engine.store, Blobs) else None, engine.store.url)


def _sizes(packed: Packed) -> dict[str, int]:
    return {} if packed.blobs is None else needed(packed.blobs, packed.head.run_id)


def _report(
    packed: Packed, to: str, new_id: str, *, at: str = "", digest: str = "", done: bool = True, existed: bool = False
) -> Copying:
    head, sizes = packed.head, _sizes(packed)
    return Copying(
        run_id=head.run_id, new_id=new_id, source=packed.place, to=to, status=head.status, records=len(packed.rows),
        artifacts=len(sizes), artifact_bytes=sum(sizes.values()), at=at, digest=digest, done=done, existed=existed,
    )  # fmt: skip


def _taken_in(engine: Engine, packed: Packed, ordered: Ordered, watch: Watch, *, digest: str = "") -> Copying:
    journal, store = Journal.load(packed.head, packed.rows), engine.store
    refuse_away(packed.head)
    if _sizes(packed) and not isinstance(store, Shelf):
        raise Refusal(f"the store {store.url} keeps no artifacts, and run {packed.head.run_id!r} has some; nothing was copied")
    ended = packed.head.status in FINAL
    if ended and ordered.new_id is not None:
        raise Refusal(f"run {packed.head.run_id!r} has ended and comes in as it is, under its own id; nothing was copied")
    at = "" if ended else last_point(journal)
    if ordered.dry_run:
        would = _would_be(engine, packed, ordered, at)
        return _report(packed, store.url, would.run_id, at=at, digest=digest, done=False, existed=would.existed)
    made = _as_it_is(engine, packed, watch) if ended else _as_fork(engine, packed, ordered, at, watch)
    return _report(packed, store.url, made.run_id, at=at, digest=digest, existed=made.existed)


def _would_be(engine: Engine, packed: Packed, ordered: Ordered, at: str) -> Forked:
    """What a copy would be called, and whether it is there; what would be refused is refused."""
    store, run_id = engine.store, packed.head.run_id
    if packed.head.status in FINAL:
        existed = _there(store, packed)
        if not existed:
            refuse_pruned(engine, run_id)
        return Forked(run_id, existed=existed)
    for each in _ids(run_id, ordered.new_id):
        refuse_pruned(engine, each)
        found = store.load(each)
        last = [record_of(row) for row in found[1] if row.kind == rec.RunForked.kind or ordered.new_id is None][-1:] if found else []
        if found is None or any(isinstance(one, rec.RunForked) and (one.source, one.at) == (run_id, at) for one in last):
            return Forked(each, existed=found is not None)
    raise _taken(engine, run_id, ordered)


def _ids(run_id: str, new_id: str | None) -> list[str]:
    """The ids that a fork may get, the first choice first."""
    return [checked_run_id(new_id)] if new_id is not None else [checked_run_id(f"{run_id}.f{n}") for n in range(1, MOST_FORKS)]


def _taken(engine: Engine, run_id: str, ordered: Ordered) -> Refusal:
    last = _ids(run_id, ordered.new_id)[-1]
    return Refusal(f"there is a run {last!r} in {engine.store.url} already; nothing was copied. Give another id")


def _as_it_is(engine: Engine, packed: Packed, watch: Watch) -> Forked:
    """The same run, in one append; one that is there already stays."""
    store, head = engine.store, packed.head
    before = _there(store, packed)
    if before:
        return Forked(head.run_id, existed=True)
    refuse_pruned(engine, head.run_id)
    _carry(engine, packed, watch)
    reach("copy.before")
    if len(packed.rows) == head.seq:
        refs = packed.blobs.blob_refs(head.run_id) if packed.blobs is not None else ()
        (stale,) = store.append([Append(head.run_id, 0, 0, packed.rows, head, (), tuple(refs))])
        went_in = stale is None
    else:
        went_in = _with_gap(engine, packed)
    reach("copy.after")
    return Forked(head.run_id, existed=not went_in and _there(store, packed))


def _there(store: Store, packed: Packed) -> bool:
    """Whether the target has this very run; another one of its id is refused."""
    found = store.head(packed.head.run_id)
    if found is not None and found != packed.head:
        raise Refusal(f"there is another run {packed.head.run_id!r} in {store.url}; nothing was copied")
    return found is not None


def _with_gap(engine: Engine, packed: Packed) -> bool:
    """A run from whose middle a prune has dropped records."""
    head, at_us, why = packed.head, engine.clock.now_us(), f"from {packed.place}"
    refs = tuple(packed.blobs.blob_refs(head.run_id)) if packed.blobs is not None else ()
    return put_in_place(engine.store, Repair(head.run_id, None, (), packed.rows, head, at_us, "copy", why, refs))


def _as_fork(engine: Engine, packed: Packed, ordered: Ordered, at: str, watch: Watch) -> Forked:
    """Another run that knows what this one did."""
    journal = Journal.load(packed.head, packed.rows)
    run_id, new_id = packed.head.run_id, ordered.new_id
    refs = packed.blobs.blob_refs(run_id) if packed.blobs is not None else []
    _carry(engine, packed, watch)
    for each in _ids(run_id, new_id):
        refuse_pruned(engine, each)
        reach("copy.before")
        made = branched(engine, each, packed.rows, journal, at=at, refs=refs, said=ordered.said, untouched=new_id is None)
        reach("copy.after")
        if made is not None:
            return made
    raise _taken(engine, run_id, ordered)


def _carry(engine: Engine, packed: Packed, watch: Watch) -> None:
    if packed.blobs is not None:
        blobs = carried(packed.blobs, engine.store, packed.head.run_id, at_us=engine.clock.now_us())
        for _ in watch(blobs, len(_sizes(packed)), "copying artifacts"):
            pass


def last_point(journal: Journal) -> str:
    """The last step at which nothing was under way that two runs must not both look after: an effect, a doubt, a child run."""
    run_id, histories = journal.head.run_id, journal.histories
    ended_by = escaped(journal)  # what made it fail is tried again
    open_ = [found.first_seq for step_id, found in histories.items() if step_id in ended_by or _unsettled(histories, step_id, found)]
    bound = min(open_, default=1 << 62)
    ended = [(found.outcome_seq, step_id) for step_id, found in histories.items() if found.outcome is not None and UNDO not in step_id]
    seq, at = max(((seq, step_id) for seq, step_id in ended if journal.began <= seq < bound), default=(journal.began, BEGINNING))
    behind = [found.child for found in histories.values() if found.child and found.first_seq > seq]
    children = [*behind, *(found.child for _, found in journal.superseded if found.child)]
    if children:
        remedy = "Wait until it has come to its end, or move the run, with its children"
        raise Refusal(f"run {run_id!r} may still need its child run {children[0]!r}, which a copy has not; nothing was copied. {remedy}")
    assert point(journal, at) == seq, "a step with an outcome is a point"
    return at


def _unsettled(histories: dict[str, History], step_id: str, found: History) -> bool:
    if f"{UNDO}{step_id}" in histories:
        return True
    if found.child:
        return not isinstance(found.outcome, rec.StepDone)
    return found.effect and (found.outcome is None or found.open_doubt(ANY_EPOCH))
