"""A damaged run goes back to its last good record: decide what that means, then have the store move the rest aside.

What is lost may have told of effects. Those that can still be read in the lost records become doubts for a person; where records cannot be
read, an effect may have happened that nobody knows of, and the run says so. It stands as blocked until an operator resumes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from holdfast._failpoints import reach
from holdfast._ids import checked_run_id, checked_text
from holdfast._options import AWAY, STATUSES
from holdfast.codec.fingerprint import args_match
from holdfast.errors import Damaged, Refusal, StoreDamaged, UnknownRun
from holdfast.life.calls import shown_call
from holdfast.operating.checking import checkpoint_of
from holdfast.records import kinds as rec
from holdfast.records.chain import (
    CONTINUED,
    GENESIS,
    args_digest,
    at_position,
    chain,
    dropped_before,
    empty_head,
    fold_head,
    record_of,
    verified,
)
from holdfast.records.journal import Journal
from holdfast.records.replay import History
from holdfast.running.engine import Engine
from holdfast.store import HandEdited, Head, Repair, Repairable, Row

WATCH_S = 0.2
"""How often an owner that is not proven dead is looked at."""

MOST = 1 << 48
"""A larger epoch or seq can only be damage."""

SHOWN = 80
POINTERS = "what points at its records is damaged"

AWAY_KINDS = frozenset({rec.RunSealed.kind, rec.RunHandedOver.kind, rec.RunMoved.kind, rec.RunArrived.kind, rec.RunUnsealed.kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mending:
    """What a repair does, or has done: everything up to record `keeps` stays, `doubts` are effects that a person must settle."""

    run_id: str
    bad_seq: int
    what: str
    keeps: int
    checkpoint: str
    moved: int
    unreadable: int
    doubts: list[str]
    status: str
    done: bool
    files: list[str] = field(default_factory=list)
    """Files that somebody changed by hand; they are put back, and what was written there is kept aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Damage:
    """What was found: the good rows and what they add up to, what comes after them, and what is wrong."""

    head: Head | None
    good: Sequence[Row]
    bad: Sequence[Row]
    journal: Journal
    error: Damaged
    checkpoint: str

    def lossless(self) -> bool:
        """Whether all records are there and good, so that only the head has to be computed again."""
        if self.bad or not self.good:
            return False
        if self.head is None:
            return self.journal.head.status in ("done", "cancelled")
        return self.head.digest == self.good[-1].digest or _plain(self.head.seq) <= self.good[-1].seq

    def missing(self) -> int:
        """How many records the head tells of that are not there; where it is gone itself, one may be."""
        if self.head is None:
            return 0 if self.lossless() else 1
        return max(0, _plain(self.head.seq) - self.journal.head.seq - len(self.bad))

    def same_epoch(self) -> bool:
        """Whether surely nobody took the run up behind the good records: a head that was written behind them says so."""
        behind = self.head is not None and self.head.digest not in {b"", *(row.digest for row in self.good)}
        return behind and self.epoch() == self.good[-1].epoch

    def epoch(self) -> int:
        """The highest epoch that anybody was given: who has one must not write any more."""
        said = [self.head.epoch] if self.head else []
        return max(map(_plain, [*said, self.journal.head.epoch, *(row.epoch for row in self.bad)]))


def repair(engine: Engine, run_id: str, *, dry_run: bool, by: str, reason: str) -> Mending:
    """Put a damaged run back to its last good record, or show what that would do."""
    by, reason = checked_text(by, "by"), checked_text(reason, "reason")
    store = engine.store
    if not isinstance(store, Repairable):
        raise Refusal(f"the store {store.url} cannot move damaged records aside; nothing was changed")
    head, rows = store.found(checked_run_id(run_id))
    if head is None and not rows:
        raise UnknownRun(run_id, store.url)
    damage = _examined(run_id, head, rows, unread=_unloaded(engine, run_id, rows))
    _refuse_half_fork(damage)
    _refuse_moved(damage)
    _refuse_lost_generations(damage)
    mending, records = _decided(damage, by=by, reason=reason)
    mending = replace(mending, files=_edited(engine, run_id))
    if dry_run:
        return mending
    _refuse_owned(engine, damage)
    at_us = engine.clock.now_us()
    append = None if damage.lossless() else damage.journal.seal(records, at_us=at_us)
    ordered = Repair(
        run_id=run_id, found=head, good=damage.good, at_us=at_us, by=by, why=f"{mending.what}{': ' + reason if reason else ''}",
        rows=append.rows if append else (), head=append.head if append else damage.journal.head,
    )  # fmt: skip
    reach("repair.before")
    if not store.set_aside(ordered):
        raise Refusal(f"run {run_id!r} moved meanwhile; nothing was changed. Check it again")
    reach("repair.after")
    return replace(mending, done=True)


def _refuse_half_fork(damage: _Damage) -> None:
    """A fork that has lost what it knows of its source could do again what happened there."""
    started, run_id = damage.journal.started, damage.journal.head.run_id
    if started is not None and started.fork_of and damage.journal.forked is None:
        lost = f"what run {run_id!r} knows of {started.fork_of!r}, of which it is a fork, is damaged"
        raise Refusal(f"{lost}; nothing was changed. Fork {started.fork_of!r} again")


def _refuse_moved(damage: _Damage) -> None:
    """Going back behind the seal of a run that is elsewhere would make two of it."""
    stands = damage.head.status if damage.head is not None else ""
    told = bool(AWAY_KINDS & {row.kind for row in damage.bad}) or damage.journal.head.status in AWAY
    if not damage.lossless() and (stands in AWAY or (told and stands not in STATUSES)):
        run_id = damage.journal.head.run_id
        remedy = "Repair or copy it where it is; a move that was interrupted is finished from a backup of this store"
        raise Refusal(f"run {run_id!r} was moved from here, or was about to be; nothing was changed. {remedy}")


def _refuse_lost_generations(damage: _Damage) -> None:
    """A run that has lost where its present generation began would do again what the ones before it did, of which a prune left nothing."""
    if any(dropped_before(row) for row in damage.good) or not damage.bad:
        return
    gap = _plain(damage.bad[0].seq) > damage.good[-1].seq + 1 and damage.bad[0].kind == CONTINUED
    if gap or any(getattr(_readable(row), "dropped", 0) for row in damage.bad):
        run_id = damage.journal.head.run_id
        lost = f"the record with which run {run_id!r} went on is damaged, and those of the generations before it were pruned"
        remedy = "Restore a backup, or start the work anew under another id after a look at what was done outside"
        raise Refusal(f"{lost}; nothing was changed. {remedy}")


def _edited(engine: Engine, run_id: str) -> list[str]:
    return [one.path for one in engine.store.edited(run_id)] if isinstance(engine.store, HandEdited) else []


def _unloaded(engine: Engine, run_id: str, rows: Sequence[Row]) -> Damaged | None:
    """Why the store does not give the rows that are there, by its pointers, indexes or files; nothing where it does."""
    behind = len(rows) + 1
    try:
        loaded = engine.store.load(run_id)
    except Damaged as error:
        files = _edited(engine, run_id)
        told = f"{', '.join(files)} {'is' if len(files) == 1 else 'are'} not what was recorded"
        return Damaged(run_id, error.seq, told) if files else Damaged(run_id, behind, error.what)
    except StoreDamaged:
        return Damaged(run_id, behind, POINTERS)
    pointers = any(told.startswith(f"run {run_id}: ") or "index" in told for told in engine.store.check())
    return None if loaded is not None and loaded[1] == rows and not pointers else Damaged(run_id, behind, POINTERS)


def _examined(run_id: str, head: Head | None, rows: Sequence[Row], *, unread: Damaged | None) -> _Damage:
    good: list[tuple[Row, rec.Record]] = []
    try:
        for each in verified(head or empty_head(run_id), rows):
            good.append(each)  # noqa: PERF402 (what was good before the damage is kept)
    except Damaged as error:
        damage = error if head is not None or len(good) < len(rows) else Damaged(run_id, len(good) + 1, "its head is gone")
        if unread is not None and unread.seq == damage.seq and unread.what != POINTERS:
            damage = unread  # the store knows why
    else:
        if unread is None:
            raise Refusal(f"run {run_id!r} is not damaged; nothing was changed")
        damage = unread
    if not good:
        raise Refusal(
            f"no record of run {run_id!r} is good ({damage.what}), so there is nothing to go back to; nothing was changed. "
            f"Restore a backup of the store, or start the work anew under another id after looking at what was done outside"
        )
    computed = empty_head(run_id)
    for row, record in good:
        computed = at_position(fold_head(computed, record, row.at_us), row)
    kept = [row for row, _ in good]
    return _Damage(
        head=head, good=kept, bad=rows[len(good) :], journal=Journal.load(computed, kept), error=damage,
        checkpoint=checkpoint_of([record for _, record in good]),
    )  # fmt: skip


def _decided(damage: _Damage, *, by: str, reason: str) -> tuple[Mending, list[rec.Record]]:
    """What the repair does, and the records that say so."""
    journal, unreadable, same_epoch = damage.journal, damage.missing() + sum(not kept for _, kept in _linked(damage)), damage.same_epoch()
    escaped = list(journal.verdict.escaped) if isinstance(journal.verdict, rec.RunFailed) and journal.head.status == "failed" else []
    journal.head = journal.head if damage.lossless() else journal.head._replace(epoch=damage.epoch())
    doubts = [] if damage.lossless() else list(_doubts(damage, unreadable=unreadable, escaped=escaped))
    mending = Mending(
        run_id=journal.head.run_id, bad_seq=damage.error.seq, what=damage.error.what, keeps=journal.head.seq, checkpoint=damage.checkpoint,
        moved=len(damage.bad), unreadable=unreadable, doubts=list(_told(journal, doubts)),
        status=journal.head.status if damage.lossless() else "blocked", done=False,
    )  # fmt: skip
    repaired = rec.RunRepaired(
        bad_seq=damage.error.seq, what=damage.error.what, by=by, reason=reason, moved=len(damage.bad), unreadable=unreadable,
        escaped=escaped, since_us=damage.good[-1].at_us, same_epoch=same_epoch,
    )  # fmt: skip
    return mending, [repaired, *doubts]


def _told(journal: Journal, doubts: Sequence[rec.DoubtOpened]) -> Iterator[str]:
    """Every effect that a person must settle after the repair, as a line."""
    for step_id, history in journal.open_doubts(ended=True):
        yield f"step {step_id}, {shown_call(history.name, history.args)}: its outcome is not among the good records"
    for doubt in doubts:
        yield f"step {doubt.step_id}, {shown_call(doubt.name, doubt.args)}: {doubt.reason}"


def _linked(damage: _Damage) -> Iterator[tuple[Row, bool]]:
    """The lost rows; True where a row is what was written behind the row before it, however damaged that one is now."""
    before = damage.good[-1] if damage.good else None
    for row in damage.bad:
        yield row, _follows(damage.journal.head.run_id, before, row)
        before = row


def _follows(run_id: str, before: Row | None, row: Row) -> bool:
    try:
        whole = row.args is None or args_match(row.args, getattr(record_of(row), "args_sha", ""))
        return whole and chain(before.digest if before else GENESIS, run_id, row) == row.digest
    except (ValueError, TypeError, AttributeError):
        return False


def _doubts(damage: _Damage, *, unreadable: int, escaped: Sequence[str]) -> Iterator[rec.DoubtOpened]:
    """A doubt for each effect that the lost records tell of, or may have told of; what is in doubt anyway needs none."""
    journal, seen = damage.journal, _seen(damage.bad)
    known = {step_id for step_id, _ in journal.open_doubts(ended=True)}
    known |= {step_id for step_id, history in journal.histories.items() if history.settled and history.settled.verdict == "landed"}
    for step_id, effect in seen.items():
        history = journal.histories.get(step_id)
        if history is not None and isinstance(history.outcome, rec.StepDone):
            yield _opened(f"lost:{step_id}", effect)  # that step had its outcome already, so the step id itself is damaged
        elif step_id not in known:
            yield _opened(step_id, effect)
    if unreadable:
        for step_id, history in journal.histories.items():
            if step_id not in seen and step_id not in known and _may_have_gone_on(history, escaped=step_id in escaped):
                yield _unread(step_id, history)


@dataclass(slots=True)
class _Traces:
    """What lost records tell of one effect; `last` is the last word on it."""

    name: str
    fingerprint: str
    last: rec.Record
    key: str = ""
    args: bytes | None = None


def _seen(rows: Sequence[Row]) -> dict[str, _Traces]:
    """The effects that can still be read in these rows, by step id."""
    seen: dict[str, _Traces] = {}
    for row in rows:
        record = _readable(row)
        name, fingerprint = getattr(record, "name", None), getattr(record, "fingerprint", None)
        if record is None or not record.step_id or not isinstance(name, str) or not isinstance(fingerprint, str):
            continue
        if record.step_id in seen or isinstance(record, rec.DoubtOpened) or getattr(record, "effect", False):
            traces = seen.setdefault(record.step_id, _Traces(name, fingerprint, record))
            traces.last, traces.key, traces.args = record, str(getattr(record, "key", "")) or traces.key, _arguments(row) or traces.args
    return seen


def _readable(row: Row) -> rec.Record | None:
    try:
        return record_of(row)
    except (ValueError, TypeError, AttributeError):
        return None


def _arguments(row: Row) -> bytes | None:
    try:
        return row.args if row.args is not None and isinstance(json.loads(row.args), dict) else None
    except (ValueError, TypeError):
        return None


def _may_have_gone_on(history: History, *, escaped: bool) -> bool:
    """Whether lost records could tell of another attempt at this effect."""
    return history.effect and (history.outcome is None or (escaped and isinstance(history.outcome, rec.StepFailed)))


def _opened(step_id: str, effect: _Traces) -> rec.DoubtOpened:
    reason = f"its records were damaged and a repair moved them aside; what can still be read of them says that it {_fate(effect.last)}"
    return rec.DoubtOpened(
        step_id=step_id, name=effect.name, fingerprint=effect.fingerprint, key=effect.key, reason=reason, action="ask", lost=True,
        args=effect.args, args_sha=args_digest(effect.args) if effect.args is not None else "",
    )  # fmt: skip


def _unread(step_id: str, history: History) -> rec.DoubtOpened:
    reason = "records behind its last one are damaged and cannot be read; it may have been tried again"
    return rec.DoubtOpened(
        step_id=step_id, name=history.name, fingerprint=history.fingerprint, key=history.key, reason=reason, action="ask", lost=True
    )


def _fate(record: rec.Record) -> str:
    match record:
        case rec.StepDone():
            result = bytes(record.value or b"").decode("utf-8", "replace")[:SHOWN]
            return f"was done, with the result {result}" if result else "was done"
        case rec.StepFailed() | rec.AttemptFailed():
            return "failed"
        case rec.StepBrokenOff():
            return "was broken off"
        case rec.DoubtOpened():
            return "was in doubt"
        case _:
            return "had begun"


def _plain(number: object) -> int:
    """The number, or 0 where it can only be damage."""
    return number if isinstance(number, int) and 0 <= number <= MOST else 0


def _refuse_owned(engine: Engine, damage: _Damage) -> None:
    for owner in _owners(damage):
        if _lives(engine, owner):
            raise Refusal(f"run {damage.journal.head.run_id!r} executes now in {owner}; nothing was changed. End that process first")


def _owners(damage: _Damage) -> set[str]:
    """Who may own the run: the one that the head names; where the head is not that of the last row, also who claimed it last."""
    head, last, folded = damage.head, [*damage.good, *damage.bad][-1], damage.journal.head
    for row in damage.bad:
        record = _readable(row)
        folded = folded if record is None else fold_head(folded, record, 0)
    fits = head is not None and (head.seq, head.digest) == (last.seq, last.digest)
    owners = [head.owner if head else None, None if fits else folded.owner]
    return {owner for owner in owners if isinstance(owner, str)}


def _lives(engine: Engine, owner: str) -> bool:
    """Whether the owner beats; one that is not proven dead is watched for the lease time."""
    before = engine.store.pulse(owner)
    while engine.observer.life_of(owner) == "alive":
        if engine.store.pulse(owner) != before:
            return True
        engine.clock.sleep(WATCH_S)
    return False
