"""An agent that is made to be killed: 22 steps, five of them effects, whose bodies write into a ledger what they did.

    sweep_agent.py FOLDER VARIANT [STORE]   run it once, from the store in FOLDER or another one

Like the other agents that are made to be killed, it is served by `serving.py`.
Beside the ledger (what was done) stand the acks: what the engine has told the agent is done, which must never be undone.
Exit status: 0 done, result in result.json; 75 a person must settle a doubt; 74 the store gave up, its error in
store_error.json; anything else is a defect.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import holdfast as hf
import holdfast.sync
from holdfast.app import app
from holdfast.errors import StoreError
from holdfast.life import course, drive
from holdfast.records import kinds as rec
from holdfast.stores.opening import open_store

RUN_ID = "sweep"
NEEDS_A_PERSON = 75
STORE_GAVE_UP = 74
TIMED_OUT = "timed out"
REHEARSED = ("async", "def")

folder = Path()


def write(file: str, **line: str) -> None:
    fd = os.open(folder / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, json.dumps({**line, "pid": os.getpid()}).encode() + b"\n")
    os.close(fd)


def lines(where: Path, file: str = "ledger") -> list[dict[str, Any]]:
    """What a ledger holds; a line that a kill cut off would be a broken one, but a write of this size is whole or not there."""
    path = where / file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def did(name: str, what: str, *, key: str = "") -> str:
    write("ledger", name=name, what=what, key=key)
    return f"{name}-{what}"


def acked(name: str, what: str, value: str) -> str:
    write("acks", name=name, what=what, value=value)
    return value


# --- steps and effects, once for each colour ------------------------------------------------------------------------


def find(what: str) -> hf.Verdict[str]:
    key = hf.key()
    write("ledger", name="probe", what=what, key=key)
    return hf.Landed(f"charge-{what}") if any(line["key"] == key and line["name"] == "charge" for line in lines(folder)) else hf.NotLanded()


def unbook(what: str) -> None:
    write("ledger", name="unbook", what=what, key=hf.key())


@hf.step
async def look(what: str) -> str:
    await asyncio.sleep(0)
    return did("look", what)


@hf.step
async def nap(what: str) -> str:
    did("nap", what)
    await asyncio.sleep(30)
    return "woke"


@hf.effect(in_doubt=hf.resend())
async def mail(what: str) -> str:
    return did("mail", what, key=hf.key())


@hf.effect(in_doubt=hf.verify(find, settle=0))
async def charge(what: str) -> str:
    await asyncio.sleep(0)
    return did("charge", what, key=hf.key())


@hf.effect(in_doubt=hf.reset(unbook, settle=0))
async def book(what: str) -> str:
    return did("book", what, key=hf.key())


@hf.effect(in_doubt="ask")
async def sign(what: str) -> str:
    return did("sign", what, key=hf.key())


@hf.effect(in_doubt="fail")
async def wire(what: str) -> str:
    return did("wire", what, key=hf.key())


@hf.step(name="look")
def look_def(what: str) -> str:
    return did("look", what)


@hf.step(name="doze")
def doze_def(what: str) -> str:
    """Long enough to lose a race whose winner is recorded meanwhile."""
    time.sleep(0.005)
    return did("doze", what)


@hf.effect(name="mail", in_doubt=hf.resend())
def mail_def(what: str) -> str:
    return did("mail", what, key=hf.key())


@hf.effect(name="charge", in_doubt=hf.verify(find, settle=0))
def charge_def(what: str) -> str:
    return did("charge", what, key=hf.key())


@hf.effect(name="book", in_doubt=hf.reset(unbook, settle=0))
def book_def(what: str) -> str:
    return did("book", what, key=hf.key())


@hf.effect(name="sign", in_doubt="ask")
def sign_def(what: str) -> str:
    return did("sign", what, key=hf.key())


@hf.effect(name="wire", in_doubt="fail")
def wire_def(what: str) -> str:
    return did("wire", what, key=hf.key())


# --- the agents -----------------------------------------------------------------------------------------------------


async def seen(what: str) -> str:
    return acked("look", what, await look(what))


async def two(what: str) -> str:
    return await seen(f"{what}1") + await seen(f"{what}2")


async def charged(what: str) -> str:
    return acked("charge", what, await charge(what))


async def napped(what: str) -> str:
    return acked("nap", what, await nap(what))


@hf.agent
async def busy(order: str) -> list[str]:
    found = hf.state([order])
    found += [await seen("a"), await seen("b")]
    found.append(acked("mail", "m", await mail("m")))
    await seen(hf.now().isoformat())
    found += await hf.gather(two("g"), charged("c"), seen("h"))
    found.append(acked("book", "r", await book("r")))
    found.append(await seen(f"dice {hf.current().random.randrange(10**6)}"))
    found.append(acked("sign", "s", await sign("s")))
    found.append(acked("first", "race", await hf.first(seen("fast"), napped("slow"))))
    try:
        async with hf.timeout(0.02):
            await napped("late")
    except TimeoutError:
        found.append(acked("timeout", "late", TIMED_OUT))
    async with hf.timeout(60):
        found.append(await seen("d"))
    found.append(acked("wire", "w", await wire("w")))
    found += await hf.map(seen, ["x", "y", "z"])
    found.append(await seen("end"))
    return list(found)


def seen_def(what: str) -> str:
    return acked("look", what, look_def(what))


def raced() -> str:
    seen_def("fast")
    return "raced"


def raced_longer() -> str:
    """Loses while its first step is under way; on replay it comes to that step when the race is over."""
    if hf.current().replaying:
        time.sleep(0.005)
    acked("doze", "z", doze_def("z"))
    seen_def("slow")
    return "raced"


@hf.agent(name="busy")
def busy_def(order: str) -> list[str]:
    found = hf.state([order])
    found += [seen_def("a"), seen_def("b")]
    found.append(acked("mail", "m", mail_def("m")))
    seen_def(hf.now().isoformat())
    found += holdfast.sync.gather(
        lambda: seen_def("g1") + seen_def("g2"), lambda: acked("sign", "s", sign_def("s")), lambda: acked("book", "r", book_def("r"))
    )
    found.append(acked("charge", "c", charge_def("c")))
    found.append(seen_def(f"dice {hf.current().random.randrange(10**6)}"))
    found.append(acked("first", "race", holdfast.sync.first(raced, raced_longer)))
    try:
        with holdfast.sync.timeout(0.01):
            time.sleep(0.011)
            seen_def("late")
    except TimeoutError:
        found.append(acked("timeout", "late", TIMED_OUT))
    with holdfast.sync.timeout(60):
        found.append(seen_def("d"))
    found.append(acked("wire", "w", wire_def("w")))
    found += holdfast.sync.map(seen_def, ["x", "y", "z"])
    found += [seen_def("e"), seen_def("end")]
    return list(found)


AGENTS: dict[str, Any] = {"async": busy, "def": busy_def}


# --- engines that are broken on purpose ------------------------------------------------------------------------------


def without_intents(records: Any) -> list[Any]:
    return [record for record in records if not (isinstance(record, rec.StepStarted) and record.effect)]


def break_intents() -> None:
    """Effects begin without a word to the disk."""
    waiting, blocking, at_once = drive._commit_async, drive._commit_blocking, course.commit_at_once

    def commit_at_once(run: Any, records: Any) -> int | None:
        return at_once(run, kept) if (kept := without_intents(records)) else run.journal.head.seq

    async def commit_async(run: Any, records: Any, takes: Any = ()) -> int:
        return await waiting(run, kept, takes) if (kept := without_intents(records)) else run.journal.head.seq

    def commit_blocking(run: Any, records: Any, takes: Any = ()) -> int:
        return blocking(run, kept, takes) if (kept := without_intents(records)) else run.journal.head.seq

    course.commit_at_once = commit_at_once
    drive._commit_async, drive._commit_blocking = commit_async, commit_blocking


def break_acks() -> None:
    """Everything is acknowledged first and written when convenient."""

    def post(run: Any, records: Any, takes: Any = ()) -> int:
        run.committer.post(run.journal, run.with_riders(records), lambda: True)
        return 0

    async def post_async(run: Any, records: Any, takes: Any = ()) -> int:
        return post(run, records)

    course.commit_at_once = lambda run, records: None
    drive._commit_async, drive._commit_blocking = post_async, post


def break_store() -> None:
    """The store says that it has written what it is about to write."""

    def opened(url: Any) -> Any:
        store: Any = open_store(url)
        append, later = store.append, ThreadPoolExecutor(1)

        def said(batch: Any, *, wait: bool = True) -> list[None]:
            later.submit(time.sleep, 0.02)
            later.submit(append, batch)
            return [None] * len(batch)

        store.append = said
        return store

    broken: Any = app
    broken.open_store = opened


BREAKS = {"intents": break_intents, "acks": break_acks, "store": break_store}


# --- running it -----------------------------------------------------------------------------------------------------


def run_once(variant: str, store: str = "") -> int:
    try:
        result = hf.run(AGENTS[variant], "order", run_id=RUN_ID, store=store or folder / "runs.db", wait=False)
    except (hf.RunWaiting, hf.InDoubt):
        return NEEDS_A_PERSON
    except StoreError as error:
        (folder / "store_error.json").write_text(json.dumps([type(error).__name__, str(error)]))
        return STORE_GAVE_UP
    (folder / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.exit(run_once(*sys.argv[2:]))
