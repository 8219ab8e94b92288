"""A process that was forked rather than started is, to whoever started it, a child like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import starting

SHOWN = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get('WORD'), os.getppid(), sys.path[0], __name__]))"


@pytest.mark.parametrize("start", [subprocess.Popen, starting.Popen], ids=["started", "forked"])
def test_it_has_its_words_folder_and_environment_and_is_a_child_of_this_process(start: type[subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    env = {**os.environ, "WORD": "x", "PYTHONPATH": "/elsewhere"}
    for how, first in ((["-c", SHOWN], ""), (["-m", "shown"], str(tmp_path)), ([str(tmp_path / "shown.py")], str(tmp_path))):
        command = [sys.executable, *how, "a", "b c"]
        with start(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = process.stdout.read()
        assert process.returncode == 0
        assert json.loads(found) == [["a", "b c"], str(tmp_path), "x", os.getpid(), first, "__main__"]


@pytest.mark.parametrize("start", [subprocess.Popen, starting.Popen], ids=["started", "forked"])
@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("raise SystemExit(7)", (7, "")), ("1 / 0", (1, "ZeroDivisionError: division by zero")), ("pass", (0, "")),
        ("import atexit, sys; atexit.register(print, 'over', file=sys.stderr)", (0, "over")),
        ("import os; os.kill(os.getpid(), 9)", (-signal.SIGKILL, "")),
    ],
)  # fmt: skip
def test_it_ends_as_one_that_was_started(start: type[subprocess.Popen[str]], code: str, ends: tuple[int, str]) -> None:
    with start([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        _, said = process.communicate(timeout=60)
    assert (process.returncode, (said.splitlines() or [""])[-1]) == ends


def test_it_is_stopped_and_killed_like_any_other() -> None:
    with starting.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()


def test_it_reads_its_failpoint_from_the_environment() -> None:
    code = "from holdfast._failpoints import reach; reach('claim.before'); print('alive')"
    command = [sys.executable, "-c", code]
    dead = starting.run(command, env={**os.environ, "HOLDFAST_FAILPOINT": "claim.before"}, timeout=60)
    alive = starting.run(command, timeout=60, text=True)
    assert (dead.returncode, alive.returncode, alive.stdout) == (-signal.SIGKILL, 0, "alive\n")
