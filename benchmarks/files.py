"""`python -m benchmarks.files`: what a step costs on readable files, as a multiple of one raw file that is written and linked durably."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import holdfast as hf
from benchmarks import agents, measures
from benchmarks.postgres import many_runs
from benchmarks.table import Line, as_table, ratio_line, time_line
from holdfast.store import Append, Head, Query, Row
from holdfast.stores.files import FilesStore

MANY_ROUNDS = 2
"""Rounds in which many runs are measured: that takes long."""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured."""

    rounds: int = 5
    steps: int = 100
    runs: int = 100
    steps_of_many: int = 20
    listed: int = 500


TINY = Size(rounds=2, steps=3, runs=3, steps_of_many=2, listed=5)


def floor(folder: Path, count: int) -> float:
    """Seconds per raw file of 1 KB: written, flushed, linked to its name, its folder flushed."""
    half, named = folder / "half-written", folder / "named"
    half.mkdir(exist_ok=True)
    named.mkdir(exist_ok=True)
    began = perf_counter()
    for number in itertools.islice(_numbers, count):
        _linked(f"{half}/{number}", f"{named}/{number}", str(named))
    return (perf_counter() - began) / count


def _linked(half: str, name: str, folder: str) -> None:
    fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, b"x" * agents.SIZE)
    os.fsync(fd)
    os.close(fd)
    os.link(half, name)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    os.unlink(half)  # noqa: PTH108


def fill(store: FilesStore, count: int) -> None:
    """So many runs at rest."""
    digest = b"\0" * 32
    heads = [Head(f"rest{n}", "a", "done", None, 1, 1, digest, None, n, n, "{}", 0.0, "") for n in range(count)]
    row = Row(1, 1, 1, "run.started", "", b"{}", None, None, digest)
    store.append([Append(head.run_id, 0, 0, [row], head) for head in heads])


def listing(store: FilesStore) -> float:
    """Seconds to list 50 runs of one status, the newest first."""
    began = perf_counter()
    assert store.heads(Query(statuses=["done"], limit=50))
    return perf_counter() - began


def measured(folder: Path, size: Size) -> tuple[list[Line], list[float]]:
    """The lines of the table, and the floors."""
    one, blocking, sent, many, floors = (list[float]() for _ in range(5))
    with hf.Holdfast(FilesStore(folder / "runs")) as app:
        app.run(agents.asking, size.steps)
        for _ in range(size.rounds):
            before = floor(folder, size.steps)
            one.append(measures.async_step(app, size.steps))
            blocking.append(measures.sync_step(app, size.steps))
            between = floor(folder, size.steps)
            sent.append(measures.effect(app, size.steps))
            if len(many) < MANY_ROUNDS:
                many.append(many_runs(app, size.runs, size.steps_of_many))
            floors.append(statistics.mean([before, between, floor(folder, size.steps)]))
    store = FilesStore(folder / "rest")
    fill(store, size.listed)
    warm = [listing(store) for _ in range(size.rounds)]
    cold = [listing(FilesStore(folder / "rest")) for _ in range(size.rounds)]
    lines = [
        ratio_line("files: async step", one, floors, bar=2.0),
        ratio_line("files: sync step", blocking, floors, bar=2.0),
        ratio_line("files: effect (two commits)", sent, floors),
        ratio_line(f"files: {size.runs} runs x {size.steps_of_many} steps together, per step", many, floors[: len(many)]),
        time_line(f"files: listing 50 of {size.listed:,}", warm, unit=" ms"),
        time_line("- for the first time", cold, unit=" ms"),
    ]
    return lines, floors


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a few steps only, to see that it works; the figures mean nothing")
    parser.add_argument("--folder", type=Path, default=measures.ROOT, help="measure this folder's disk (default: the project's)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.folder) as name:
        lines, floors = measured(Path(name), TINY if options.tiny else Size())
    print(f"Files: medians of {len(floors)} rounds, spread = quartiles.")
    print("The floor is one raw file of 1 KB: written, flushed, linked to its name, and its folder flushed.")
    print("\n".join(["", *as_table(lines)]))


if __name__ == "__main__":
    main()
