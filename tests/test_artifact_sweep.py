"""Those who keep artifacts, and those who sweep them, are killed at every failpoint and flush: nothing is referred to that is not there.

Between the kill and the next start everything that nobody refers to is swept, with no grace. The same over an engine that does not
write its references must find that out.
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
from holdfast._failpoints import ARTIFACTS
from holdfast.store import Shelf

KILLED = -signal.SIGKILL
MOST = 40
RESULT = ["given", "write-a", "same other 1", "same other 2", "receipt of write-a"]
BLOBS = 8
"""Three files, two listings with three files in them: what the run refers to at its end."""
RUN_POINTS = ("blob.before", "blob.after", "claim.after", "step.after_body", "step.after_outcome", "effect.after_body", "run.before_done")
SWEEP_POINTS = ("sweep.before", "sweep.after")

pytestmark = pytest.mark.sweep


class Server:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "agents_for_tests.artifact_agent"]
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


def wrong(folder: Path) -> list[str]:
    """What is not as it must be at the end; the store was swept then."""
    with Holdfast(folder / "runs.db") as app:
        assert isinstance(app.store, Shelf)
        good, left = all(verdict.good for verdict in app.check()), app.store.sweep_blobs(1 << 60)
    files = [path for path in (folder / "runs.db.blobs").rglob("*") if path.is_file()]
    result = folder / "result.json"
    found = {"result": json.loads(result.read_text()) if result.exists() else None, "good": good, "left": left, "files": len(files)}
    due = {"result": RESULT, "good": True, "left": (0, 0), "files": BLOBS}
    return [f"{folder.name}: {name} is {found[name]}" for name in due if found[name] != due[name]]


def played(server: Server, folder: Path, dying: str, **order: object) -> bool:
    """Run, sweep and run again, of which one is killed; whether it was."""
    folder.mkdir()
    broken = {"broken": order.pop("broken", "")}
    codes: list[int] = []
    for act in ("run", "sweep", "run", "sweep"):
        death = order if act == dying and not codes.count(KILLED) else {}
        codes.append(server.run(folder, act, **broken, **death))
    assert set(codes) <= {0, KILLED}, (folder.name, codes, (folder / "stderr").read_text()[-1500:])
    return KILLED in codes


@pytest.mark.parametrize(("dying", "points"), [("run", RUN_POINTS), ("sweep", SWEEP_POINTS)])
def test_a_kill_at_every_failpoint_and_every_flush(server: Server, tmp_path: Path, dying: str, points: tuple[str, ...]) -> None:
    kills, problems = Counter[str](), list[str]()
    for how, name in (*(("failpoint", name) for name in points), ("sync", "")):
        for number in range(1, MOST):
            folder = tmp_path / f"{how}-{name}-{number}"
            if not played(server, folder, dying, **{how: f"{name}:{number}" if name else number}):
                break
            kills[name or how] += 1
            problems += wrong(folder)
    assert problems == []
    assert set(points) <= set(kills)
    assert set(ARTIFACTS) <= {*RUN_POINTS, *SWEEP_POINTS}


def test_the_sweep_notices_references_that_are_not_written(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    assert server.run(folder, "run", broken="references") == 0
    assert server.run(folder, "sweep") == 0
    assert any("files is 0" in problem for problem in wrong(folder))
    (folder / "result.json").unlink()
    assert server.run(folder, "run") not in (0, KILLED), "the result cannot be read any more, and that is said"
