"""A server of all agents that are made to be killed: it forks a child for every order that comes in as a line of JSON.

An order names the module of its agent, the folder of the case, the URL of its store, what is to be played (`variant`), how the engine is
broken, and how the process dies. The answer is the exit status of the child. With `counted` nobody dies, and how often each failpoint
was passed stands in the folder then. With `here` nobody is forked: the server itself plays the act, as a process would that outlives
many runs, unless the agent says that the act changes its process for good (`FOR_GOOD`).
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
from collections import Counter
from collections.abc import Callable, Sequence
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
FLUSHES = {"fdatasync", "pwritev2"}
"""What flushes the files of SQLite, and what writes and flushes a tail."""
REACHED = "reached.json"
"""How often an act that was counted came to each place."""


class Passed(dict[str, int]):
    """Failpoints that are all armed and never go off: they count down from nothing."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return 0


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

    def pwritev(self, fd: int, parts: Sequence[bytes], at: int, flags: int = 0) -> int:
        """What is flushed with its write is written first, so that one who dies on the way into the flush has written it."""
        written = os.pwritev(fd, parts, at)
        if flags & os.RWF_DSYNC:
            self.fdatasync(fd)
        return written

    def fdatasync(self, fd: int) -> None:
        MortalFile.count()
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        MortalFile.count()
        os.fsync(fd)


def obey(agent: Any, order: dict[str, Any]) -> int:
    """One act in a forked child, with its way to die."""
    if broken := order.get("broken"):
        agent.BREAKS[broken]()
    if "failpoint" in order:
        _failpoints.arm(order["failpoint"])
    if "sync" in order:
        MortalFile.countdown = order["sync"]
        order["vfs"] = MortalVfs()
        tails: Any = _tail_file
        tails.os = MortalOs()
    for call in FLUSHES & order.keys():
        traced("-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={order[call]}")
    if "counted" in order:
        return counted(agent, order)
    return play(agent, order)


def counted(agent: Any, order: dict[str, Any]) -> int:
    """An act in which nobody dies, and how often each place was passed: the most, where several acts of a case are counted."""
    passed = _failpoints._armed = Passed()
    code = play(agent, order)
    file = Path(order["folder"]) / REACHED
    before = Counter(json.loads(file.read_text())) if file.exists() else Counter[str]()
    file.write_text(json.dumps(before | Counter({name: -number for name, number in passed.items()})))
    return code


def play(agent: Any, order: dict[str, Any]) -> int:
    code: int = agent.run_once(order["variant"], order["store"])
    return code


def told(task: Callable[[Any, dict[str, Any]], int], agent: Any, order: dict[str, Any]) -> int:
    """Carry out an order for a case: what goes wrong stands in its folder."""
    sweep_agent.folder = Path(order["folder"])
    log = os.open(sweep_agent.folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.dump_traceback_later(order.get("patience_s", PATIENCE_S), exit=True)
    try:
        return task(agent, order)
    except BaseException:  # noqa: BLE001 (whatever it is, it is shown)
        traceback.print_exc()
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()


@cache
def rehearsed(name: str) -> Any:
    """An agent, the acts of which that need no others were played once, in a store that is gone: so Python has seen its code already."""
    agent = importlib.import_module(f"agents_for_tests.{name}")
    for act in getattr(agent, "REHEARSED", ()):
        with tempfile.TemporaryDirectory() as folder:
            sweep_agent.folder = Path(folder)
            agent.run_once(act, f"sqlite:///{folder}/runs.db")
    alone()
    return agent


def here(agent: Any, order: dict[str, Any]) -> bool:
    """Whether the server plays this act itself. The client of object storage does not survive a fork."""
    changes = order["variant"].startswith(getattr(agent, "FOR_GOOD", ()))
    return "here" in order and not changes and not order["store"].startswith("s3:")


def alone() -> None:
    """What is forked next has one thread: one that has lost a race comes to its end a moment after the run."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(PATIENCE_S)
    assert threading.active_count() == 1, threading.enumerate()


def serve() -> None:
    prepare()
    said = os.dup(2)
    for line in sys.stdin:
        order = json.loads(line)
        agent = rehearsed(order["agent"])
        if here(agent, order):
            print(told(play, agent, order), flush=True)
            os.dup2(said, 2)
            alone()
            continue
        pid = forked()
        if pid == 0:
            os._exit(told(obey, agent, order))
        if "kill_after_s" in order:
            time.sleep(order["kill_after_s"])
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
