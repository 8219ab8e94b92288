"""The common room of the sweeps: the stores that outlive a process, and processes that run an agent and die where they are told.

A case is a folder with what the agent did in it, and a store. The whole of every sweep is played on SQLite; `OTHERS` are those on which
`test_sweep_elsewhere.py` plays a part of each. A further store is a further line there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

import starting
from agents_for_tests.serving import REACHED
from holdfast import Holdfast
from object_server import BUCKET, ENV

RUN_ID = "sweep"
NEEDS_A_PERSON = 75
KILLED = -signal.SIGKILL
RESTARTS = 4
"""An act that is killed and started again so often, undisturbed, and not over then, never will be."""
ALL = os.environ.get("HOLDFAST_SWEEP") == "all"
MOST = 100
"""Occurrences of one failpoint, or flushes, that an act has at the most."""

Death: TypeAlias = dict[str, object]
"""What an order says of how its process is to die."""

COUNTED: Death = {"counted": True}
"""Nobody dies, and how often each place was passed is known then."""

Home: TypeAlias = Callable[[Path], str]
"""From the folder of a case to the URL of its store."""


def sqlite_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'runs.db'}"


def schema_of(server: str, folder: Path) -> str:
    return f"{server}?schema=c_{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


class Other(NamedTuple):
    """A store that outlives a process: where that of a case is, and the failpoints in it that every write passes.

    On one that is slow, one of `share` of the further cases is played.
    """

    home: Callable[[pytest.FixtureRequest], Home]
    inside: tuple[str, ...] = ()
    share: int = 1


def prefix_in(endpoint: str, folder: Path) -> str:
    return f"s3://{BUCKET}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}?endpoint={endpoint}"


OTHERS = {
    "files": Other(lambda request: lambda folder: f"file://{folder / 'runs'}", ("file.written", "file.linked")),
    "objects": Other(lambda request: partial(prefix_in, request.getfixturevalue("object_endpoint")), share=4),
    "postgres": Other(lambda request: partial(schema_of, request.getfixturevalue("postgres_url"))),
}
"""The stores beside SQLite, a line each."""


class Server:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "agents_for_tests.serving"]
        env = {**os.environ, **ENV}
        self.process = starting.Popen[str](
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent, env=env
        )  # fmt: skip

    def obey(self, order: dict[str, Any]) -> int:
        """What the child's exit status was."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


@dataclass(frozen=True)
class Stage:
    """Where one agent of `agents_for_tests` is played, each act by a process of its own, with an engine that may be broken on purpose."""

    server: Server
    agent: str
    home: Home = sqlite_in
    broken: str = ""

    def run(self, folder: Path, act: str, death: Death | None = None) -> int:
        """Play an act; its exit status. One that nobody disturbs is played in a process that has seen others, as a worker would be."""
        told = {"agent": self.agent, "folder": str(folder), "store": self.home(folder), "variant": act, "broken": self.broken}
        return self.server.obey({**told, **(death or ({} if self.broken else {"here": True}))})

    def open(self, folder: Path) -> Holdfast:
        """The store of a case, to look into."""
        return Holdfast(self.home(folder))

    def begun(self, folder: Path, acts: Sequence[str]) -> None:
        """A new case in which these acts were played and nobody was killed; once for all cases of a test, where the store can be copied."""
        if not acts or self.home is not sqlite_in:
            folder.mkdir()
            self._undisturbed(folder, acts)
            return
        before = folder.parent / " ".join(("before", self.broken, *acts))
        if not before.exists():
            before.mkdir()
            self._undisturbed(before, acts)
        shutil.copytree(before, folder)

    def _undisturbed(self, folder: Path, acts: Sequence[str]) -> None:
        for act in acts:
            code = self.run(folder, act)
            assert code in (0, NEEDS_A_PERSON), (act, code, said(folder))

    def played(self, folder: Path, acts: Sequence[str], dying: int, death: Death) -> bool:
        """Play all acts, one of which is killed and started again; whether it was killed at all."""
        self.begun(folder, acts[:dying])
        first = code = self.run(folder, acts[dying], death)
        for _ in range(RESTARTS):
            if code != KILLED:
                break
            code = self.run(folder, acts[dying])
        assert code in (0, NEEDS_A_PERSON), (acts[dying], code, said(folder))
        self._undisturbed(folder, acts[dying + 1 :])
        return first == KILLED


def staged(agent: str) -> Any:
    """A fixture: this agent on SQLite."""

    @pytest.fixture
    def stage(server: Server) -> Stage:
        return Stage(server, agent)

    return stage


def said(folder: Path) -> str:
    """What the processes of a case have said last, of what went wrong."""
    return (folder / "stderr").read_text()[-2000:]


def result_of(folder: Path, name: str = "result") -> Any:
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def misfits(folder: Path, found: dict[str, object], due: dict[str, object]) -> list[str]:
    """What was found and is not what it should be."""
    return [f"{folder.name}: {name} is {found[name]}" for name in due if found[name] != due[name]]


def death_at(place: str) -> Death:
    """Killed at an occurrence of a failpoint, or of a flush: `effect.after_body:2`, `sync:7`."""
    name, _, number = place.partition(":")
    return {"sync": int(number)} if name == "sync" else {"failpoint": place}


def reached(folder: Path) -> Mapping[str, int]:
    """How often the act of a case that was counted came to each failpoint; unknown of one that killed itself."""
    file = folder / REACHED
    return Counter(json.loads(file.read_text())) if file.exists() else defaultdict(lambda: MOST)


def swept(
    parent: Path, points: Iterable[str], tried: Callable[[Path, Death], list[str] | None], *, every: int = 1, flushes_every: int = 1
) -> tuple[Counter[str], list[str]]:  # fmt: skip
    """Kill at each occurrence (or every second, ...) of each failpoint, and of each flush where "sync" is one; how often, what was wrong.

    With `HOLDFAST_SWEEP=all` (`make sweeps`) none is passed over.

    `tried` plays a case in the folder that it is given, with that death, and says what was wrong then; None where nobody died. How often
    each failpoint is come to is counted in a case of its own before. Flushes are swept until one is not reached: their number differs.
    """
    kills, problems = Counter[str](), list[str]()
    assert tried(parent / "counted", COUNTED) is None
    passed = reached(parent / "counted")
    for name in points:
        most, pace = (MOST, flushes_every) if name == "sync" else (passed[name], every)
        pace = 1 if ALL else pace
        for number in range(1, most + 1, pace):
            folder = parent / f"{name}-{number}"
            found = tried(folder, death_at(f"{name}:{number}"))
            if not found:
                shutil.rmtree(folder)
            if found is None:
                break
            kills[name] += 1
            problems += found
        assert kills[name] < MOST, f"{name} was still reached after {MOST} occurrences"
    return kills, problems
