"""What a letter means to a run that nobody executes: whether the run would do anything about it.

A message must be the one that it waits for, and none that it took before. Whoever moves a child run without its parent leaves the parent
a letter that names the child: a hint where to look, one for each child, which counts as soon as the child does not wait any more.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from holdfast._clock import Clock
from holdfast.life.run import MESSAGE
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.running.lease import CHILD, Observer
from holdfast.store import Head, Letter, Store


def said(letter: Letter) -> dict[str, Any]:
    """What a letter says; nothing where it cannot be read: whoever has the run takes it away."""
    try:
        body = json.loads(letter.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def matters(store: Store, observer: Observer, journal: Journal, letter: Letter) -> bool:
    """Whether the run, which waits, would do anything about a letter."""
    try:
        body = json.loads(letter.body)
        if letter.kind == CHILD:
            return any(head.run_id == body["child"] and _is_free(observer, head) for head in moved_children(store, journal))
        if letter.kind == "message":
            return str(body["name"]) in awaited_messages(journal) and not (body.get("key") and body["key"] in journal.taken)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass  # it cannot be read; whoever has the run takes it away
    return True


def may_matter_yet(journal: Journal, letter: Letter) -> bool:
    """Whether a letter that does not matter now may later, though the run stays where it is: about a child that it waits for."""
    with suppress(ValueError, TypeError, KeyError):
        return letter.kind == CHILD and json.loads(letter.body)["child"] in awaited_children(journal)
    return False


def moved_children(store: Store, journal: Journal) -> list[Head]:
    """The child runs that a waiting run waits for and that do not wait any more."""
    found = [store.head(child) for child in awaited_children(journal)]
    return [head for head in found if head is not None and head.status != "waiting"]


def awaited_children(journal: Journal) -> list[str]:
    """The child runs that a waiting run waits for: none of a path that was given up, or whose outcome it has."""
    return [journal.histories[step_id].child for step_id in awaited(journal) if step_id in journal.histories]


def awaited_messages(journal: Journal) -> list[str]:
    """The names of the messages that a waiting run waits for."""
    waits = [wait.what for step_id, wait in journal.waits.items() if step_id in awaited(journal)]
    return [what.removeprefix(MESSAGE) for what in dict.fromkeys(waits) if what.startswith(MESSAGE)]


def tell_parent(store: Store, clock: Clock, journal: Journal, *, by: str = "") -> None:
    """Somebody else than its parent moves the run: leave the parent a letter, unless there is one about this child, or it has ended.

    One that is being moved gets it too: the letter goes along, or is there when the move is taken back.
    """
    run_id, parent = journal.head.run_id, journal.started.parent.get("run", "") if journal.started is not None else ""
    head = store.head(parent) if parent and by != f"run {parent}" else None
    if head is None or head.status in ("done", "cancelled", "moved"):
        return
    body = json.dumps({"by": f"run {run_id}", "child": run_id}).encode()
    if not any(letter.kind == CHILD and letter.body == body for letter in store.letters([parent])):
        store.post(parent, CHILD, body, clock.now_us())


def awaited(journal: Journal) -> list[str]:
    """The steps, questions and times that a waiting run waits for, as it noted when it parked."""
    return journal.verdict.steps if isinstance(journal.verdict, rec.RunWaiting) else []


def _is_free(observer: Observer, head: Head) -> bool:
    """Whether nobody executes the child: whoever does brings it to its end, or to its next wait."""
    return head.owner is None or observer.life_of(head.owner) != "alive"
