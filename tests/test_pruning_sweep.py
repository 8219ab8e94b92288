"""Whoever prunes is killed at every failpoint and every flush, and prunes again: a run is there whole or gone, and the rest goes on.

The same sweep over a store that removes a run in two transactions must find that out.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from agents_for_tests import prune_agent, sweep_agent
from holdfast._failpoints import PRUNES

KILLED = -signal.SIGKILL
MOST = 30
"""Occurrences of one failpoint, or flushes, that a prune has at the most."""

pytestmark = pytest.mark.sweep


class Server:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "agents_for_tests.prune_agent"]
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


@pytest.fixture(scope="module")
def made(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    assert server.run(folder, "make") == 0, (folder / "stderr").read_text()
    return folder


def half_way(folder: Path) -> list[str]:
    """What is wrong right after the kill."""
    with hf.Holdfast(folder / "runs.db") as app:
        bad = [verdict.what for verdict in app.check() if not verdict.good]
        return [f"{folder.name}: {what}" for what in [*app.store.check(), *bad]]


def at_the_end(folder: Path) -> list[str]:
    """What is wrong after another prune: the runs that go are gone, their ids taken, and the one that waits goes on as before."""
    sweep_agent.folder = folder
    done = len(sweep_agent.lines(folder))
    with hf.Holdfast(folder / "runs.db") as app:
        _, rows = app.store.load("waits-1") or pytest.fail("it is gone")
        found = {
            "first generation": [row.kind for row in rows[:2]],
            "left": sorted(run.run_id for run in app.runs()),
            "taken": [number for number in range(5) if refused(app, f"ends-{number}")],
            "result": answered(app),
            "done": [line["what"] for line in sweep_agent.lines(folder)[done:]],
            "kept": app.run(prune_agent.ends, "5", run_id="ends-5"),
        }
    result = ["look-xxxxxxxxxx", "pay-xxxxxxxxxx", "look-bxxxxxxxxx", "True", "look-end"]
    due = {
        "first generation": ["run.started", "run.continued"],
        "left": ["ends-5", "waits-1", "waits-2"], "taken": [0, 1, 2, 3, 4], "result": result, "done": ["end"], "kept": "look-5pay-5",
    }  # fmt: skip
    return [f"{folder.name}: {name} is {found[name]}" for name in due if found[name] != due[name]]


def refused(app: hf.Holdfast, run_id: str) -> bool:
    try:
        app.run(prune_agent.ends, run_id[-1], run_id=run_id)
    except hf.RunPruned:
        return True
    return False


def answered(app: hf.Holdfast) -> list[str]:
    app.answer("waits-1", "4", yes=True, by="test")
    return app.run(prune_agent.waits, "w", run_id="waits-1", wait=False)


def killed(server: Server, made: Path, folder: Path, **death: object) -> list[str] | None:
    """What is wrong after a prune that was killed in this way; None where it was not."""
    shutil.copytree(made, folder)
    code = server.run(folder, "prune", **death)
    if code != KILLED:
        assert code == 0, (folder / "stderr").read_text()[-1500:]
        return None
    if problems := half_way(folder):
        return problems
    assert server.run(folder, "prune") == 0, (folder / "stderr").read_text()[-1500:]
    return [*half_way(folder), *at_the_end(folder)]


def test_a_kill_at_every_failpoint_and_every_flush(server: Server, made: Path, tmp_path: Path) -> None:
    kills, problems = Counter[str](), list[str]()
    for name in (*PRUNES, "sync"):
        for number in range(1, MOST):
            death = {"sync": number} if name == "sync" else {"failpoint": f"{name}:{number}"}
            found = killed(server, made, tmp_path / f"{name}-{number}", **death)
            if found is None:
                break
            kills[name] += 1
            problems += found
    assert problems == []
    assert kills == {**dict.fromkeys(PRUNES[:2], 3), **dict.fromkeys(PRUNES[2:4], 2), **dict.fromkeys(PRUNES[4:], 1), "sync": kills["sync"]}
    assert kills["sync"] >= 5


def test_the_sweep_finds_out_a_store_that_removes_a_run_in_two_steps(server: Server, made: Path, tmp_path: Path) -> None:
    found = killed(server, made, tmp_path / "broken", failpoint="prune.after:1", broken="transactions")
    assert found is not None
    assert any("has 5 records in its journal but no head" in problem for problem in found), found
