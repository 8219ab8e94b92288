"""Waiting for a run without a terminal: every wait is told, and Ctrl-C ends it in few words, the run left as it is."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import holdfast.sync as hf
from crashing import HEARS_CTRL_C
from holdfast.stores.memory import MemoryStore

MOST_LOOKS = 1000

WAITS = """
import holdfast as hf

@hf.agent
async def buy() -> bool:
    return await hf.ask("Go?")

hf.run(buy, run_id="r", store="runs.db")
"""


@hf.agent
def ask_twice() -> list[bool]:
    return [hf.ask("First?"), hf.ask("Second?")]


def test_without_a_terminal_every_wait_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()

    def answer_what_waits() -> None:
        with hf.Holdfast(store) as operator:
            answered, pause = 0, threading.Event()
            for _ in range(MOST_LOOKS):
                if answered == 2:
                    return
                if [run.status for run in operator.runs()] == ["waiting"]:
                    [item] = operator.inbox()
                    operator.answer("r", item.step_id, yes=True, about=item.about)
                    answered += 1
                pause.wait(0.01)

    helper = threading.Thread(target=answer_what_waits)
    helper.start()
    with hf.Holdfast(store) as app:
        assert app.run(ask_twice, run_id="r") == [True, True]
    helper.join(30)
    told = capsys.readouterr().err
    assert (told.count("First?"), told.count("Second?")) == (1, 1)


def test_ctrl_c_while_a_run_waits_says_in_few_lines_what_is_true(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WAITS)
    process = subprocess.Popen(
        [*HEARS_CTRL_C, sys.executable, "app.py"], cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "waits: Go?" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert told.splitlines()[-1].startswith("KeyboardInterrupt: run 'r' was left as it is")
    assert len(told.splitlines()) < 12
    assert "asyncio" not in told
    with hf.Holdfast(tmp_path / "runs.db") as app:
        assert app.show("r").status == "waiting"
