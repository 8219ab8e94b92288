"""A run with milestones, partial results and several generations is killed at every failpoint and every flush, and started again.

Its steps never give the same twice, so that whatever an effect or a milestone relied on and the engine then lost shows at the end. The same
sweep over engines that are broken on purpose must find them out.
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

from agents_for_tests.sweep_agent import lines
from holdfast import Holdfast
from holdfast._failpoints import MILESTONES

KILLED = -signal.SIGKILL
RESTARTS = 4
MOST = 60
"""Occurrences of one failpoint, or flushes, that a run has at the most."""
POINTS = (
    "claim.after", "step.after_body", "step.after_outcome", "effect.before_intent", "effect.after_intent", "effect.after_body",
    "effect.after_outcome", "run.before_done", "run.after_done", *MILESTONES,
)  # fmt: skip
CHARGED = ("c", "d", "e")

pytestmark = pytest.mark.sweep


class Server:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "agents_for_tests.mile_agent"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)

    def run(self, folder: Path, variant: str, **order: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        told = {"folder": str(folder), "store": str(folder / "runs.db"), "variant": variant, **order}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.process.communicate()


def killed(server: Server, folder: Path, variant: str, death: dict[str, object], broken: str = "") -> bool:
    """Run it, kill it there, and start it again until it is done; whether it came to the place at all."""
    folder.mkdir()
    code = first = server.run(folder, variant, broken=broken, **death)
    for _ in range(RESTARTS):
        if code == 0:
            break
        code = server.run(folder, variant, broken=broken)
    if not broken:
        assert code == 0, (folder / "stderr").read_text()[-1500:]
    return first == KILLED


def wrong(folder: Path, generations: int) -> list[str]:
    """What is not as it must be at the end."""
    if not (folder / "result.json").exists():
        return [f"{folder.name}: it did not come to its end"]
    result = json.loads((folder / "result.json").read_text())
    charged = sorted(line["what"] for line in lines(folder) if line["name"] == "charge")
    relied_on = sorted(note.removeprefix("charge-") for notes in result for note in notes if note.startswith("charge-"))
    problems = [] if charged == relied_on else [f"charged {charged}, the run knows of {relied_on}"]
    problems += [] if len(charged) == len(CHARGED) * generations else [f"{len(charged)} charges in {generations} generations"]
    for ack in lines(folder, "acks"):
        value, number = json.loads(ack["value"]), int(ack["what"])
        notes = result[number - 1] if ack["name"] == "milestone" else result[number][-3:]
        if notes[: len(value)] != value:
            problems.append(f"{ack['name']} {value} was acknowledged and is lost: {notes}")
    with Holdfast(folder / "runs.db") as app:
        problems += [f"damaged: {verdict.what}" for verdict in app.check() if not verdict.good]
    return [f"{folder.name}: {problem}" for problem in problems]


@pytest.mark.parametrize("variant", ["async 2", "def 2"])
def test_a_kill_at_every_failpoint_and_every_flush(server: Server, tmp_path: Path, variant: str) -> None:
    kills, problems = Counter[str](), list[str]()
    for how, names in (("failpoint", POINTS), ("sync", ("",))):
        for name in names:
            for number in range(1, MOST):
                folder = tmp_path / f"{how}-{name}-{number}"
                if not killed(server, folder, variant, {how: f"{name}:{number}" if name else number}):
                    break
                kills[name or how] += 1
                problems += wrong(folder, 2)
    assert problems == []
    assert set(POINTS) <= set(kills)
    assert kills["sync"] >= 10


@pytest.mark.parametrize("variant", ["async 5", "def 5"])
@pytest.mark.parametrize("name", ["continue.before", "continue.after"])
def test_no_generation_is_lost_or_repeated(server: Server, tmp_path: Path, variant: str, name: str) -> None:
    problems = []
    for number in range(1, 5):
        assert killed(server, tmp_path / str(number), variant, {"failpoint": f"{name}:{number}"})
        problems += wrong(tmp_path / str(number), 5)
    assert problems == []


@pytest.mark.parametrize("variant", ["async 2", "def 2"])
@pytest.mark.parametrize(
    ("broken", "place"), [("flush", "effect.after_body:3"), ("generation", "effect.after_body:4"), ("partial", "partial.after:2")]
)
def test_the_sweep_finds_out_a_broken_engine(server: Server, tmp_path: Path, variant: str, broken: str, place: str) -> None:
    """It writes intents without what came before, gives two generations the same keys, or does not write what a body saves."""
    assert killed(server, tmp_path / "sound", variant, {"failpoint": place})
    assert wrong(tmp_path / "sound", 2) == []
    assert killed(server, tmp_path / "broken", variant, {"failpoint": place}, broken=broken)
    assert wrong(tmp_path / "broken", 2)
