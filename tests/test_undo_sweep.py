"""A process that undoes three effects is killed at every failpoint and every flush, and started again until the run is closed.

The ledger, which the bodies write, must show each effect done once and undone once, the newest first. The same sweep over engines that
are broken on purpose must find them out.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast._failpoints import NAMES

RUN_ID, NEEDS_A_PERSON, KILLED = "sweep", 75, -signal.SIGKILL
RESTARTS = 8
MOST = 40
"""Occurrences of one failpoint, or flushes, that a run has at the most."""
DONE = [("pay", "a"), ("pay", "b"), ("pay", "c"), ("refund", "c"), ("refund", "b"), ("refund", "a")]

pytestmark = pytest.mark.sweep


class Server:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "agents_for_tests.undo_agent"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)

    def run(self, folder: Path, **order: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"folder": str(folder), "store": str(folder / "runs.db"), **order}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.process.communicate()


def ledger(folder: Path) -> list[dict[str, str]]:
    path = folder / "ledger"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def answer(folder: Path) -> None:
    """Settle what is open, as a person would who looks for the key in the ledger."""
    with Holdfast(folder / "runs.db") as app:
        for item in app.inbox():
            seen = [f"{line['name']}-{line['what']}" for line in ledger(folder) if line["key"] == item.key]
            if seen:
                app.resolve(RUN_ID, item.step_id, landed=seen[0], by="test")
            else:
                app.resolve(RUN_ID, item.step_id, not_landed=True, by="test")


def finished(server: Server, folder: Path, variant: str, broken: str) -> list[str]:
    """Start it again until it is closed; what is wrong then."""
    code = NEEDS_A_PERSON
    for _ in range(RESTARTS):
        code = server.run(folder, variant=variant, broken=broken)
        if code != NEEDS_A_PERSON:
            break
        answer(folder)
    done = [(line["name"], line["what"]) for line in ledger(folder)]
    with Holdfast(folder / "runs.db") as app:
        status = app.show(RUN_ID).status
        assert [verdict.good for verdict in app.check()] == [True]
    return [] if (code, status, done) == (0, "cancelled", DONE) else [f"{variant} {folder.name}: ended with {code} as {status}: {done}"]


def swept(server: Server, parent: Path, variant: str, broken: str = "", **points: list[object]) -> tuple[int, list[str]]:
    """Kill it at each of the points, from the first on, until one is no longer reached: the kills, and what was wrong."""
    wrong: list[str] = []
    ((how, where),) = points.items()
    for kills, point in enumerate(where):
        folder = parent / f"{variant}-{how}-{point}".replace(":", "-")
        folder.mkdir()
        if server.run(folder, variant=variant, broken=broken, **{how: point}) != KILLED:
            return kills, wrong
        wrong += finished(server, folder, variant, broken)
    raise AssertionError(f"{how} was still reached after {len(where)} occurrences")


@pytest.mark.parametrize("variant", ["async", "def"])
def test_a_kill_at_every_failpoint_leaves_each_effect_undone_once_newest_first(server: Server, tmp_path: Path, variant: str) -> None:
    counts = {}
    for name in NAMES:
        counts[name], wrong = swept(server, tmp_path, variant, failpoint=[f"{name}:{number}" for number in range(1, MOST)])
        assert wrong == []
    of_effects = {name: count for name, count in counts.items() if name.startswith("effect.")}
    assert of_effects == dict.fromkeys(of_effects, 6)


@pytest.mark.parametrize("variant", ["async", "def"])
def test_a_kill_at_every_flush_leaves_each_effect_undone_once_newest_first(server: Server, tmp_path: Path, variant: str) -> None:
    kills, wrong = swept(server, tmp_path, variant, sync=list(range(1, MOST)))
    assert wrong == []
    assert kills >= 15


@pytest.mark.parametrize("variant", ["async", "def"])
@pytest.mark.parametrize("broken", ["intents", "order"])
def test_the_sweep_finds_out_a_broken_engine(server: Server, tmp_path: Path, variant: str, broken: str) -> None:
    """Killed in each undo: only there does it show."""
    kills, wrong = swept(server, tmp_path, variant, broken, failpoint=[f"effect.after_body:{number}" for number in range(4, MOST)])
    assert kills == 3
    assert any("('refund', 'c'), ('refund', 'c')" in line or "('refund', 'a'), ('refund', 'b')" in line for line in wrong), wrong
