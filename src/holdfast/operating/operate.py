"""Operators' verbs that stop a run or let it go on: cancel, undo, pause, resume, allow and accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast._failpoints import reach
from holdfast._ids import checked_text
from holdfast.budget import Budget, shown
from holdfast.codec.failures import told
from holdfast.errors import Refusal, RunMoved, StoreError, UnknownAgent
from holdfast.life.calls import shown_call
from holdfast.life.door import acceptance
from holdfast.operating.telling import EXECUTES, MAX_TRIES, claimed, is_owned, marked, ready, refuse_final, taken_up, tell
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.fitting import is_held_up
from holdfast.records.journal import Journal
from holdfast.records.ledger import BUDGET
from holdfast.running.engine import Engine, Order
from holdfast.store import Head, Row
from holdfast.verbs.decorators import Agent


def cancel(engine: Engine, run_id: str, *, by: str, reason: str) -> str:
    """Close a run for good, and its unfinished child runs after it; gives what happens next, in words.

    In this order nobody can go on with the run in answer to the end of a child, and what is refused has changed nothing.
    """

    def not_final(journal: Journal, *, owned: bool) -> None:
        del owned
        refuse_final(journal.head)

    record = rec.RunCancelled(by=checked_text(by, "by"), reason=checked_text(reason, "reason"))
    if loaded(engine, run_id)[0].status == "cancelled" and (below := cancel_children(engine, run_id)):
        return f"the run was cancelled before{_with_children(below)}"
    owned = tell(engine, run_id, not_final, [record], kind="cancel", letter={"by": by, "reason": reason}, why=f"cancel by {by}")
    if owned:
        return "its owner has been told to stop"
    below = {child: why for child, why in cancel_children(engine, run_id).items() if why}
    return f"the run is cancelled{_with_children(below)}{_left_in_doubt(engine, run_id)}"


def _with_children(below: Mapping[str, str]) -> str:
    """What became of child runs that were to be cancelled with a run."""
    told = [f"; child run {child!r} {f'is not: {why}. Then cancel this run again' if why else 'is now'}" for child, why in below.items()]
    return "".join(told)


def pause(engine: Engine, run_id: str, *, now: bool, by: str, reason: str) -> str:
    """Let nobody go on with a run until it is resumed; where it executes, from its next step on, or now. Gives what happens."""

    def to_be_held(journal: Journal, *, owned: bool) -> None:
        refuse_final(journal.head)
        if not owned and journal.head.status not in ("queued", "running", "waiting") and not is_held_up(journal.head):
            raise Refusal(f"run {run_id!r} is {journal.head.status}: nobody goes on with it by himself; nothing was changed")
        parent = journal.started.parent.get("run") if journal.started is not None else None
        above = engine.store.head(parent) if parent else None
        if above is not None and above.status not in ("done", "cancelled"):
            raise Refusal(f"run {run_id!r} goes on inside run {parent!r}; nothing was changed. Pause that one: holdfast pause {parent}")

    record = rec.RunPaused(by=checked_text(by, "by"), reason=checked_text(reason, "reason"))
    letter = {"by": by, "reason": reason, "now": now}
    head = loaded(engine, run_id)[0]
    if head.status == "paused":
        told = head.note.replace("paused", "paused already,", 1)
        return f"the run is {told}; nothing was changed. It goes on after: holdfast resume {run_id}"
    reach("pause.before")
    owned = tell(engine, run_id, to_be_held, [record], kind="pause", letter=letter, why=f"pause by {by}")
    reach("pause.after")
    if not owned:
        return f"the run is paused; it goes on after: holdfast resume {run_id}"
    return f"its owner has been told to stop {'now' if now else 'before its next step'}; it goes on after: holdfast resume {run_id}"


def cancel_children(engine: Engine, run_id: str) -> dict[str, str]:
    """Cancel the unfinished child runs of one that is cancelled, and so on downwards: who is interrupted repeats it.

    Gives those that were not cancelled yet, each with what hinders it, or nothing. Whoever owns a run does so before it ends.
    """
    found: dict[str, str] = {}
    for child in Journal.load(*loaded(engine, run_id)).open_children():
        head = engine.store.head(child)
        if head is not None and head.status == "cancelled":
            found |= cancel_children(engine, child)
        elif head is not None and head.status != "done":
            reach("child.before_cancel")
            found |= _cancelled_child(engine, child, run_id)
    return found


def _cancelled_child(engine: Engine, child: str, run_id: str) -> dict[str, str]:
    try:
        cancel(engine, child, by=f"run {run_id}", reason="its parent was cancelled")
    except (Refusal, RunMoved) as error:
        return {child: str(error)} if loaded(engine, child)[0].status not in ("done", "cancelled") else {}
    return {child: ""}


def undo(engine: Engine, run_id: str, *, by: str, reason: str) -> str:
    """Have a run cancelled and what it did undone, by whoever has its code; gives what happens next, in words."""

    def not_yet(journal: Journal, *, owned: bool) -> None:
        refuse_final(journal.head)
        if journal.undoing is not None:
            how = f"It executes now in {journal.head.owner}" if owned else f"It goes on with: holdfast resume {run_id} --here APP.py"
            raise Refusal(f"run {run_id!r} is being undone already; nothing was changed. {how}")

    record = rec.RunUndoing(by=checked_text(by, "by"), reason=checked_text(reason, "reason"))
    letter = {"by": by, "reason": reason, "undo": True}
    owned = tell(engine, run_id, not_yet, [record], kind="cancel", letter=letter, why=f"undo by {by}")
    if owned:
        return "its owner has been told to stop and to undo what it did"
    stays = Journal.load(*loaded(engine, run_id)).superseded
    stays = [(step_id, found) for step_id, found in stays if (found.landed() or found.child) and not found.elsewhere]
    names = ", ".join(f"{found.name} (step {step_id})" for step_id, found in stays)
    but = f"; what is superseded is not undone, its code is not called any more: {names}" if names else ""
    return f"the run is undone by whoever runs its agent next; to do it now: holdfast resume {run_id} --here APP.py{but}"


def _left_in_doubt(engine: Engine, run_id: str) -> str:
    """The doubts that outlive their run: what nobody knows about the world is not closed with it."""
    doubts = [(each, *doubt) for each in _family(engine, run_id) for doubt in Journal.load(*loaded(engine, each)).open_doubts(ended=True)]
    named = [(f"step {step_id}{'' if each == run_id else f' of run {each!r}'}", found) for each, step_id, found in doubts]
    told = [f"; {where} {shown_call(found.name, found.args)} stays in doubt, key {found.key}" for where, found in named]
    return "".join([*told, ". `holdfast inbox` lists it until it is resolved"] if told else [])


def _family(engine: Engine, run_id: str) -> list[str]:
    """A run, and the unfinished ones inside it."""
    below = [child for child in Journal.load(*loaded(engine, run_id)).open_children() if engine.store.head(child) is not None]
    return [run_id, *(each for child in below for each in _family(engine, child))]


def resume(engine: Engine, run_id: str, *, by: str, reason: str, effects: str = "ask") -> str:
    """Mark a run as ready; gives what happens next, in words.

    With `effects` as "repeat", effects that are not on record did not happen, whatever a repair could not read; those that are asked about
    for that reason alone are settled by it.
    """
    if effects not in ("ask", "repeat"):
        raise Refusal(f"effects={effects!r}: it is ask or repeat; nothing was changed")
    why = checked_text(f"resume by {by}{': ' + reason if reason else ''}", "reason")
    for _ in range(MAX_TRIES):
        journal = Journal.load(*loaded(engine, run_id))
        refuse_final(journal.head)
        if is_owned(engine, journal.head):
            raise Refusal(f"run {run_id!r} executes now in {journal.head.owner}; nothing was changed")
        paused = [letter.letter_id for letter in engine.store.letters([run_id]) if letter.kind == "pause"]  # which nobody has read
        word = _all_is_known(journal, by=by, reason=reason) if effects == "repeat" else []
        taken = taken_up(engine, journal, why).but(effects="repeat" if effects == "repeat" else "")
        if claimed(engine, journal, [taken, *word], takes=paused):
            return marked(engine, run_id)
    raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")


def _all_is_known(journal: Journal, *, by: str, reason: str) -> list[rec.Record]:
    """The word on effects that are in doubt because a repair could not read everything, and for no other reason."""
    if journal.unknown is None:
        what = "all its effects are on record"
        raise Refusal(f"no repair of run {journal.head.run_id!r} has left anything unread, {what}; nothing was changed. Resume it as it is")
    unread = [step_id for step_id, history in journal.open_doubts(ended=True) if history.unread]
    return [rec.DoubtSettled(step_id=step_id, verdict="not_landed", by=by, reason=reason) for step_id in unread]


def allow(engine: Engine, run_id: str, budget: Budget, *, by: str, reason: str) -> str:
    """Set limits of a run, and mark it as ready; gives what happens next, in words."""
    by, reason, limits = checked_text(by, "by"), checked_text(reason, "reason"), budget.limits()

    def not_final(journal: Journal, *, owned: bool) -> None:
        del owned
        refuse_final(journal.head)

    record = rec.BudgetSet(step_id=BUDGET, limits=limits, by=by, reason=reason)
    letter = {"limits": limits, "by": by, "reason": reason}
    owned = tell(engine, run_id, not_final, [record], kind="budget", letter=letter, why=f"resume by {by}")
    told = ", ".join(shown(name, limit) for name, limit in limits.items())
    return f"it may spend {told} now; {EXECUTES if owned else marked(engine, run_id)}"


def accept(engine: Engine, run_id: str, *, by: str, reason: str) -> str:
    """Let a run go on with what has changed: the code that blocks it, or the models that answer; gives what happens next, in words."""
    by, reason = checked_text(by, "by"), checked_text(reason, "reason")
    for _ in range(MAX_TRIES):
        journal = Journal.load(*loaded(engine, run_id))
        accepting = _accepting_code if journal.head.status == "blocked" else _accepting_models
        if is_owned(engine, journal.head):
            raise Refusal(f"run {run_id!r} executes now in {journal.head.owner}; nothing was changed")
        records, told = accepting(journal, by=by, reason=reason)
        if claimed(engine, journal, [taken_up(engine, journal, f"accept by {by}"), *records]):
            return f"{told}; {ready(engine, run_id)}"
    raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")


def _accepting_code(journal: Journal, *, by: str, reason: str) -> tuple[list[rec.Record], str]:
    run_id, verdict = journal.head.run_id, journal.verdict
    if not isinstance(verdict, rec.RunBlocked) or not verdict.step_id:
        raise Refusal(f"run {run_id!r} is not blocked by changed code; nothing was changed")
    lost = journal.given_up(verdict.step_id)
    doubts = [step_id for step_id, history in lost if history.open_doubt(journal.head.epoch + 1)]
    if doubts:
        say = f"holdfast resolve {run_id} {doubts[0]} --landed RESULT, or --not-landed"
        raise Refusal(f"step {doubts[0]} of run {run_id!r} is in doubt: settle it first; nothing was changed. Say {say}")
    steps = "1 recorded step is" if len(lost) == 1 else f"{len(lost)} recorded steps are"
    told = f"the run goes on with the new code from step {verdict.step_id}; {steps} superseded"
    return [rec.RunAccepted(step_id=verdict.step_id, by=by, reason=reason)], told


def _accepting_models(journal: Journal, *, by: str, reason: str) -> tuple[list[rec.Record], str]:
    changes = list(journal.models.open)
    if not changes or journal.head.status in ("done", "cancelled"):
        raise Refusal(f"run {journal.head.run_id!r} is blocked neither by changed code nor by another model; nothing was changed")
    records = [record for name, pair in changes for record in acceptance(journal, name, pair, by=by, reason=reason)]
    return records, f"the run goes on with {', '.join(f'{pair} in step {name}' for name, pair in changes)}"


class UnfitArguments(Refusal):
    """The code does not take the arguments that a run was begun with."""

    def __init__(self, run_id: str, agent: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the arguments of run {run_id!r} no longer fit agent {agent!r}: {reason}; nothing was changed")
        self.args = (run_id, agent, reason)


def order_for(
    engine: Engine, run_id: str, agents: Sequence[Agent[..., Any]], *, where: str, wait: bool,
    found: tuple[Head, Sequence[Row]] | None = None,
) -> Order:  # fmt: skip
    """The order that goes on with a recorded run, with the arguments it was started with; who has `found` it has it not read again."""
    head, rows = found or loaded(engine, run_id)
    started = Journal.load(head, rows).started
    assert started is not None
    named = [agent for agent in agents if agent.name == head.agent]
    if not named:
        raise UnknownAgent(head.agent, where, ", ".join(sorted(agent.name for agent in agents)))
    try:
        args, kwargs = named[0].orders.give_back(started.args or b"{}")
    except ValueError as error:
        raise UnfitArguments(run_id, head.agent, str(error)) from error
    except (StoreError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UnfitArguments(run_id, head.agent, told(error)) from error
    return Order(agent=named[0], run_id=run_id, args=args, kwargs=kwargs, wait=wait, recorded_arguments=True)
