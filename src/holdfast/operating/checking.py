"""Whether runs are still what was written: walked record by record, and how far each is good."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast._ids import checked_run_id
from holdfast.errors import Damaged, StoreDamaged, StoreError
from holdfast.operating.shelved import damaged_artifacts
from holdfast.operating.views import unknown, walk
from holdfast.records import kinds as rec
from holdfast.records.chain import empty_head, verified
from holdfast.running.engine import Engine
from holdfast.store import Head, Repairable, Row

LARGE = 200
"""Bytes of a record that are worth letting go of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check found of one run: `seq` is the first bad record, and everything before it is good, up to the step `checkpoint`."""

    run_id: str
    good: bool
    records: int
    seq: int = 0
    what: str = ""
    last_good: str = ""
    checkpoint: str = ""
    artifacts: list[str] = field(default_factory=list)
    """What is wrong with the artifacts that it refers to; the records are good all the same."""


def check(engine: Engine, run_id: str | None) -> Iterator[Verdict]:
    """Verify one run or all, one by one."""
    if run_id is not None:
        yield check_run(engine, _known(engine, run_id))
        return
    for head in walk(engine, ()):
        yield check_run(engine, head.run_id)


def check_run(engine: Engine, run_id: str) -> Verdict:
    """Walk one run from its first record to the last that is good."""
    good: list[rec.Record] = []
    what, seq = "", 0
    artifacts: list[str] = []
    try:
        found = engine.store.load(run_id) or _without_head(engine, run_id)
        for _, record in verified(*found):
            good.append(_lightened(record))
        artifacts = damaged_artifacts(engine.store, run_id, found[1])
    except Damaged as damage:
        what, seq = damage.what, damage.seq
        good = good or _good_before(engine, run_id, seq)
    except StoreError as error:
        what, seq = error.reason, len(good) + 1
    last = f"{good[-1].kind} {good[-1].step_id}".strip() if good else ""
    return Verdict(
        run_id=run_id, good=not what and not artifacts, records=len(good), seq=seq, what=what, last_good=last,
        checkpoint=checkpoint_of(good), artifacts=artifacts,
    )  # fmt: skip


def _lightened(record: rec.Record) -> rec.Record:
    """The record without what is large in it: what was verified need not stay in memory."""
    held = len(record.args or b"") + len(record.value or b"")
    return record.but(args=None, value=None) if held > LARGE else record


def _good_before(engine: Engine, run_id: str, seq: int) -> list[rec.Record]:
    """The records before one that the store itself has found to be damaged."""
    good: list[rec.Record] = []
    with contextlib.suppress(Damaged):  # the head, at the latest, is not theirs
        for row, record in verified(empty_head(run_id), _strays(engine, run_id)):
            if row.seq >= seq:
                break
            good.append(record)
    return good


def checkpoint_of(records: Sequence[rec.Record]) -> str:
    """The last finished step among these records, as a person would name it."""
    done = [record for record in records if isinstance(record, rec.StepDone | rec.StepFailed)]
    return f"step {done[-1].step_id}, {done[-1].name}" if done else ""


def _known(engine: Engine, run_id: str) -> str:
    """The id, if anything at all is stored under it."""
    with contextlib.suppress(StoreDamaged):  # then there is something
        if engine.store.head(checked_run_id(run_id)) is None and not _strays(engine, run_id):
            raise unknown(engine, run_id)
    return run_id


def _without_head(engine: Engine, run_id: str) -> tuple[Head, Sequence[Row]]:
    """The rows of a run whose head is gone, behind one that they cannot agree with."""
    return empty_head(run_id)._replace(status="gone"), _strays(engine, run_id)


def _strays(engine: Engine, run_id: str) -> Sequence[Row]:
    return engine.store.found(run_id)[1] if isinstance(engine.store, Repairable) else []
