"""Following a run from any process: its records as they are stored, and between them what it emits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast._clock import to_datetime
from holdfast._ids import checked_run_id
from holdfast.errors import Damaged, Misuse, Refusal
from holdfast.life.bell import News
from holdfast.life.calls import shown_call
from holdfast.operating.checkpoints import told
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.chain import GENESIS, chain, dropped_before, record_of
from holdfast.running.engine import Engine
from holdfast.running.runner import POLL_S
from holdfast.store import Head, Row

BRISK_S = 0.01
"""How soon it is looked again where something has just come; the pause then grows to POLL_S."""

EMIT = "emit"

MOST_AFTER = (1 << 63) - 1
"""No record has a higher number."""

STEPS = (rec.StepStarted, rec.StepDone, rec.StepFailed, rec.AttemptFailed, rec.StepBrokenOff)

ENDED = frozenset({"done", "cancelled", "failed", "blocked", "moved"})
"""Where a run stands when there is nothing to wait for, unless somebody takes it up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a run: a record by its `kind`, or an emitted value, whose kind is "emit".

    `seq` is the number of the record; of an emitted value, that of the last record before it, and `position` is its own place. `value` is
    what was emitted, or the data of the record; `body` holds the record's other fields, `call` and `note` say it in words.
    """

    seq: int
    at_us: int
    kind: str
    step_id: str
    value: Any = None
    body: dict[str, Any] = field(default_factory=dict)
    call: str = ""
    state: str = ""
    note: str = ""
    position: int = 0

    @property
    def at(self) -> datetime:
        """When it happened."""
        return to_datetime(self.at_us)


class Follower:
    """One reader of one run, who remembers how far it has read."""

    def __init__(self, engine: Engine, run_id: str, after: int) -> None:
        if not 0 <= after <= MOST_AFTER:
            raise Misuse(f"after={after!r}: give the seq of the last record that is not to be shown, or 0")
        self._engine, self._run_id = engine, checked_run_id(run_id)
        self._live = engine.committer.live
        self._seq = self._from = after
        self._position, self._args = 0, dict[str, bytes | None]()
        self._held: list[Event] = []
        self._digest = b"" if after else GENESIS
        self.ended = False

    def begun(self) -> bool:
        """Whether there is such a run yet."""
        return self._engine.store.head(self._run_id) is not None

    def news(self) -> News:
        """What there is to be heard of the run."""
        return self._engine.bell.news([self._run_id])

    def look(self) -> list[Event]:
        """What is new, in order.

        Records are read before emitted values. So a record that is read has all in sight that was emitted before it, and what was emitted
        behind a record that is not read yet is held back until it is.
        """
        head, rows = self._rows() or loaded(self._engine, self._run_id)
        self._refuse_another_chain(head, rows)
        overdue, emitted = self._held, self._emitted()
        self._held = [event for event in emitted if self._holds(event, head)]
        events = [*overdue, *(event for event in emitted if not self._holds(event, head)), *(self._event(row) for row in rows)]
        self._seq = max(head.seq, self._seq)
        self.ended = head.owner is None and head.status in ENDED and not self._held
        return sorted(events, key=lambda event: (event.seq, event.position))

    def _refuse_another_chain(self, head: Head, rows: Sequence[Row]) -> None:
        """What is new must follow what was seen: a repair may have put other records in its place."""
        digests = (self._digest, *(row.digest for row in rows))
        fits = all(not before or chain(before, self._run_id, row) == row.digest for before, row in zip(digests, rows, strict=False))
        if not (fits and self._is_whole(head, rows) and (rows or not self._digest or head.digest == self._digest)):
            what = f"run {self._run_id!r} does not go on behind record {self._seq} as it was read before"
            raise Refusal(f"{what}: it was repaired or pruned, or is damaged. `holdfast check {self._run_id}` tells; then follow it anew")
        self._digest = digests[-1]

    def _is_whole(self, head: Head, rows: Sequence[Row]) -> bool:
        """Whether nothing is missing behind what was read, but for what a record says that a prune dropped before it."""
        last: object = head.seq
        reached = self._seq
        for row in rows:
            if row.seq != reached + 1 and not 0 < row.seq - reached - 1 <= dropped_before(row):
                return False
            reached = row.seq
        return isinstance(last, int) and reached == max(last, self._seq)

    @staticmethod
    def _holds(event: Event, head: Head) -> bool:
        return event.seq > head.seq

    def _rows(self) -> tuple[Head, Sequence[Row]] | None:
        """The head, and the rows that were not read yet."""
        if self._live is not None:
            return self._live.rows_after(self._run_id, self._seq)
        found = self._engine.store.load(self._run_id)
        return found and (found[0], [row for row in found[1] if row.seq > self._seq])

    def _emitted(self) -> list[Event]:
        if self._live is None:
            return []
        found = self._live.published(self._run_id, self._position)
        self._position = found[-1][0] if found else self._position
        events = (_emitted(position, payload) for position, payload in found)
        return [event for event in events if event is not None and event.seq >= self._from]

    def _event(self, row: Row) -> Event:
        try:
            record = record_of(row)
            body, value = json.loads(row.body), None if row.value is None else json.loads(row.value)
        except (ValueError, TypeError) as error:
            raise Damaged(self._run_id, row.seq, f"it cannot be read ({error})") from error
        state, note = told(record)
        return Event(
            seq=row.seq, at_us=row.at_us, kind=row.kind, step_id=row.step_id, value=value, body=body, call=self._call(record), state=state,
            note=note,
        )  # fmt: skip

    def _call(self, record: rec.Record) -> str:
        """The call that a record of a step speaks of; an outcome without the arguments has those of what began it."""
        if not isinstance(record, STEPS):
            return ""
        args = record.args if record.args is not None else self._args.pop(record.step_id, None)
        if isinstance(record, rec.StepStarted):
            self._args[record.step_id] = args
        return shown_call(record.name, args)


def _emitted(position: int, payload: bytes) -> Event | None:
    """The event of a line; None where it was torn."""
    try:
        seq, at_us, step_id, value = json.loads(payload)
        return Event(seq=int(seq), at_us=int(at_us), kind=EMIT, step_id=str(step_id), value=value, state=EMIT, position=position)
    except (ValueError, TypeError):
        return None


def _pauses() -> Iterator[float]:
    pause_s = BRISK_S
    while True:
        yield pause_s
        pause_s = min(pause_s * 1.5, POLL_S)


def tail(engine: Engine, run_id: str, *, after: int) -> Iterator[Event]:
    """What happened since `after` and what happens, blocking in between, until nobody executes the run and it has ended."""
    follower, pauses = Follower(engine, run_id, after), _pauses()
    with follower.news() as news:
        while True:
            events = follower.look()
            yield from events
            if follower.ended:
                return
            pauses = _pauses() if events else pauses
            news.wait(engine.clock, next(pauses))


async def follow(follower: Follower) -> AsyncIterator[Event]:
    """The same on an event loop."""
    pauses = _pauses()
    with follower.news() as news:
        while True:
            events = follower.look()
            for event in events:
                yield event
            if follower.ended:
                return
            pauses = _pauses() if events else pauses
            await news.wait_async(next(pauses))
