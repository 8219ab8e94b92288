"""Agents on PostgreSQL: killed, stopped, cut off and taken over; real processes, a real server, and a ledger that counts."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import holdfast as hf
import starting
from agents_for_tests.owner import working
from holdfast._failpoints import NAMES

HERE = Path(__file__).parent
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}
END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"


class Owner:
    """A process that runs the agent of `agents_for_tests.owner` on PostgreSQL, and holds at a place of it."""

    def __init__(self, url: str, ledger: Path, lease_s: float, place: str) -> None:
        command = [sys.executable, "-m", "agents_for_tests.owner", url, str(ledger), str(lease_s), f"hold={place}"]
        self.process = starting.Popen[str](command, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hear() == "ready"
        self.say("r")
        assert self.hear() == "holding"

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def end(self) -> None:
        """Kill it if it still lives, and take it away."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def url(postgres_url: str) -> str:
    return f"{postgres_url}?schema=t_{secrets.token_hex(6)}"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def owner(url: str, ledger: Path) -> Iterator[Callable[..., Owner]]:
    """Starts owners, and ends those that still live after the test."""
    owners: list[Owner] = []

    def start(place: str, lease_s: float = 15, *, name: str = "holdfast") -> Owner:
        owners.append(Owner(f"{url}&application_name={name}", ledger, lease_s, place))
        return owners[-1]

    yield start
    for one in owners:
        one.end()


def charged(ledger: Path) -> list[str]:
    return ledger.read_text().split() if ledger.exists() else []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["step", "between"])
def test_a_killed_run_goes_on_in_another_process_without_waiting_for_its_lease(
    url: str, owner: Callable[..., Owner], ledger: Path, place: str
) -> None:
    dead = owner(place, 3600)
    dead.kill()
    with hf.Holdfast(url, lease=3600) as app:
        first, *rest = app.run(working(ledger), "r", run_id="r")
        assert app.show("r").attempt == 2
    assert rest == [os.getpid()] * 2
    assert first == (os.getpid() if place == "step" else dead.process.pid)
    assert charged(ledger) == ["r"]


def test_an_effect_that_was_killed_behind_its_request_is_not_repeated(url: str, owner: Callable[..., Owner], ledger: Path) -> None:
    owner("body").kill()
    with hf.Holdfast(url) as app:
        assert app.run(working(ledger, verify=True), "r", run_id="r")[1] == 0
        assert [verdict.good for verdict in app.check()] == [True]
    assert charged(ledger) == ["r"]


@pytest.mark.parametrize("place", ["step", "between"])
def test_a_stopped_owner_cannot_commit_anything_when_it_wakes(url: str, owner: Callable[..., Owner], ledger: Path, place: str) -> None:
    other = owner(place, 0.5)
    other.process.send_signal(signal.SIGSTOP)
    with hf.Holdfast(url, lease=0.5) as app:
        assert app.run(working(ledger), "r", run_id="r")[1:] == [os.getpid()] * 2
        rows = app.store.load("r")
        other.process.send_signal(signal.SIGCONT)
        other.say("go on")
        assert other.hear() == "LeaseLost"
        assert app.store.load("r") == rows
    assert charged(ledger) == ["r"]


@pytest.mark.parametrize("place", ["between", "body"])
def test_a_living_owner_that_lost_its_sessions_is_not_taken_for_dead_and_goes_on(
    url: str, owner: Callable[..., Owner], ledger: Path, place: str
) -> None:
    name = f"holdfast-{secrets.token_hex(4)}"
    other = owner(place, name=name)
    with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
        ended = admin.execute(END_ALL, (name,)).fetchall()
    assert len(ended) >= 2
    with hf.Holdfast(url) as app:
        head = app.store.head("r")
        assert head is not None
        assert head.owner is not None
        pulse = app.store.pulse(head.owner)
        assert pulse is not None
        assert not pulse.dead
        other.say("go on")
        assert other.hear() == str([other.process.pid] * 3)
        assert app.show("r").attempt == 1
    assert charged(ledger) == ["r"]


def lives(url: str, ledger: Path, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    """A process that runs the agent to its end, or to the point where it is killed."""
    command = [sys.executable, "-m", "agents_for_tests.owner", url, str(ledger), "3600", "verify"]
    env = ENV | ({"HOLDFAST_FAILPOINT": failpoint} if failpoint else {})
    return starting.run(command, env=env, said="r\n\n", text=True, timeout=60)


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_killed_at_any_point_is_finished_and_charges_once(url: str, ledger: Path, name: str) -> None:
    if name.startswith("doubt"):
        assert lives(url, ledger, "effect.after_body:1").returncode == -signal.SIGKILL
    killed = lives(url, ledger, f"{name}:1")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    finished = lives(url, ledger)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[1].startswith("["), finished.stdout
    assert charged(ledger) == ["r"]
    with hf.Holdfast(url) as app:
        assert app.show("r").status == "done"
        assert [verdict.good for verdict in app.check()] == [True]
