"""What is open in a run, for a person to settle, and the commands that help it on: as the store and those who work on it stand."""

from __future__ import annotations

from holdfast._options import AWAY
from holdfast.operating.advice import answering, going_on, knowing, made, moving_on, settling, telling, unblocking
from holdfast.operating.family import hindrance, top_of
from holdfast.operating.holding import Fleet
from holdfast.records.journal import Journal
from holdfast.records.replay import History, Question
from holdfast.running.engine import Engine
from holdfast.running.letters import awaited, matters
from holdfast.store import Head, Letter

STOPPED = "stopped"
"""Not a status that is stored: running, says the head, and its owner is proven dead."""


def next_commands(engine: Engine, journal: Journal) -> list[str]:
    """The commands to try next, those that settle what is open first."""
    head, fleet = journal.head, Fleet(engine)
    settled = [command for step_id, _ in doubts_of(engine, journal) for command in settling(head.run_id, step_id, made(journal, step_id))]
    answered = [command for ask_id, asked in asks_of(engine, journal) for command in answering(head.run_id, ask_id, asked)]
    if settled or answered:
        return settled + answered + besides(engine, journal, fleet)
    match head.status:
        case "done" | "cancelled" | "moving" | "moved":
            return moving_on(head)
        case "running" if lives(engine, head):
            return [f"holdfast history {head.run_id}"]
        case "blocked":
            return unblocking(journal, fleet.hands(head))
        case "waiting" | "failed" if journal.open_children():
            return [*(f"holdfast show {child}" for child in journal.open_children()), *_going_on(engine, journal, fleet)]
        case "waiting" if not _moved(engine, journal):
            return telling(journal) or [f"holdfast history {head.run_id}"]
        case _:
            return _going_on(engine, journal, fleet)


def besides(engine: Engine, journal: Journal, fleet: Fleet) -> list[str]:
    """What helps beside a person's word: other code, or a process that finds out by itself what another one left in doubt."""
    head = journal.head
    if head.status == "blocked":
        return unblocking(journal, fleet.hands(head))
    dead = head.status == "running" and not lives(engine, head)
    unasked = head.status == "queued" and any(found.doubt is None for _, found in journal.open_doubts(ended=True))
    known = knowing(journal) if any(found.unread for _, found in doubts_of(engine, journal)) else []
    return [*known, *(_going_on(engine, journal, fleet) if dead or unasked or head.status == "paused" else [])]


def doubts_of(engine: Engine, journal: Journal) -> list[tuple[str, History]]:
    """Doubts that wait for a person: all those of a run that nobody goes on with, and those that whoever executes it asks about, or did.

    One that a waiting run has yet to come to is not told: the run does as the effect declares then, or asks.
    """
    match journal.head.status if journal.head.status != "running" or lives(engine, journal.head) else STOPPED:
        case "waiting":
            told = awaited(journal)
            return [(step_id, found) for step_id, found in journal.open_doubts(ended=True) if step_id in told or not found.unseen()]
        case "paused" | "failed" | "blocked" | "cancelled" | "stopped" | "queued":
            return journal.open_doubts(ended=True)
        case "running":
            return [(step_id, found) for step_id, found in journal.open_doubts() if found.doubt and found.doubt.action == "ask"]
        case _:
            return []


def asks_of(engine: Engine, journal: Journal) -> list[tuple[str, Question]]:
    """Questions that can still be answered."""
    if journal.head.status in ("done", "cancelled", *AWAY):
        return []
    now_us = engine.clock.now_us()
    return [(ask_id, asked) for ask_id, asked in journal.open_asks() if not asked.too_late(now_us)]


def heard(engine: Engine, journal: Journal) -> list[Letter]:
    """What was said to a waiting run that it would do something about."""
    letters = engine.store.letters([journal.head.run_id])
    return [letter for letter in letters if matters(engine.store, engine.observer, journal, letter)]


def _moved(engine: Engine, journal: Journal) -> bool:
    """Whether a run that waits can go on: its time has come, or something was said to it that it waits for."""
    due_us = journal.head.wake_us
    return bool(due_us and engine.clock.now_us() >= due_us) or bool(heard(engine, journal))


def _going_on(engine: Engine, journal: Journal, fleet: Fleet) -> list[str]:
    """What goes on with a run; of a child, with the run that has called it, or what that one needs first."""
    head, found = journal.head, hindrance(engine.store, journal.head)
    if found is None:
        top = top_of(engine.store, head).run_id if head.status in ("queued", "running") else head.run_id
        above = engine.store.load(top) if top != head.run_id else None
        return going_on(Journal.load(*above) if above is not None else journal, fleet.hands(head))
    if found.gone_on:
        return [f"holdfast resume {head.run_id} --here APP.py", f"holdfast cancel {head.run_id}"]
    above = engine.store.load(found.above.run_id) if found.above.status in ("failed", "paused") else None
    return going_on(Journal.load(*above), fleet.hands(head)) if above is not None else [f"holdfast show {found.above.run_id}"]


def lives(engine: Engine, head: Head) -> bool | None:
    """Whether the owner lives: True, False where it is proven dead or unknown to the store; None where there is none."""
    if head.owner is None:
        return None
    pulse = engine.store.pulse(head.owner)
    return pulse is not None and not pulse.dead
