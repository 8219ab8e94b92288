"""Moving a run, with its child runs, to another store, so that it is never in two places: the source decides.

1. *Seal*: the run gets `run.sealed` and a higher epoch. From here on nobody takes it, and whoever had it cannot write any more.
2. *Import*: artifacts first, then the records, as they are, and `run.arrived`, pending, in one append: a copy that nobody can take.
3. *Hand over*: `run.handed_over` in the source, fenced by the seal, with the letters that go along. This is the moment that decides:
   before it the move can be taken back, with one append that is fenced by the same seal, and after it only finished.
4. *Activate*: `run.arrived` in the target: the run stands there as it stood.
5. *Mark*: `run.moved` in the source.

Whoever is killed in between repeats the command: the token of the move says what has been done. Two who move the same run at once do the
same things, and of each append one goes in. Of a family the run at its top decides: it is sealed and handed over first, and marked last.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

from holdfast._clock import to_datetime
from holdfast._failpoints import reach
from holdfast._ids import checked_text
from holdfast.errors import Refusal, RunMoved, RunPruned, StoreError
from holdfast.moving.parcels import Watch, carried, is_same, needed, put_in_place
from holdfast.operating.telling import MAX_TRIES
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.away import refuse_away
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.records.lineage import Unread, told
from holdfast.running.engine import Engine
from holdfast.running.lease import CHILD
from holdfast.running.letters import matters, said
from holdfast.running.runner import silent
from holdfast.store import Append, Head, Letter, Live, Prunable, Repair, Row, Shelf, Store, Tombstone

MOST_RUNS = 10_000
"""Runs of one family at the most."""

STAGES = 5
"""What is done with each run: seal, import, hand over, activate, mark."""

TAIL = 4
"""The last records of a run among which those of a move stand."""

WATCH_S = 0.2
"""How often an owner that is not proven dead is looked at."""

ON_THE_WAY = (rec.RunSealed, rec.RunHandedOver, rec.RunMoved, rec.RunArrived, rec.RunUnsealed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """What a move did, or would do: `runs` are the run and its child runs.

    `existed` where it had been done before, `back` where it was taken back.
    """

    run_id: str
    source: str
    to: str
    runs: list[str]
    records: int
    artifacts: int
    artifact_bytes: int
    letters: int
    status: str
    done: bool
    existed: bool = False
    back: bool = False


class Order(NamedTuple):
    """A move: the engine of the source, the store that the run goes to, which run, and who says so."""

    engine: Engine
    target: Store
    run_id: str
    by: str
    reason: str = ""


def ordered(engine: Engine, target: Store, run_id: str, *, by: str, reason: str) -> Order:
    """The same, checked."""
    return Order(engine, target, run_id, checked_text(by, "by"), checked_text(reason, "reason"))


def planned(order: Order) -> Moving:
    """What a move would do, or what hinders it; nothing is changed."""
    journals = [Journal.load(*loaded(order.engine, run_id)) for run_id in _family(order.engine, order.run_id)]
    seal = _seal_of(order.engine, order.run_id)
    if journals[0].head.status != "moved" and seal is None:
        _refuse_unfit(order, journals)
    else:
        _refuse_other_place(order)
    return _report(order, [journal.head for journal in journals])


def move(order: Order, watch: Watch) -> Moving:
    """Carry a move out, or go on with one that was interrupted."""
    plan = planned(order)
    for _ in watch(_carried_out(order), plan.artifacts + len(plan.runs) * STAGES, "moving"):
        pass
    status = _tail(order.engine, order.run_id)[0].status
    return replace(plan, status=status, done=True, existed=plan.status == "moved")


def _carried_out(order: Order) -> Iterator[str]:
    """Do it, step by step; each is named. Where it cannot be done it is taken back, unless the run is handed over by then."""
    engine, run_id = order.engine, order.run_id
    if loaded(engine, run_id)[0].status == "moved":
        _refuse_other_place(order)
        return
    token = _token(order)
    try:
        yield from _sealed(order, token)
        family = _family(engine, run_id)
        for each in family:
            yield from _imported(order, token, each)
    except BaseException:
        with suppress(StoreError):  # then it stays sealed, and the command can be repeated
            _taken_back(order, token)
        raise
    for each in family:
        yield _handed_over(order, token, each)
    for each in reversed(family):
        yield from _activated(order, token, each)
    for each in reversed(family):
        yield _marked(order, token, each)


def take_back(engine: Engine, run_id: str, *, by: str, reason: str) -> Moving:
    """Let a run that was sealed and not handed over stand as it did."""
    order = ordered(engine, engine.store, run_id, by=by, reason=reason)
    head, _ = loaded(engine, run_id)
    sealed = [each for each in _family(engine, run_id) if _seal_of(engine, each) is not None]
    if head.status != "moving" and not sealed:
        raise Refusal(f"run {run_id!r} is {head.status} and not being moved; nothing was changed")
    seal = _seal_of(engine, run_id) or _seal_of(engine, sealed[0] if sealed else run_id)
    if seal is None:
        raise RunMoved(run_id, head.status, head.note)
    if seal.root != run_id:
        raise Refusal(f"run {run_id!r} is being moved with {seal.root!r}; nothing was changed. Take back that one")
    if not _taken_back(order, seal.token):
        raise Refusal(f"run {run_id!r} is handed over to {seal.to}; nothing was changed. Finish it: holdfast move {run_id} --to {seal.to}")
    heads = [loaded(engine, each)[0] for each in _family(engine, run_id)]
    return replace(_report(order, heads), to=seal.to, done=True, back=True)


def _report(order: Order, heads: Sequence[Head]) -> Moving:
    store, runs = order.engine.store, [head.run_id for head in heads]
    needs = {digest: size for run_id in runs for digest, size in needed(store, run_id).items()}
    return Moving(
        run_id=order.run_id, source=store.url, to=order.target.url, runs=runs, records=sum(head.seq for head in heads),
        artifacts=len(needs), artifact_bytes=sum(needs.values()), letters=len(store.letters(runs)), status=heads[0].status, done=False,
    )  # fmt: skip


def _family(engine: Engine, run_id: str) -> list[str]:
    """The run and the child runs that it called, and so on downwards; parents come before their children."""
    found, ahead = list[str](), [run_id]
    while ahead:
        each = ahead.pop(0)
        if len(found) == MOST_RUNS:
            raise Refusal(f"run {run_id!r} has more than {MOST_RUNS:,} child runs; nothing was changed")
        found.append(each)
        rows = loaded(engine, each)[1]
        children = dict.fromkeys(json.loads(row.body)["child"] for row in rows if row.kind == rec.ChildStarted.kind)
        ahead += [child for child in children if child not in found and _parent_of(engine, child) == each]
    return found


def _parent_of(engine: Engine, run_id: str) -> str:
    found = engine.store.load(run_id)
    started = record_of(found[1][0]) if found is not None else None
    return started.parent.get("run", "") if isinstance(started, rec.RunStarted) else ""


def _refuse_unfit(order: Order, journals: Sequence[Journal]) -> None:
    """What hinders a move is said before anything is changed."""
    engine, target, (top, *_) = order.engine, order.target, journals
    refuse_away(top.head)
    parent = top.started.parent.get("run", "") if top.started is not None else ""
    if parent and engine.store.head(parent) is not None:
        raise Refusal(f"run {order.run_id!r} is a child of {parent!r}, and goes with it; nothing was changed. Move {parent!r}")
    if is_same(target, engine.store):
        raise Refusal(f"run {order.run_id!r} is in {target.url} already; nothing was changed")
    family = {journal.head.run_id for journal in journals}
    for journal in journals:
        _refuse_owned(engine, journal.head)
        _refuse_strangers(journal, family)
        found = target.load(journal.head.run_id)
        if found is None:
            _refuse_pruned(target, journal.head.run_id)
        elif _common(found[1], loaded(engine, journal.head.run_id)[1]) == 0 or not _is_shell(found):
            raise _another(target, journal.head.run_id)
        if isinstance(engine.store, Shelf) and engine.store.blob_refs(journal.head.run_id) and not isinstance(target, Shelf):
            raise Refusal(f"the store {target.url} keeps no artifacts, and run {journal.head.run_id!r} has some; nothing was changed")


def _refuse_owned(engine: Engine, head: Head) -> None:
    """A run that somebody executes is not moved; an owner that is not proven dead is watched, as long as a lease lasts."""
    remedy = "Wait until it waits or ends, or stop that process"
    until_s, before = engine.clock.monotonic_s() + engine.lease_s + WATCH_S, None
    while head.owner is not None:
        pulse = engine.store.pulse(head.owner)
        mine = head.owner == engine.keeper.owner
        if (mine and head.run_id not in engine.keeper.runs) or (not mine and engine.observer.life_of(head.owner) != "alive"):
            return
        before = pulse if before is None else before
        if mine or pulse != before or engine.clock.monotonic_s() > until_s:
            raise Refusal(f"run {head.run_id!r} executes now in {head.owner}; nothing was changed. {remedy}")
        engine.clock.sleep(WATCH_S)


def _refuse_strangers(journal: Journal, family: set[str]) -> None:
    """A fork may still take on child runs of its source, which it finds in its own store only."""
    for _, found in journal.superseded:
        if found.child and found.child not in family:
            known = f"run {journal.head.run_id!r} may still need child run {found.child!r} of {found.elsewhere or 'another run'!r}"
            raise Refusal(f"{known}, which does not go along; nothing was changed. Let it come to its end here, or cancel it")


def _grave(target: Store, run_id: str) -> Tombstone | None:
    return target.tombstone(run_id) if isinstance(target, Prunable) else None


def _refuse_pruned(target: Store, run_id: str) -> None:
    grave = _grave(target, run_id)
    if grave is not None:
        raise RunPruned(run_id, grave.status, f"{to_datetime(grave.pruned_us):%Y-%m-%d %H:%M:%S} UTC", grave.by, grave.why)


def _another(target: Store, run_id: str) -> Refusal:
    return Refusal(f"there is another run {run_id!r} in {target.url}; nothing was changed. Fork this one under another id, and move that")


def _refuse_other_place(order: Order) -> None:
    """A move that has begun goes on to where it was going."""
    head, seal = order.engine.store.head(order.run_id), _seal_of(order.engine, order.run_id)
    if head is None or seal is None or seal.to != order.target.url:
        raise RunMoved(order.run_id, head.status if head else "moved", f"to {seal.to if seal else ''}")


def _on_the_way(rows: Sequence[Row]) -> Iterator[rec.Record]:
    """What was said last of moves, the last first."""
    for row in reversed(rows):
        record = record_of(row)
        if not isinstance(record, ON_THE_WAY):
            return
        yield record


def _seal_of(engine: Engine, run_id: str) -> rec.RunSealed | None:
    """The seal of a run that is being moved from here; None for one that is not, or that is only the copy of one elsewhere."""
    return _seal_in(_tail(engine, run_id)[1])


def _seal_in(rows: Sequence[Row]) -> rec.RunSealed | None:
    last = list(_on_the_way(rows))
    if not last or not isinstance(last[0], rec.RunSealed | rec.RunHandedOver | rec.RunMoved):
        return None
    return next((record for record in last if isinstance(record, rec.RunSealed)), None)


def _tail(engine: Engine, run_id: str) -> tuple[Head, Sequence[Row]]:
    """The head of a run and its last records, where the store can give these alone."""
    store, head = engine.store, engine.store.head(run_id)
    found = store.rows_after(run_id, max(0, head.seq - TAIL)) if head is not None and isinstance(store, Live) else None
    return found or loaded(engine, run_id)


def _behind(head: Head) -> Journal:
    """A journal that seals records behind a head; what stands before it was verified when it was copied."""
    journal = Journal(head.run_id)
    journal.head = head
    return journal


def _token(order: Order) -> str:
    """Seal the run that decides, and give the name of the move: that of whoever has sealed it before, if anybody has."""
    engine, run_id = order.engine, order.run_id
    for _ in range(MAX_TRIES):
        if _seal_of(engine, run_id) is None:
            _refuse_unfit(order, [Journal.load(*loaded(engine, each)) for each in _family(engine, run_id)])
            _seal(order, secrets.token_hex(16), run_id)
        seal = _seal_of(engine, run_id)
        if seal is not None:
            _refuse_other_place(order)
            return seal.token
    raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")


def _sealed(order: Order, token: str) -> Iterator[str]:
    """Seal the children too, now that the run cannot call others; one that an interrupted move left sealed is sealed anew."""
    for run_id in _family(order.engine, order.run_id):
        if not any(_seal(order, token, run_id) for _ in range(MAX_TRIES)):
            raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")
        yield f"sealed {run_id}"


def _seal(order: Order, token: str, run_id: str) -> bool:
    """Whether the run is sealed for this move; one that is handed over is left as it is, whoever did that."""
    engine = order.engine
    head, rows = _tail(engine, run_id)
    last, before = next(_on_the_way(rows), None), _seal_in(rows)
    if before is not None and (before.token == token or run_id == order.run_id):
        return before.token == token
    stale = last if isinstance(last, rec.RunSealed) else None
    if stale is None:
        refuse_away(head)
    _refuse_owned(engine, head)
    again = [rec.RunUnsealed(token=stale.token, by=order.by, was=stale.was)] if stale is not None else []
    seal = rec.RunSealed(
        token=token, source=engine.store.url, to=order.target.url, root=order.run_id, by=order.by, reason=order.reason,
        was=_standing(head) if stale is None else stale.was, silent=silent(engine, head),
    )  # fmt: skip
    reach("seal.before")
    (refused,) = engine.store.append([_behind(head).seal([*again, seal], at_us=engine.clock.now_us())])
    reach("seal.after")
    return refused is None


def _standing(head: Head) -> rec.Json:
    """How a run stands; one whose owner died stands as one that can be taken."""
    if head.owner is not None:
        return {"status": "queued", "note": "its owner was gone when it was moved"}
    wake = {"wake_us": head.wake_us} if head.wake_us is not None else {}
    return {"status": head.status, "note": head.note, **wake}


def _taken_back(order: Order, token: str) -> bool:
    """Let the run, and then its children, stand as they did; False where the run is handed over, and the move can only be finished."""
    return all(any(_let_stand(order, token, each) for _ in range(MAX_TRIES)) for each in _family(order.engine, order.run_id))


def _let_stand(order: Order, token: str, run_id: str) -> bool:
    """Whether the run stands as it did, or as something else than this move left it."""
    engine = order.engine
    head, rows = _tail(engine, run_id)
    last = next(_on_the_way(rows), None)
    if not isinstance(last, rec.RunSealed) or last.token != token:
        return not isinstance(last, rec.RunHandedOver | rec.RunMoved)
    record = rec.RunUnsealed(token=token, by=order.by, reason=order.reason, was=last.was)
    (stale,) = engine.store.append([_behind(head).seal([record], at_us=engine.clock.now_us())])
    return stale is None


def _imported(order: Order, token: str, run_id: str) -> Iterator[str]:
    """The artifacts and records of a run, over there, where nobody can take it yet."""
    engine, target = order.engine, order.target
    head, rows = loaded(engine, run_id)
    seal = _seal_in(rows)
    if seal is None or seal.token != token:
        raise _stays(run_id)
    if rows[-1].kind != rec.RunSealed.kind:  # it is handed over, so it was there; were it gone, it might have been taken there
        _there(order, token, run_id)
        yield f"imported {run_id}"
        return
    for digest in carried(engine.store, target, run_id, at_us=engine.clock.now_us()):
        yield f"artifact {digest[:12]}"
    for _ in range(MAX_TRIES):
        if _import(order, token, head, rows):
            yield f"imported {run_id}"
            return
    raise StoreError(target.url, f"run {run_id!r} could not be written there; it stays where it is. Try again")


def _stays(run_id: str) -> Refusal:
    return Refusal(f"the move of run {run_id!r} was taken back meanwhile, and it stays where it is")


def _there(order: Order, token: str, run_id: str) -> tuple[Head, Sequence[Row]] | None:
    """The run in the target, which must have it by now; None where it has ended there since, and was pruned."""
    found = order.target.load(run_id)
    if found is None and _grave(order.target, run_id) is not None:
        return None
    if found is None or not _is_there(found, token):
        gone = f"run {run_id!r} was handed over to here, and is not here any more. It was not brought here again, since it may have gone on"
        raise StoreError(order.target.url, f"{gone}; restore a backup of this store, or fork a backup of {order.engine.store.url}")
    return found


def _is_there(found: tuple[Head, Sequence[Row]] | None, token: str) -> bool:
    """Whether the copy of this very move is there, pending or taken up since."""
    arrivals = [record_of(row) for row in found[1] if row.kind == rec.RunArrived.kind] if found is not None else []
    return any(isinstance(record, rec.RunArrived) and record.token == token for record in arrivals)


def _import(order: Order, token: str, head: Head, rows: Sequence[Row]) -> bool:
    """Write the copy, as a whole; False where somebody else was faster.

    That of this very move is left as it is: whoever made it may be about to activate it, and a fence does not see a digest.
    """
    engine, target, run_id = order.engine, order.target, head.run_id
    found = target.load(run_id)
    if _is_there(found, token):
        return True
    journal = Journal.load(_head_at(head, rows), rows)
    arrived = rec.RunArrived(token=token, source=engine.store.url, pending=True)
    sealed = journal.seal([arrived], at_us=engine.clock.now_us())
    shared = 0 if found is None else _common(found[1], rows)
    if found is None:
        _refuse_pruned(target, run_id)
    elif not _is_shell(found) or not shared:
        raise _another(target, run_id)
    reach("import.before")
    if found is None and head.seq == len(rows):
        refs = tuple(engine.store.blob_refs(run_id)) if isinstance(engine.store, Shelf) else ()
        (stale,) = target.append([Append(run_id, 0, 0, [*rows, *sealed.rows], sealed.head, (), refs)])
        went_in = stale is None
    else:
        went_in = put_in_place(target, Repair(
            run_id=run_id, found=found[0] if found else None, good=rows[:shared], rows=[*rows[shared:], *sealed.rows], head=sealed.head,
            at_us=engine.clock.now_us(), by=order.by, why=f"the run came back from {engine.store.url}",
        ))  # fmt: skip
    reach("import.after")
    return went_in


def _head_at(head: Head, rows: Sequence[Row]) -> Head:
    """The head of the source as it was behind its seal: what was handed over since stands only there."""
    seal = record_of(rows[-1])
    assert isinstance(seal, rec.RunSealed), "the last of its records is the seal"
    last = rows[-1]
    return head._replace(
        status="moving", note=f"to {seal.to}", epoch=last.epoch, seq=last.seq, digest=last.digest, updated_us=last.at_us, wake_us=None
    )


def _common(there: Sequence[Row], rows: Sequence[Row]) -> int:
    """How many records of a run stand in the target as they are, if those are all up to its last seal there; else 0."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(there, rows, strict=False)))
    seals = [place for place, row in enumerate(there, 1) if row.kind == rec.RunSealed.kind]
    return same if seals and same >= seals[-1] else 0


def _is_shell(found: tuple[Head, Sequence[Row]]) -> bool:
    """Whether what stands in the target is what a run left behind there, or a copy that nobody can take."""
    last = next(_on_the_way(found[1]), None)
    return isinstance(last, rec.RunMoved) or (isinstance(last, rec.RunArrived) and last.pending)


def _handed_over(order: Order, token: str, run_id: str) -> str:
    """The record that decides, with the letters that go along."""
    engine = order.engine
    for _ in range(MAX_TRIES):
        head, rows = _tail(engine, run_id)
        last = next(_on_the_way(rows), None)
        if isinstance(last, rec.RunHandedOver | rec.RunMoved) and last.token == token:
            return f"handed over {run_id}"
        if not isinstance(last, rec.RunSealed) or last.token != token:
            raise _stays(run_id)
        letters = engine.store.letters([run_id])
        value = json.dumps([_packed(letter) for letter in letters], separators=(",", ":")).encode() if letters else None
        record, takes = rec.RunHandedOver(token=token, value=value), [letter.letter_id for letter in letters]
        reach("hand.before")
        engine.store.append([_behind(head).seal([record], at_us=engine.clock.now_us(), takes=takes)])
        reach("hand.after")
    raise Refusal(f"run {run_id!r} keeps moving. Repeat the command")


def _packed(letter: Letter) -> dict[str, Any]:
    return {"id": letter.letter_id, "at_us": letter.at_us, "kind": letter.kind, "body": letter.body.decode("utf-8", "surrogateescape")}


def _letters_of(rows: Sequence[Row], run_id: str) -> list[Letter]:
    """The letters that a run was handed over with."""
    value = next((record.value for record in _on_the_way(rows) if isinstance(record, rec.RunHandedOver)), None)
    packed = json.loads(value or b"[]")
    return [Letter(each["id"], run_id, each["at_us"], each["kind"], each["body"].encode("utf-8", "surrogateescape")) for each in packed]


def _activated(order: Order, token: str, run_id: str) -> Iterator[str]:
    """Let the run stand in the target as it stood: from here on it can be taken there."""
    engine, target = order.engine, order.target
    source_rows = _tail(engine, run_id)[1]
    seal = next(record for record in _on_the_way(source_rows) if isinstance(record, rec.RunSealed))
    letters = _letters_of(source_rows, run_id)
    for _ in range(MAX_TRIES):
        found = _there(order, token, run_id)
        last = next(_on_the_way(found[1]), None) if found is not None else None
        if found is None or not isinstance(last, rec.RunArrived) or not last.pending or last.token != token:
            yield f"activated {run_id}"
            return
        _posted_there(target, run_id, [letter for letter in letters if letter.kind != "message"])
        append = _arrival(order, seal, Journal.load(*found), letters)
        reach("activate.before")
        (stale,) = target.append([append])
        reach("activate.after")
        if stale is not None and stale.missing:  # somebody has swept them since
            yield from carried(engine.store, target, run_id, at_us=engine.clock.now_us())
    raise StoreError(target.url, f"run {run_id!r} could not be activated there. Repeat the command")


def _arrival(order: Order, seal: rec.RunSealed, journal: Journal, letters: Sequence[Letter]) -> Append:
    """The append that lets a run be taken; messages come in its record, and what was left here for an earlier self of it goes.

    What tells of a child stays: the children can be taken before, and may have moved since.
    """
    engine, target, run_id = order.engine, order.target, journal.head.run_id
    messages = _messages(journal, seal.token, letters)
    wakes = any(matters(target, engine.observer, journal, letter) for letter in letters if letter.kind == "message")
    was = {"status": "queued", "note": "a message came along"} if wakes and seal.was.get("status") == "waiting" else seal.was
    value = told(run_id, [], messages) if messages else None
    record = rec.RunArrived(token=seal.token, source=seal.source, was=was, value=value)
    mine = {(letter.kind, letter.body, letter.at_us) for letter in letters if letter.kind != "message"}
    known = [each for each in target.letters([run_id]) if each.kind != CHILD]
    old = [each.letter_id for each in known if (each.kind, each.body, each.at_us) not in mine]
    sealed = journal.seal([record], at_us=engine.clock.now_us(), takes=old)
    return sealed._replace(refs=tuple(engine.store.blob_refs(run_id)) if isinstance(engine.store, Shelf) else ())


def _posted_there(target: Store, run_id: str, letters: Sequence[Letter]) -> None:
    """What people said to the run; who repeats a move finds it posted, and said twice it is taken once."""
    known = {(each.kind, each.body, each.at_us) for each in target.letters([run_id])}
    for letter in letters:
        if (letter.kind, letter.body, letter.at_us) not in known:
            target.post(run_id, letter.kind, letter.body, letter.at_us)


def _messages(journal: Journal, token: str, letters: Sequence[Letter]) -> list[Unread]:
    """The messages that come along, each once: a sender who repeated itself gave the same key."""
    keys, found = set(journal.taken), list[Unread]()
    for letter in letters:
        body = said(letter) if letter.kind == "message" else {}
        key = str(body.get("key") or "")
        if "name" not in body or (key and key in keys):
            continue
        keys.add(key)
        value = json.dumps(body.get("value"), ensure_ascii=False, separators=(",", ":"))
        found.append(Unread(f"{token}/{letter.letter_id}", str(body["name"]), value, str(body.get("by", "")), key))
    return found


def _marked(order: Order, token: str, run_id: str) -> str:
    """The source says where the run is."""
    engine = order.engine
    for _ in range(MAX_TRIES):
        head, _ = _tail(engine, run_id)
        if head.status == "moved":
            break
        record = rec.RunMoved(token=token, to=order.target.url)
        reach("mark.before")
        engine.store.append([_behind(head).seal([record], at_us=engine.clock.now_us())])
        reach("mark.after")
    return f"marked {run_id}"
