"""The processes of the demo: starts the service and the agent, listens to both, kills the agent, and leaves nothing behind."""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeAlias

import holdfast as hf
from holdfast.operating.checkpoints import Checkpoint

from .agent import RUN_ID, Client
from .ending import Ending
from .evidence import KILL_ORDER, Evidence, How, Ledger, Life

Command: TypeAlias = tuple[str, ...]
Line: TypeAlias = tuple[str, list[str]]
Listener: TypeAlias = Callable[[int, How], None]
"""Told of every step: its number, and how it came to its end."""

PATIENCE_S = 20.0
"""How long the stage waits for the next word of its processes."""

# -P: a file in the current folder must not stand in for a module.
BANK: Command = (sys.executable, "-P", "-m", "holdfast.demo.bank")
AGENT: Command = (sys.executable, "-P", "-m", "holdfast.demo.agent")


class Silent(Exception):
    """A process of the demo did not say what was expected of it."""


@dataclass(slots=True)
class _Notes:
    """What one process of the agent has said so far."""

    began_s: float = field(default_factory=time.monotonic)
    did: list[tuple[str, str]] = field(default_factory=list)
    steps: list[tuple[int, How]] = field(default_factory=list)
    first_new_s: float = 0.0
    _since: set[str] = field(default_factory=set)

    def take(self, words: list[str]) -> tuple[int, How] | None:
        """Note what was said; gives a step that came to its end."""
        match words:
            case ["did", what, order]:
                self.did.append((what, order))
                self._since.add(what)
            case ["step", number]:
                self.steps.append((int(number), self._how()))
                if self._since and not self.first_new_s:
                    self.first_new_s = time.monotonic() - self.began_s
                self._since.clear()
                return self.steps[-1]
        return None

    def _how(self) -> How:
        if not self._since:
            return "given back"
        return "looked up" if self._since == {"look-up"} else "executed"


class Stage:
    """A folder, a service and a queue of what the processes say."""

    def __init__(self, folder: Path, ending: Ending, *, bank: Command = BANK, agent: Command = AGENT) -> None:
        self.store = folder / "runs.db"
        self._said: queue.Queue[Line] = queue.Queue()
        self._processes = ExitStack()
        self._ending = ending
        self._agent = agent
        self._bank = bank
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start("bank", (*self._bank, "--hold", str(KILL_ORDER)))
            self.url = self._hear("bank", "ready")[0]
        except BaseException:
            self._processes.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._ending.held():
            self._processes.close()

    @property
    def line(self) -> Command:
        """The command that starts the agent, the same in both lives."""
        return (*self._agent, "--bank", self.url, "--store", str(self.store))

    def live(self, listener: Listener) -> Life:
        """Start the agent and listen until it ends; kill it when the service says that it has booked the charge it holds back."""
        process, notes = self._start("agent", self.line), _Notes()
        for speaker, words in self._lines():
            if speaker == "bank" and words[:1] == ["held"]:
                process.kill()
            if speaker == "agent" and words == ["end"]:
                break
            if speaker == "agent" and (step := notes.take(words)):
                listener(*step)
        exit_code = process.wait(PATIENCE_S)
        Client(self.url).call("POST", "/release")
        history, status = self._recorded()
        return Life(
            exit_code=exit_code, did=notes.did, steps=notes.steps, first_new_s=notes.first_new_s,
            ledger=Ledger(**Client(self.url).call("GET", "/ledger")), history=history, status=status,
        )  # fmt: skip

    def evidence(self, first: Life, second: Life) -> Evidence:
        """Everything that was seen."""
        with hf.Holdfast(self.store) as app:
            whole = bool(app.runs()) and all(verdict.good for verdict in app.check())
        return Evidence(first=first, second=second, whole=whole)

    def _recorded(self) -> tuple[Sequence[Checkpoint], str]:
        with hf.Holdfast(self.store) as app:
            try:
                return app.history(RUN_ID), app.show(RUN_ID).status
            except hf.UnknownRun:
                return (), "unknown"

    def _start(self, name: str, command: Command) -> subprocess.Popen[str]:
        """Start a process whose words go to the queue; it ends with the stage at the latest."""
        with self._ending.held():
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
            self._processes.callback(_end, process)
        threading.Thread(target=self._listen, args=(name, process), daemon=True).start()
        return process

    def _listen(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as words:
            for line in words:
                self._said.put((name, line.split()))
        self._said.put((name, ["end"]))

    def _lines(self) -> Iterator[Line]:
        while True:
            try:
                yield self._said.get(timeout=PATIENCE_S)
            except queue.Empty:
                raise Silent(f"nothing was heard for {PATIENCE_S:.0f} s, neither of the agent nor of the service") from None

    def _hear(self, name: str, word: str) -> list[str]:
        for speaker, words in self._lines():
            if speaker == name and words[:1] == [word]:
                return words[1:]
            if words == ["end"]:
                break
        raise Silent(f"the {name} ended before it was {word}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
        yield Path(name)
