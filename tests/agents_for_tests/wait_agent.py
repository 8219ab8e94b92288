"""An agent that asks, sleeps and receives, and those who answer and send to it, made to be killed.

It is served by `serving.py`. Exit status: 0 done; 75 it waits; anything else is a defect.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests import sweep_agent
from holdfast.errors import Refusal
from holdfast.life import drive
from holdfast.records.journal import Journal
from holdfast.running import lease

RUN_ID = sweep_agent.RUN_ID
REHEARSED = ("async", "def")
TRIES = 500


@hf.step
def look(what: str) -> str:
    return sweep_agent.did("look", what)


@hf.agent(name="waiting")
async def waiting() -> list[str]:
    found = [look("a"), await hf.ask("colour?", str), look("b")]
    await hf.sleep(0.001)
    return [*found, await hf.receive("note", str), look("c"), await hf.receive("note", str), await hf.receive("note", str)]


@hf.agent(name="waiting")
def waiting_def() -> list[str]:
    found = [look("a"), hfs.ask("colour?", str), look("b")]
    hfs.sleep(0.001)
    return [*found, hfs.receive("note", str), look("c"), hfs.receive("note", str), hfs.receive("note", str)]


@hf.agent
async def peer() -> None:
    await hf.send(RUN_ID, "note", "3")


def run_once(variant: str, store: str = "") -> int:
    act, _, keyed = variant.partition(" ")
    with hf.Holdfast(store) as app:
        match act:
            case "answer":
                try:
                    app.answer(RUN_ID, "2", "red", by="test")
                except Refusal as error:
                    assert "was answered by test" in str(error)  # noqa: PT017 (not a test: it is the program under test)
            case "send":
                for value in ("1", "2"):
                    app.send(RUN_ID, "note", value, key=f"k-{value}" if keyed else "", by="test")
            case "peer":
                app.run(peer, run_id="peer")
            case "stay":
                return _stayed(app, waiting if keyed == "async" else waiting_def, store)
            case _:
                return _played(app, waiting if act == "async" else waiting_def)
    return 0


def _stayed(app: hf.Holdfast, agent: Any, store: str) -> int:
    """Wait in place for somebody else, who answers and sends meanwhile; letters are looked for often, so that this takes no time."""
    lease.LETTERS_S, lease.TICK_S = 0.02, 0.01
    somebody = threading.Thread(target=_speak, args=(store,))
    somebody.start()
    try:
        return _played(app, agent, park_after="60s")
    finally:
        somebody.join()


def _speak(store: str) -> None:
    """Answer what is asked and send what is received, once each, whatever an earlier life has come to."""
    with hf.Holdfast(store) as other:
        _insist(lambda: other.answer(RUN_ID, "2", "red", by="test"))
        for value in ("1", "2", "3"):
            if value not in _sent(other):
                _insist(partial(other.send, RUN_ID, "note", value, key=f"k-{value}", by="test"))


def _insist(say: Callable[[], object]) -> None:
    for _ in range(TRIES):
        try:
            say()
        except hf.UnknownRun:
            time.sleep(0.01)
        except Refusal as refusal:
            if "has no question" not in str(refusal):
                return  # it was said in an earlier life
            time.sleep(0.01)
        else:
            return
    raise AssertionError("nobody listens")


def _sent(app: hf.Holdfast) -> list[str]:
    """The messages that are under way or have been taken."""
    found = app.store.load(RUN_ID)
    taken = [key.removeprefix("k-") for key in Journal.load(*found).taken] if found else []
    return [*taken, *(json.loads(letter.body)["value"] for letter in app.store.letters([RUN_ID]) if letter.kind == "message")]


def _played(app: hf.Holdfast, agent: Any, park_after: str = "0s") -> int:
    try:
        result = app.run(agent, run_id=RUN_ID, wait=False, park_after=park_after)
    except hf.RunWaiting:
        return sweep_agent.NEEDS_A_PERSON
    (sweep_agent.folder / "result.json").write_text(json.dumps(result))
    return 0


def break_letters() -> None:
    """What came is recorded, and its letter not taken with it."""
    waiting_for, blocking = drive._commit_async, drive._commit_blocking

    async def commit_async(run: Any, records: Any, takes: Any = ()) -> int:
        return await waiting_for(run, records)

    drive._commit_async = commit_async
    drive._commit_blocking = lambda run, records, takes=(): blocking(run, records)


BREAKS = {"letters": break_letters}
FOR_GOOD = ("stay",)
