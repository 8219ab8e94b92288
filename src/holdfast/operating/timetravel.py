"""Going back in a run: give a step or a state another value and go on from there, in place (edit) or as a run of its own (fork).

Both say what becomes of effects that happened after that point: a call that was made already is asked about, its result is taken over,
or it is made again. An edit is one append to the run. A fork is one append that creates another run: the records up to the point,
sealed anew, and what is known of the rest (`records/lineage.py`). Neither executes anything.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from holdfast._failpoints import reach
from holdfast._ids import checked_run_id, checked_text, new_origin
from holdfast.codec.values import codec_for
from holdfast.errors import Damaged, NotKept, Refusal
from holdfast.operating.telling import MAX_TRIES, as_json, claimed, is_owned, ready, taken_up
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.away import refuse_away
from holdfast.records.chain import CHILD_OF, record_of
from holdfast.records.journal import Journal
from holdfast.records.lineage import ANY_EPOCH, OF_THE_RUN, happened, standing, told, unread
from holdfast.records.replay import CLEANUP, UNDO, History
from holdfast.running.engine import Engine
from holdfast.running.runner import child_tags, refuse_pruned
from holdfast.store import Append, Row, Shelf
from holdfast.verbs.decorators import Step

Effects: TypeAlias = Literal["ask", "reuse", "repeat"]
"""What becomes of a call that was made already after the point: a person says, its result is taken over, or it is made again."""

BEGINNING = "0"
"""The point before the first step, of this generation where the run has begun anew."""
STATE = "state."
"""Part of the name of every state object."""

MOST_FORKS = 1000
"""Forks of one run that get a number by themselves."""

POINTING = (rec.StepEdited, rec.StateEdited, rec.RunForked)
"""Records that name the place of another one."""

SHOWN_STEPS = 300
"""Characters of a list of steps in a message."""


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork: its run, and whether it was there already."""

    run_id: str
    existed: bool = False


class Word(NamedTuple):
    """Who goes back, why, and what becomes of effects that happened."""

    by: str
    reason: str
    effects: Effects


def word(by: str, reason: str, effects: str) -> Word:
    """The same, checked."""
    if effects not in get_args(Effects):
        raise Refusal(f"effects={effects!r}: it is one of {', '.join(get_args(Effects))}; nothing was changed")
    return Word(checked_text(by, "by"), checked_text(reason, "reason"), effects)  # type: ignore[arg-type]


def edit(engine: Engine, run_id: str, step_id: str, value: object, *, said: Word, fits: object = None) -> str:
    """Give a step another result and go on from there; gives what happens next, in words."""
    data = as_json(value).encode()

    def edited(journal: Journal) -> rec.StepEdited:
        return _step_edit(journal, step_id, data, said, fits=fits)

    return _in_place(engine, run_id, edited)


def edit_state(engine: Engine, run_id: str, value: object, *, at: str, name: str, said: Word) -> str:
    """Give a state object another value at a step and go on from there; gives what happens next, in words."""
    data = as_json(value).encode()

    def edited(journal: Journal) -> rec.StateEdited:
        return _state_edit(journal, _state_named(journal, name), data, said, at=at)

    return _in_place(engine, run_id, edited)


def recorded_value(engine: Engine, run_id: str, step_id: str, *, state: str | None = None) -> Any:
    """What an edit would replace: the result of a step or, with its name, a state at that step."""
    journal = Journal.load(*loaded(engine, run_id))
    after = point(journal, step_id)
    if state is not None:
        return json.loads(_state_at(journal, _state_named(journal, state), after) or b"null")
    history = journal.histories.get(step_id)
    return json.loads(getattr(history.outcome, "value", None) or b"null") if history is not None else None


def name_of(engine: Engine, run_id: str, step_id: str) -> str:
    """The name of the function that was called at a step."""
    history = Journal.load(*loaded(engine, run_id)).histories.get(step_id)
    return "" if history is None else history.name


def fork(
    engine: Engine, run_id: str, *, at: str, edits: Mapping[str, object], new_id: str | None, said: Word, fits: object = None
) -> Forked:
    """Make another run that goes on from a step of this one, with these results in the place of the recorded ones."""
    head, rows = loaded(engine, run_id)
    refuse_away(head)
    journal = Journal.load(head, rows)
    after = point(journal, at)
    _refuse_unsettled(engine, journal, at, after)
    data = {checked_text(str(name), "step"): as_json(value).encode() for name, value in edits.items()}
    corrections = [_correction(journal, name, value, said, at=at, after=after, fits=fits) for name, value in data.items()]
    if new_id is not None:
        refuse_pruned(engine, new_id)
        made = _made(engine, checked_run_id(new_id), rows, journal, corrections, at=at, after=after, said=said)
        if made is None:
            raise Refusal(f"there is a run {new_id!r} already, and it is not this fork; nothing was changed. Give another id")
        return made
    for number in range(1, MOST_FORKS):
        numbered = checked_run_id(f"{run_id}.f{number}")
        made = _made(engine, numbered, rows, journal, corrections, at=at, after=after, said=said, untouched=True)
        if made is not None:
            return made
    raise Refusal(f"run {run_id!r} has {MOST_FORKS - 1} forks; nothing was changed. Give an id")


def fork_child(engine: Engine, source: str, new_id: str, *, parent: dict[str, str], said: Word) -> None:
    """Make the child run of a step a branch of the one that the same call had on a path that was given up: it knows what that one did."""
    head, rows = loaded(engine, source)
    journal = Journal.load(head, rows)
    made = _made(engine, new_id, rows, journal, [], at=BEGINNING, after=journal.began, said=said, parent=parent)
    if made is None:
        raise Refusal(f"there is a run {new_id!r} already, and it is not that child run; it is unchanged")


def branched(
    engine: Engine, new_id: str, rows: Sequence[Row], journal: Journal, *, at: str, refs: Sequence[str], said: Word, untouched: bool
) -> Forked | None:
    """Make a run that stands in another place, and of which these are the records, into a fork here; `refs` are its artifacts, kept here.

    None where another run has that id or, if the fork must be `untouched`, where somebody has gone on with it.
    """
    after = point(journal, at)
    _refuse_unsettled(engine, journal, at, after)
    return _made(engine, new_id, rows, journal, [], at=at, after=after, said=said, untouched=untouched, blobs=refs)


def point(journal: Journal, step_id: str) -> int:
    """Where the outcome of a step stands in the journal, which what comes after it is measured by; of a group, that of its last step."""
    if step_id == BEGINNING:
        return journal.began
    history, run_id = journal.histories.get(step_id), journal.head.run_id
    if history is not None and history.outcome is not None:
        return history.outcome_seq
    below = [found for found_id, found in journal.histories.items() if found_id.startswith(f"{step_id}.")]
    if history is None and below and step_id in journal.groups:
        if any(found.outcome is None for found in below):
            raise Refusal(f"the branches of step {step_id} of run {run_id!r} have not all ended; nothing was changed")
        return max(found.outcome_seq for found in below)
    if history is None:
        raise _unknown(journal, step_id)
    how = f": holdfast resolve {run_id} {shlex.quote(step_id)}" if history.effect else ""
    how = f", what became of it is known: holdfast resume {run_id} --here APP.py" if history.settled is not None else how
    raise Refusal(f"step {step_id} of run {run_id!r} has no outcome yet{how}; nothing was changed. Go back to a step before it")


def _unknown(journal: Journal, step_id: str) -> Refusal:
    run_id, question = journal.head.run_id, journal.asks.get(step_id)
    if question is not None and question.is_open():
        how = f"holdfast answer {shlex.quote(f'{run_id}/{step_id}')}"
        return Refusal(f"nobody has answered step {step_id} of run {run_id!r} yet; nothing was changed. To do it: {how}")
    shown = [found for found, history in journal.histories.items() if history.outcome is not None]
    known = ", ".join([BEGINNING, *shown])[:SHOWN_STEPS]
    return Refusal(f"run {run_id!r} has no step {step_id!r}; nothing was changed. It can go back to {known}")


def _in_place(engine: Engine, run_id: str, edited: Any) -> str:
    for _ in range(MAX_TRIES):
        head, rows = loaded(engine, run_id)
        journal = Journal.load(head, rows)
        _refuse_unfit_status(engine, journal)
        record: rec.StepEdited | rec.StateEdited = edited(journal)
        if record_of(rows[-1]) == record:
            return f"that edit is made already; {ready(engine, run_id)}"
        given_up = happened(journal.histories.items(), record.after)
        doubts = [step_id for step_id, found in given_up if found.open_doubt(ANY_EPOCH)]
        if doubts:
            raise Refusal(f"step {doubts[0]} of run {run_id!r} is in doubt: settle it first; nothing was changed")
        reach("edit.before")
        resumed = [] if head.status == "paused" else [taken_up(engine, journal, f"edit by {record.by}")]
        if claimed(engine, journal, [*resumed, record]):
            reach("edit.after")
            known = [*_given_up_before(journal), *given_up]
            return f"{_superseded(known, record)}{ready(engine, run_id)}"
    raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")


def _given_up_before(journal: Journal) -> list[tuple[str, History]]:
    """The effects of paths that were given up earlier and that no call has taken over: they happened, or may have."""
    return [(step_id, found) for step_id, found in journal.superseded if found.landed() or found.child or found.open_doubt(ANY_EPOCH)]


def _superseded(effects: Sequence[tuple[str, History]], record: rec.StepEdited | rec.StateEdited) -> str:
    """The effects that happened after the point or on a path given up earlier, and what becomes of a call that would do one again."""
    children = [found for _, found in effects if found.child]
    if children:
        effects = [pair for pair in effects if not pair[1].child]
        fate = {"repeat": "another one is begun"}.get(record.effects, "the same call takes it on")
        names = ", ".join(f"{found.child} ({_end_of(found)})" for found in children)
        return f"child runs began after it: {names}; {fate}. {_superseded(effects, record)}"
    if not effects:
        return ""
    what = {"ask": "asked about before it is done again", "reuse": "not done again: its result is taken", "repeat": "done again"}
    after = [pair for pair in effects if pair[1].first_seq > record.after and not pair[1].elsewhere]
    parts = {"happened after it": after, "happened on a path given up before": [pair for pair in effects if pair not in after]}
    told = "; ".join(f"{where}: {', '.join(_named(*pair) for pair in found)}" for where, found in parts.items() if found)
    return f"{told}; the same call is {what[record.effects]}. With other arguments it is executed, and what happened stays; "


def _named(step_id: str, found: History) -> str:
    return f"{found.name} (step {step_id}{f' of run {found.elsewhere}' if found.elsewhere else ''})"


def _end_of(child: History) -> str:
    return "done" if isinstance(child.outcome, rec.StepDone) else "not done: cancelled at the end of the run where no call takes it on"


def _refuse_unfit_status(engine: Engine, journal: Journal) -> None:
    head = journal.head
    refuse_away(head)
    if head.status in ("done", "cancelled"):
        raise Refusal(f"run {head.run_id!r} is {head.status} and stays so; nothing was changed. Branch it: holdfast fork {head.run_id}")
    if journal.undoing is not None:
        raise Refusal(f"run {head.run_id!r} is being undone; nothing was changed. Branch it: holdfast fork {head.run_id}")
    if is_owned(engine, head):
        running = [step_id for step_id, found in journal.histories.items() if found.effect and found.outcome is None]
        what = f"the effect at step {running[0]} runs" if running else "it executes"
        remedy = "Wait until it waits or ends, stop that process, or branch it: holdfast fork"
        raise Refusal(f"run {head.run_id!r} cannot be edited now, {what} in {head.owner}; nothing was changed. {remedy} {head.run_id}")


def _step_edit(journal: Journal, step_id: str, data: bytes, said: Word, *, fits: object) -> rec.StepEdited:
    """The record that a step has another outcome; refused where it has none, or the value is not of its kind."""
    after, history = point(journal, step_id), journal.histories.get(step_id)
    run_id = journal.head.run_id
    if history is None or not isinstance(history.outcome, rec.StepDone | rec.StepFailed) or not history.fingerprint:
        raise Refusal(f"step {step_id} of run {run_id!r} has no result of its own to edit; nothing was changed")
    if step_id.startswith((UNDO, CLEANUP)) or history.open_doubt(ANY_EPOCH):
        settle = f"settle it: holdfast resolve {run_id} {shlex.quote(step_id)}"
        how = settle if history.open_doubt(ANY_EPOCH) else "it is not a step of the agent's"
        raise Refusal(f"step {step_id} of run {run_id!r} cannot be edited, {how}; nothing was changed")
    _refuse_misfit(step_id, history, data, fits)
    return rec.StepEdited(
        step_id=step_id, name=history.name, fingerprint=history.fingerprint, value=data, after=after, by=said.by, reason=said.reason,
        effects=said.effects,
    )  # fmt: skip


def _refuse_misfit(step_id: str, history: History, data: bytes, fits: object) -> None:
    """Check a value by the type of the step, where whoever edits has its code, or else by what it takes the place of."""
    if fits is not None:
        codec = fits.spec.codec() if isinstance(fits, Step) else codec_for(fits, f"the result of step {history.name!r}")
        try:
            codec.give_back(data)
        except (ValueError, NotKept) as error:
            why = "; ".join(line.strip() for line in str(error).splitlines())
            raise Refusal(f"it is not what step {step_id}, {history.name!r}, returns: {why}; nothing was changed") from error
        return
    before = history.outcome.value if isinstance(history.outcome, rec.StepDone) else None
    problem = misshapen(json.loads(before), json.loads(data)) if before is not None else ""
    if problem:
        remedy = "Where the step may return that, check it by its code: --here APP.py"
        raise Refusal(f"it is not like what step {step_id}, {history.name!r}, returned: {problem}; nothing was changed. {remedy}")


def misshapen(old: Any, new: Any, where: str = "it") -> str:
    """What is of another kind than before, or nothing; null can be anything, and parts that only one of them has say nothing."""
    if old is None or new is None:
        return ""
    was, now = _kind(old), _kind(new)
    if was != now:
        return f"{where} is {now}, and was {was}"
    if isinstance(old, dict):
        parts = (misshapen(old[key], new[key], f"{where}.{key}" if where != "it" else key) for key in old.keys() & new.keys())
        return next((problem for problem in parts if problem), "")
    return ""


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names[type(value)]


def _state_named(journal: Journal, name: str) -> str:
    """The state that is meant: by its name or its number, or the only one."""
    names = list(journal.states)
    if re.fullmatch(r"[0-9.]*/state\.[0-9]+", name):
        return name
    found = [each for each in names if name in (each, each.rpartition(STATE)[2], each.lstrip("/"), "")]
    if len(found) == 1:
        return found[0]
    known = ", ".join(names) or "none"
    which = f"no state {name!r}" if name else f"{len(names) or 'no'} states"
    raise Refusal(f"run {journal.head.run_id!r} has {which}; nothing was changed. Saved are: {known}")


def _state_at(journal: Journal, name: str, after: int) -> bytes | None:
    return journal.states[name].at(after) if name in journal.states else None


def _state_edit(journal: Journal, name: str, data: bytes, said: Word, *, at: str) -> rec.StateEdited:
    """The record that a state is another one at a step; refused between branches, where states are what the code makes of them."""
    after, before = point(journal, at), None
    if at == BEGINNING or "." in at.partition(":")[0] or at not in journal.histories:
        where = "at a step of the agent itself, not of a branch, nor before the first"
        raise Refusal(f"a state is edited {where}, and {at!r} is none; nothing was changed")
    before = _state_at(journal, name, after) or next((value for _, value in journal.states.get(name, ())), None)
    problem = misshapen(json.loads(before), json.loads(data)) if before is not None else ""
    if problem:
        raise Refusal(f"it is not like state {name} at step {at}: {problem}; nothing was changed")
    return rec.StateEdited(step_id=name, at=at, value=data, after=after, by=said.by, reason=said.reason, effects=said.effects)


def _correction(
    journal: Journal, name: str, data: bytes, said: Word, *, at: str, after: int, fits: object
) -> rec.StepEdited | rec.StateEdited:
    """An edit of a fork: of a step that stands at its point, or of a state there."""
    if f"/{STATE}" in name:
        return _state_edit(journal, _state_named(journal, name), data, said, at=at).but(in_fork=True)
    found = _step_edit(journal, name, data, said, fits=fits)
    if journal.histories[name].first_seq > after:
        raise Refusal(f"step {name} comes after step {at}, where the fork begins; nothing was changed. Fork at {name}, or edit one before")
    return found.but(in_fork=True)


def _refuse_unsettled(engine: Engine, journal: Journal, at: str, after: int) -> None:
    """Two runs must not both find out about one effect, nor wait for one child run; and what is undone does not stand any more."""
    run_id = journal.head.run_id
    for step_id, found in journal.histories.items():
        if found.child and found.first_seq <= after and found.outcome is None:
            remedy = "Wait until it has, or fork at a step before it"
            raise Refusal(f"child run {found.child!r} of step {step_id} has not come to its end; nothing was changed. {remedy}")
        if found.child and found.first_seq <= after and isinstance(found.outcome, rec.StepDone) and _is_cancelled(engine, found.child):
            raise Refusal(f"child run {found.child!r} of step {step_id} was undone; nothing was changed. Fork at a step before it")
        if found.first_seq > after or not found.effect:
            continue
        if (found.outcome is None and is_owned(engine, journal.head)) or found.open_doubt(ANY_EPOCH):
            remedy = "Settle it, or fork at a step before it"
            raise Refusal(f"the effect at step {step_id} of run {run_id!r} is not settled; nothing was changed. {remedy}")
        if f"{UNDO}{step_id}" in journal.histories:
            remedy = "Fork at a step before it"
            raise Refusal(f"step {step_id} of run {run_id!r} was undone, so step {at} stands no more; nothing was changed. {remedy}")


def _is_cancelled(engine: Engine, run_id: str) -> bool:
    head = engine.store.head(run_id)
    return head is not None and head.status == "cancelled"


def _made(
    engine: Engine, new_id: str, rows: Sequence[Row], journal: Journal, corrections: Sequence[rec.StepEdited | rec.StateEdited],
    *, at: str, after: int, said: Word, untouched: bool = False, parent: dict[str, str] | None = None, blobs: Sequence[str] | None = None,
) -> Forked | None:  # fmt: skip
    """The fork under this id; None where another run has it or, if it must be `untouched`, where somebody has gone on with it.

    Its keys are like those of no other run, whatever has its id elsewhere or had it before: its source moves, and is forked there too.
    """
    forked = rec.RunForked(
        source=journal.head.run_id, at=at, after=after, origin=new_origin(new_id), by=said.by,
        reason=said.reason, effects=said.effects, value=_known(rows, journal, after),
        unreadable=journal.unknown.records if journal.unknown is not None else 0,
    )  # fmt: skip
    if engine.store.head(new_id) is None:
        append = _sealed(engine, new_id, _copied(rows, journal, after, parent or {}), [forked, *corrections])
        append = append._replace(refs=_referred(_blobs_of(engine, journal.head.run_id) if blobs is None else blobs, append.rows))
        reach("fork.before")
        (stale,) = engine.store.append([append])
        reach("fork.after")
        if stale is None:
            return Forked(new_id)
        if stale.missing:
            gone, remedy = stale.missing[0][:12], f"See holdfast check {journal.head.run_id}, or fork at a step before it"
            raise Refusal(f"artifact {gone} of run {journal.head.run_id!r} is not there any more; nothing was changed. {remedy}")
    return Forked(new_id, existed=True) if _is_there(engine, new_id, [forked, *corrections], untouched=untouched) else None


def _blobs_of(engine: Engine, source: str) -> list[str]:
    return engine.store.blob_refs(source) if isinstance(engine.store, Shelf) else []


def _referred(blobs: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The artifacts of the source that stand in the fork, also in what it only knows: they stay when the source goes."""
    texts = [text for row in rows for text in (row.body, row.value, row.args) if text]
    return [digest for digest in blobs if any(digest.encode() in text for text in texts)]


def _known(rows: Sequence[Row], journal: Journal, after: int) -> bytes:
    """What the fork is to know: effects that the source did, or had superseded, and messages that it took after the point."""
    run_id, pairs = journal.head.run_id, [(row, record_of(row)) for row in rows]
    messages = {**{each.mark: each for each in unread(run_id, pairs, after)}, **journal.unread}
    return told(run_id, [*journal.superseded, *happened(journal.histories.items(), after)], messages.values())


def _copied(rows: Sequence[Row], journal: Journal, after: int, parent: dict[str, str]) -> list[tuple[int, rec.Record, int]]:
    """The records that the fork begins with: all up to the point, and what came later of steps that had begun by then."""
    pairs = [(row, record_of(row)) for row in rows]
    kept = standing(pairs, after, {step_id for step_id, found in journal.histories.items() if found.first_seq <= after})
    kept = [(row, record) for row, record in kept if row.seq <= after or _is_of_the_fork(journal, record, after)]
    kept = [(row, _called_by(parent, record) if isinstance(record, rec.RunStarted) else record) for row, record in kept]
    return [(row.seq, _as_copy(journal.head.run_id, record, late=row.seq > after), row.at_us) for row, record in kept]


def _called_by(parent: dict[str, str], started: rec.RunStarted) -> rec.RunStarted:
    """How a fork begins: called by this run, or by none, whoever had called its source."""
    tags = {name: value for name, value in started.tags.items() if name != CHILD_OF}
    return started.but(parent=parent, tags={**tags, **child_tags(parent)})


def _is_of_the_fork(journal: Journal, record: rec.Record, after: int) -> bool:
    """Whether a record behind the point has its place in the fork: none of the run itself, nor a word on a question that does not stand."""
    if isinstance(record, rec.AskAnswered | rec.AskClosed):
        asked = journal.asks.get(record.step_id)
        return asked is not None and asked.seq <= after
    return not isinstance(record, OF_THE_RUN)


def _as_copy(source: str, record: rec.Record, *, late: bool) -> rec.Record:
    """A record as it stands in the fork: an edit that came after the point has no more to go back from."""
    match record:
        case rec.RunStarted():
            return record.but(fork_of=source)
        case rec.RunContinued():  # what a prune dropped from the source is no gap here: the numbers are given anew
            return record.but(dropped=0)
        case rec.StepEdited() | rec.StateEdited() if late:
            return record.but(in_fork=True)
    return record


def _sealed(engine: Engine, new_id: str, copied: Sequence[tuple[int, rec.Record, int]], own: Sequence[rec.Record]) -> Append:
    """One append that creates the run: the copies with their times, then its own records; edits point at where the outcome is now."""
    journal, rows, places = Journal(new_id), list[Row](), dict[int, int]()
    now_us = engine.clock.now_us()
    for seq, record, at_us in [*copied, *((0, record, now_us) for record in own)]:
        placed = record.but(after=places[record.after]) if isinstance(record, POINTING) else record
        sealed = journal.seal([placed], at_us=at_us)
        journal.head, places[seq] = sealed.head, sealed.head.seq
        rows += sealed.rows
    return Append(new_id, 0, 0, rows, journal.head)


def _is_there(engine: Engine, new_id: str, own: Sequence[rec.Record], *, untouched: bool) -> bool:
    """Whether the run is this very fork, made before, perhaps by somebody who died before he could say so."""
    try:
        found = engine.store.load(new_id)
        if found is None or Journal.load(*found).forked is None:
            return False
    except Damaged:
        return False
    made = [record_of(row) for row in found[1]]
    first = max(index for index, record in enumerate(made) if isinstance(record, rec.RunForked))
    edits = list(takewhile(lambda record: getattr(record, "in_fork", False), made[first + 1 :]))
    same = [_bare(record) for record in [made[first], *edits]] == [_bare(record) for record in own]
    return same and not (untouched and len(made) > first + len(own))


def _bare(record: rec.Record) -> rec.Record:
    """A record without what the source may have done meanwhile, the place at which it came to stand, and the root of its keys."""
    match record:
        case rec.RunForked():
            return record.but(value=None, after=0, origin="", unreadable=0)
        case rec.StepEdited() | rec.StateEdited():
            return record.but(after=0)
    return record
