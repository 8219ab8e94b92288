"""A server of all agents that are made to be killed: it forks a child for every order that comes in as a line of JSON.

An order names the module of its agent, the folder of the case, the URL of its store, what is to be played (`variant`), how the engine is
broken, and how the process dies. The answer is the exit status of the child.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from agents_for_tests import sweep_agent
from agents_for_tests.forking import forked, prepare
from agents_for_tests.tracing import traced
from holdfast import _failpoints
from holdfast.stores import _tail_file

PATIENCE_S = 10
"""A run takes a twentieth of a second; one that takes so long hangs, and says where."""
REAL_VFS = "unix"


class MortalFile(apsw.VFSFile):
    """Dies on the way into the flush; counts the flushes of all threads, which strace counts apart."""

    countdown = 0

    @classmethod
    def count(cls) -> None:
        cls.countdown -= 1
        if cls.countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def xSync(self, flags: int) -> None:  # noqa: N802 (SQLite's name)
        self.count()
        super().xSync(flags)


class MortalVfs(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("mortal", REAL_VFS, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> MortalFile:  # noqa: N802 (SQLite's name)
        return MortalFile(REAL_VFS, name, flags)


class MortalOs:
    """`os` for tails: their flushes count with the others."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fdatasync(self, fd: int) -> None:
        MortalFile.count()
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        MortalFile.count()
        os.fsync(fd)


def obey(agent: Any, order: dict[str, Any]) -> int:
    """One act in a forked child, with its way to die."""
    sweep_agent.folder = Path(order["folder"])
    log = os.open(sweep_agent.folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(order.get("patience_s", PATIENCE_S), exit=True)
    try:
        if broken := order.get("broken"):
            agent.BREAKS[broken]()
        if "failpoint" in order:
            _failpoints.arm(order["failpoint"])
        if "sync" in order:
            MortalFile.countdown = order["sync"]
            order["vfs"] = MortalVfs()
            tails: Any = _tail_file
            tails.os = MortalOs()
        if "fdatasync" in order:
            traced("-o", os.devnull, "-e", "trace=fdatasync", "-e", f"inject=fdatasync:signal=KILL:when={order['fdatasync']}")
        code: int = agent.run_once(order["variant"], order["store"])
    except BaseException:  # noqa: BLE001 (whatever it is, it is shown)
        traceback.print_exc()
        return 1
    return code


@cache
def rehearsed(name: str) -> Any:
    """An agent, the acts of which that need no others were played once, in a store that is gone: so Python has seen its code already."""
    agent = importlib.import_module(f"agents_for_tests.{name}")
    for act in getattr(agent, "REHEARSED", ()):
        with tempfile.TemporaryDirectory() as folder:
            sweep_agent.folder = Path(folder)
            agent.run_once(act, f"sqlite:///{folder}/runs.db")
    assert threading.active_count() == 1, "what is forked has one thread"
    return agent


def serve() -> None:
    prepare()
    for line in sys.stdin:
        order = json.loads(line)
        agent = rehearsed(order["agent"])
        pid = forked()
        if pid == 0:
            os._exit(obey(agent, order))
        if "kill_after_s" in order:
            time.sleep(order["kill_after_s"])
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
