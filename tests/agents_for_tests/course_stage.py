"""A stage on which the same program is played twice: its steps by their usual course, or by the life that knows every case."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import holdfast as hf
from agents_for_tests.sites import HandClock
from crashing import LEASE_S, Crash, loaded
from holdfast.errors import StoreBusy, StoreFailed
from holdfast.life.run import Run, place
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.store import Append, Row, Stale, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

Mode: TypeAlias = Literal["async", "def", "def in async"]
MODES: tuple[Mode, ...] = ("async", "def", "def in async")
OF_ONE_LIFE = ("started_us", "owner", "times_us", "delay_ms", "until_us", "wake_us", "time_us", "traceback", "version")
"""What two lives never have in common."""

ALWAYS_BUSY = 10
"""More often than anybody asks without waiting."""


@dataclass
class Plan:
    """What befalls the store: something before a record is written, or its failure at an append, which may have been written."""

    before: dict[str, Callable[[], object]] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    fails_at: int = 0
    written: bool = False
    appends: int = 0
    broken: bool = False

    def meet(self, batch: Sequence[Append], *, wait: bool) -> bool:
        """Let happen what is to happen now; gives whether the store fails behind this append."""
        for row in (row for one in batch for row in one.rows):
            what = f"{row.kind} {row.step_id}".strip()
            if not wait and self.busy.get(what, 0):
                self.busy[what] -= 1
                raise StoreBusy("store", "on purpose")
            self.before.pop(what, lambda: None)()
        self.appends += 1
        if self.broken or (self.appends == self.fails_at and not self.written):
            self.broken = True
            raise StoreFailed("store", "on purpose")
        return self.appends == self.fails_at


class Planned:
    """A store that a plan befalls."""

    plan: Plan

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        fails = self.plan.meet(batch, wait=wait)
        answers: list[Stale | None] = super().append(batch, wait=wait)  # type: ignore[misc]
        if fails:
            self.plan.broken = True
            raise StoreFailed("store", "on purpose")
        return answers


class PlannedMemory(Planned, MemoryStore):
    """In memory."""


class PlannedSqlite(Planned, SqliteStore):
    """In a file."""


class Stage:
    """One play of a program in one mode; `seen` is all that its code could see."""

    app: hf.Holdfast

    def __init__(self, mode: Mode, path: Path | None = None) -> None:
        self.mode, self.plan, self.seen, self.runs = mode, Plan(), list[object](), ["r"]
        self.task: asyncio.Task[Any] | None = None
        self.thread: threading.Thread | None = None
        self.played: list[Run] = []
        self.clock = HandClock()
        self._path, self._memory, self._died = path, PlannedMemory(), set[str]()

    @property
    def run_id(self) -> str:
        return self.runs[-1]

    def another_run(self) -> None:
        """From here on the program plays another run, and nothing befalls the store."""
        self.runs.append(f"r{len(self.runs)}")
        self.plan = Plan()

    def opened(self) -> Store:
        store: PlannedMemory | PlannedSqlite = self._memory if self._path is None else PlannedSqlite(self._path)
        store.plan = self.plan
        return store

    def step(self, fn: Callable[..., Any], **options: Any) -> Any:
        return hf.step(self._bodied(fn), **options)

    def effect(self, fn: Callable[..., Any], in_doubt: Any = "ask", **options: Any) -> Any:
        return hf.effect(self._bodied(fn), in_doubt=in_doubt, **options)

    def _bodied(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The body in this mode: an async one gives way once before it begins, and once before it ends."""
        if self.mode != "async":
            return fn

        @functools.wraps(fn)
        async def body(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            result = fn(*args, **kwargs)
            await asyncio.sleep(0)
            return result

        return body

    def agent(self, *calls: Callable[[], Any], swallows: bool = False, **options: Any) -> Any:
        """Does this and that in order; what it does is noted, and so is an error, which it may swallow."""

        def blocking() -> int:
            self._begin()
            for call in calls:
                with self._noting(swallows=swallows):
                    self.seen.append(("gave", repr(call())))
            return len(calls)

        async def awaiting() -> int:
            self._begin()
            self.task = asyncio.current_task()
            for call in calls:
                with self._noting(swallows=swallows):
                    given = call()
                    self.seen.append(("gave", repr(await given if inspect.isawaitable(given) else given)))
            return len(calls)

        return hf.agent(name="program", **options)(blocking if self.mode == "def" else awaiting)

    def _begin(self) -> None:
        where = place.get()
        assert where is not None
        self.played.append(where.run)
        self.thread = threading.current_thread()
        with where.run.committer._lock:
            pass  # the thread that has written the claim is done: from here on a run that is alone writes in place

    @contextmanager
    def _noting(self, *, swallows: bool) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.seen.append(told(error))
            if not swallows or not isinstance(error, Exception):
                raise

    def play(self, agent: Any, *args: Any, say: Callable[[hf.Holdfast], object] = lambda app: None) -> None:
        """A life of the run, behind what somebody has to say."""
        with hf.Holdfast(self.opened(), lease=LEASE_S, clock=self.clock) as self.app:
            say(self.app)
            try:
                self.seen.append(("returned", self.app.run(agent, *args, run_id=self.run_id, wait=False)))
            except BaseException as error:  # noqa: BLE001 (what it is, is compared)
                self.seen.append(told(error))

    def dies_once(self) -> None:
        """The agent's process is gone here, as far as its code is concerned, in the first life of each run."""
        if self.run_id not in self._died:
            self._died.add(self.run_id)
            raise Crash

    def goes_on(self, app: hf.Holdfast) -> None:
        """Somebody lets a paused run go on."""
        if app.show(self.run_id).status == "paused":
            app.resume(self.run_id)

    def hear(self) -> None:
        """Letters are read now, and not when the thread for it looks."""
        self.app.engine.keeper.take_letters()

    def stolen(self) -> None:
        """Somebody else, who is dead by now, claims the run."""
        rival = MemoryStore.append if self._path is None else SqliteStore.append
        store: Any = self.opened()
        journal = Journal.load(*loaded(store, self.run_id))
        assert rival(store, [journal.seal([rec.RunResumed(owner="rival", why="a test")], at_us=1)]) == [None]

    def left_over(self) -> list[object]:
        """What runs that execute no more still hold."""
        counts = [(run.in_progress, run.calls, sum(scope.lives for scope in run.scopes), run.journal.pending) for run in self.played]
        kept = [one for run in self.played for one in (run.effects, run.long_steps, run.waiters, run.unawaited) if one]
        return [*(count for count in counts if any(count)), *kept]

    def recorded(self) -> list[object]:
        """All that is stored, but for what no two lives have in common."""
        found = list[object]()
        for run_id in (run_id for run_id in self.runs if self.opened().head(run_id) is not None):
            head, rows = loaded(self.opened(), run_id)
            Journal.load(head, rows)
            found += [(run_id, head.status, head.epoch, head.usd, head.note), *(_plain(row) for row in rows)]
        return found


def _plain(row: Row) -> object:
    return row.seq, row.epoch, row.kind, row.step_id, _pruned(json.loads(row.body)), row.value, row.args


def _pruned(body: Any) -> Any:
    if isinstance(body, list):
        return [_pruned(each) for each in body]
    return {name: _pruned(each) for name, each in body.items() if name not in OF_ONE_LIFE} if isinstance(body, dict) else body


def told(error: BaseException) -> object:
    """What code can see of an error; what unwinds it has a cause that depends on which thread had written."""
    cause = error.__cause__ if isinstance(error, Exception) else None
    notes = [note for note in getattr(error, "__notes__", []) if not note.startswith("here a command needs")]  # each has its own store
    return "raised", type(error).__name__, repr(error.args), tuple(notes), type(cause).__name__, getattr(error, "__holdfast_step__", None)
