"""Operators' verbs that change something: an unowned run is claimed for the verb, an owned one gets a letter."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast._failpoints import reach
from holdfast._ids import checked_text
from holdfast.budget import Budget, shown
from holdfast.codec.answers import misfit, read
from holdfast.codec.failures import told
from holdfast.codec.words import written
from holdfast.errors import LeaseLost, NotKept, Refusal, RunMoved, StoreError, UnknownAgent, Unwinding
from holdfast.life.again import sent_keys
from holdfast.life.calls import shown_call
from holdfast.life.door import acceptance
from holdfast.operating.family import hindrance, top_of
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.away import left, refuse_away
from holdfast.records.chain import record_of
from holdfast.records.fitting import is_held_up
from holdfast.records.journal import Journal
from holdfast.records.ledger import BUDGET
from holdfast.records.replay import Question
from holdfast.running.engine import Engine, Order
from holdfast.running.letters import tell_parent
from holdfast.running.runner import escaped, silent
from holdfast.store import Head, Row
from holdfast.verbs.decorators import Agent

MAX_TRIES = 20
"""How often a verb is tried again when the run moves under it."""

LOOKS, LOOK_S = 60, 0.05
"""How often, and how often in a second, it is looked whether the owner of a run has taken a letter: it looks for letters twice a second."""


EXECUTES = "the run executes now and takes this into account"


def somebody() -> str:
    """Who acts, when nobody said: the user of this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


def resolve(engine: Engine, run_id: str, step_id: str, *, landed: object, not_landed: bool, by: str, reason: str) -> str:
    """Settle a doubt; gives what happens next, in words."""
    if (landed is not ...) == not_landed:
        raise Refusal("say either that it landed, with its result, or that it did not; nothing was changed")
    by, reason = checked_text(by, "by"), checked_text(reason, "reason")
    verdict = "not_landed" if not_landed else "landed"
    value = None if not_landed else _encoded(landed)
    letter = {"step": step_id, "verdict": verdict, "value": value, "by": by, "reason": reason}
    data = None if value is None else value.encode()
    record = rec.DoubtSettled(step_id=step_id, verdict=verdict, by=by, reason=reason, value=data)

    earlier: list[str] = []

    def still_open(journal: Journal, *, owned: bool) -> None:
        _refuse_settled(journal, step_id, owned=owned, result=not not_landed)
        _refuse_unfit(journal, step_id, value)
        _refuse_second_word(engine, run_id, step_id)
        earlier[:] = [key for key in sent_keys(journal, step_id) if not_landed and key != journal.histories[step_id].key]

    posted = _tell(engine, run_id, still_open, [record], kind="settle", letter=letter, why=f"resolve by {by}")
    but = f"it will be executed under a key of its own; what was made before was sent under {', '.join(earlier)}. " if earlier else ""
    if posted:
        return f"{but}{_word_heard(engine, run_id, record, posted)}"
    head = engine.store.head(run_id)
    if head is not None and head.status == "cancelled":
        return f"the run stays cancelled; what is true of step {step_id} is recorded"
    return f"{but}{ready(engine, run_id)}"


def _refuse_settled(journal: Journal, step_id: str, *, owned: bool, result: bool) -> None:
    """Only what is in doubt can be settled, and a result be given that could not be kept."""
    run_id, history = journal.head.run_id, journal.histories.get(step_id)
    if journal.head.status != "cancelled" or history is None or not history.open_doubt(journal.head.epoch + 1):
        _refuse_final(journal.head)
    if history is None:
        raise Refusal(f"run {run_id!r} has no step {step_id!r}; nothing was changed. `holdfast inbox` lists the open doubts")
    if owned and not history.put_to_a_person():
        raise Refusal(f"run {run_id!r} executes now and is finding out about step {step_id} by itself; nothing was changed")
    if history.result_is_missing() and result:
        return
    if not history.open_doubt(journal.head.epoch if owned else journal.head.epoch + 1):
        raise Refusal(f"step {step_id} of run {run_id!r} is not in doubt{_settled_by(history.settled)}; nothing was changed")


def _refuse_unfit(journal: Journal, step_id: str, value: str | None) -> None:
    """A result that is plainly not what the effect returns, as far as the doubt says what that is."""
    doubt = journal.histories[step_id].doubt
    problem = misfit(doubt.wants, json.loads(value)) if value is not None and doubt is not None and doubt.wants else ""
    if problem:
        raise Refusal(f"{problem}; nothing was changed")


def _word_heard(engine: Engine, run_id: str, record: rec.DoubtSettled, letter_id: int) -> str:
    """Wait until the owner has taken the word, so that of two that come at once one is told; if it dies, it waits for the next."""
    if not _is_taken(engine, run_id, letter_id):
        _refuse_second_word(engine, run_id, record.step_id, before=letter_id)
        return "the word is kept, and the run reads it when it goes on"
    rows = [row for row in loaded(engine, run_id)[1] if row.kind == rec.DoubtSettled.kind and row.step_id == record.step_id]
    found = [settled for settled in map(record_of, rows) if isinstance(settled, rec.DoubtSettled)]
    if record not in found:
        why = _settled_by(found[-1] if found else None)
        raise Refusal(f"step {record.step_id} of run {run_id!r} is not in doubt any more{why}; nothing was changed")
    return EXECUTES


def _refuse_second_word(engine: Engine, run_id: str, step_id: str, before: int = 0) -> None:
    """A word on a doubt that is under way to the run's owner, or waits for the next one, is the first; `before` as below."""
    for letter in engine.store.letters([run_id]):
        body = json.loads(letter.body) if letter.kind == "settle" else {}
        if body.get("step") == step_id and (not before or letter.letter_id < before):
            said = f"{body['by']} said {body['verdict'].replace('_', ' ')}, which the run has yet to read"
            raise Refusal(f"step {step_id} of run {run_id!r} is settled: {said}; nothing was changed")


def ready(engine: Engine, run_id: str) -> str:
    """That a run can go on, and how: a child goes on with the run that had called it, and so on upwards. One that is paused cannot yet."""
    head = loaded(engine, run_id)[0]
    top = top_of(engine.store, head).run_id
    how = f"the run is ready to go on, by itself where a process waits for it; else: holdfast resume {top} --here APP.py"
    return _hindered(engine, head) or how


def _hindered(engine: Engine, head: Head) -> str:
    """What must be done for a run that is ready to go on, where something is in its way; nothing where nothing is."""
    found = hindrance(engine.store, head)
    held = head if head.status == "paused" else found.above if found is not None and not found.gone_on else None
    if held is not None and held.status == "paused":
        return f"it is recorded, and run {held.run_id!r} stays {held.note}; it goes on after: holdfast resume {held.run_id}"
    if found is None:
        return ""
    if found.gone_on:
        return f"it is recorded, but {found.told}. To execute it by itself: holdfast resume {head.run_id} --here APP.py"
    verb = "resume" if found.above.status == "failed" else "show"
    return f"it is recorded; {found.told}. What helps is: holdfast {verb} {found.above.run_id}"


def _marked(engine: Engine, run_id: str) -> str:
    """The same of a run that was marked as ready."""
    return _hindered(engine, loaded(engine, run_id)[0]) or "the run is ready for whoever runs its agent next"


class Given(NamedTuple):
    """An answer: a value, or what a person typed, which is read as the question wants it."""

    value: object
    typed: bool = False


def answer(engine: Engine, run_id: str, ask_id: str, *, given: Given, by: str, reason: str, about: int = 0) -> str:
    """Answer a question, the one that record `about` put, where that is said; gives what happens next, in words."""
    by, reason = checked_text(by, "by"), checked_text(reason, "reason")
    said: dict[str, Any] = {}

    def still_open(journal: Journal, *, owned: bool) -> None:
        del owned
        question = _open_question(journal, ask_id)
        if about and about != question.seq:
            now = f"it asks something else by now: {question.opened.question}"
            raise Refusal(f"question {ask_id!r} of run {run_id!r} is not the one that was seen, {now}; nothing was changed")
        if question.too_late(engine.clock.now_us()):
            raise Refusal(f"the time to answer {ask_id!r} of run {run_id!r} is over; nothing was changed")
        if question.opened.who and by not in question.opened.who:
            raise Refusal(f"{ask_id!r} of run {run_id!r} is for {', '.join(question.opened.who)} to answer, not {by}; nothing was changed")
        said.update(_read(question.opened, given), about=question.seq)
        _refuse_second(engine, run_id, ask_id)

    still_open(Journal.load(*loaded(engine, run_id)), owned=False)
    value = None if said["value"] is None else said["value"].encode()
    record = rec.AskAnswered(step_id=ask_id, yes=said["yes"], by=by, reason=reason, value=value)
    letter = {"ask": ask_id, "by": by, "reason": reason, **said}
    reach("answer.before")
    posted = _tell(engine, run_id, still_open, [record], kind="answer", letter=letter, why=f"answer by {by}")
    reach("answer.after")
    return _heard(engine, run_id, ask_id, posted) if posted else ready(engine, run_id)


def _open_question(journal: Journal, ask_id: str) -> Question:
    """The question, if it can be answered still."""
    run_id, question = journal.head.run_id, journal.asks.get(ask_id)
    _refuse_final(journal.head)
    if question is None:
        raise Refusal(f"run {run_id!r} has no question {ask_id!r}; nothing was changed. `holdfast inbox` lists the open ones")
    if question.answer is not None:
        raise _second(run_id, ask_id, question.answer)
    if question.closed:
        raise Refusal(f"question {ask_id!r} of run {run_id!r} is closed, {question.closed}; nothing was changed")
    return question


def _heard(engine: Engine, run_id: str, ask_id: str, letter_id: int) -> str:
    """Wait until the owner has taken the answer, so that of two that come at once one is told; if it dies, it waits for the next."""
    if _is_taken(engine, run_id, letter_id):
        _refuse_unless_taken(engine, run_id, ask_id, letter_id)
        return EXECUTES
    journal = Journal.load(*loaded(engine, run_id))
    question = journal.asks.get(ask_id)
    if question is not None and question.answer is not None:  # the run has ended or let go meanwhile, without a look at this letter
        if question.answer.letter == letter_id:
            return EXECUTES
        raise _second(run_id, ask_id, question.answer)
    _open_question(journal, ask_id)
    _refuse_second(engine, run_id, ask_id, before=letter_id)
    return "the answer is kept, and the run reads it when it goes on"


def _is_taken(engine: Engine, run_id: str, letter_id: int) -> bool:
    """Wait until the owner has taken a letter; False where it does not, or is gone."""
    for _ in range(LOOKS):
        head, _ = loaded(engine, run_id)
        if head.owner == engine.keeper.owner:
            engine.keeper.take_letters()
        if letter_id not in [letter.letter_id for letter in engine.store.letters([run_id])]:
            return True
        if not _is_owned(engine, head):
            return False
        engine.clock.sleep(LOOK_S)
    return False


def _refuse_unless_taken(engine: Engine, run_id: str, ask_id: str, letter_id: int) -> None:
    """An answer that was taken away without being recorded came too late; another one was the first, or the run went on without any."""
    head, rows = loaded(engine, run_id)
    found = [record_of(row) for row in rows if row.kind == rec.AskAnswered.kind and row.step_id == ask_id]
    answers = [record for record in found if isinstance(record, rec.AskAnswered)]
    if not any(record.letter == letter_id for record in answers):
        if answers:
            raise _second(run_id, ask_id, answers[-1])
        _open_question(Journal.load(head, rows), ask_id)
        raise Refusal(f"question {ask_id!r} of run {run_id!r} had been put anew meanwhile; nothing was changed")


def _read(asked: rec.AskOpened, given: Given) -> dict[str, Any]:
    """An answer as it is stored; one that is not what was asked for is refused."""
    encoded = _encoded(read(asked.wants, str(given.value)) if given.typed else given.value)
    value = json.loads(encoded)
    problem = misfit(asked.wants, value)
    if problem:
        raise Refusal(f"{problem}; nothing was changed")
    return {"yes": bool(value), "value": None} if not asked.wants else {"yes": True, "value": encoded}


def _second(run_id: str, ask_id: str, first: rec.AskAnswered) -> Refusal:
    return Refusal(f"question {ask_id!r} of run {run_id!r} was answered by {first.by}: {first.said()}; nothing was changed")


def _refuse_second(engine: Engine, run_id: str, ask_id: str, before: int = 0) -> None:
    """An answer that is under way to the run's owner, or waits for the next one, is the first; with `before`, if it came before that."""
    for letter in engine.store.letters([run_id]):
        body = json.loads(letter.body) if letter.kind == "answer" else {}
        if body.get("ask") == ask_id and (not before or letter.letter_id < before):
            value = None if body.get("value") is None else body["value"].encode()
            raise _second(run_id, ask_id, rec.AskAnswered(step_id=ask_id, yes=body["yes"], by=body["by"], value=value))


def send(engine: Engine, run_id: str, name: str, value: object, *, by: str, key: str = "") -> str:
    """Leave a message for a run, which keeps it until its code takes it; gives what happens next, in words."""
    if not checked_text(name, "the name of a message"):
        raise Refusal("a message needs a name, the one that the run receives; nothing was sent")
    head, rows = loaded(engine, run_id)
    refuse_away(head)
    if head.status in ("done", "cancelled"):
        raise Refusal(f"run {run_id!r} is {head.status} and takes no messages any more; nothing was sent")
    body = {"name": name, "value": json.loads(_encoded(value)), "by": checked_text(by, "by"), "key": checked_text(key, "key")}
    if before := _sent_before(engine, Journal.load(head, rows), body) if key else "":
        return before
    reach("send.before")
    left(engine.store, engine.clock, run_id, ("message", json.dumps(body).encode()))
    reach("send.after")
    return f"the message is kept until the run receives {name!r}"


def _sent_before(engine: Engine, journal: Journal, body: dict[str, Any]) -> str:
    """What became of the message that was sent under this key before, or nothing; the first one holds, whatever this one says."""
    told = f"a message with key {body['key']!r} was sent before"
    if body["key"] in journal.taken:
        return f"{told}, and the run has taken it; nothing was sent"
    kept = [{"name": one.name, "value": json.loads(one.value), "key": one.key} for one in journal.unread.values()]
    letters = [letter for letter in engine.store.letters([journal.head.run_id]) if letter.kind == "message"]
    for other in (*kept, *(json.loads(letter.body) for letter in letters)):
        if other.get("key") == body["key"]:
            same = (other.get("name"), other.get("value")) == (body["name"], body["value"])
            return f"{told}{'' if same else ' with something else in it, which holds'}; nothing was sent"
    return ""


def cancel(engine: Engine, run_id: str, *, by: str, reason: str) -> str:
    """Close a run for good, and its unfinished child runs after it; gives what happens next, in words.

    In this order nobody can go on with the run in answer to the end of a child, and what is refused has changed nothing.
    """

    def not_final(journal: Journal, *, owned: bool) -> None:
        del owned
        _refuse_final(journal.head)

    record = rec.RunCancelled(by=checked_text(by, "by"), reason=checked_text(reason, "reason"))
    if loaded(engine, run_id)[0].status == "cancelled" and (below := cancel_children(engine, run_id)):
        return f"the run was cancelled before{_with_children(below)}"
    owned = _tell(engine, run_id, not_final, [record], kind="cancel", letter={"by": by, "reason": reason}, why=f"cancel by {by}")
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
        _refuse_final(journal.head)
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
    owned = _tell(engine, run_id, to_be_held, [record], kind="pause", letter=letter, why=f"pause by {by}")
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
        _refuse_final(journal.head)
        if journal.undoing is not None:
            how = f"It executes now in {journal.head.owner}" if owned else f"It goes on with: holdfast resume {run_id} --here APP.py"
            raise Refusal(f"run {run_id!r} is being undone already; nothing was changed. {how}")

    record = rec.RunUndoing(by=checked_text(by, "by"), reason=checked_text(reason, "reason"))
    letter = {"by": by, "reason": reason, "undo": True}
    owned = _tell(engine, run_id, not_yet, [record], kind="cancel", letter=letter, why=f"undo by {by}")
    if owned:
        return "its owner has been told to stop and to undo what it did"
    stays = Journal.load(*loaded(engine, run_id)).superseded
    stays = [(step_id, found) for step_id, found in stays if (found.landed() or found.child) and not found.elsewhere]
    names = ", ".join(f"{found.name} (step {step_id})" for step_id, found in stays)
    but = f"; what is superseded is not undone, its code is not called any more: {names}" if names else ""
    return f"the run is undone by whoever runs its agent next; to do it now: holdfast resume {run_id} --here APP.py{but}"


def _left_in_doubt(engine: Engine, run_id: str) -> str:
    """The doubts that outlive their run: what nobody knows about the world is not closed with it."""
    doubts = Journal.load(*loaded(engine, run_id)).open_doubts(ended=True)
    told = [f"; step {step_id} {shown_call(found.name, found.args)} stays in doubt, key {found.key}" for step_id, found in doubts]
    return "".join([*told, ". `holdfast inbox` lists it until it is resolved"] if told else [])


def resume(engine: Engine, run_id: str, *, by: str, reason: str) -> str:
    """Mark a run as ready; gives what happens next, in words."""
    why = checked_text(f"resume by {by}{': ' + reason if reason else ''}", "reason")
    for _ in range(MAX_TRIES):
        journal = Journal.load(*loaded(engine, run_id))
        _refuse_final(journal.head)
        if _is_owned(engine, journal.head):
            raise Refusal(f"run {run_id!r} executes now in {journal.head.owner}; nothing was changed")
        paused = [letter.letter_id for letter in engine.store.letters([run_id]) if letter.kind == "pause"]  # which nobody has read
        if _claimed(engine, journal, [_resumed(engine, journal, why)], takes=paused):
            return _marked(engine, run_id)
    raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")


def allow(engine: Engine, run_id: str, budget: Budget, *, by: str, reason: str) -> str:
    """Set limits of a run, and mark it as ready; gives what happens next, in words."""
    by, reason, limits = checked_text(by, "by"), checked_text(reason, "reason"), budget.limits()

    def not_final(journal: Journal, *, owned: bool) -> None:
        del owned
        _refuse_final(journal.head)

    record = rec.BudgetSet(step_id=BUDGET, limits=limits, by=by, reason=reason)
    letter = {"limits": limits, "by": by, "reason": reason}
    owned = _tell(engine, run_id, not_final, [record], kind="budget", letter=letter, why=f"resume by {by}")
    told = ", ".join(shown(name, limit) for name, limit in limits.items())
    return f"it may spend {told} now; {EXECUTES if owned else _marked(engine, run_id)}"


def accept(engine: Engine, run_id: str, *, by: str, reason: str) -> str:
    """Let a run go on with what has changed: the code that blocks it, or the models that answer; gives what happens next, in words."""
    by, reason = checked_text(by, "by"), checked_text(reason, "reason")
    for _ in range(MAX_TRIES):
        journal = Journal.load(*loaded(engine, run_id))
        accepting = _accepting_code if journal.head.status == "blocked" else _accepting_models
        if _is_owned(engine, journal.head):
            raise Refusal(f"run {run_id!r} executes now in {journal.head.owner}; nothing was changed")
        records, told = accepting(journal, by=by, reason=reason)
        if _claimed(engine, journal, [_resumed(engine, journal, f"accept by {by}"), *records]):
            return told
    raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")


def _accepting_code(journal: Journal, *, by: str, reason: str) -> tuple[list[rec.Record], str]:
    run_id, verdict = journal.head.run_id, journal.verdict
    if not isinstance(verdict, rec.RunBlocked) or not verdict.step_id:
        raise Refusal(f"run {run_id!r} is not blocked by changed code; nothing was changed")
    lost = journal.given_up(verdict.step_id)
    doubts = [step_id for step_id, history in lost if history.open_doubt(journal.head.epoch + 1)]
    if doubts:
        raise Refusal(f"step {doubts[0]} of run {run_id!r} is in doubt: settle it first; nothing was changed")
    steps = "1 recorded step is" if len(lost) == 1 else f"{len(lost)} recorded steps are"
    told = f"the run goes on with the new code from step {verdict.step_id}; {steps} superseded"
    return [rec.RunAccepted(step_id=verdict.step_id, by=by, reason=reason)], told


def _accepting_models(journal: Journal, *, by: str, reason: str) -> tuple[list[rec.Record], str]:
    changes = list(journal.models.open)
    if not changes or journal.head.status in ("done", "cancelled"):
        not_blocked = f"run {journal.head.run_id!r} is not blocked by changed code; nothing was changed"
        raise Refusal(f"{not_blocked}, nor does a model wait to be accepted")
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


def _tell(engine: Engine, run_id: str, allowed: Any, records: list[rec.Record], *, kind: str, letter: dict[str, Any], why: str) -> int:
    """Write the records as the run's own if nobody owns it, otherwise post a letter to its owner; gives its number, or 0 for none."""
    for _ in range(MAX_TRIES):
        journal = Journal.load(*loaded(engine, run_id))
        owned = _is_owned(engine, journal.head)
        allowed(journal, owned=owned)
        if owned:
            return left(engine.store, engine.clock, run_id, (kind, json.dumps(letter).encode()))
        taken = [] if _stays(journal.head, kind) else [_resumed(engine, journal, why)]
        if kind == "cancel" and "undo" in letter:
            taken = [one.but(cleared=[]) for one in taken]  # the path to undo is the one that was taken, failures included
        if _claimed(engine, journal, [*taken, *records]):
            return 0
    raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")


def _stays(head: Head, kind: str) -> bool:
    """Whether a word is recorded and the run stays where it is: what is closed is not opened again, what is paused waits to be resumed."""
    return head.status == "cancelled" or (head.status == "paused" and kind in ("settle", "answer"))


def _resumed(engine: Engine, journal: Journal, why: str) -> rec.RunResumed:
    return rec.RunResumed(owner="", why=why, cleared=escaped(journal), silent=silent(engine, journal.head))


def _claimed(engine: Engine, journal: Journal, records: list[rec.Record], takes: Sequence[int] = ()) -> bool:
    """Whether the records went in; False where somebody else was faster.

    The parent of a child run is told before, so that no crash keeps it from learning of an end, and after, where it has looked meanwhile.
    """
    refuse_away(journal.head)
    by = str(getattr(records[-1], "by", ""))
    tell_parent(engine.store, engine.clock, journal, by=by)
    try:
        engine.committer.commit(journal, records, takes)
    except LeaseLost:
        return False
    except Unwinding as stopped:
        raise getattr(stopped, "error", stopped) from stopped
    tell_parent(engine.store, engine.clock, journal, by=by)
    return True


def _is_owned(engine: Engine, head: Head) -> bool:
    return head.owner is not None and engine.observer.life_of(head.owner) == "alive"


def _refuse_final(head: Head) -> None:
    refuse_away(head)
    if head.status in ("done", "cancelled"):
        raise Refusal(f"run {head.run_id!r} is {head.status} and stays so; nothing was changed")


def _encoded(landed: object) -> str:
    try:
        return written(landed)
    except NotKept as error:
        raise Refusal(f"it must be JSON, and {error.what} is not ({error.reason}); nothing was changed. {error.remedy}") from error


def _settled_by(settled: rec.DoubtSettled | None) -> str:
    return f": {settled.by} said {settled.verdict.replace('_', ' ')}" if settled is not None else ""
