"""Drive one run until it is done, waiting or failed.

`attend` is the life of a run in this process, again as a generator of commands: take it (or wait for whoever has it), play it, and if it
waits for a person, come back when something has changed. It is written once; `attend_async` and `attend_blocking` carry it out.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast._clock import to_datetime
from holdfast._failpoints import reach
from holdfast.codec.answers import harmless
from holdfast.errors import (
    Continued,
    Damaged,
    LeaseLost,
    Refusal,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunPaused,
    RunPruned,
    RunRepaired,
    RunWaiting,
    Stopped,
    UndecodableResult,
)  # fmt: skip
from holdfast.large.artifact import Desk, at_desk
from holdfast.life.bell import News
from holdfast.life.calls import Call, shown_call
from holdfast.life.commands import Pause
from holdfast.life.run import Run
from holdfast.life.staying import Stay
from holdfast.life.waiters import Parking
from holdfast.records import kinds as rec
from holdfast.records.away import refuse_away
from holdfast.records.chain import CHILD_OF, args_digest
from holdfast.records.journal import Crowded, Journal
from holdfast.records.ledger import recorded
from holdfast.records.replay import UNDO
from holdfast.records.unknown import lasting
from holdfast.running.engine import Engine, Order
from holdfast.running.letters import matters, tell_parent
from holdfast.running.playing import play_async, play_blocking
from holdfast.store import Distant, Head, Prunable
from holdfast.stores.opening import store_option

INBOX = "holdfast inbox"
POLL_S = 0.05
"""How often a process looks whether the run it waits for has moved."""


def poll_s(engine: Engine) -> float:
    """The same, where the store may want to be asked less often."""
    return engine.store.looks_every_s if isinstance(engine.store, Distant) else POLL_S

log = logging.getLogger("holdfast")


class Claim(NamedTuple):
    """Make records durable for a run that nobody plays yet; `LeaseLost` is thrown in where somebody else was faster."""

    journal: Journal
    records: Sequence[rec.Record]


class Elsewhere(Exception):
    """Somebody else has the run, or as many of its kind execute as may, and whoever wanted it has other things to do."""


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
            if waiting.run_id != order.run_id:
                raise  # another run, which the code has executed: this one has failed with it
            waiting.parking = parking = _parking(order, taken, waiting) if isinstance(taken, Run) else parking
            if not order.wait:
                raise
            shown = order.voice is not None and any(order.voice.put(one.run_id) for one in parking.family())
            if not shown and announced != waiting.waits:
                announced = waiting.waits
                told = waiting.while_it_waits().replace(INBOX, f"{INBOX}{store_option(engine.store.url)}")
                sys.stderr.write(f"holdfast: {harmless(told)}\n")
        except Stopped as stopped:
            raise stopped.error from stopped
        except Exception:
            raise
        except BaseException:
            engine.keeper.orphans.add(order.run_id)  # Ctrl-C may have come when it was claimed, and nobody played it yet
            raise
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
                    case Pause(seconds, news):
                        await (asyncio.sleep(seconds) if news is None else news.wait_async(seconds))
                    case Claim(journal, records):
                        answer = await engine.committer.commit_async(journal, records)
                    case Play(run):
                        answer = await play_async(engine, order, run)
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
                    case Pause(seconds, None):
                        engine.clock.sleep(seconds)
                    case Pause(seconds, News() as news):
                        news.wait(engine.clock, seconds)
                    case Claim(journal, records):
                        answer = engine.committer.commit(journal, records)
                    case Play(run):
                        answer = play_blocking(engine, order, run)
            except BaseException as error:  # noqa: BLE001 (everything goes into the errand, which decides)
                command = errand.throw(error)
            else:
                command = errand.send(answer)
    except StopIteration as stop:
        return stop.value
    finally:
        errand.close()  # where Ctrl-C came between two commands, it has yet to hear of that


def _acquire(engine: Engine, order: Order) -> Errand:
    """A run that belongs to this process now, or the journal of one that has ended."""
    with engine.bell.news([order.run_id]) as news:
        return (yield from _acquired(engine, order, news))


def _acquired(engine: Engine, order: Order, news: News) -> Errand:
    """The same; whoever waited for a live owner wanted its result: where that is a failure, it is raised, and not tried again."""
    waited = False
    while True:
        loaded = engine.store.load(order.run_id)
        claim: rec.RunStarted | rec.RunResumed
        if loaded is None:
            journal, claim, forsaken = Journal(order.run_id), started(engine, order, owner=engine.keeper.owner), []
        else:
            journal = Journal.load(*loaded)
            refuse_away(journal.head)
            refuse_conflict(order, journal)
            if journal.head.status in ("done", "cancelled") and not order.undoes(journal):
                return journal
            if waited and journal.head.status == "failed":
                raise RunFailed(order.run_id, journal.head.note)
            _refuse_paused(order, journal)
            _refuse_stopped_since(order, journal.head)
            if not _free(engine, journal.head):
                _refuse_impatience(order)
                waited = True
                yield Pause(poll_s(engine), news)
                continue
            claim, forsaken = _resumed(engine, order, journal), _forsaken(engine, order, journal)
        if not engine.keeper.takes(order.run_id, order):
            _refuse_impatience(order)
            waited = True
            yield Pause(poll_s(engine), news)
            continue
        try:
            reach("claim.before")
            engine.keeper.enroll()
            journal.ceilings = order.ceilings
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
        run.draw = engine.meter.draw
        run.in_worker = run.above.run.in_worker if run.above is not None else not order.patient
        run.agent, run.holding = order.agent, order.agent.durability == "milestone"
        run.journal.holds = run.holding
        return run


def _refuse_paused(order: Order, journal: Journal) -> None:
    """What somebody paused is not taken, unless whoever asks for it by its id resumes it by that."""
    paused = journal.verdict if journal.head.status == "paused" else None
    if isinstance(paused, rec.RunPaused) and not (order.recorded_arguments and order.patient):
        raise RunPaused(order.run_id, paused.by, paused.reason)


def _refuse_stopped_since(order: Order, head: Head) -> None:
    """A worker does not try again what has failed with another one, or was found not to fit, since it looked: nobody has asked for that."""
    if head.status in ("blocked", "failed") and order.stood is not None and order.stood != (head.epoch, head.seq):
        raise Elsewhere


def _refuse_impatience(order: Order) -> None:
    """Somebody else has the run: a worker looks for another one."""
    if not order.patient:
        raise Elsewhere


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
            sys.stderr.write(f"holdfast: {told}; `{INBOX}{store_option(engine.store.url)}` shows the commands that answer\n")

    return Stay(engine.clock, length_s, begun=begun, look=order.voice.look if order.voice is not None else lambda: None)


def _asks(engine: Engine, run_id: str) -> bool:
    """Whether the run needs a person."""
    found = engine.store.load(run_id)
    journal = None if found is None else Journal.load(*found)
    return journal is not None and bool(journal.open_asks() or journal.open_doubts(ended=True))


def _claimed(engine: Engine, claim: Claim) -> Errand:
    """From its claim on a run is a lane: runs that start together share their flushes, and the first does not run ahead alone."""
    resumed, before = claim.records[0], claim.journal.head.owner
    engine.committer.enter(1)
    try:
        yield claim
        if isinstance(resumed, rec.RunResumed) and before not in (None, engine.keeper.owner):
            log.info("took run %s over from %s, which is %s", claim.journal.head.run_id, before, "silent" if resumed.silent else "dead")
    except BaseException as error:
        engine.committer.enter(-1)
        if isinstance(error, Crowded):
            raise Elsewhere from error
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
    if _is_former(parent, head):
        why = "its parent was pruned, and another run has its id"
    return [rec.RunCancelled(by=f"run {head.run_id}", reason=why)] if why else []


def child_tags(parent: dict[str, str]) -> dict[str, str]:
    """What a run is tagged with by which its parent's children are found."""
    return {CHILD_OF: parent["run"]} if parent else {}


def called_by(call: Call) -> dict[str, str]:
    """How a child names the run and the step that called it, and since when that run has been there: another one may have its id later."""
    return {"run": call.run.id, "step": call.step_id, "since": str(call.run.journal.head.created_us)}


def _is_former(parent: dict[str, str], head: Head) -> bool:
    """Whether a child was called by an earlier run of that id, which was pruned and forgotten; older records do not tell."""
    return parent.get("since", "") not in ("", str(head.created_us))


def started(engine: Engine, order: Order, *, owner: str) -> rec.RunStarted:
    """The first record of a run, which `owner` begins, or nobody yet."""
    nested = order.nested
    with at_desk(Desk(engine.store, engine.clock, order.run_id)):
        args = order.encoded()
    parent = called_by(nested.call) if nested else {}
    return rec.RunStarted(
        agent=order.agent.name, version=order.agent.version, fingerprint=order.fingerprint(),
        origin=nested.origin() if nested else order.run_id, parent=parent,
        owner=owner, tags={**order.tags, **child_tags(parent)}, args=args, args_sha=args_digest(args),
        budget=_budget(order, {}), queue=order.queue, priority=order.priority, lane=order.lane,
        unreadable=lasting(nested.call.run.journal.unknown) if nested else 0,
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
    former = parent.get("run") == call.run.id and _is_former(parent, call.run.journal.head)
    if parent.get("run") != call.run.id or former:
        whose = f"a child of {'an earlier ' if former else ''}run {parent['run']!r}" if parent else "a run of its own"
        how = f"Give the child another id: await hf.start({call.spec.name}, ..., run_id=ID)"
        how = "Let it go too, and its id (holdfast prune, keep_ids), or use another id for this run" if former else how
        mine = "this one" if former else f"run {call.run.id!r}"
        raise Refusal(f"run {journal.head.run_id!r} is {whose}, not a child of {mine}; it is unchanged. {how}")


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


def refuse_conflict(order: Order, journal: Journal) -> None:
    """Refuse to take a run of another agent, or with other arguments, for the one that was ordered."""
    first = journal.started
    assert first is not None
    if order.nested is not None:
        refuse_foreign(journal, order.nested.call)
    same = first.agent == order.agent.name and (order.recorded_arguments or first.fingerprint == order.fingerprint())
    if not same:
        raise RunConflict(order.run_id, shown_call(first.agent, first.args), shown_call(order.agent.name, order.encoded()))
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
    with engine.bell.news([run_id, *(one.run_id for one in parking.family())]) as news:
        before = engine.store.head(run_id)
        while before is not None and before.status == "waiting":
            if moved(engine, parking):
                return
            yield Pause(poll_s(engine), news)
            if order.voice is not None:
                order.voice.look()
            if engine.store.head(run_id) != before:
                return
