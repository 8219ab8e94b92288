"""What a record looks like in the chain, and what the head of a run must be, given its records; pure.

The digest of a row is SHA-256 over the digest before it, the row's header and its body and value. Argument bytes enter through `args_sha`
in the body. The head repeats the last seq and digest, so that a tail that was cut off is noticed too, and every other field of the head
can be computed again from the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from holdfast._turns import QUEUE, turn_of, turn_since
from holdfast.codec.fingerprint import args_match
from holdfast.errors import Damaged
from holdfast.large.packing import MARK
from holdfast.records import kinds as rec
from holdfast.records.bodies import from_parts
from holdfast.store import CHILD_OF as CHILD_OF  # noqa: PLC0414 (it is recorded with the run, and looked for here)
from holdfast.store import Head, Row

GENESIS = b"\0" * 32
FORK_OF = "fork_of"
"""The tag that names the run which another one branches from."""

CONTINUED = rec.RunContinued.kind
TRANSFERS = frozenset({rec.RunSealed.kind, rec.RunMoved.kind, rec.RunArrived.kind, rec.RunUnsealed.kind})

_head: Callable[[tuple[Any, ...]], Head] = partial(tuple.__new__, Head)


def chain(before: bytes, run_id: str, row: tuple[Any, ...]) -> bytes:
    """The digest of a row (its own is not looked at and may be missing) after the digest `before`."""
    seq, epoch, at_us, kind, step_id, body, value = row[:7]
    size = -1 if value is None else len(value)
    header = f"{run_id}\0{seq}\0{epoch}\0{at_us}\0{kind}\0{step_id}\0{len(body)}\0{size}\0"
    return hashlib.sha256(before + header.encode("utf-8", "surrogatepass") + body + (value or b"")).digest()


def args_digest(args: bytes) -> str:
    """What stands for argument bytes in the chain."""
    return hashlib.sha256(args).hexdigest()


def empty_head(run_id: str) -> Head:
    """The head of a run before its first record."""
    return Head(run_id, "", "", None, 0, 0, GENESIS, None, 0, 0, "{}", 0.0, "")


def fold_head(head: Head, record: rec.Record, at_us: int) -> Head:
    """The head after one more record, but for its position; the only place that says which record changes which field."""
    match record:
        case rec.StepDone() | rec.StepFailed() | rec.AttemptFailed() | rec.StepBrokenOff():
            spent = rec.cost_usd(record.usage) if record.usage else 0.0
            return head._replace(usd=head.usd + spent) if spent else head
        case rec.RunStarted():
            lineage = {FORK_OF: record.fork_of} if record.fork_of else {}
            tags = json.dumps({**record.tags, **lineage}, sort_keys=True, ensure_ascii=False)
            status = "running" if record.owner else "queued"
            return head._replace(
                agent=record.agent, status=status, owner=record.owner or None, created_us=at_us, tags=tags, queue=record.queue or QUEUE,
                turn=turn_of(record.priority, record.turn_us or at_us), lane=record.lane,
            )  # fmt: skip
        case rec.RunResumed():
            return head._replace(status="running" if record.owner else "queued", owner=record.owner or None, note="", wake_us=None)
        case rec.RunDone() | rec.RunCancelled():
            return head._replace(status=record.kind.removeprefix("run."), owner=None, note=getattr(record, "reason", ""))
        case rec.RunFailed():
            return head._replace(status="failed", owner=None, note=_short(record.error))
        case rec.RunWaiting():
            return head._replace(status="waiting", owner=None, note=record.waits, wake_us=record.wake_us or None)
        case rec.RunReleased() | rec.RunForked() | rec.RunContinued():
            return _let_go(head, record, at_us)
        case rec.RunUndoing():
            return head._replace(note=f"to be undone by {record.by}{': ' + record.reason if record.reason else ''}")
        case rec.RunBlocked() | rec.RunRepaired() | rec.RunPaused():
            return _held_up(head, record)
    return _on_its_way(head, record) if record.kind in TRANSFERS else head


def _let_go(head: Head, record: rec.RunReleased | rec.RunForked | rec.RunContinued, at_us: int) -> Head:
    """Nobody has the run: its owner left it, it begins anew, or it has just been made of another one."""
    if not isinstance(record, rec.RunForked):
        spent = getattr(record, "usd", 0.0) or head.usd
        return head._replace(status="queued", owner=None, note=getattr(record, "reason", "it begins anew with other arguments"), usd=spent)
    told = f"a fork of {record.source} at step {record.at}"
    return head._replace(status="queued", owner=None, note=told, wake_us=None, created_us=at_us, turn=turn_since(head.turn, at_us))


def _on_its_way(head: Head, record: rec.Record) -> Head:
    """Nobody can take the run between its seal and its arrival; then it stands as it did."""
    match record:
        case rec.RunSealed():
            return head._replace(status="moving", owner=None, wake_us=None, note=f"to {record.to}")
        case rec.RunMoved():
            return head._replace(status="moved", note=f"to {record.to}")
        case rec.RunArrived(pending=True):
            return head._replace(note=f"from {record.source}")
        case rec.RunArrived() | rec.RunUnsealed():
            was = record.was
            return head._replace(status=was.get("status", "queued"), note=was.get("note", ""), wake_us=was.get("wake_us"))
    return head


def _held_up(head: Head, record: rec.RunBlocked | rec.RunRepaired | rec.RunPaused) -> Head:
    """Nobody takes the run before somebody says so."""
    if isinstance(record, rec.RunPaused):
        note = f"paused by {record.by}{': ' + record.reason if record.reason else ''}"
    else:
        note = _short(record.error) if isinstance(record, rec.RunBlocked) else _repaired(head.run_id, record)
    status = "paused" if isinstance(record, rec.RunPaused) else "blocked"
    return head._replace(status=status, owner=None, note=note, wake_us=None)


def at_position(head: Head, row: Row) -> Head:
    """The head, standing behind `row`."""
    run_id, agent, status, owner, _, _, _, wake_us, created_us, _, *rest = head
    return _head((run_id, agent, status, owner, row[1], row[0], row[8], wake_us, created_us, row[2], *rest))


def _short(error: rec.Json) -> str:
    return f"{error.get('type', 'error')}: {error.get('message', '')}"[:300]


def _repaired(run_id: str, record: rec.RunRepaired) -> str:
    unknown = f"; {record.unreadable} could not be read: an effect may have happened that is not known" if record.unreadable else ""
    return f"repaired: its records from {record.bad_seq} on were lost{unknown}. Look, then: holdfast resume {run_id}"


def record_of(row: Row) -> rec.Record:
    """The record that a row holds; ValueError where this version cannot read it."""
    return from_parts(kind=row.kind, step_id=row.step_id, body=row.body, value=row.value, args=row.args)


def verified(head: Head, rows: Sequence[Row]) -> Iterator[tuple[Row, rec.Record]]:
    """The rows with their records, one by one; raises `Damaged` at the first that is not what was written."""
    run_id, computed, digest, expected = head.run_id, empty_head(head.run_id), GENESIS, 0
    for row in rows:
        expected += 1
        if row.seq != expected or row.kind == CONTINUED:
            expected += dropped_before(row)
        if row.seq != expected:
            raise Damaged(run_id, expected, f"record {expected} is missing (the next one there is {row.seq})")
        try:
            digest = chain(digest, run_id, row)
            record = record_of(row)
            args_sha = str(getattr(record, "args_sha", ""))
            args_are_whole = row.args is None or args_match(row.args, args_sha)
        except (ValueError, TypeError, AttributeError) as error:
            raise Damaged(run_id, expected, f"it cannot be read ({error})") from error
        if digest != row.digest:
            raise Damaged(run_id, expected, f"its digest does not match what it holds{_apart(row.value)}")
        if not args_are_whole:
            raise Damaged(run_id, expected, f"its arguments do not match their digest{_apart(row.args)}")
        if row.args is None and args_sha and not prunable(record):
            raise Damaged(run_id, expected, "its arguments are missing")
        computed = fold_head(computed, record, row.at_us)
        yield row, record
    _compare_heads(head, at_position(computed, rows[-1]) if rows else computed)


def _apart(data: bytes | None) -> str:
    """Why: nothing that a record holds begins like this, so it was stored in parts of which one is not there."""
    return "" if data is None or data[:1] != MARK else ", as it cannot be put together: an earlier record or a blob is damaged or gone"


def dropped_before(row: Row) -> int:
    """How many records a prune removed right before this one, as it says itself; its digest then follows that of the row there is."""
    try:
        record = record_of(row) if row.kind == CONTINUED else None
    except (ValueError, TypeError, AttributeError):
        return 0
    dropped: object = getattr(record, "dropped", 0)
    return dropped if isinstance(dropped, int) and dropped > 0 else 0


def prunable(record: rec.Record) -> bool:
    """Whether the arguments that a record carries may go: those of safe steps; a person may need to see those of an effect."""
    return isinstance(record, rec.StepStarted | rec.StepDone | rec.StepFailed) and not record.effect


def _compare_heads(stored: Head, computed: Head) -> None:
    if _number(stored.seq) > computed.seq:
        missing = f"the head says seq={stored.seq}, its records end at {computed.seq}: the others are missing"
        raise Damaged(stored.run_id, computed.seq + 1, missing)
    for name, kept, expected in zip(Head._fields, stored, computed, strict=True):
        if kept != expected:
            seq = computed.seq + 1 if name in ("seq", "digest") else computed.seq
            raise Damaged(stored.run_id, seq, f"the head says {name}={_shown(kept)}, its records say {_shown(expected)}")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _shown(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else repr(value)[:80]
