"""Those who edit and fork a run, and those who go on with it, are killed at every failpoint and flush: nothing is lost or done twice.

The same over an engine that forgets what happened after the point must find that out.
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

from crashing import records
from holdfast import Holdfast
from holdfast import _records as rec
from holdfast._failpoints import TIME_TRAVEL
from holdfast.stores.sqlite import SqliteStore

WAITING, KILLED, RESTARTS, MOST = 75, -signal.SIGKILL, 4, 30
ACTS = ("run sweep", "edit", "run sweep", "fork", "run branch", "answer sweep", "answer branch", "run sweep", "run branch")
POINTS = {
    1: ("edit.before", "edit.after"),
    2: ("claim.after", "effect.before_reuse", "effect.after_reuse", "ask.before", "park.after"),
    3: ("fork.before", "fork.after"),
    4: ("claim.before", "effect.before_reuse", "effect.after_reuse", "park.before"),
}
"""Where each act is killed, at every occurrence."""

pytestmark = pytest.mark.sweep


class Server:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "agents_for_tests.time_agent"]
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


def played(server: Server, folder: Path, dying: int, **death: object) -> bool:
    """Play all acts, one of which is killed and started again; whether it was killed at all."""
    folder.mkdir()
    broken, killed = {"broken": death.pop("broken", "")}, False
    for number, act in enumerate(ACTS):
        code = server.run(folder, act, **broken, **(death if number == dying else {}))
        killed |= code == KILLED
        for _ in range(RESTARTS):
            if code != KILLED:
                break
            code = server.run(folder, act, **broken)
        assert code in (0, WAITING), (act, code, (folder / "stderr").read_text()[-1500:])
    return killed


def wrong(folder: Path) -> list[str]:
    """What is not as it must be at the end."""
    files = [folder / f"{run_id}.json" for run_id in ("sweep", "branch")]
    results = [json.loads(file.read_text()) if file.exists() else None for file in files]
    ledger = Counter(json.loads(line)["what"] for line in (folder / "ledger").read_text().splitlines())
    with Holdfast(folder / "runs.db") as app:
        good = all(verdict.good for verdict in app.check())
    store = SqliteStore(folder / "runs.db")
    kinds = [Counter(type(record) for record in records(store, run_id)) for run_id in ("sweep", "branch")]
    store.close()
    found = {
        "the results": results,
        "looked and paid": [ledger["a"], ledger["5"]],
        "edits and forks": [kinds[0][rec.StepEdited], kinds[0][rec.RunForked], kinds[1][rec.RunForked]],
        "good": good,
    }
    due = {
        "the results": [[1, "pay-5", True], [2, "pay-5", True]], "looked and paid": [1, 1], "edits and forks": [1, 0, 1], "good": True,
    }  # fmt: skip
    return [f"{folder.name}: {name} is {found[name]}" for name in due if found[name] != due[name]]


@pytest.mark.parametrize("dying", POINTS)
def test_a_kill_at_every_failpoint_and_at_every_flush_of_the_verbs(server: Server, tmp_path: Path, dying: int) -> None:
    kills, problems = Counter[str](), list[str]()
    flushes = ("",) if ACTS[dying] in ("edit", "fork") else ()
    for how, names in (("failpoint", POINTS[dying]), ("sync", flushes)):
        for name in names:
            for number in range(1, MOST):
                folder = tmp_path / f"{how}-{name}-{number}"
                if not played(server, folder, dying, **{how: f"{name}:{number}" if name else number}):
                    break
                kills[name or how] += 1
                problems += wrong(folder)
    assert problems == []
    assert set(POINTS[dying]) <= set(kills)
    assert kills["sync"] >= len(flushes)
    assert set(TIME_TRAVEL) <= {name for names in POINTS.values() for name in names}


def test_the_sweep_finds_out_an_engine_that_forgets_what_happened(server: Server, tmp_path: Path) -> None:
    assert played(server, tmp_path / "broken", 1, failpoint="edit.after:1", broken="knowledge")
    assert "broken: looked and paid is [1, 3]" in wrong(tmp_path / "broken")
