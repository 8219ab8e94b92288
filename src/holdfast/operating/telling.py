"""How a verb reaches a run: its records go in where nobody owns it, otherwise its owner gets a letter; and what follows, in words."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from typing import Any

from holdfast.codec.words import written
from holdfast.errors import LeaseLost, NotKept, Refusal, Unwinding
from holdfast.operating.family import hindrance, top_of
from holdfast.operating.onward import asks_of, doubts_of
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.away import left, refuse_away
from holdfast.records.journal import Journal
from holdfast.running.engine import Engine
from holdfast.running.letters import tell_parent
from holdfast.running.runner import escaped, silent
from holdfast.store import Head

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


def tell(engine: Engine, run_id: str, allowed: Any, records: list[rec.Record], *, kind: str, letter: dict[str, Any], why: str) -> int:
    """Write the records as the run's own if nobody owns it, otherwise post a letter to its owner; gives its number, or 0 for none."""
    for _ in range(MAX_TRIES):
        journal = Journal.load(*loaded(engine, run_id))
        owned = is_owned(engine, journal.head)
        allowed(journal, owned=owned)
        if owned:
            return left(engine.store, engine.clock, run_id, (kind, json.dumps(letter).encode()))
        taken = [] if _stays(journal, kind) else [taken_up(engine, journal, why)]
        if kind == "cancel" and "undo" in letter:
            taken = [one.but(cleared=[]) for one in taken]  # the path to undo is the one that was taken, failures included
        if claimed(engine, journal, [*taken, *records]):
            return 0
    raise Refusal(f"run {run_id!r} keeps moving; nothing was changed. Try again")


def _stays(journal: Journal, kind: str) -> bool:
    """Whether a word is recorded and the run stays where it is: what is closed is not opened again, what is paused waits to be resumed.

    And a word on a question or a doubt does not mend the code that blocks a run.
    """
    status, verdict = journal.head.status, journal.verdict
    held = status == "paused" or (status == "blocked" and isinstance(verdict, rec.RunBlocked))
    return status == "cancelled" or (held and kind in ("settle", "answer"))


def claimed(engine: Engine, journal: Journal, records: list[rec.Record], takes: Sequence[int] = ()) -> bool:
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


def taken_up(engine: Engine, journal: Journal, why: str) -> rec.RunResumed:
    """The record by which a verb takes a run up that nobody executes, and leaves it ready."""
    return rec.RunResumed(owner="", why=why, cleared=escaped(journal), silent=silent(engine, journal.head))


def is_owned(engine: Engine, head: Head) -> bool:
    """Whether somebody who lives executes the run."""
    return head.owner is not None and engine.observer.life_of(head.owner) == "alive"


def is_taken(engine: Engine, run_id: str, letter_id: int) -> bool:
    """Wait until the owner has taken a letter; False where it does not, or is gone."""
    for _ in range(LOOKS):
        head, _ = loaded(engine, run_id)
        if head.owner == engine.keeper.owner:
            engine.keeper.take_letters()
        if letter_id not in [letter.letter_id for letter in engine.store.letters([run_id])]:
            return True
        if not is_owned(engine, head):
            return False
        engine.clock.sleep(LOOK_S)
    return False


def refuse_final(head: Head) -> None:
    """Nothing is said to a run that has ended for good, or is in another store."""
    refuse_away(head)
    if head.status in ("done", "cancelled"):
        raise Refusal(f"run {head.run_id!r} is {head.status} and stays so; nothing was changed")


def as_json(value: object) -> str:
    """A value that somebody gave, as it is stored."""
    try:
        return written(value)
    except NotKept as error:
        raise Refusal(f"it must be JSON, and {error.what} is not ({error.reason}); nothing was changed. {error.remedy}") from error


def ready(engine: Engine, run_id: str) -> str:
    """That a run can go on, and how: a child goes on with the run that had called it, and so on upwards. One that is paused cannot yet."""
    journal = Journal.load(*loaded(engine, run_id))
    head = journal.head
    top = top_of(engine.store, head).run_id
    how = f"the run is ready to go on, by itself where a process waits for it; else: holdfast resume {top} --here APP.py"
    asks = _asking(engine, journal)
    return _hindered(engine, head) or (f"it is recorded, and the run {asks}" if asks else how)


def _hindered(engine: Engine, head: Head) -> str:
    """What must be done for a run that is ready to go on, where something is in its way; nothing where nothing is."""
    if head.status == "blocked":
        return f"it is recorded, and run {head.run_id!r} stays blocked. What helps is: holdfast show {head.run_id}"
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


def marked(engine: Engine, run_id: str) -> str:
    """The same of a run that was marked as ready; what it asks, it asks on."""
    journal = Journal.load(*loaded(engine, run_id))
    asks = _asking(engine, journal)
    return _hindered(engine, journal.head) or f"the run is ready for whoever runs its agent next{', and ' + asks if asks else ''}"


def _asking(engine: Engine, journal: Journal) -> str:
    """That a person is still asked, where one is."""
    put = asks_of(engine, journal) or any(found.doubt is not None for _, found in doubts_of(engine, journal))
    return "still needs the word of a person: holdfast inbox" if put else ""
