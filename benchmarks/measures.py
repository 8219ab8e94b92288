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
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

ROOT = Path(__file__).parent.parent
_numbers = itertools.count(1)

WATCHED_SIZE = 10_240
"""Bytes of each file that a run relies on."""


class TimedStore(SqliteStore):
    """The SQLite store, noting how long each flush of a group took."""

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        began = perf_counter()
        try:
            return super().append(batch, wait=wait)
        finally:
            agents.flushes.append(perf_counter() - began)


class Many(NamedTuple):
    """Many runs together: seconds per step and per flush of a group; of acknowledgements the 99th percentile, in seconds and in flushes."""

    step_s: float
    flush_s: float
    acknowledged_s: float
    flushes: float


def floor(folder: Path, count: int) -> float:
    """Seconds per raw insert of 1 KB, each committed and flushed by itself (WAL, synchronous=FULL)."""
    with closing(apsw.Connection(str(folder / "floor.db"))) as connection:
        assert connection.execute("PRAGMA journal_mode = wal").get == "wal"
        connection.execute("PRAGMA synchronous = full")
        assert connection.execute("PRAGMA synchronous").get == 2
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a log that exists is written faster than one that grows
        connection.execute("CREATE TABLE IF NOT EXISTS floor (value BLOB)")
        cursor, value = connection.cursor(), b"x" * agents.SIZE
        cursor.execute("INSERT INTO floor VALUES (?)", (value,))
        began = perf_counter()
        for _ in range(count):
            cursor.execute("INSERT INTO floor VALUES (?)", (value,))
        return (perf_counter() - began) / count


class FlooredStore(MemoryStore):
    """The floor's own insert in place of a commit: what is left when nothing else is stored."""

    inline = True

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._connection = apsw.Connection(str(path))
        for pragma in ("journal_mode = wal", "synchronous = full"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("CREATE TABLE IF NOT EXISTS floor (value BLOB)")
        self._cursor, self.inserted = self._connection.cursor(), list[float]()

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        began = perf_counter()
        self._cursor.execute("INSERT INTO floor VALUES (?)", (b"x" * agents.SIZE,))
        self.inserted.append(perf_counter() - began)
        return super().append(batch, wait=wait)

    def close(self) -> None:
        self._connection.close()


def floor_in_place(folder: Path, count: int) -> float:
    """Seconds per insert of the floor, made where a step commits: after the step's Python, with caches as cold as they are there."""
    with hf.Holdfast(FlooredStore(folder / "in-place.db")) as app:
        app.run(agents.asking, 2 * count)
        store = app.store
        assert isinstance(store, FlooredStore)
        store.inserted.clear()
        app.run(agents.asking, count)
        return statistics.mean(store.inserted)


def async_step(app: hf.Holdfast, count: int) -> float:
    """Seconds per step of an `async def` agent, between the first step's call and the last one's return."""
    return app.run(agents.asking, count) / count


def whole_run(app: hf.Holdfast, count: int) -> float:
    """Seconds per step of a whole run of such steps: its claim, its end, and what goes into the database only then are in it."""
    began = perf_counter()
    app.run(agents.asking, count)
    return (perf_counter() - began) / count


def effect(app: hf.Holdfast, count: int) -> float:
    """Seconds per effect of an `async def` agent: intent and outcome, two flushes."""
    return app.run(agents.sending, count) / count


def sync_step(app: hf.Holdfast, count: int) -> float:
    """Seconds per step of a `def` agent."""
    return app.run(agents.asking_blocking, count) / count


def first_steps(folder: Path, count: int) -> float:
    """Seconds per step of a short run in a store of its own, whose log still grows: what a small script sees."""
    return hf.run(agents.asking, count, store=folder / f"first-{next(_numbers)}.db") / count


def many_runs(folder: Path, runs: int, count: int) -> Many:
    """`runs` runs of `count` steps in one event loop, from the first start to the last result: claims and ends are part of it."""
    agents.acknowledged.clear()
    agents.flushes.clear()

    async def together(app: hf.Holdfast) -> float:
        began = perf_counter()
        handles = [await app.start(agents.one_of_many, index * count, count) for index in range(runs)]
        await asyncio.gather(*(handle.result() for handle in handles))
        return perf_counter() - began

    with hf.Holdfast(TimedStore(folder / "many.db")) as app:
        step_s = asyncio.run(together(app)) / (runs * count)
    seconds, flushes = zip(*agents.acknowledged, strict=True)
    return Many(step_s, statistics.median(agents.flushes), _99th(seconds), _99th(flushes))


def _99th(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


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


def watched(folder: Path, count: int, files: int) -> float:
    """Seconds that the same replay takes longer where the run relies on `files` files of 10 KB, all unchanged, than where on none."""
    store, things = folder / "watched.db", folder / f"watched-{files}"
    if not things.exists():
        things.mkdir()
        for number in range(files):
            (things / str(number)).write_bytes(os.urandom(WATCHED_SIZE))
    return _relying(store, count, things, files) - _relying(store, count, things, 0)


def _relying(store: Path, count: int, things: Path, files: int) -> float:
    run_id = f"relying-{next(_numbers)}"
    with suppress(agents.Broken):
        hf.run(agents.relying, count, str(things), files, run_id=run_id, store=store)
    began = perf_counter()
    return hf.run(agents.relying, count, str(things), files, run_id=run_id, store=store) - began


def restart(folder: Path, killed_at: int) -> float:
    """Seconds from starting the interpreter until a run that was killed inside step `killed_at` is in that step again."""
    store = folder / f"restart-{next(_numbers)}.db"
    _killed_in_its_step(folder, store, killed_at)
    return _killed_in_its_step(folder, store, killed_at)


def _killed_in_its_step(folder: Path, store: Path, killed_at: int) -> float:
    command = [sys.executable, "-m", "benchmarks.victim", str(store), str(killed_at)]
    began = perf_counter()
    with subprocess.Popen(command, cwd=ROOT, env=_environment(folder), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"here\n":
                raise RuntimeError(f"the process to be killed ended with {process.wait()} instead of reaching step {killed_at}")
            return perf_counter() - began
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def interpreter(folder: Path, statement: str) -> float:
    """Seconds for a whole process that executes one statement."""
    environment = _environment(folder)
    began = perf_counter()
    subprocess.run([sys.executable, "-c", statement], cwd=ROOT, env=environment, check=True)
    return perf_counter() - began


def _environment(folder: Path) -> dict[str, str]:
    """What a user has: modules that are compiled already. Where the environment forbids to keep them, they are kept in `folder`."""
    environment = dict(os.environ)
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    return environment
