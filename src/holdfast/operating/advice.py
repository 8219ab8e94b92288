"""The commands that help a run on, made to be pasted: what goes on with it, settles a doubt, answers a question or unblocks it; pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, Literal

from holdfast._turns import QUEUE
from holdfast.errors import BudgetExceeded
from holdfast.life.again import sent_keys
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.lineage import named, result_of
from holdfast.records.replay import UNDO, Question
from holdfast.running.letters import awaited_messages
from holdfast.store import Head, Row

DEADLY = "DeadlyRun"
"""What a run is blocked with that kills those who execute it: no other code helps, only another try."""

Hands = Literal["here", "workers", "nobody"]
"""Who goes on with a run that is ready: whoever says so on the spot, workers by themselves, or nobody while it is held back."""

MOST_CHOICES = 5
"""Choices of a question that get a command each."""

MOST_FIELDS = 8
"""Fields of a result that a command has a place for each."""


def going_on(journal: Journal, hands: Hands = "here") -> list[str]:
    """What goes on with a run that nobody executes: a result that it lacks must be said first; nothing in spite of what holds it back."""
    resume = f"holdfast resume {journal.head.run_id}"
    accept, budget = " --accept" if journal.models.open else "", raising(journal)
    left, here = f"{resume}{accept}{budget}", f"{resume}{accept} --here APP.py{budget}"
    if journal.head.status == "paused":
        return [resume]
    if hands == "here":
        return [*saying(journal), here, *_serving(journal.head)]
    if journal.head.status in ("queued", "waiting"):  # it is ready, and whoever takes it does so by himself
        return ["holdfast workers"] if hands == "workers" else []
    return [*saying(journal), left, *([here] if hands == "workers" else [])]


def _serving(head: Head) -> list[str]:
    """The command that takes runs in line, this one among them."""
    queue = f" --queue {head.queue}" if head.queue not in ("", QUEUE) else ""
    return [f"holdfast worker APP.py{queue}"] if head.status == "queued" else []


def saying(journal: Journal) -> list[str]:
    """The command that says what an effect had returned whose result could not be kept, where the run failed for want of it."""
    match getattr(journal.verdict, "error", {}):
        case {"state": {"step_id": str(step_id)}}:
            found = journal.histories.get(step_id)
            return settling(journal.head.run_id, step_id)[:1] if found is not None and found.result_is_missing() else []
    return []


def sent(journal: Journal, step_id: str) -> str:
    """The keys under which the other side may know what a doubt is about."""
    return ", ".join(sent_keys(journal, step_id))


def made(journal: Journal, step_id: str) -> str:
    """The result of the same call on a path that was given up, as a word of a command; a blank where there is none."""
    history = journal.histories[step_id]
    same = named(journal.superseded, history.doubt.same_as if history.doubt else "", history.fingerprint)
    value = result_of(same[1]) if same else None
    if value is not None:
        return shlex.quote(value.decode("utf-8", "replace"))
    if step_id.startswith(UNDO) and not (history.doubt and history.doubt.wants):
        return "null"  # nobody needs to know what an undo returned
    return _blank(history.doubt.wants) if history.doubt else "RESULT"


def _blank(wants: dict[str, Any]) -> str:
    """Where the result goes in a command, in the form that it must have there."""
    match wants:
        case {"kind": "text"}:
            return """'"TEXT"'"""
        case {"kind": "integer" | "number"}:
            return "NUMBER"
        case {"schema": {"type": "null"}}:
            return "null"
        case {"schema": {"properties": dict(fields)}} if len(fields) <= MOST_FIELDS:
            return shlex.quote(f"{{{', '.join(f'{json.dumps(name)}: ...' for name in fields)}}}")  # no JSON yet: refused if pasted as it is
        case {"schema": {"type": "object" | "array" as kind}}:
            return {"object": "'{...}'", "array": "'[...]'"}[kind]
    return "RESULT"


def settling(run_id: str, step_id: str, result: str = "RESULT") -> list[str]:
    """The commands that settle a doubt."""
    step = shlex.quote(step_id)  # it may come from a model's tool call, and the command is made to be pasted
    return [f"holdfast resolve {run_id} {step} --landed {result}", f"holdfast resolve {run_id} {step} --not-landed"]


def knowing(journal: Journal) -> list[str]:
    """The command that says that effects which are not on record did not happen, where a repair could not read everything."""
    return [f"holdfast resume {journal.head.run_id} --effects repeat"] if journal.unknown is not None else []


def answering(run_id: str, ask_id: str, asked: Question) -> list[str]:
    """The commands that answer a question: one for each answer, where they are few."""
    ask, who = shlex.quote(f"{run_id}/{ask_id}"), asked.opened.who
    by = f" --by {shlex.quote(who[0]) if len(who) == 1 else 'NAME'}" if who else ""
    raising = [f"holdfast resume {run_id} --budget {name}=AMOUNT" for name in asked.opened.grants]
    return [*(f"holdfast answer {ask} {word}{by}" for word in _words(asked.opened.wants)), *raising]


def _words(wants: dict[str, Any]) -> list[str]:
    """The answers that can be given, as words of a command."""
    if wants.get("kind", "yes or no") == "yes or no":
        return ["yes", "no"]
    choices = wants.get("choices", [])
    if not 0 < len(choices) <= MOST_CHOICES:
        return ["ANSWER"]
    return [shlex.quote(choice if isinstance(choice, str) else json.dumps(choice)) for choice in choices]


def telling(journal: Journal) -> list[str]:
    """The commands that send what a run waits for that nobody is asked about."""
    return [f"holdfast send {journal.head.run_id} {shlex.quote(name)} VALUE" for name in awaited_messages(journal)]


def branching(journal: Journal, rows: Sequence[Row], ask_id: str) -> list[str]:
    """The command that begins anew, as a branch, before a thing was looked at that is not what it was."""
    looked = [row.seq for row in rows if row.kind == rec.WatchTaken.kind and f"watch:{row.step_id}" == ask_id]
    if not looked:
        return []
    done = [(found.outcome_seq, step_id) for step_id, found in journal.histories.items() if 0 < found.outcome_seq < looked[-1]]
    return [f"holdfast fork {journal.head.run_id} --at {shlex.quote(max(done)[1] if done else '0')}"]


def raising(journal: Journal) -> str:
    """The option without which a run that has used up its budget would stop again at once."""
    failed = journal.verdict if journal.head.status == "failed" else None
    match getattr(failed, "error", {}):
        case {"type": BudgetExceeded.__qualname__, "state": {"limit": str(limit)}}:
            return f" --budget {limit}=AMOUNT"
    return ""


def moving_on(head: Head) -> list[str]:
    """The commands that finish or take back a move that was interrupted, or that look where a run is."""
    way, _, url = head.note.partition(" ")
    place = shlex.quote(url)
    if head.status == "moved":
        return [f"holdfast show {head.run_id} --store {place}"]
    if head.status != "moving":
        return []
    if way == "to":
        return [f"holdfast move {head.run_id} --to {place}", f"holdfast move {head.run_id} --back"]
    return [f"holdfast move {head.run_id} --store {place} --to URL"]


def unblocking(journal: Journal, hands: Hands = "here") -> list[str]:
    """The commands that help a blocked run."""
    run_id = journal.head.run_id
    resume, here = f"holdfast resume {run_id}", f"holdfast resume {run_id} --here APP.py"
    if isinstance(journal.verdict, rec.RunRepaired):
        ways = {"here": [here], "workers": [resume, here], "nobody": [resume]}
        return [*ways[hands], *knowing(journal), f"holdfast cancel {run_id}"]
    if getattr(journal.verdict, "error", {}).get("type") == DEADLY:
        return [f"holdfast history {run_id}", resume, f"holdfast cancel {run_id}"]
    accept, old = f"{resume} --accept", f"{resume} --here OLD_APP.py"
    ways = {"here": [old, f"{accept} --here APP.py"], "workers": [accept, old], "nobody": [accept]}
    return [*ways[hands], f"holdfast cancel {run_id}"]
