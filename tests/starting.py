"""Processes of Python's that begin with Holdfast imported: what `subprocess` gives, but forked from one that has done that already.

Most of the tests that need a process of its own need nothing of how an interpreter starts, which takes as long as all the rest of them.
What is started is a child of this process in every respect: it is waited for, stopped and killed like any other. Whoever tests the
start itself, or what only an interpreter reads from its environment, uses `subprocess`.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, AnyStr

PR_SET_CHILD_SUBREAPER = 36
_one_at_a_time = threading.Lock()


@cache
def _nursery() -> socket.socket:
    """The way to a process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "agents_for_tests.nursery", str(theirs.fileno())]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=Path(__file__).parent).returncode = 0
    atexit.register(ours.close)
    return ours


def _adopting(orphans: bool) -> None:  # noqa: FBT001 (the kernel's own word)
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0) == 0


class Popen(subprocess.Popen[AnyStr]):
    """A process of Python's that was not started but forked."""

    def _execute_child(  # noqa: PLR0917 (the order of `subprocess`)
        self, args: Sequence[object], executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *more: Any
    ) -> None:  # fmt: skip
        python, *words = map(str, args)
        assert python == sys.executable, args
        assert preexec_fn is None, "a command that is forked has nothing of that"
        pipes, new_session = more[3:9], more[14]
        files = [pipes[0], pipes[3], pipes[5]]
        order = {
            "words": words, "folder": str(cwd or Path.cwd()), "environment": dict(os.environ if env is None else env),
            "new_session": new_session,
        }  # fmt: skip
        this: Any = self
        this.pid = _forked(order, [number if file == -1 else file for number, file in enumerate(files)])
        this._child_created = True
        this._close_pipe_fds(*pipes)


def _forked(order: Mapping[str, object], files: Sequence[int]) -> int:
    """The process id of a new child of this process."""
    with _one_at_a_time:
        nursery = _nursery()
        _adopting(orphans=True)
        try:
            socket.send_fds(nursery, [json.dumps(order).encode()], files)
            return int(nursery.recv(100))
        finally:
            _adopting(orphans=False)


def under_strace(options: Sequence[str], *command: str | Path) -> list[str]:
    """The command of a program of Python's whose calls are traced from its first line on."""
    return [sys.executable, "-m", "agents_for_tests.tracing", json.dumps(options), *map(str, command)]


def run(command: Sequence[str | Path], *, timeout: float, said: str | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:
    """How such a process ended, and what it said; as text where `text` is true."""
    pipe = subprocess.PIPE
    with Popen[Any](command, stdin=pipe, stdout=pipe, stderr=pipe, **options) as process:
        try:
            out, err = process.communicate(said, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
