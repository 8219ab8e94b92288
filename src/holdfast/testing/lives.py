"""Processes that die on demand: the store as one simulated process sees it, the clock they share, and the points at which they die.

A life is one opened store. Its death is a moment after which the store takes nothing from it any more, reads included, and its owner
is proven dead to everybody else. The code is unwound then, because there is no other way to leave it in one and the same process; whatever
it does on its way out cannot be recorded.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.errors import NotKept, Stopped, StoreFailed
from holdfast.large.packed import below
from holdfast.life import drive
from holdfast.life.calls import Call
from holdfast.life.run import A_TIME, Body, Run
from holdfast.records import kinds as rec
from holdfast.records.replay import QUESTION
from holdfast.store import Append, Pulse, Row, Stale, Store

Where: TypeAlias = Literal["before", "inside", "after"]

BEGINNING_US = 1_893_456_000_000_000
"""The first of January 2030 in UTC: always the same, so that no test depends on the day."""


class Crashed(Exception):
    """The simulated process died, and the test wanted no other to go on."""

    def __init__(self, run_id: str, point: str) -> None:
        self.run_id, self.point = run_id, point
        super().__init__(run_id, point)

    def __str__(self) -> str:
        return f"run {self.run_id!r} crashed {self.point}, as the test wanted; run it again to go on"


class Point(NamedTuple):
    """A place where a process may die: before, inside or after a step, an effect, a wait or the agent, for the nth time."""

    where: Where
    name: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.where} {self.name}{f' (time {self.nth})' if self.nth > 1 else ''}"


class RigClock:
    """Time that stands still unless somebody advances it; sleeping takes none, and advances it."""

    def __init__(self, at_us: int = BEGINNING_US) -> None:
        self.at_us = at_us
        self._lock = threading.Lock()

    def now_us(self) -> int:
        return self.at_us

    def monotonic_s(self) -> float:
        return self.at_us / 1e6

    def sleep(self, duration_s: float) -> None:
        with self._lock:
            self.at_us += max(0, round(duration_s * 1e6))

    def reach(self, at_us: int) -> None:
        """Advance to a moment; one that has passed changes nothing."""
        with self._lock:
            self.at_us = max(self.at_us, at_us)


class Execution(NamedTuple):
    """A body of an effect that came to its end, whatever became of the process: what it did is done."""

    run_id: str
    step_id: str
    name: str
    key: str
    action: str
    value: Any
    """Its result as JSON."""


@dataclass(slots=True)
class Log:
    """What all lives of one rig saw: points they reached, bodies they began, owners that died, and where the next ones must die."""

    clock: RigClock
    armed: list[Point] = field(default_factory=list)
    reached: list[Point] = field(default_factory=list)
    times: Counter[tuple[Where, str]] = field(default_factory=Counter)
    begun: Counter[str] = field(default_factory=Counter)
    done: list[Execution] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, where: Where, name: str) -> Point | None:
        """Note that a point is reached; given back where a process must die there."""
        with self.lock:
            self.times[where, name] += 1
            point = Point(where, name, self.times[where, name])
            self.reached.append(point)
            if point not in self.armed:
                return None
            self.armed.remove(point)
            return point


class Life:
    """The store as one simulated process sees it; what it is told goes on to the real one as long as the process lives."""

    def __init__(self, store: Store, log: Log) -> None:
        self.store, self.log, self.enrolled = store, log, set[str]()
        self.url, self.inline = store.url, store.inline
        self.died: Point | None = None

    def alive(self) -> Store:
        """The real store; a dead process has none."""
        if self.died is not None:
            raise StoreFailed(self.url, f"this process is dead: it crashed {self.died}")
        return self.store

    def pass_point(self, where: Where, name: str) -> None:
        """Go on, or die here; in a process that is dead already, nothing begins or ends any more."""
        self.alive()
        point = self.log.reach(where, name)
        if point is not None:
            self.died = point
            self.log.dead |= self.enrolled
            self.alive()

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        store = self.alive()
        for where, name in _points(batch, BEFORE_WRITING):
            self.pass_point(where, name)
        answers = store.append(batch, wait=wait)
        written = [append for append, stale in zip(batch, answers, strict=True) if stale is None]
        self.log.begun.update(name for append in written for row in append.rows for name in _begins(append, row))
        for where, name in _points(written, AFTER_WRITING):
            self.pass_point(where, name)
        return answers

    def enroll(self, owner: str) -> None:
        self.enrolled.add(owner)
        self.alive().enroll(owner)

    def renew(self, owner: str) -> None:
        if self.died is None:
            self.store.renew(owner)

    def retire(self, owner: str) -> None:
        if self.died is None:
            self.store.retire(owner)

    def pulse(self, owner: str) -> Pulse | None:
        pulse = self.alive().pulse(owner)
        return Pulse(pulse.beat if pulse else 0, dead=True) if owner in self.log.dead else pulse

    def close(self) -> None:
        """The real store stays open for the next life."""


def life_on(store: Store, log: Log) -> Life:
    """A new process on this store, with whatever abilities beyond those of every store it has."""
    more = [name for name in dir(type(store)) if not name.startswith("_") and not hasattr(Life, name)]
    forwarded = {name: _forwarding(name) for name in more if callable(getattr(type(store), name))}
    kind: type[Life] = type("Life", (Life,), forwarded)
    drive.witness = WITNESS
    return kind(store, log)


def _forwarding(name: str) -> Callable[..., Any]:
    def forward(life: Life, *args: Any, **kwargs: Any) -> Any:
        return getattr(life.alive(), name)(*args, **kwargs)

    return forward


def _names(append: Append, row: Row) -> str:
    """What a row is about, by the name under which a test knows it."""
    body = json.loads(row.body)
    match row.kind:
        case rec.RunResumed.kind if not body.get("owner"):
            return ""  # an operator's verb: no code is executed
        case rec.RunStarted.kind | rec.RunResumed.kind | rec.RunDone.kind:
            return append.head.agent
        case rec.StepDone.kind | rec.StepFailed.kind:
            return str(body["name"])
        case rec.AskOpened.kind:
            return "ask" if body.get("topic") == QUESTION else ""
        case rec.WaitBegun.kind:
            return "sleep" if body["what"] == A_TIME else "receive"
    return ""


BEFORE_WRITING: dict[str, Where] = {rec.RunDone.kind: "inside", rec.AskOpened.kind: "before", rec.WaitBegun.kind: "before"}
AFTER_WRITING: dict[str, Where] = {
    rec.RunStarted.kind: "before", rec.AskOpened.kind: "inside", rec.WaitBegun.kind: "inside",
    rec.StepDone.kind: "after", rec.StepFailed.kind: "after", rec.RunDone.kind: "after",
}  # fmt: skip
BEGINNINGS = (rec.RunStarted.kind, rec.RunResumed.kind, rec.AskOpened.kind, rec.WaitBegun.kind)


def _points(batch: Sequence[Append], table: dict[str, Where]) -> Iterator[tuple[Where, str]]:
    for append in batch:
        for row in append.rows:
            if row.kind in table and (name := _names(append, row)):
                yield table[row.kind], name


def _begins(append: Append, row: Row) -> list[str]:
    name = _names(append, row) if row.kind in BEGINNINGS else ""
    return [name] if name else []


class _Witness:
    """Sees the bodies of runs that a rig plays, and of no others."""

    def body(self, body: Body, fn: Callable[..., Any]) -> Callable[..., Any]:
        life = below(body.run.committer.store)
        return _watched(life, body, fn) if isinstance(life, Life) else fn

    def pause_s(self, run: Run, seconds: float) -> float:
        if not isinstance(below(run.committer.store), Life):
            return seconds
        run.clock.sleep(seconds)
        return 0.0


WITNESS = _Witness()


def _execution(call: Call, result: Any) -> Execution:
    value: bytes | None = None
    with contextlib.suppress(NotKept):
        value, _ = call.spec.codec().keep(result)
    action = type(call.spec.in_doubt).__name__.lower()
    return Execution(call.run.id, call.step_id, call.spec.name, call.key, action, json.loads(value or b"null"))


def _watched(life: Life, body: Body, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, counted, between the two points at which the process may die."""
    call = body.call
    itself = fn is call.spec.fn
    name = call.spec.name if itself else getattr(fn, "__name__", type(fn).__name__)

    def at(where: Where) -> None:
        try:
            life.pass_point(where, name)
        except StoreFailed as dead:
            raise Stopped(dead) from None

    def ended(result: Any) -> Any:
        if itself and call.spec.in_doubt is not None:
            life.log.done.append(_execution(call, result))
        at("inside")
        return result

    async def awaited(result: Awaitable[Any]) -> Any:
        return ended(await result)

    def called(*args: Any, **kwargs: Any) -> Any:
        at("before")
        life.log.begun[name] += 1
        result = fn(*args, **kwargs)
        return awaited(result) if inspect.isawaitable(result) else ended(result)

    return called
