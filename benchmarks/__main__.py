"""`make bench`: every figure in one run, as medians of interleaved rounds, against a floor measured in the same rounds.

A missed bar is reported, not an error: what a machine is busy with is not the program's fault.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf
from benchmarks import growing, measures, parked, table
from benchmarks.table import Line, count_line, ratio_line, time_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured; processes are started in the first rounds only."""

    rounds: int = 15
    process_rounds: int = 7
    steps: int = 300
    first_steps: int = 100
    runs: int = 100
    steps_of_many: int = 20
    replayed: int = 1000
    relying: int = 20
    watched: int = 100
    killed_at: int = 500
    few_parked: int = 1000
    parked: int = 100_000
    parked_rounds: int = 5
    growing: int = 1000
    growing_rounds: int = 3


TINY = Size(
    rounds=2, process_rounds=1, steps=5, first_steps=3, runs=3, steps_of_many=2, replayed=10, relying=2, watched=3, killed_at=5,
    few_parked=5, parked=20, parked_rounds=1, growing=6, growing_rounds=1,
)  # fmt: skip


ONE_BY_ONE = {
    "async step": measures.async_step, "whole run": measures.whole_run, "effect": measures.effect, "sync step": measures.sync_step,
}  # fmt: skip


class Rounds:
    """The measurements of all rounds, by name."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._folder, self._size = folder, size

    def measure(self) -> None:
        with hf.Holdfast(self._folder / "steps.db") as app:
            self._warm_up(app)
            for number in range(self._size.rounds):
                _progress(f"round {number + 1} of {self._size.rounds}")
                self._round(app)
                if number < self._size.process_rounds:
                    self._processes()
        self._parked()
        self._growing()
        _progress("")

    def _round(self, app: hf.Holdfast) -> None:
        """Between any two measurements stands a floor, so that each is compared with what the disk did just before and after it."""
        size, folder, add = self._size, self._folder, self._add
        floors = [self._floor()]
        for name, measure in ONE_BY_ONE.items():
            add(name, measure(app, size.steps))
            floors.append(self._floor())
            add(f"floor of {name}", (floors[-2] + floors[-1]) / 2)
        add("in place", measures.floor_in_place(folder, size.steps))
        floors.append(self._floor())
        add("floor of in place", (floors[-2] + floors[-1]) / 2)
        many = measures.many_runs(folder, size.runs, size.steps_of_many)
        add("first steps", measures.first_steps(folder, size.first_steps))
        floors.append(self._floor())
        add("floor of many", (floors[-2] + floors[-1]) / 2)
        add("floor", statistics.median(floors))
        add("many", many.step_s)
        add("flush", many.flush_s)
        add("acknowledged", many.acknowledged_s)
        add("flushes", many.flushes)
        add("replay", measures.replay(folder, size.replayed))
        add("watched", measures.watched(folder, size.relying, size.watched))

    def _floor(self) -> float:
        return measures.floor(self._folder, self._size.steps)

    def _warm_up(self, app: hf.Holdfast) -> None:
        """Until both logs have reached their size and are written over, and the modules of the other processes are compiled."""
        measures.floor(self._folder, 4 * self._size.steps)
        measures.async_step(app, 2 * self._size.steps)
        measures.sync_step(app, self._size.steps)
        if self._size.process_rounds > 1:
            measures.interpreter(self._folder, "import benchmarks.victim")

    def _processes(self) -> None:
        self._add("restart", measures.restart(self._folder, self._size.killed_at))
        self._add("bare", measures.interpreter(self._folder, "pass"))
        self._add("import", measures.interpreter(self._folder, "import holdfast"))

    def _parked(self) -> None:
        """The same in a store of few and of many, by turns; how many runs rest must not matter."""
        _progress(f"{self._size.parked} parked runs")
        stores = {name: parked.build(self._folder, count) for name, count in (("few", self._size.few_parked), ("many", self._size.parked))}
        for _ in range(self._size.parked_rounds):
            for name, store in stores.items():
                found = parked.waiting(store)
                self._add(f"due among {name}", found.seconds)
                self._add(f"held for {name}", found.held / 1e6)

    def _growing(self) -> None:
        """Calls of a model with all that was said before."""
        for number in range(self._size.growing_rounds):
            _progress(f"{self._size.growing} calls with a growing list, round {number + 1} of {self._size.growing_rounds}")
            before = self._floor()
            found = growing.measure(self._folder, self._size.growing)
            self._add("growing call", found.call_s - (before + self._floor()) / 2)
            self._add("growing sum", found.sum_s)
            self._add("growing replay", found.replayed_s)
            self._add("growing mean sum", found.mean_sum_s)
            self._add("growing size", found.size / 1e6)

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name].append(seconds)


def judged(seconds: dict[str, list[float]], size: Size) -> list[Line]:
    """The lines of the result, with the bars and aims of the project."""
    many = f"{size.runs} runs x {size.steps_of_many} steps together"
    imported = [both - bare for both, bare in zip(seconds["import"], seconds["bare"], strict=True)]
    held = [many - few for many, few in zip(seconds["held for many"], seconds["held for few"], strict=True)]
    return [
        ratio_line("async step", seconds["async step"], seconds["floor of async step"], bar=1.7, aim=1.3),
        ratio_line("- whole run of them, its claim and its end included", seconds["whole run"], seconds["floor of whole run"]),
        ratio_line("- the floor's own insert, made in place of its commit", seconds["in place"], seconds["floor of in place"]),
        ratio_line(f"- first {size.first_steps} of a new store", seconds["first steps"], seconds["floor of many"]),
        ratio_line("effect (two flushes)", seconds["effect"], seconds["floor of effect"], bar=3.0, aim=2.3),
        ratio_line("sync step", seconds["sync step"], seconds["floor of sync step"], bar=1.6, aim=1.3),
        ratio_line(f"{many}, per step", seconds["many"], seconds["floor of many"], bar=1.0, aim=0.7),
        ratio_line("- 99th percentile of an acknowledgement, by group flushes", seconds["acknowledged"], seconds["flush"], bar=3.0),
        count_line("- group flushes that ended meanwhile, 99th percentile", seconds["flushes"], bar=3),
        ratio_line("- one group flush", seconds["flush"], seconds["floor of many"]),
        time_line(f"replay of {size.replayed} steps", seconds["replay"], unit=" ms", bar=40),
        time_line(f"- more with {size.watched} watched files of 10 KB", seconds["watched"], unit=" ms", bar=50),
        time_line(f"restart after SIGKILL in step {size.killed_at} of {2 * size.killed_at}", seconds["restart"], unit=" s", bar=0.6),
        time_line(f"a due timer found among {size.parked} parked runs", seconds["due among many"], unit=" ms", bar=5),
        time_line(f"- among {size.few_parked}", seconds["due among few"], unit=" ms"),
        count_line("- more memory of the process that waits for them, in MB", held, bar=1),
        count_line(f"{size.growing} model calls, each with 1 KB more: MB stored", seconds["growing size"], bar=6),
        ratio_line("- the last 100, less the floor, by encoding and hashing", seconds["growing call"], seconds["growing sum"], bar=1.5),
        ratio_line("- replay of all, by encoding and hashing", seconds["growing replay"], seconds["growing mean sum"], bar=1.5),
        time_line("import holdfast", imported, unit=" s", bar=0.25),
        time_line("- with the interpreter's start", seconds["import"], unit=" s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--tiny", action="store_true", help="a few steps only, to see that it works; the figures mean nothing")
    parser.add_argument("--folder", type=Path, default=measures.ROOT, help="measure this folder's disk (default: the project's)")
    options = parser.parse_args()
    size = TINY if options.tiny else Size()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.folder) as name:
        folder = Path(name)
        rounds = Rounds(folder, size)
        rounds.measure()
        lines, about = judged(rounds.seconds, size), table.machine(folder, rounds.seconds["floor"])
    print(json.dumps(table.as_json(lines, about), indent=2) if options.json else table.as_text(lines, about))


def _progress(text: str) -> None:
    """What goes on, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
