"""Agents on object storage: killed, stopped and taken over; real processes, a real server, and a ledger that counts."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast as hf
import starting
from agents_for_tests.owner import working
from holdfast._failpoints import NAMES
from object_server import BUCKET

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])


class Owner:
    """A process that runs the agent of `agents_for_tests.owner` on objects; `places` are those where it holds."""

    def __init__(self, url: str, ledger: Path, *words: str, lease_s: float = 3600, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "agents_for_tests.owner", url, str(ledger), str(lease_s), *words]
        around = {**os.environ, "PYTHONPATH": PATHS, **(env or {})}
        self.process = starting.Popen(command, env=around, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def holding(self) -> Owner:
        """The same, once it holds in the middle of the run."""
        assert self.hear() == "ready"
        self.say("r")
        assert self.hear() == "holding"
        return self

    def end(self) -> int:
        """Kill it if it still lives, take it away, and tell how it ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return self.process.wait(20)


@pytest.fixture
def url(object_endpoint: str) -> str:
    return f"s3://{BUCKET}/c{secrets.token_hex(6)}?endpoint={object_endpoint}"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def owner(url: str, ledger: Path) -> Iterator[Callable[..., Owner]]:
    """Starts owners, and ends those that still live after the test."""
    owners: list[Owner] = []

    def start(place: str, **options: object) -> Owner:
        owners.append(Owner(url, ledger, f"hold={place}", **options))  # type: ignore[arg-type]
        return owners[-1].holding()

    yield start
    for one in owners:
        one.end()


def charged(ledger: Path) -> list[str]:
    return ledger.read_text().split() if ledger.exists() else []


def test_a_killed_run_goes_on_in_another_process_of_the_machine_at_once(url: str, owner: Callable[..., Owner], ledger: Path) -> None:
    dead = owner("between")
    dead.end()
    with hf.Holdfast(url, lease=3600) as app:
        assert app.run(working(ledger), "r", run_id="r") == [dead.process.pid, os.getpid(), os.getpid()]
        assert app.show("r").attempt == 2
    assert charged(ledger) == ["r"]


def test_a_killed_run_goes_on_elsewhere_when_its_lease_is_over(
    url: str, owner: Callable[..., Owner], ledger: Path, tmp_path: Path
) -> None:
    """Another folder for temporary files stands for another machine."""
    dead = owner("body", lease_s=0.5, env={"TMPDIR": str(tmp_path)})
    dead.end()
    with hf.Holdfast(url, lease=0.5) as app:
        head = app.store.head("r")
        assert head is not None
        assert head.owner is not None
        pulse = app.store.pulse(head.owner)
        assert pulse is not None
        assert not pulse.dead
        assert app.run(working(ledger, verify=True), "r", run_id="r")[1] == 0
        assert [verdict.good for verdict in app.check()] == [True]
    assert charged(ledger) == ["r"]


def test_a_stopped_owner_cannot_commit_anything_when_it_wakes(
    url: str, owner: Callable[..., Owner], ledger: Path, tmp_path: Path
) -> None:
    other = owner("between", lease_s=0.5, env={"TMPDIR": str(tmp_path)})
    other.process.send_signal(signal.SIGSTOP)
    with hf.Holdfast(url, lease=0.5) as app:
        assert app.run(working(ledger), "r", run_id="r")[1:] == [os.getpid()] * 2
        rows = app.store.load("r")
        other.process.send_signal(signal.SIGCONT)
        other.say("go on")
        assert other.hear() == "LeaseLost"
        assert app.store.load("r") == rows
    assert charged(ledger) == ["r"]


DYING = """
import os, sys
from pathlib import Path
import holdfast as hf
import holdfast.stores.objects
from agents_for_tests.owner import working
from holdfast._failpoints import arm
for line in sys.stdin:
    url, ledger, point = line.split()
    child = os.fork()
    if child == 0:
        arm(point)
        with hf.Holdfast(url, lease=3600) as app:
            app.run(working(Path(ledger), verify=True), "r", run_id="r")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs the agent in one process after the other, each of which is killed at its failpoint; none has opened a store before the fork."""


@pytest.mark.sweep
def test_a_run_that_is_killed_at_any_point_is_finished_and_charges_once(url: str, tmp_path: Path) -> None:
    places = {name: (url.replace("?", f"-{name}?"), tmp_path / f"ledger-{name}") for name in NAMES}
    orders = [f"{at} {ledger} effect.after_body:1" for name, (at, ledger) in places.items() if name.startswith("doubt")]
    orders += [f"{at} {ledger} {name}:1" for name, (at, ledger) in places.items()]
    command, env = [sys.executable, "-c", DYING], {**os.environ, "PYTHONPATH": PATHS}
    died = subprocess.run(command, env=env, input="\n".join(orders), capture_output=True, text=True, check=True, timeout=100)
    assert died.stdout.split() == [str(-signal.SIGKILL)] * len(orders), died.stderr
    for name, (at, ledger) in places.items():
        with hf.Holdfast(at, lease=3600) as app:
            assert len(app.run(working(ledger, verify=True), "r", run_id="r")) == 3
            assert app.show("r").status == "done", name
            assert [verdict.good for verdict in app.check()] == [True], name
        assert charged(ledger) == ["r"], name
