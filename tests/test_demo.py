"""`holdfast demo`: the bank, the agent and the evidence are real, the show leaves nothing behind, and its checks can fail."""

from __future__ import annotations

import itertools
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast
import starting
from holdfast.demo import evidence, stage
from holdfast.demo.ending import Ending
from holdfast.demo.show import show
from holdfast.demo.stage import Command, Stage

DEMO = [sys.executable, "-c", "import sys; from holdfast.demo import main; sys.exit(main())"]
LIMIT_S = 20.0


def surroundings(folder: Path) -> dict[str, str]:
    """Variables that put the demo's folder where it can be looked for, and a name on its processes."""
    return {**os.environ, "TMPDIR": str(folder), "TERM": "xterm-256color", "PYTHONPATH": str(Path(holdfast.__file__).parent.parent)}


def processes_with(folder: Path) -> list[str]:
    mark, found = f"TMPDIR={folder}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0"):
                found.append(environ.parent.name)
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return found


def test_the_demo_keeps_its_promises_without_a_terminal_and_leaves_nothing_behind(tmp_path: Path) -> None:
    began_s = time.monotonic()
    shown = subprocess.run(DEMO, env=surroundings(tmp_path), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert time.monotonic() - began_s < LIMIT_S
    assert "\x1b" not in shown.stdout
    assert "steps 1 to 46 given back from the journal, not executed" in shown.stdout
    assert "step 47 looked up at the bank: it had landed" in shown.stdout
    assert re.search(r"\b47  charge\(order=\"o-16\", cents=2500\) +in doubt", shown.stdout)
    assert re.search(r"o-16  25.00   1   1", shown.stdout)
    assert shown.stdout.count("\nok ") == len(evidence.CHECKS)
    assert "Nothing was lost and nothing was done twice." in shown.stdout
    assert list(tmp_path.iterdir()) == []
    assert processes_with(tmp_path) == []


def test_a_demo_that_is_asked_to_end_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(DEMO, env=surroundings(tmp_path), stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert "Holdfast demo" in demo.stdout.readline()
        demo.terminate()
        assert demo.wait(LIMIT_S) == 128 + 15
    assert list(tmp_path.iterdir()) == []
    assert processes_with(tmp_path) == []


def test_the_demo_draws_a_bar_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(DEMO, env={**surroundings(tmp_path), "COLUMNS": "100"}, stdin=theirs, stdout=theirs, stderr=theirs) as demo:
        os.close(theirs)
        shown = read_all(ours)
    assert demo.returncode == 0
    assert "\x1b[" in shown
    assert "Nothing was lost" in shown


def test_the_demo_fits_80_columns_and_ends_with_one_command(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(DEMO, env={**surroundings(tmp_path), "COLUMNS": "80"}, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = read_all(ours)
    report = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "").partition("What each life did")[2].splitlines()
    assert max(len(line.rstrip()) for line in report) <= 80
    wrapped = [after for line, after in itertools.pairwise(report) if line.startswith("ok ") and not after.startswith("ok ")]
    assert [line for line in wrapped if line.strip() and not line.startswith(" " * 8)] == []
    assert [line for line in report if "Next:" in line] == ["Next: holdfast --help"]


def read_all(terminal: int) -> str:
    parts: list[bytes] = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # how Linux says that the other side was closed
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode()


WITHOUT_HOLDFAST = """
import sys
from holdfast.demo import agent
client = agent.Client(sys.argv[sys.argv.index("--bank") + 1])
agent.hf.resource = lambda kind: client
with agent.hf.plain():
    agent.fulfil(agent.ORDERS)
"""
BLIND_PROBE = """
from holdfast.demo import agent
call = agent.Client.call
agent.Client.call = lambda self, method, *rest, **more: [] if method == "GET" else call(self, method, *rest, **more)
agent.main()
"""
LOST_JOURNAL = """
import pathlib, shutil, sys
from holdfast.demo import agent
store = pathlib.Path(sys.argv[sys.argv.index("--store") + 1])
for file in store.parent.iterdir():
    file.unlink() if file.is_file() else shutil.rmtree(file) if file.name.startswith(store.name) else None
agent.main()
"""
BOOKS_TWICE = """
from holdfast.demo import bank
once = bank.Books.charge
def twice(self, order, key):
    booked = once(self, order, key)
    self.charges.append(booked)
    return booked
bank.Books.charge = twice
bank.main()
"""
LOSES_A_MAIL = """
from holdfast.demo import bank
send = bank.Books.mail
def mail(self, letter, key):
    sent = send(self, letter, key)
    self.mails = [mail for mail in self.mails if mail["order"] != "o-16"]
    return sent
bank.Books.mail = mail
bank.main()
"""
DOES_NOT_HOLD = """
import sys
from holdfast.demo import bank
sys.argv[1:] = ["--hold", "0"]
bank.main()
"""

FORGERIES = {
    "an agent without Holdfast": ("agent", WITHOUT_HOLDFAST, ["given back from the journal", "looked up at the bank", "the ledger has"]),
    "a probe that does not look": ("agent", BLIND_PROBE, ["looked up at the bank", "service and agent count", "the ledger has"]),
    "a journal that is lost": ("agent", LOST_JOURNAL, ["given back from the journal", "the model was asked once", "the ledger has"]),
    "a bank that books twice": ("bank", BOOKS_TWICE, ["the bank had booked", "the ledger has"]),
    "a mail that is lost": ("bank", LOSES_A_MAIL, ["the ledger has"]),
    "an agent that is not killed": ("bank", DOES_NOT_HOLD, ["SIGKILL ended the first life", "given back from the journal"]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_the_demo_fails_with(forgery: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "subprocess", SimpleNamespace(Popen=starting.Popen, PIPE=subprocess.PIPE))
    part, code, claims = FORGERIES[forgery]
    script = tmp_path / "forger.py"
    script.write_text(code)
    commands: dict[str, Command] = {name: (sys.executable, "-m", f"holdfast.demo.{name}") for name in ("agent", "bank")}
    assert show(**{**commands, part: (sys.executable, str(script))}) == 1
    denied = [line for line in capfd.readouterr().out.splitlines() if line.startswith("NOT SO")]
    assert [claim for claim in claims if not any(claim in line for line in denied)] == []


def test_a_bank_that_does_not_start_is_said_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "forger.py"
    script.write_text("")
    assert show(bank=(sys.executable, str(script))) == 1
    assert "The demo could not be played: the bank ended before it was ready" in capfd.readouterr().out


def test_step_47_is_the_charge_of_the_sixteenth_order(tmp_path: Path) -> None:
    assert (evidence.STEPS, evidence.KILL_STEP, evidence.KILL_ORDER) == (60, 47, 16)
    with Ending() as ending, Stage(tmp_path, ending) as stage:
        life = stage.live(lambda _step, _how: None)
    assert life.did[-1] == ("charge", "o-16")
    assert re.search(r"--store \S+/runs\.db", " ".join(stage.line))
