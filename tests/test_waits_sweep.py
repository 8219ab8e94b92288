"""Those who wait, answer and send are killed at every failpoint and every flush, and started again: nothing is lost or applied twice.

The same sweep over an engine that does not take a message in the transaction of what follows from it must find that out.
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
from holdfast._failpoints import WAITS
from holdfast.stores.sqlite import SqliteStore

RUN_ID, WAITING, KILLED = "sweep", 75, -signal.SIGKILL
RESTARTS = 4
MOST = 40
"""Occurrences of one failpoint, or flushes, that an act has at the most."""
RESULT = ["look-a", "red", "look-b", "1", "look-c", "2", "3"]
POINTS = {
    0: ("claim.after", "step.after_outcome", "ask.before", "ask.after", "park.before", "park.after"),
    1: ("answer.before", "answer.after"),
    2: ("send.before", "send.after"),
    3: ("claim.after", "send.before", "send.after", "run.before_done"),
    4: ("claim.after", "wait.before", "wait.after", "wait.before_outcome", "wait.after_outcome", "run.before_done", "run.after_done"),
}
"""Where each act is killed, at every occurrence."""
STAYS = (
    "claim.after", "step.after_outcome", "ask.before", "ask.after", "stay.begun", "answer.before", "answer.after", "send.before",
    "send.after", "wait.before", "wait.after", "wait.before_outcome", "wait.after_outcome", "run.before_done", "run.after_done",
)  # fmt: skip
"""Where one is killed that waits in place for what somebody says meanwhile."""

pytestmark = pytest.mark.sweep


class Server:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "agents_for_tests.wait_agent"]
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


def acts(variant: str, *, keyed: bool) -> list[str]:
    """What is done, each by a process of its own: it asks, is answered, gets messages from outside and from another run, and ends."""
    return [variant, "answer", "send keyed" if keyed else "send", "peer", variant, variant]


def played(server: Server, folder: Path, variant: str, dying: int, **death: object) -> bool:
    """Play all acts, one of which is killed and started again; whether it was killed at all."""
    folder.mkdir()
    keyed, broken = dying == 2, {"broken": death.pop("broken", "")}
    killed = False
    for number, act in enumerate(acts(variant, keyed=keyed)):
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
    result = folder / "result.json"
    ledger = [json.loads(line) for line in (folder / "ledger").read_text().splitlines()]
    with Holdfast(folder / "runs.db") as app:
        good = all(verdict.good for verdict in app.check())
    store = SqliteStore(folder / "runs.db")
    kinds = Counter(type(record) for record in records(store, RUN_ID))
    left = store.letters([RUN_ID])
    store.close()
    found = {
        "the result": json.loads(result.read_text()) if result.exists() else None,
        "taken and answered": (kinds[rec.MessageTaken], kinds[rec.AskAnswered], kinds[rec.AskOpened]),
        "before the wait": sum(line["what"] == "a" for line in ledger),
        "letters left": left,
        "good": good,
    }
    due = {"the result": RESULT, "taken and answered": (3, 1, 1), "before the wait": 1, "letters left": [], "good": True}
    return [f"{folder.name}: {name} is {found[name]}" for name in due if found[name] != due[name]]


@pytest.mark.parametrize(("variant", "dying"), [*(("async", act) for act in POINTS), ("def", 0), ("def", 4)])
def test_a_kill_at_every_failpoint_and_every_flush(server: Server, tmp_path: Path, variant: str, dying: int) -> None:
    kills, problems = Counter[str](), list[str]()
    for how, names in (("failpoint", POINTS[dying]), ("sync", ("",))):
        for name in names:
            for number in range(1, MOST):
                death = {how: f"{name}:{number}" if name else number}
                folder = tmp_path / f"{how}-{name}-{number}"
                if not played(server, folder, variant, dying, **death):
                    break
                kills[name or how] += 1
                problems += wrong(folder)
    assert problems == []
    assert set(POINTS[dying]) <= set(kills)
    assert set(WAITS) <= {name for names in (*POINTS.values(), STAYS) for name in names}
    assert kills["sync"] >= 1


@pytest.mark.parametrize("variant", ["async", "def"])
def test_the_sweep_finds_out_an_engine_that_takes_messages_beside_their_outcome(server: Server, tmp_path: Path, variant: str) -> None:
    problems = []
    for number in range(3, 6):
        folder = tmp_path / str(number)
        assert played(server, folder, variant, 4, failpoint=f"wait.after_outcome:{number}", broken="letters")
        problems += wrong(folder)
    assert any("the result is" in problem for problem in problems), problems


def stayed(server: Server, folder: Path, variant: str, **death: object) -> bool:
    """Play a run that stays in place, killed once and started again until it is done; whether it was killed at all."""
    folder.mkdir()
    codes = [server.run(folder, f"stay {variant}", **death)]
    while codes[-1] == KILLED and len(codes) <= RESTARTS:
        codes.append(server.run(folder, f"stay {variant}"))
    assert codes[-1] == 0, (codes, (folder / "stderr").read_text()[-1500:])
    return codes[0] == KILLED


@pytest.mark.parametrize("variant", ["async", "def"])
def test_a_kill_at_every_failpoint_of_a_run_that_stays_in_place(server: Server, tmp_path: Path, variant: str) -> None:
    kills, problems = Counter[str](), list[str]()
    for name in STAYS:
        for number in range(1, MOST):
            folder = tmp_path / f"{name}-{number}"
            if not stayed(server, folder, variant, failpoint=f"{name}:{number}"):
                break
            kills[name] += 1
            problems += wrong(folder)
    assert problems == []
    assert set(kills) == set(STAYS)
