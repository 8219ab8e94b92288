"""Drive one run until it is done, waiting or failed.

`attend` is the life of a run in this process, again as a generator of commands: take it (or wait for whoever has it), play it, and if it
waits for a person, come back when something has changed. It is written once; `attend_async` and `attend_blocking` carry it out.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from . import _records as rec
from ._answers import harmless
from ._artifact import Desk, at_desk, desk
from ._calls import Call, shown_call
from ._chain import CHILD_OF, args_digest
from ._clock import Clock, to_datetime
from ._commands import Pause
from ._commit import Committer
from ._decorators import Agent
from ._drive import drive_async, drive_blocking
from ._ending import Raised, Returned, concluded
from ._failpoints import reach
from ._journal import Journal
from ._lease import CHILD, Keeper, Observer, deliver
from ._ledger import recorded
from ._letters import matters, tell_parent
from ._replay import UNDO
from ._run import EDGE_S, Group, Nest, OnAsk, Parking, Run, Scope, active, place
from ._staying import Stay
from .budget import Budget
from .codec.fingerprint import fingerprint
from .errors import (
    Continued,
    Damaged,
    LeaseLost,
    Parked,
    Refusal,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunInterrupted,
    RunPruned,
    RunRepaired,
    RunWaiting,
    Stopped,
    UndecodableResult,
    Unwinding,
)  # fmt: skip
from .store import Head, Prunable, Store

POLL_S = 0.05
"""How often a process looks whether the run it waits for has moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What all runs of one opened store share."""

    store: Store
    clock: Clock
    committer: Committer
    keeper: Keeper
    observer: Observer
    resources: Sequence[object]
    lease_s: float
    on_ask: OnAsk | None = None
    park_after_s: float = 0.0
    nest: Callable[[Engine, Agent[..., Any]], Nest] | None = None


class Voice(Protocol):
    """Somebody at hand who may be asked while the run waits."""

    def put(self, run_id: str) -> bool:
        """Show what the run asks; False where there is nothing to show, or nobody listens."""

    def look(self) -> None:
        """Take what was said meanwhile, without waiting for it."""


@dataclass(slots=True)
class Nested:
    """The call of a step that is a run of its own, and what is known of that run once somebody has looked."""

    call: Call
    journal: Journal | None = None

    def entered(self, taken: Run | Journal) -> None:
        """The child was taken up, or had ended."""
        run, step_id = self.call.run, self.call.step_id
        self.journal = taken.journal if isinstance(taken, Run) else taken
        run.outlays[self.journal.head.run_id] = taken.outlay if isinstance(taken, Run) else taken.ledger.outlay
        if isinstance(taken, Run):
            run.children[step_id] = taken
            taken.cancelling = run.unwanted.get(step_id)

    def origin(self) -> str:
        """The root of the child's keys: another one in every branch of its parent's history."""
        journal = self.call.run.journal
        root = self.call.run.origin if journal.forked is None else journal.forked.origin
        return f"{root}/{self.call.step_id}{f'~{journal.generation}' if journal.generation else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What somebody wants to have run."""

    agent: Agent[..., Any]
    run_id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    budget: Budget | None = None
    wait: bool = True
    recorded_arguments: bool = False
    voice: Voice | None = None
    park_after_s: float | None = None
    nested: Nested | None = None
    undo: rec.RunUndoing | None = None

    def undoes(self, journal: Journal) -> bool:
        """Whether the run is taken up to be undone, whatever its end was, which nobody has begun yet."""
        return self.undo is not None and journal.undoing is None

    def fingerprint(self) -> str:
        return fingerprint(self.agent.arguments.bind(self.args, self.kwargs))

    def encoded(self) -> bytes:
        return self.agent.orders.keep(self.args, self.kwargs)


class Claim(NamedTuple):
    """Make records durable for a run that nobody plays yet; `LeaseLost` is thrown in where somebody else was faster."""

    journal: Journal
    records: Sequence[rec.Record]


class Play(NamedTuple):
    """Execute the agent in this run; the answer is its result, the error that ended it is thrown in."""

    run: Run


Errand: TypeAlias = Generator[Pause | Claim | Play, Any, Any]


def attend(engine: Engine, order: Order) -> Errand:
    """From the order to its result, through whatever waits the run has in it."""
    announced, taken, parking = "", None, Parking(order.run_id, "", 0, set())
    while True:
        try:
            taken = yield from _acquire(engine, order)
            _tell_above(engine, order, taken)
            return (yield Play(taken)) if isinstance(taken, Run) else _result(engine, order, taken)
        except Continued:
            continue
        except RunWaiting as waiting:
            waiting.parking = parking = _parking(order, taken, waiting) if isinstance(taken, Run) else parking
            if not order.wait:
                raise
            shown = order.voice is not None and any(order.voice.put(one.run_id) for one in parking.family())
            if not shown and announced != waiting.waits:
                announced = waiting.waits
                sys.stderr.write(f"holdfast: {harmless(waiting.while_it_waits())}\n")
        except Stopped as stopped:
            raise stopped.error from stopped
        finally:
            engine.keeper.let_go(order.run_id, order)
        yield from _until_moved(engine, order, parking)


def _tell_above(engine: Engine, order: Order, taken: Run | Journal) -> None:
    """Let the run that waits for this one know, before it goes on: its step, or where its parent is not here, with a letter."""
    if order.nested is not None:
        order.nested.entered(taken)
    elif isinstance(taken, Run):
        try:
            tell_parent(engine.store, engine.clock, taken.journal)
        except BaseException:  # it does not go on then: nobody plays what was claimed
            engine.committer.enter(-1)
            engine.keeper.orphans.add(order.run_id)
            raise


async def attend_async(engine: Engine, order: Order) -> Any:
    """Carry out `attend` on the event loop."""
    errand = attend(engine, order)
    try:
        command = next(errand)
        while True:
            answer: Any = None
            try:
                match command:
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
                    case Claim(journal, records):
                        answer = await engine.committer.commit_async(journal, records)
                    case Play(run):
                        answer = await _play_async(engine, order, run)
            except BaseException as error:  # noqa: BLE001 (everything goes into the errand, which decides)
                command = errand.throw(error)
            else:
                command = errand.send(answer)
    except StopIteration as stop:
        return stop.value


def attend_blocking(engine: Engine, order: Order) -> Any:
    """Carry out `attend` in this thread."""
    errand = attend(engine, order)
    try:
        command = next(errand)
        while True:
            answer: Any = None
            try:
                match command:
                    case Pause(seconds):
                        engine.clock.sleep(seconds)
                    case Claim(journal, records):
                        answer = engine.committer.commit(journal, records)
                    case Play(run):
                        answer = _play_blocking(engine, order, run)
            except BaseException as error:  # noqa: BLE001 (everything goes into the errand, which decides)
                command = errand.throw(error)
            else:
                command = errand.send(answer)
    except StopIteration as stop:
        return stop.value


def _acquire(engine: Engine, order: Order) -> Errand:
    """A run that belongs to this process now, or the journal of one that has ended.

    Whoever waited for a live owner wanted its result: where that is a failure, it is raised, and the failed step is not tried again.
    """
    waited = False
    while True:
        loaded = engine.store.load(order.run_id)
        claim: rec.RunStarted | rec.RunResumed
        if loaded is None:
            journal, claim, forsaken = Journal(order.run_id), _started(engine, order), []
        else:
            journal = Journal.load(*loaded)
            _refuse_conflict(order, journal)
            if journal.head.status in ("done", "cancelled") and not order.undoes(journal):
                return journal
            if waited and journal.head.status == "failed":
                raise RunFailed(order.run_id, journal.head.note)
            if not _free(engine, journal.head):
                waited = True
                yield Pause(POLL_S)
                continue
            claim, forsaken = _resumed(engine, order, journal), _forsaken(engine, order, journal)
        if not engine.keeper.takes(order.run_id, order):
            waited = True
            yield Pause(POLL_S)
            continue
        try:
            reach("claim.before")
            engine.keeper.enroll()
            undoing = [order.undo] if order.undo is not None and order.undoes(journal) else []
            yield from _claimed(engine, Claim(journal, [claim, *forsaken, *undoing]))
            reach("claim.after")
        except LeaseLost:
            refuse_pruned(engine, order.run_id)
            continue
        except Stopped as stopped:
            engine.keeper.orphans.add(order.run_id)  # the claim may have gone in, and its reply be lost
            raise stopped.error from stopped
        if forsaken:
            engine.committer.enter(-1)
            continue
        run = Run(
            journal=journal, committer=engine.committer, clock=engine.clock, blocking=not order.agent.is_async,
            resources=engine.resources, lease_s=engine.lease_s, on_model_change=order.agent.on_model_change,
            on_ask=engine.on_ask, stay=_stay(engine, order),
            nest=engine.nest(engine, order.agent) if engine.nest else None,
            above=order.nested.call.scope if order.nested else None,
        )  # fmt: skip
        run.agent, run.holding = order.agent, order.agent.durability == "milestone"
        return run


def refuse_pruned(engine: Engine, run_id: str) -> None:
    """The id of a run that was removed is not used again: everything would be done once more."""
    grave = engine.store.tombstone(run_id) if isinstance(engine.store, Prunable) else None
    if grave is not None:
        raise RunPruned(run_id, grave.status, f"{to_datetime(grave.pruned_us):%Y-%m-%d %H:%M:%S} UTC", grave.by, grave.why)


def _stay(engine: Engine, order: Order) -> Stay:
    """How long the run may wait in place; where nobody waits for it, only as long as was said for this very run."""
    length_s = order.park_after_s if order.park_after_s is not None else engine.park_after_s * order.wait

    def begun() -> None:
        if order.wait and not (order.voice is not None and order.voice.put(order.run_id)) and _asks(engine, order.run_id):
            told = f"run {order.run_id!r} waits, and its code stays open meanwhile"
            sys.stderr.write(f"holdfast: {told}; `holdfast inbox` shows the commands that answer\n")

    return Stay(engine.clock, length_s, begun=begun, look=order.voice.look if order.voice is not None else lambda: None)


def _asks(engine: Engine, run_id: str) -> bool:
    """Whether the run needs a person."""
    found = engine.store.load(run_id)
    journal = None if found is None else Journal.load(*found)
    return journal is not None and bool(journal.open_asks() or journal.open_doubts(ended=True))


def _claimed(engine: Engine, claim: Claim) -> Errand:
    """From its claim on a run is a lane: runs that start together share their flushes, and the first does not run ahead alone."""
    engine.committer.enter(1)
    try:
        yield claim
    except BaseException:
        engine.committer.enter(-1)
        raise


def _free(engine: Engine, head: Head) -> bool:
    """Whether the run can be taken: nobody owns it, or its owner is dead or has been silent for the lease time."""
    if head.owner is None:
        return True
    if head.owner == engine.keeper.owner:
        return head.run_id not in engine.keeper.runs
    return engine.observer.life_of(head.owner) != "alive"


def silent(engine: Engine, head: Head) -> bool:
    """Whether the run is taken from another owner that is not proven dead."""
    return head.owner not in (None, engine.keeper.owner) and engine.observer.life_of(str(head.owner)) != "dead"


def escaped(journal: Journal) -> list[str]:
    """The steps whose failures ended the run: whoever goes on with it goes behind them; whoever undoes it takes the path that was taken."""
    verdict, stopped = journal.verdict, journal.head.status in ("failed", "blocked")
    found = verdict.escaped if stopped and isinstance(verdict, rec.RunFailed | rec.RunRepaired) else []
    return [step_id for step_id in found if journal.undoing is None or step_id.startswith(UNDO)]


def _forsaken(engine: Engine, order: Order, journal: Journal) -> list[rec.Record]:
    """What closes a child run that nobody waits for any more: its parent has ended, or has cancelled the step that had called it."""
    parent = journal.started.parent if journal.started is not None and order.nested is None else {}
    found = engine.store.load(parent["run"]) if parent else None
    if found is None:
        grave = engine.store.tombstone(parent["run"]) if parent and isinstance(engine.store, Prunable) else None
        return [rec.RunCancelled(by=f"run {grave.run_id}", reason=f"its parent was {grave.status}, and is pruned")] if grave else []
    head, above = found[0], Journal.load(*found)
    called = above.histories.get(parent["step"])
    why = f"its parent is {head.status}" if head.status in ("done", "cancelled") else ""
    if called is not None and called.child == order.run_id and isinstance(called.outcome, rec.StepBrokenOff):
        why = f"step {parent['step']} of its parent, which had called it, was cancelled"
    if above.continued is not None and order.run_id not in above.open_children():
        why = "its parent has begun anew"
    return [rec.RunCancelled(by=f"run {head.run_id}", reason=why)] if why else []


def child_tags(parent: dict[str, str]) -> dict[str, str]:
    """What a run is tagged with by which its parent's children are found."""
    return {CHILD_OF: parent["run"]} if parent else {}


def _started(engine: Engine, order: Order) -> rec.RunStarted:
    nested = order.nested
    with at_desk(Desk(engine.store, engine.clock, order.run_id)):
        args = order.encoded()
    parent = {"run": nested.call.run.id, "step": nested.call.step_id} if nested else {}
    return rec.RunStarted(
        agent=order.agent.name, version=order.agent.version, fingerprint=order.fingerprint(),
        origin=nested.origin() if nested else order.run_id, parent=parent,
        owner=engine.keeper.owner, tags={**order.tags, **child_tags(parent)}, args=args, args_sha=args_digest(args),
        budget=_budget(order, {}),
    )  # fmt: skip


def _resumed(engine: Engine, order: Order, journal: Journal) -> rec.RunResumed:
    head = journal.head
    why = "taken over" if head.owner else head.status
    return rec.RunResumed(
        owner=engine.keeper.owner, why=why, version=order.agent.version, silent=silent(engine, head),
        cleared=[] if order.undoes(journal) else escaped(journal), budget=_budget(order, journal.ledger.recorded),
    )  # fmt: skip


def _budget(order: Order, before: rec.Json) -> rec.Json:
    """What the code allows, where that is not what is recorded: what was given for the run holds as a whole, else the agent's."""
    if order.budget is not None:
        now = recorded(order.budget, "run")
    elif before.get("by") == "run" or (order.agent.budget is None and not before):
        return {}
    else:
        now = recorded(order.agent.budget, "agent")
    return {} if now == before else now


def refuse_foreign(journal: Journal, call: Call) -> None:
    """Refuse to take a run for the child of a step that is not a child of this step's run."""
    parent = journal.started.parent if journal.started is not None else {}
    if parent.get("run") != call.run.id:
        whose = f"a child of run {parent['run']!r}" if parent else "a run of its own"
        how = f"Give the child another id: await hf.start({call.spec.name}, ..., run_id=ID)"
        raise Refusal(f"run {journal.head.run_id!r} is {whose}, not a child of run {call.run.id!r}; it is unchanged. {how}")


def resting(engine: Engine, run_id: str) -> Parking | None:
    """A run that waits together with all its children, as far as the store tells; None where there is something to look after."""
    found = engine.store.load(run_id)
    if found is None or found[0].status != "waiting":
        return None
    journal = Journal.load(*found)
    within = [resting(engine, child) for child in journal.open_children()]
    if any(one is None for one in within):
        return None
    below = tuple(one for one in within if one is not None)
    asks = bool(journal.open_asks() or journal.open_doubts(ended=True)) or any(one.asks for one in below)
    return Parking(run_id, found[0].note, found[0].wake_us or 0, set(), below, asks)


def _refuse_conflict(order: Order, journal: Journal) -> None:
    started = journal.started
    assert started is not None
    if order.nested is not None:
        refuse_foreign(journal, order.nested.call)
    same = started.agent == order.agent.name and (order.recorded_arguments or started.fingerprint == order.fingerprint())
    if not same:
        raise RunConflict(order.run_id, shown_call(started.agent, started.args), shown_call(order.agent.name, order.encoded()))
    if journal.head.status == "blocked" and isinstance(journal.verdict, rec.RunRepaired) and not order.recorded_arguments:
        raise RunRepaired(order.run_id, journal.head.note)


def _result(engine: Engine, order: Order, journal: Journal) -> Any:
    """What a run that has ended gives: its recorded result, without executing anything."""
    match journal.verdict:
        case rec.RunDone():
            try:
                with at_desk(Desk(engine.store, engine.clock, order.run_id)):
                    return order.agent.codec().give_back(journal.verdict.value or b"null")
            except ValueError as error:
                raise UndecodableResult(order.run_id, "result", order.agent.name, str(error)) from error
        case rec.RunCancelled():
            raise RunCancelled(order.run_id, journal.verdict.by, journal.verdict.reason)
    raise AssertionError(f"run {order.run_id} has ended without a verdict")


def _parking(order: Order, run: Run, waiting: RunWaiting) -> Parking:
    within = tuple(run.parked.values())
    return Parking(order.run_id, waiting.waits, run.wakes_us, set(run.heard), within, waiting.asks)


def moved(engine: Engine, parking: Parking) -> bool:
    """Whether a run that waits has something to do, or one that it waits for; what it had heard already does not wake it."""
    for one in parking.family():
        head = engine.store.head(one.run_id)
        if head is None or head.status != "waiting" or (head.wake_us and engine.clock.now_us() >= head.wake_us):
            return True
        if _is_spoken_to(engine, one):
            return True
    return False


def _is_spoken_to(engine: Engine, parking: Parking) -> bool:
    """Whether there is a letter that the run would do something about; one that is of no use is not looked at again."""
    unheard = [letter for letter in engine.store.letters([parking.run_id]) if letter.letter_id not in parking.heard]
    found = engine.store.load(parking.run_id) if unheard else None
    if found is None:
        return False
    try:
        journal = Journal.load(*found)
    except Damaged:
        return True  # whoever takes it says so
    parking.heard.update(letter.letter_id for letter in unheard if not matters(engine.store, engine.observer, journal, letter))
    return any(letter.letter_id not in parking.heard for letter in unheard)


def _until_moved(engine: Engine, order: Order, parking: Parking) -> Errand:
    """Wait, holding nothing, until somebody has written to the run or to one that it waits for."""
    run_id = order.run_id
    before = engine.store.head(run_id)
    while before is not None and before.status == "waiting":
        if moved(engine, parking):
            return
        yield Pause(POLL_S)
        if order.voice is not None:
            order.voice.look()
        if engine.store.head(run_id) != before:
            return


async def _play_async(engine: Engine, order: Order, run: Run) -> Any:
    with _Stage(engine, run) as scope:
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        run.root = task
        if run.cancelling is not None:
            run.cancel_root(task)
        _take_letters(engine, run)
        try:
            args, kwargs = _arguments(order, run)
            outcome: Returned | Raised = Returned(await order.agent.fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (conclude decides what every way to end means)
            outcome = Raised(error)
        if run.started_here:
            outcome = await _joined(run, scope, outcome)
        run.root = None
        for _ in range(run.root_cancels):
            task.uncancel()  # what the engine did to unwind the code is not a cancellation from outside
        try:
            return await drive_async(concluded(run, order.agent, outcome), run, scope)
        except RunInterrupted as interrupted:
            bare = isinstance(outcome, Raised) and isinstance(outcome.error, Stopped | asyncio.CancelledError)
            bare = bare or interrupted.step_id.startswith(UNDO)
            if task.cancelling() > before and bare:  # no time-out and no TaskGroup inside: whoever started the run cancels it
                raise asyncio.CancelledError from None
            raise


def _was_broken_off(outcome: Returned | Raised) -> bool:
    return isinstance(outcome, Raised) and not isinstance(outcome.error, Exception)


async def _joined(run: Run, scope: Scope, outcome: Returned | Raised) -> Returned | Raised:
    """The agent's code has ended, and so do the child runs that it started: they are waited for, and their failures count."""
    anew = run.ended if isinstance(run.ended, Continued) else None
    if anew is not None:
        run.ended = None  # as before the end of a run, what it has begun comes to its own
    outcome = await _waited_for(run, scope, Returned(None) if anew is not None else outcome)
    if anew is not None and isinstance(outcome, Returned):
        run.ended = run.ended or anew
        return Raised(anew)
    return outcome


async def _waited_for(run: Run, scope: Scope, outcome: Returned | Raised) -> Returned | Raised:
    with Group(scope, 1, 1) as group:
        group.begun = 1
        run.park_soon()
        while not all(task.done() for task in run.started_here):
            for task in run.started_here if run.ended or run.cancelling or _was_broken_off(outcome) else ():
                task.cancel()
            try:
                await asyncio.wait(run.started_here)
            except asyncio.CancelledError as error:
                outcome = Raised(error)
    errors = [task.exception() for task in run.started_here if not task.cancelled()]
    if isinstance(outcome, Raised):
        return outcome
    return next((Raised(error) for error in errors if error is not None and not getattr(error, "__holdfast_asked__", False)), outcome)


def _play_blocking(engine: Engine, order: Order, run: Run) -> Any:
    with _Stage(engine, run) as scope:
        _take_letters(engine, run)
        try:
            args, kwargs = _arguments(order, run)
            outcome: Returned | Raised = Returned(order.agent.fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (conclude decides what every way to end means)
            outcome = Raised(error)
        return drive_blocking(concluded(run, order.agent, outcome), run, scope)


def _arguments(order: Order, run: Run) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the agent is called with: what was ordered, or what the run has continued with since."""
    continued = run.journal.continued
    if continued is None:
        return order.args, order.kwargs
    try:
        return order.agent.orders.give_back(continued.args or b"{}")
    except ValueError as error:
        raise run.stop(UndecodableResult(run.id, "", f"the arguments of {order.agent.name}", str(error))) from error


def _take_letters(engine: Engine, run: Run) -> None:
    """What was said to the run while nobody owned it, before its code begins."""
    for letter in engine.store.letters([run.id]):
        if letter.kind == CHILD:  # the code has yet to look at the child: once it has, nothing is left of this
            run.heard.add(letter.letter_id)
            run.stale.append(letter.letter_id)
        deliver(run, letter)
    if run.undo.asked is not None:
        run.retrace()
        if run.root is not None:
            run.root.get_loop().call_later(EDGE_S, run.end_when_known, run.root)


def _listen(engine: Engine, run: Run) -> None:
    for letter in engine.store.letters([run.id]):
        deliver(run, letter)


class _Stage:
    """The run is registered while its code executes, and no longer."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine, self._run = engine, run

    def __enter__(self) -> Scope:
        self._engine.keeper.runs[self._run.id] = self._run
        self._run.listen = lambda: _listen(self._engine, self._run)
        active.add(self._run)
        scope = Scope(self._run, "", None)
        self._token = place.set(scope)
        self._desk = desk.set(Desk(self._engine.store, self._engine.clock, self._run.id, self._run.stop))
        return scope

    def __exit__(self, *_: object) -> None:
        place.reset(self._token)
        desk.reset(self._desk)
        active.discard(self._run)
        self._engine.committer.enter(-1)
        self._engine.keeper.runs.pop(self._run.id, None)
        self._let_go()

    def _let_go(self) -> None:
        """A run whose end was not recorded is released, or else left for others to find its owner dead."""
        journal, keeper = self._run.journal, self._engine.keeper
        try:
            if journal.head.owner == keeper.owner:
                self._engine.committer.commit(journal, [rec.RunReleased(reason="its end could not be recorded")])
        except Unwinding:
            keeper.orphans.add(self._run.id)
        # A task that nobody waited for must not write into a run that is over.
        journal.broken = self._run.ended = journal.broken or Parked()
