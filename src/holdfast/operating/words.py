"""A person's word to a run: what is true of a doubt, the answer to a question, a message.

Of two words on one thing the first counts, also while the run has yet to read it, and who came second is told.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from holdfast._failpoints import reach
from holdfast._ids import checked_text
from holdfast.codec.answers import misfit, read
from holdfast.errors import Refusal
from holdfast.life.again import sent_keys
from holdfast.operating.telling import EXECUTES, as_json, is_taken, ready, refuse_final, tell
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.away import left, refuse_away
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.records.replay import Question
from holdfast.running.engine import Engine
from holdfast.running.letters import awaited_messages, said


def resolve(engine: Engine, run_id: str, step_id: str, *, landed: object, not_landed: bool, by: str, reason: str) -> str:
    """Settle a doubt; gives what happens next, in words."""
    if (landed is not ...) == not_landed:
        raise Refusal("say either that it landed, with its result, or that it did not; nothing was changed")
    by, reason = checked_text(by, "by"), checked_text(reason, "reason")
    verdict = "not_landed" if not_landed else "landed"
    value = None if not_landed else as_json(landed)
    letter = {"step": step_id, "verdict": verdict, "value": value, "by": by, "reason": reason}
    data = None if value is None else value.encode()
    record = rec.DoubtSettled(step_id=step_id, verdict=verdict, by=by, reason=reason, value=data)

    earlier: list[str] = []

    def still_open(journal: Journal, *, owned: bool) -> None:
        _refuse_settled(journal, step_id, owned=owned, result=not not_landed)
        _refuse_unfit(journal, step_id, value)
        _refuse_second_word(engine, run_id, step_id)
        earlier[:] = [key for key in sent_keys(journal, step_id) if not_landed and key != journal.histories[step_id].key]

    posted = tell(engine, run_id, still_open, [record], kind="settle", letter=letter, why=f"resolve by {by}")
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
        refuse_final(journal.head)
    if step_id in journal.asks:
        say = f"holdfast answer {run_id}/{step_id} ANSWER"
        raise Refusal(f"{step_id!r} of run {run_id!r} is a question, and not in doubt; nothing was changed. Say: {say}")
    if history is None:
        raise Refusal(f"run {run_id!r} has no step {step_id!r}; nothing was changed. `holdfast inbox` lists the open doubts")
    if owned and not history.put_to_a_person():
        raise Refusal(f"run {run_id!r} executes now and is finding out about step {step_id} by itself; nothing was changed")
    if history.result_is_missing() and result:
        return
    if not history.open_doubt(journal.head.epoch if owned else journal.head.epoch + 1):
        steps = [f"step {each}" for each, _ in journal.open_doubts(ended=not owned)]
        others = f". In doubt: {', '.join(steps)}" if steps else ""
        raise Refusal(f"step {step_id} of run {run_id!r} is not in doubt{_settled_by(history.settled)}; nothing was changed{others}")


def _refuse_unfit(journal: Journal, step_id: str, value: str | None) -> None:
    """A result that is plainly not what the effect returns, as far as the doubt says what that is."""
    doubt = journal.histories[step_id].doubt
    problem = misfit(doubt.wants, json.loads(value), by_person=True) if value is not None and doubt is not None and doubt.wants else ""
    if problem:
        raise Refusal(f"{problem}; nothing was changed")


def _word_heard(engine: Engine, run_id: str, record: rec.DoubtSettled, letter_id: int) -> str:
    """Wait until the owner has taken the word, so that of two that come at once one is told; if it dies, it waits for the next."""
    if not is_taken(engine, run_id, letter_id):
        _refuse_second_word(engine, run_id, record.step_id, before=letter_id)
        return "the word is kept, and the run reads it when it goes on"
    rows = [row for row in loaded(engine, run_id)[1] if row.kind == rec.DoubtSettled.kind and row.step_id == record.step_id]
    found = [settled for settled in map(record_of, rows) if isinstance(settled, rec.DoubtSettled)]
    if record not in found:
        why = _settled_by(found[-1] if found else None)
        raise Refusal(f"step {record.step_id} of run {run_id!r} is not in doubt any more{why}; nothing was changed")
    return EXECUTES


def _refuse_second_word(engine: Engine, run_id: str, step_id: str, before: int = 0) -> None:
    """Who comes second on a doubt is told what the first has said."""
    first = _under_way(engine, run_id, ("settle", "step", step_id), before)
    if first is not None:
        said = f"{first['by']} said {first['verdict'].replace('_', ' ')}, which the run has yet to read"
        raise Refusal(f"step {step_id} of run {run_id!r} is settled: {said}; nothing was changed")


def _settled_by(settled: rec.DoubtSettled | None) -> str:
    return f": {settled.by} said {settled.verdict.replace('_', ' ')}" if settled is not None else ""


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
    posted = tell(engine, run_id, still_open, [record], kind="answer", letter=letter, why=f"answer by {by}")
    reach("answer.after")
    return _heard(engine, run_id, ask_id, posted) if posted else ready(engine, run_id)


def _open_question(journal: Journal, ask_id: str) -> Question:
    """The question, if it can be answered still."""
    run_id, question = journal.head.run_id, journal.asks.get(ask_id)
    refuse_final(journal.head)
    if question is None and ask_id in dict(journal.open_doubts(ended=True)):
        say = f"holdfast resolve {run_id} {ask_id} --landed RESULT, or --not-landed"
        raise Refusal(f"step {ask_id!r} of run {run_id!r} is in doubt, and no question; nothing was changed. Say: {say}")
    if question is None:
        raise Refusal(f"run {run_id!r} has no question {ask_id!r}; nothing was changed. `holdfast inbox` lists the open ones")
    if question.answer is not None:
        raise _second(run_id, ask_id, question.answer)
    if question.closed:
        raise Refusal(f"question {ask_id!r} of run {run_id!r} is closed, {question.closed}; nothing was changed")
    return question


def _heard(engine: Engine, run_id: str, ask_id: str, letter_id: int) -> str:
    """Wait until the owner has taken the answer, so that of two that come at once one is told; if it dies, it waits for the next."""
    if is_taken(engine, run_id, letter_id):
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
    encoded = as_json(read(asked.wants, str(given.value)) if given.typed else given.value)
    value = json.loads(encoded)
    problem = misfit(asked.wants, value, by_person=True)
    if problem:
        raise Refusal(f"{problem}; nothing was changed")
    return {"yes": bool(value), "value": None} if not asked.wants else {"yes": True, "value": encoded}


def _second(run_id: str, ask_id: str, first: rec.AskAnswered) -> Refusal:
    return Refusal(f"question {ask_id!r} of run {run_id!r} was answered by {first.by}: {first.said()}; nothing was changed")


def _refuse_second(engine: Engine, run_id: str, ask_id: str, before: int = 0) -> None:
    """The same of a question."""
    first = _under_way(engine, run_id, ("answer", "ask", ask_id), before)
    if first is not None:
        value = None if first.get("value") is None else first["value"].encode()
        raise _second(run_id, ask_id, rec.AskAnswered(step_id=ask_id, yes=first["yes"], by=first["by"], value=value))


def _under_way(engine: Engine, run_id: str, about: tuple[str, str, str], before: int) -> dict[str, Any] | None:
    """A letter on a thing that is under way to the run's owner, or waits for the next one; with `before`, if it came before that."""
    kind, name, what = about
    for letter in engine.store.letters([run_id]):
        body = said(letter) if letter.kind == kind else {}
        if body.get(name) == what and (not before or letter.letter_id < before):
            return body
    return None


def send(engine: Engine, run_id: str, name: str, value: object, *, by: str, key: str = "") -> str:
    """Leave a message for a run, which keeps it until its code takes it; gives what happens next, in words."""
    if not checked_text(name, "the name of a message"):
        raise Refusal("a message needs a name, the one that the run receives; nothing was sent")
    head, rows = loaded(engine, run_id)
    refuse_away(head)
    if head.status in ("done", "cancelled"):
        raise Refusal(f"run {run_id!r} is {head.status} and takes no messages any more; nothing was sent")
    body = {"name": name, "value": json.loads(as_json(value)), "by": checked_text(by, "by"), "key": checked_text(key, "key")}
    journal = Journal.load(head, rows)
    if before := _sent_before(engine, journal, body) if key else "":
        return before
    reach("send.before")
    left(engine.store, engine.clock, run_id, ("message", json.dumps(body).encode()))
    reach("send.after")
    return f"the message is kept until the run receives {name!r}{_waits_for_others(journal, name)}"


def _waits_for_others(journal: Journal, name: str) -> str:
    """That a run which waits for messages waits for none of this name: it may be mistyped."""
    names = awaited_messages(journal) if journal.head.status == "waiting" else []
    return f"; now it waits for {' and '.join(map(repr, names))}" if names and name not in names else ""


def _sent_before(engine: Engine, journal: Journal, body: dict[str, Any]) -> str:
    """What became of the message that was sent under this key before, or nothing; the first one holds, whatever this one says."""
    told = f"a message with key {body['key']!r} was sent before"
    if body["key"] in journal.taken:
        return f"{told}, and the run has taken it; nothing was sent"
    kept = [{"name": one.name, "value": json.loads(one.value), "key": one.key} for one in journal.unread.values()]
    letters = [letter for letter in engine.store.letters([journal.head.run_id]) if letter.kind == "message"]
    for other in (*kept, *(said(letter) for letter in letters)):
        if other.get("key") == body["key"]:
            same = (other.get("name"), other.get("value")) == (body["name"], body["value"])
            return f"{told}{'' if same else ' with something else in it, which holds'}; nothing was sent"
    return ""
