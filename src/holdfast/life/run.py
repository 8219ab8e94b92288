"""A run while it executes here, and the places in it from which code may speak to it.

`Run` is one run in one process: its journal, the order of its outcomes, what rides on its next commit. A `Scope` is a line of execution
that numbers its own steps: the agent itself, or one branch of a gather. A `Body` is the inside of a step. The context variable says
in which of them the current code is.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from holdfast._clock import Clock
from holdfast._ids import effect_key, seeded, uuid_from
from holdfast.errors import Cancelled, HoldfastError, NotKept, Parked, Stopped, UndecodableResult, Unwinding
from holdfast.life.commit import Committer
from holdfast.life.mail import Mail
from holdfast.life.metering import Supply
from holdfast.life.riders import Riders
from holdfast.life.staying import LOOK_S, Stay
from holdfast.life.turnstile import Turnstile
from holdfast.life.waiters import Parking, Waiter
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.ledger import Outlay
from holdfast.records.models import OnModelChange
from holdfast.records.replay import CANCEL, CLEANUP, QUESTION, UNDO

if TYPE_CHECKING:
    from holdfast.life.calls import Call
    from holdfast.life.watch import Watched
    from holdfast.store import Transaction
    from holdfast.verbs.decorators import Agent


OnAsk: TypeAlias = Callable[[str, str, str, Any], object]
"""Called with run id, question id, question and details of every new question."""

log = logging.getLogger("holdfast")

LETTER_GRACE_US = 1_000_000
"""How long an answer or a message that was posted in time may be under way: it beats the clock."""

MESSAGE = "message:"
"""How that begins what a step waits for that wants a message; its name follows."""

A_TIME = "a time"
"""What a sleep waits for."""

PARK_CHECK_S = 0.05
"""After a step or branch ended beside others that wait, how long its code has before the run is looked at for parking."""

UNWIND_S = 0.05
"""How long the main line of a run that is unwound has to notice by itself."""

EDGE_S = 0.2
"""How often it is looked whether a run that is to be undone knows all that it did."""


class Place:
    """Where code is: in a scope or in a body."""

    __slots__ = ("run",)
    run: Run


class TimeOut(Protocol):
    """A time-out around code: `fired` once it cancels, `doomed` where the journal says that it will."""

    step_id: str
    seq: int
    fired: bool
    doomed: bool

    def due(self) -> bool:
        """Whether it should fire now."""

    def deadline_us(self) -> int:
        """When its time is over."""

    def over(self) -> TimeoutError:
        """What is raised where it has fired."""


class Scope(Place):
    """One line of execution with its own numbers: `path` is empty for the agent, "12.1" for branch 1 of the gather at 12."""

    __slots__ = (
        "blocks", "calls", "count", "doomed", "doubts", "lives", "lost", "parent", "path", "states", "stream", "task", "times",
    )  # fmt: skip

    def __init__(self, run: Run, path: str, parent: Scope | None, *, doomed: bool = False) -> None:
        self.run, self.path, self.parent, self.doomed = run, path, parent, doomed
        self.count = self.lives = self.doubts = self.times = self.states = 0
        self.lost = ""
        self.calls: dict[str, int] = {}
        self.blocks: list[TimeOut] = []
        self.stream: random.Random | None = None
        self.task = here()
        run.scopes.append(self)
        if parent is not None and parent.lost:
            self.lost = parent.lost  # what a branch that has lost begins is as lost

    def reserve(self) -> str:
        """The id of the next step of this scope."""
        self.count += 1
        return f"{self.path}.{self.count}" if self.path else str(self.count)

    def next_id(self) -> str:
        """The same for the line of execution that this scope belongs to; empty for any other."""
        return self.reserve() if self.task is here() else ""

    def reserve_call(self, call_id: str) -> str:
        """The id of a call that brings its own identity, within the reply that asked for it."""
        reply = f"{self.path}.{self.count}" if self.path else str(self.count)
        place = f"{reply}:{call_id}"
        index = self.calls[place] = self.calls.get(place, 0) + 1
        return place if index == 1 else f"{place}#{index}"

    def mine(self) -> bool:
        """Whether the code that asks is the line of execution that this scope belongs to."""
        return self.task is here()

    def line(self) -> Iterator[Scope]:
        """This scope and those it is a branch of, the nearest first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def time_outs(self) -> list[TimeOut]:
        """The time-outs around this code, the nearest first."""
        return [block for scope in self.line() for block in reversed(scope.blocks)]

    def cause(self) -> str:
        """The recorded thing that is cancelling this scope, or nothing."""
        for scope in self.line():
            for block in scope.blocks:
                if block.fired:
                    return block.step_id
            if scope.lost:
                return scope.lost
        above = self.run.above
        return CANCEL if self.run.cancelling is not None or (above is not None and above.cause()) else ""

    def guarded(self) -> bool:
        """Whether anything around this code could keep a step from beginning."""
        run = self.run
        at_scope = self.parent is not None or self.blocks or self.doomed or self.lost
        return bool(at_scope or run.unchecked or run.cancelling or run.journal.models.open or run.undo.asked or run.leaving)

    def to_be_cancelled(self) -> bool:
        """Whether the journal holds the cancellation of this scope: what has no outcome by then never had one."""
        return any(
            (scope.doomed and not scope.lost) or any(block.doomed and not block.fired for block in scope.blocks) for scope in self.line()
        )

    def random(self) -> random.Random:
        """The seeded stream of this scope."""
        if self.stream is None:
            self.stream = seeded(self.run.seed, f"scope {self.path}")
        return self.stream

    def close(self) -> None:
        """This line of execution has ended."""
        self.run.scopes.remove(self)
        self.run.turnstile.come_back(self)
        self.run.park_soon()


class Group:
    """Branches that belong together while their scope waits for them; at most `limit` are under way at once."""

    __slots__ = ("begun", "ended", "limit", "scope", "total")

    def __init__(self, scope: Scope, total: int, limit: int) -> None:
        self.scope, self.total, self.limit = scope, total, limit
        self.begun = self.ended = 0

    def can_begin(self) -> bool:
        """Whether a branch is about to begin, which has not had its chance to do anything."""
        return self.begun < self.total and self.begun - self.ended < self.limit

    def __enter__(self) -> Self:
        run = self.scope.run
        run.committer.enter(self.total)
        run.branches += self.total
        run.groups.append(self)
        run.turnstile.come_back(self.scope)
        return self

    def __exit__(self, *_: object) -> None:
        run = self.scope.run
        run.groups.remove(self)
        run.branches -= self.total
        run.committer.enter(-self.total)


class Body(Place):
    """The inside of a step: what may be repeated, and what must not be called from here."""

    __slots__ = ("at_once", "call", "over", "partials", "stream", "transaction", "usage")

    def __init__(self, call: Call) -> None:
        self.run, self.call = call.run, call
        self.usage: list[rec.Json] = []
        self.partials, self.over = 0, False
        self.at_once = False  # whether others rely on what it did: its outcome is not held back
        self.stream: random.Random | None = None
        self.transaction: Transaction | None = None

    def random(self) -> random.Random:
        """A stream that derives from the step's key: the same in every attempt."""
        if self.stream is None:
            self.stream = seeded(self.run.seed, f"body {self.run.branch_of(self.call.step_id)}")
        return self.stream


place: contextvars.ContextVar[Place | None] = contextvars.ContextVar("holdfast_place", default=None)
plain: contextvars.ContextVar[bool] = contextvars.ContextVar("holdfast_plain", default=False)
active: set[Run] = set()
"""The runs that execute in this process now: a step that sees none of them has lost its context."""


def here() -> object:
    """The task, or outside an event loop the thread, that executes this very line."""
    loop = asyncio._get_running_loop()  # noqa: SLF001 (exported for those who look without an exception, which cost a step a hundredth)
    return (asyncio.current_task(loop) if loop is not None else None) or threading.current_thread()


class Undoing:
    """What it takes to undo a run: who asked for it, and the calls that can be undone, in the order in which the code made them."""

    __slots__ = ("asked", "calls")

    def __init__(self, asked: rec.RunUndoing | None) -> None:
        self.asked = asked
        self.calls: dict[str, Call] = {}


class Nest(Protocol):
    """What a run needs to have runs inside it."""

    def call(self, agent: Agent[..., Any], scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent as a child run."""

    def drop(self, call: Call, child: str) -> None:
        """Cancel a child whose call was cancelled."""

    def close(self, run: Run) -> None:
        """The run is over: cancel what it has begun inside and not finished."""


class Run:
    """One run, while this process executes it."""

    def __init__(
        self,
        *,
        journal: Journal,
        committer: Committer,
        clock: Clock,
        blocking: bool,
        resources: Sequence[object] = (),
        lease_s: float = 0.0,
        on_model_change: OnModelChange = "warn",
        on_ask: OnAsk | None = None,
        stay: Stay | None = None,
        nest: Nest | None = None,
        above: Scope | None = None,
    ) -> None:
        assert journal.started is not None
        self.journal, self.committer, self.clock = journal, committer, clock
        self.blocking, self.resources, self.started = blocking, resources, journal.started
        self.lease_s, self.on_model_change, self.origin = lease_s, on_model_change, journal.started.origin
        self.scopes: list[Scope] = []
        self.groups: list[Group] = []
        self.in_progress = self.branches = self.calls = 0
        self.requested: set[str] = set()
        self.long_steps: dict[str, tuple[Call, int]] = {}  # with its attempt, or 0 once it has been shown
        self.riders = Riders()
        self.mail = Mail(set(journal.taken), journal.unread.values())
        self.stay = stay or Stay(clock)
        self.on_ask, self.nest, self.above = on_ask, nest, above
        self.children: dict[str, Run] = {}  # those that execute now, by their step
        self.outlays: dict[str, Callable[[], Outlay]] = {}
        self.parked: dict[str, Parking] = {}
        self.started_here: list[asyncio.Task[Any]] = []
        self.listen: Callable[[], None] = lambda: None  # take the letters that came since
        self.unwanted: dict[str, Cancelled] = {}  # steps whose child runs the code has cancelled
        self.awaits: set[str] | None = None
        self.keys: dict[str, tuple[str, str, str]] = {}
        self.cleanups: list[tuple[Callable[..., object], tuple[object, ...], dict[str, object]]] = []
        self.waiters: list[Waiter] = []
        self.ended: Unwinding | None = None
        self.left_by: BaseException | None = None  # Ctrl-C in a group of branches, whatever the code makes of it
        self.cancelling: Cancelled | None = None
        self.leaving: rec.RunReleased | rec.RunPaused | None = None  # what is recorded once no step is under way
        self.undo = Undoing(journal.undoing)
        self.concluding = self.was_cancelled = self.in_worker = self.holding = False  # holding: outcomes may wait for the next flush
        self.heard: set[int] = set()
        self.taking: list[int] = []
        self.stale: list[int] = []
        self.root: asyncio.Task[object] | None = None
        self.root_cancels = self.wakes_us = self.telling = 0  # telling: words of others on their way into the journal
        self.effects: set[str] = set()
        self._look_back()
        self.recorded_seq = journal.head.seq
        self.seed = self.origin if journal.continued is None else f"{self.origin}~{journal.continued.generation}"
        self.agent: Agent[..., Any] | None = None
        self.draw: Callable[[Mapping[str, float], str], Supply] = lambda _, __: Supply({}, 0.0)  # of resources
        self.unawaited: dict[str, tuple[str, Coroutine[Any, Any, Any]]] = {}
        self.watching: dict[str, Watched] = {}
        self.watch_calls: dict[str, int] = {}
        self.unchecked = dict.fromkeys(journal.prints, False)  # True while a branch compares it
        self.lock = threading.Lock()

    def _look_back(self) -> None:
        """What is recorded, and the order in which it is given back."""
        self.turnstile = Turnstile(
            self.journal.outcomes(), alone=self._alone, boundary=self._boundary, resumed=self.journal.resumed
        )
        self.recorded = {step_id for step_id, history in self.journal.histories.items() if history.name}
        self.traces = {step_id for step_id, history in self.journal.histories.items() if history.lost}

    def retrace(self) -> None:
        """The code has not begun and the run is to be undone: on the path that was taken, failures included."""
        if self.journal.retrace():
            self._look_back()

    @property
    def id(self) -> str:
        return self.journal.head.run_id

    def check(self) -> None:
        """Raise what takes this run down, if something does."""
        if self.ended is not None:
            raise self.ended
        if self.cancelling is not None:
            raise self.cancelling

    def stop(self, error: HoldfastError) -> Stopped:
        """End the run here with an error that agent code cannot swallow; whoever waits is unwound too."""
        if not isinstance(self.ended, Stopped):
            self.ended = Stopped(error)
            self.unwind(self.ended)
        return self.ended

    def unwind(self, outcome: Unwinding) -> None:
        """Take everything down that waits; the main line too, if it waits for something that will not come any more."""
        self.ended = self.ended or outcome
        self.turnstile.open()
        for waiter in list(self.waiters):
            waiter.wake(outcome)
        root = self.root
        if root is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
                root.get_loop().call_soon_threadsafe(self._unwind_root, root)

    def _unwind_root(self, root: asyncio.Task[object]) -> None:
        """Cancel the main line when nothing that still runs could wake it; a body under way may come to its end."""
        self.turnstile.go_on()
        if self.in_progress:
            root.get_loop().call_later(UNWIND_S, self._unwind_root, root)
        else:
            root.get_loop().call_later(UNWIND_S, self.cancel_root, root)

    def cancel_root(self, root: asyncio.Task[object]) -> None:
        """Cancel the main line, on its own loop, if it has not ended."""
        if self.root is root and not root.done():
            self.root_cancels += 1
            root.cancel()

    def leave(self, record: rec.RunReleased | rec.RunPaused, *, at_once: bool = False) -> None:
        """Begin no step any more, and let go of the run once those under way have ended; at once, they are broken off. From any thread."""
        with self.lock:
            if not isinstance(self.leaving, rec.RunPaused):  # who was told to pause by somebody is not let go of instead
                self.leaving = record
        for child in list(self.children.values()):
            child.leave(self.leaving_below() or record, at_once=at_once)
        root = self.root
        with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
            if root is not None:
                root.get_loop().call_soon_threadsafe(*((self.cancel_root, root) if at_once else (self.park_soon,)))

    def leaving_below(self) -> rec.RunReleased | None:
        """What is recorded in a child run that is left with this one: it goes on when this one does, and is not paused by itself."""
        if not isinstance(self.leaving, rec.RunPaused):
            return self.leaving
        why = f": {self.leaving.reason}" if self.leaving.reason else ""
        return rec.RunReleased(reason=f"run {self.id}, which called it, was paused by {self.leaving.by}{why}")

    def end_when_known(self, root: asyncio.Task[object]) -> None:
        """Undo without waiting for what the code may wait for on its own, behind the last that was recorded; called on its loop."""
        if self.root is not root or self.ended is not None or self.undo.asked is None:
            return
        if self.knows_all():
            self.unwind(Parked())
        else:
            root.get_loop().call_later(EDGE_S, self.end_when_known, root)

    def solo(self) -> bool:
        """Whether nothing else in this process could share a flush with this run."""
        return self.committer.lanes <= 1 and self.in_progress <= 1

    def key_of(self, step_id: str) -> str:
        generation, forked = self.journal.generation, self.journal.forked
        origin = self.origin if forked is None else forked.origin
        return effect_key(origin, f"{step_id}~{generation}" if generation else step_id)

    def sending_key(self, call: Call) -> str:
        """The key of a message that a step sends: the same one again, after a crash or on another branch of the run, is that message."""
        return effect_key(self.seed, f"{call.step_id} {call.fingerprint}")

    def branch_of(self, step_id: str) -> str:
        """The step, told apart from the one with that id on paths that were given up; one that had begun before is what it was."""
        turned, history = self.journal.turned, self.journal.histories.get(step_id)
        if turned is None or (history is not None and 0 < history.first_seq <= turned.after):
            return step_id
        return self.key_of(step_id)

    def with_riders(self, records: Sequence[rec.Record]) -> Sequence[rec.Record]:
        """The records, behind whatever rides on them."""
        return [*self.riders.take(replaying=self.turnstile.replaying), *records] if self.riders.any() else records

    def flush(self) -> None:
        """Write what is held back and what rides, blocking until it is durable."""
        with self.lock:
            self.committer.flush(self.journal, self.with_riders(()))

    def _alone(self) -> bool:
        return not self.branches and self.calls <= 1

    def _boundary(self, seq: int) -> None:
        """Between branches the states are what the code makes of them: what was saved there was looked at before other outcomes came."""
        if seq <= self.recorded_seq and self._alone():
            try:
                self.riders.set_states(seq)
            except (ValueError, NotKept) as error:  # it was checked before anything was overwritten
                self._refuse_state(error)

    def _refuse_state(self, error: Exception) -> None:
        """A recorded state does not fit: the run is blocked at its next step."""
        turned = self.journal.turned
        if not isinstance(turned, rec.StateEdited):
            self.stop(UndecodableResult(self.id, "", "hf.state", str(error)))
            return
        why = f"{turned.by} edited it: {error}. Edit it again: holdfast edit {self.id} --state {turned.step_id} --at {turned.at}"
        self.stop(UndecodableResult(self.id, turned.at, "hf.state", why))

    def at_live_edge(self) -> bool:
        """Whether everything recorded has been asked for and given back."""
        return not self.turnstile.replaying and self.recorded <= self.requested

    def knows_all(self) -> bool:
        """Whether the code has asked for everything recorded that an undo may concern; to what a repair had found, it may never come."""
        asked_for = (step_id in self.requested or step_id.startswith((UNDO, CLEANUP)) for step_id in self.recorded - self.traces)
        return not self.turnstile.replaying and all(asked_for)

    def read_time(self, scope: Scope) -> int:
        """The recorded time of this reading, or the time now, which rides on the next commit."""
        recorded = self.journal.times.get(scope.path, ())
        index, scope.times = scope.times, scope.times + 1
        if index < len(recorded):
            return recorded[index]
        now_us = self.clock.now_us()
        self.riders.times.setdefault(scope.path, []).append(now_us)
        return now_us

    def park_soon(self) -> None:
        """Look whether the run has to park, once the code that goes on has had its chance."""
        if not self.waiters:
            return
        if self.blocking:
            self.park_if_stuck()
        else:
            asyncio.get_running_loop().call_later(PARK_CHECK_S, self.park_if_stuck)

    def park_if_stuck(self) -> None:
        """Unwind the code when nothing is left to do but to wait, and it has stayed in place as long as it may; for a child, not at all."""
        if self.ended is None and self.stuck():
            if self.leaving is None and not self.parked and not self.stay.over() and not (self.blocking and self._is_due()):
                self._look_again()
                return
            self.awaits = {name for waiter in self.waiters for name in (waiter.step_id, waiter.place)}
            self.wakes_us = self.wake_us()
            self.unwind(Parked())

    def _look_again(self) -> None:
        """Threads that wait look by themselves."""
        if not self.blocking and not self.stay.looking:
            self.stay.looking = True
            asyncio.get_running_loop().call_later(LOOK_S, self._looked_again)

    def _looked_again(self) -> None:
        self.stay.looking = False
        self.park_if_stuck()

    def _is_due(self) -> bool:
        return any(block.due() for scope in self.scopes for block in scope.blocks)

    def stuck(self) -> bool:
        """Whether every line of execution that is known waits for a person, no step runs, and no time-out is about to fire."""
        if not self.waiters or any(group.can_begin() for group in self.groups):
            return False
        if any(waiter.event.is_set() for waiter in self.waiters):
            return False  # one was woken, and has yet to go on
        if not self.blocking and self._is_due():
            return False  # among threads nothing fires by itself: the step that waits is begun anew, and finds its time over
        joining = {id(group.scope) for group in self.groups if group.begun > group.ended}
        return all(scope.lives == scope.doubts and (scope.doubts > 0 or id(scope) in joining) for scope in self.scopes)

    def wake_us(self) -> int:
        """When the run has something to do even if nobody answers: the end of a time-out or of a question's time."""
        ends = [block.deadline_us() for scope in self.scopes for block in scope.blocks]
        asked = [question.opened.until_us for ask_id, question in self.journal.open_asks() if self._is_awaited(ask_id)]
        ends += [until_us + LETTER_GRACE_US for until_us in asked if until_us]
        ends += [wait.until_us + self._grace_us(wait) for wait in self.open_waits().values() if wait.until_us]
        ends += [parking.wake_us for parking in self.parked.values() if parking.wake_us]
        return min(ends, default=0)

    def _is_awaited(self, name: str) -> bool:
        """Whether some line of execution waits for this; where the run did not come to a standstill, it may be about to."""
        return self.awaits is None or name in self.awaits

    def open_waits(self) -> dict[str, rec.WaitBegun]:
        """The times and messages that the code waits for; once the run is undone, it waits for none."""
        begun = {} if self.undo.asked is not None else self.journal.waits
        return {step_id: wait for step_id, wait in begun.items() if self._is_awaited(step_id)}

    def unwanted_asks(self) -> list[str]:
        """The open questions of steps that the code has gone on without."""
        asked = self.journal.open_asks()
        return [ask_id for ask_id, one in asked if one.opened.topic in (QUESTION, "approval") and not self._is_awaited(ask_id)]

    def notify(self, ask_id: str) -> None:
        """Tell whoever wants to know of questions; again after a crash that came before the run parked with it."""
        question = self.journal.asks[ask_id]
        if self.on_ask is None or question.told or not question.is_open():
            return
        question.told, opened = True, question.opened
        try:
            self.on_ask(self.id, ask_id, opened.question, opened.details)
        except Exception:
            log.exception("on_ask failed for question %s of run %s; the run waits all the same", ask_id, self.id)

    def _grace_us(self, wait: rec.WaitBegun) -> int:
        return 0 if wait.what == A_TIME else LETTER_GRACE_US

    def has_mail_for(self, what: str) -> bool:
        """Whether the message that is waited for is there."""
        return what.startswith(MESSAGE) and self.mail.first(what.removeprefix(MESSAGE)) is not None

    def spoken(self, about: str) -> bool:
        """Whether what somebody waits for has come: a word about a step, an answer, a message."""
        return self.journal.spoken(about) or self.has_mail_for(about)

    def beyond(self) -> Outlay:
        """What the child runs under way have spent that is not recorded here yet."""
        spent = Outlay()
        for run_id, outlay in list(self.outlays.items()):
            spent = spent.plus(outlay()).plus(self.journal.ledger.charged.get(run_id, Outlay()), -1)
        return spent

    def outlay(self) -> Outlay:
        """What this run and those below it have spent."""
        return self.journal.ledger.outlay().plus(self.beyond())

    def heed(self) -> None:
        """In a `def` run: what cancels the line of execution that called this run cancels it, at its next step."""
        if self.above is not None and self.blocking and self.cancelling is None and self.above.cause() and not self.concluding:
            self.cancelling = self.cancelled_from_above()

    def cancelled_from_above(self) -> Cancelled:
        """What is recorded where the step that called this run is cancelled."""
        assert self.above is not None
        cause = self.above.cause()
        why = "it was cancelled" if cause == CANCEL else f"the step that called it was cancelled by step {cause}"
        return Cancelled(f"run {self.above.run.id}", why)

    def draw_uuid(self, where: Scope | Body) -> uuid.UUID:
        return uuid_from(where.random())
