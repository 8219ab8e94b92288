"""What the tests of the command line share: a store with one run of every fate, and ways to give a command."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import starting
from holdfast.cli import main

HOSTILE = "[red]no stock[/red] \x1b]0;owned\x07\x1b[31m\u202e\r\n"
"""Markup, terminal escapes, a mark that turns text around, and line ends."""

SHOP = f"""
import os, signal, sys
import holdfast as hf

HOSTILE = {HOSTILE!r}

class Declined(Exception):
    pass

@hf.step
async def search(what: str) -> list[str]:
    print("searching", what)
    return [what + "-red", what + "-blue"]

@hf.step(raises=Declined)
async def stock(order: str) -> int:
    if os.environ.get("FAIL"):
        raise Declined(HOSTILE)
    return 3

@hf.effect(in_doubt="ask")
async def charge(order: str, cents: int) -> str:
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "r-" + order

@hf.agent
async def buy(order: str) -> str:
    await search(order)
    await stock(order)
    return await charge(order, 500)

def run(order: str, **environment: str) -> None:
    os.environ.update(environment)
    try:
        hf.run(buy, order, run_id=order, tags={{"customer": "7", "said": HOSTILE}}, wait=False)
    except (Declined, hf.RunWaiting):
        pass
    for name in environment:
        del os.environ[name]
"""

ACTS = ("run('done'); run('failed', FAIL='1'); run('waiting', DIE='1')", "run('waiting'); run('dead', DIE='1')")
"""Two processes; each is killed inside a charge."""


class Stage:
    """A folder with a store, the file of its agents, and the command line."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.store, self.shop = folder, folder / "runs.db", folder / "shop.py"
        self._capsys = capsys

    def give(self, *words: str) -> tuple[int, str, str]:
        """Give a command in this process: exit code, stdout, stderr."""
        self._capsys.readouterr()
        code = main([*words, "--store", str(self.store)])
        out, err = self._capsys.readouterr()
        return code, out, err

    def told(self, *words: str, code: int = 0) -> str:
        """What a command says on stdout when it ends with this code."""
        found, out, err = self.give(*words)
        assert found == code, err
        return out

    def document(self, *words: str, code: int = 0) -> Any:
        """The one JSON document that a command gives."""
        return json.loads(self.told(*words, "--json", code=code))

    def status(self, run_id: str) -> str:
        with hf.Holdfast(self.store) as app:
            return app.show(run_id).status

    def records(self, run_id: str) -> int:
        with hf.Holdfast(self.store) as app:
            return next(run.records for run in app.runs() if run.run_id == run_id)


def command(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command, in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name != "HOLDFAST_STORE"}
    full = [sys.executable, "-m", "holdfast", *words]
    return starting.run(full, cwd=folder, env={**kept, **environment}, text=True, timeout=60)


@cache
def template() -> Path:
    """A store with a run that is done, one that failed, one that waits for a person, and one whose process was killed; made once."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "shop.py").write_text(SHOP)
    environment = {**os.environ, "HOLDFAST_STORE": str(folder / "runs.db"), "PYTHONDONTWRITEBYTECODE": "1"}
    for act in ACTS:
        words = [sys.executable, "-c", f"from shop import *\n{act}"]
        ended = starting.run(words, cwd=folder, env=environment, timeout=60)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    return folder


def staged(folder: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    """A stage of one's own."""
    shutil.copytree(template(), folder, dirs_exist_ok=True)
    return Stage(folder, capsys)
