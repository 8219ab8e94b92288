"""What is measured, and how: each function does one measurement and gives seconds."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import apsw

import holdfast as hf
from benchmarks import agents
from holdfast.store import Append, Stale
from holdfast.stores.sqlite import SqliteStore

ROOT = Path(__file__).parent.parent
_numbers = itertools.count(1)


class TimedStore(SqliteStore):
    """The SQLite store, noting how long each flush of a group took."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.flushes: list[float] = []

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        began = perf_counter()
        try:
            return super().append(batch, wait=wait)
        finally:
            self.flushes.append(perf_counter() - began)


class Many(NamedTuple):
    """Many runs together: seconds per step, the 99th percentile of an acknowledgement, and one flush of a group."""

    step_s: float
    acknowledged_s: float
    flush_s: float


def floor(folder: Path, count: int) -> float:
    """Seconds per raw insert of 1 KB, each committed and flushed by itself (WAL, synchronous=FULL)."""
    with closing(apsw.Connection(str(folder / "floor.db"))) as connection:
        connection.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = full")
        connection.execute("CREATE TABLE IF NOT EXISTS floor (value BLOB)")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        cursor, value = connection.cursor(), b"x" * agents.SIZE
        cursor.execute("INSERT INTO floor VALUES (?)", (value,))
        began = perf_counter()
        for _ in range(count):
            cursor.execute("INSERT INTO floor VALUES (?)", (value,))
        return (perf_counter() - began) / count


def async_step(app: hf.Holdfast, count: int) -> float:
    """Seconds per step of an `async def` agent, between the first step's call and the last one's return."""
    return app.run(agents.asking, count) / count


def effect(app: hf.Holdfast, count: int) -> float:
    """Seconds per effect of an `async def` agent: intent and outcome, two flushes."""
    return app.run(agents.sending, count) / count


def sync_step(app: hf.Holdfast, count: int) -> float:
    """Seconds per step of a `def` agent."""
    return app.run(agents.asking_blocking, count) / count


def many_runs(folder: Path, runs: int, count: int) -> Many:
    """`runs` runs of `count` steps in one event loop, from the first start to the last result: claims and ends are part of it."""
    agents.acknowledged.clear()
    store = TimedStore(folder / "many.db")

    async def together(app: hf.Holdfast) -> float:
        began = perf_counter()
        handles = [await app.start(agents.one_of_many, index * count, count) for index in range(runs)]
        await asyncio.gather(*(handle.result() for handle in handles))
        return perf_counter() - began

    with hf.Holdfast(store) as app:
        step_s = asyncio.run(together(app)) / (runs * count)
        flush_s = statistics.median(store.flushes)
    slowest = sorted(agents.acknowledged)
    return Many(step_s, slowest[len(slowest) * 99 // 100], flush_s)


def replay(folder: Path, count: int) -> float:
    """Seconds from the call of `hf.run` until a run of `count` recorded steps begins its first new step.

    Nothing is subtracted: opening and recognising the store, loading and verifying the journal, claiming the run (two flushes) and the
    event loop's start are part of it.
    """
    run_id, store = f"replay-{next(_numbers)}", folder / "replay.db"
    with suppress(agents.Broken):
        hf.run(agents.breaking, count, run_id=run_id, store=store)
    began = perf_counter()
    return hf.run(agents.breaking, count, run_id=run_id, store=store) - began


def restart(folder: Path, killed_at: int) -> float:
    """Seconds from starting the interpreter until a run that was killed inside step `killed_at` is in that step again."""
    store = folder / f"restart-{next(_numbers)}.db"
    _killed_in_its_step(store, killed_at)
    return _killed_in_its_step(store, killed_at)


def _killed_in_its_step(store: Path, killed_at: int) -> float:
    command = [sys.executable, "-m", "benchmarks.victim", str(store), str(killed_at)]
    began = perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"here\n":
                raise RuntimeError(f"the process to be killed ended with {process.wait()} instead of reaching step {killed_at}")
            return perf_counter() - began
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def interpreter(statement: str) -> float:
    """Seconds for a whole process that executes one statement."""
    began = perf_counter()
    subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
    return perf_counter() - began
