"""A run with children is killed at every failpoint and every flush, and started again: no effect is lost or repeated, no child doubled.

The same sweep over an engine that does not record its children before they begin must find that out.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast._failpoints import CHILDREN

RUN_ID, WAITING, KILLED = "sweep", 75, -signal.SIGKILL
RESTARTS = 4
MOST = 60
"""Occurrences of one failpoint, or flushes, that an act has at the most."""
WHATS = {"async": ["1", "2", "3", "4", "5"], "def": ["1", "2", "3", "4", "4b", "5"]}
RESULTS = {
    "async": ["charge-2look-2", "charge-1look-1", "charge-3look-3", "charge-4look-4", "charge-5red", "look-end"],
    "def": ["charge-1look-1", "charge-2look-2", "charge-3look-3", "charge-4look-4", "charge-4blook-4b", "charge-5red", "look-end"],
}
RUNS = {"async": 7, "def": 8}
POINTS = {
    0: (
        "claim.before", "claim.after", "child.before", "child.after", "child.before_take", "child.after_take", "effect.after_intent",
        "effect.after_body", "effect.after_outcome", "run.before_done", "run.after_done", "ask.before", "ask.after", "wait.before_outcome",
        "wait.after_outcome", "park.before", "park.after",
    ),
    1: ("answer.before", "answer.after"),
    2: ("claim.after", "child.before_take", "child.after_take", "wait.after_outcome", "run.before_done"),
}  # fmt: skip
"""Where each act is killed, at every occurrence."""

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]


class Server:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "agents_for_tests.child_agent"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)

    def run(self, folder: Path, act: str, **order: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        told = {"folder": str(folder), "store": str(folder / "runs.db"), "variant": act, **order}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.process.communicate()


def played(server: Server, folder: Path, acts: list[str], dying: int, **death: object) -> bool:
    """Play all acts, one of which is killed and started again; whether it was killed at all."""
    folder.mkdir()
    broken, killed = {"broken": death.pop("broken", "")}, False
    for number, act in enumerate(acts):
        code = server.run(folder, act, **broken, **(death if number == dying else {}))
        killed |= code == KILLED
        for _ in range(RESTARTS):
            if code != KILLED:
                break
            code = server.run(folder, act, **broken)
        assert code in (0, WAITING), (act, code, (folder / "stderr").read_text()[-1500:])
    return killed


def wrong(folder: Path, variant: str) -> list[str]:
    """What is not as it must be at the end."""
    result = folder / "result.json"
    ledger = [json.loads(line) for line in (folder / "ledger").read_text().splitlines()]
    with Holdfast(folder / "runs.db") as app:
        good, runs = all(verdict.good for verdict in app.check()), app.runs()
    found = {
        "the result": json.loads(result.read_text()) if result.exists() else None,
        "charged": sorted(line["what"] for line in ledger if line["name"] == "charge"),
        "runs": (len(runs), {run.status for run in runs}),
        "good": good,
    }
    due = {"the result": RESULTS[variant], "charged": WHATS[variant], "runs": (RUNS[variant], {"done"}), "good": True}
    return [f"{folder.name}: {name} is {found[name]}" for name in due if found[name] != due[name]]


@pytest.mark.parametrize(("variant", "dying"), [*(("async", act) for act in POINTS), ("def", 0)])
def test_a_kill_at_every_failpoint_and_every_flush(server: Server, tmp_path: Path, variant: str, dying: int) -> None:
    kills, problems = Counter[str](), list[str]()
    for how, names in (("failpoint", POINTS[dying]), ("sync", ("",))):
        for name in names:
            for number in range(1, MOST):
                folder = tmp_path / f"{how}-{name}-{number}"
                if not played(server, folder, [variant, "answer", variant], dying, **{how: f"{name}:{number}" if name else number}):
                    break
                kills[name or how] += 1
                problems += wrong(folder, variant)
    assert problems == []
    assert set(POINTS[dying]) <= set(kills)
    assert kills["sync"] >= 1


def test_a_cancel_that_is_killed_anywhere_is_completed_by_doing_it_again(server: Server, tmp_path: Path) -> None:
    kills = Counter[str]()
    for how, name in (("failpoint", "child.before_cancel"), ("sync", "")):
        for number in range(1, MOST):
            folder = tmp_path / f"{how}-{number}"
            if not played(server, folder, ["async", "cancel"], 1, **{how: f"{name}:{number}" if name else number}):
                break
            kills[how] += 1
            with Holdfast(folder / "runs.db") as app:
                ended = Counter(run.status for run in app.runs())
            assert ended == {"done": RUNS["async"] - 2, "cancelled": 2}, folder.name
    assert kills["failpoint"] == 1
    assert kills["sync"] >= 2
    assert set(CHILDREN) <= {*(name for names in POINTS.values() for name in names), "child.before_cancel"}


def test_the_sweep_finds_out_an_engine_that_does_not_record_its_children_first(server: Server, tmp_path: Path) -> None:
    problems = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        assert played(server, folder, ["def", "answer", "def"], 0, failpoint=f"run.after_done:{number}", broken="children")
        problems += wrong(folder, "def")
    assert any("charged is" in problem for problem in problems), problems
