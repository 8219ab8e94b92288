"""Many parked runs in one file: how long it takes to find the one whose time has come, and what the process that waits for them holds.

The runs are made from the records of one that really parked, each under an id of its own, and sealed again for it: what is measured is a
store as it would be. `python -m benchmarks.parked STORE` is the process that waits.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import holdfast as hf
from benchmarks.agents import ask
from benchmarks.measures import ROOT
from holdfast._clock import SystemClock
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.stores.sqlite import SqliteStore

LOOKS = 201
"""How often the process that waits looks for runs that can go on."""

BATCH = 5000
"""Runs that are put into the store in one transaction."""

HOUR_US = 3_600_000_000


class Found(NamedTuple):
    """What the process that waits has seen: seconds to find the due run (median, and the slowest of a hundred), bytes that it holds."""

    seconds: float
    slow_s: float
    held: float


@hf.agent
async def parking() -> None:
    """One step, and a sleep."""
    await ask(1)
    await hf.sleep("30m")


class AnHourAgo(SystemClock):
    """When the runs parked."""

    def now_us(self) -> int:
        return super().now_us() - HOUR_US


def build(folder: Path, count: int) -> Path:
    """A store of `count` parked runs, one of which is due; each waits for its own time."""
    path = folder / f"parked-{count}.db"
    with hf.Holdfast(path, clock=AnHourAgo()) as app, suppress(hf.RunWaiting):
        app.run(parking, run_id="pattern", wait=False)
    store = SqliteStore(path)
    found = store.load("pattern")
    assert found is not None
    records = [record_of(row) for row in found[1]]
    now_us = found[0].updated_us
    for first in range(0, count - 1, BATCH):
        batch = []
        for number in range(first, min(first + BATCH, count - 1)):
            moved = [one.but(wake_us=now_us + 24 * HOUR_US + number) if one.kind == "run.waiting" else one for one in records]
            batch.append(Journal(f"parked-{number:06d}").seal(moved, at_us=now_us))
        store.append(batch)
    store.close()
    return path


def waiting(store: Path) -> Found:
    """Look for due runs in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.parked", str(store)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return Found(**json.loads(told))


def _waits(store: Path) -> Found:
    seconds = []
    with hf.Holdfast(store) as app:
        for _ in range(LOOKS):
            began = perf_counter()
            found = app.ready()
            seconds.append(perf_counter() - began)
            assert [run.run_id for run in found] == ["pattern"], found
    return Found(statistics.median(seconds), sorted(seconds)[LOOKS * 99 // 100], _held())


def _held() -> int:
    """The most bytes of memory that this process ever held; the system call counts its parent's from before the exec too."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    print(json.dumps(_waits(Path(sys.argv[1]))._asdict()))
