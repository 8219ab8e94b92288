"""A server of all agents that are made to be killed: it forks a child for every order that comes in as a line of JSON.

An order names the module of its agent, the folder of the case, the URL of its store, what is to be played (`variant`), how the engine is
broken, and how the process dies. The answer is the exit status of the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import apsw
from pydantic import TypeAdapter

from agents_for_tests import sweep_agent
from holdfast import _failpoints
from holdfast.stores import files, objects, postgres, sqlite

LOADED = (files, objects, postgres, sqlite)
"""The stores that a child need not import for itself."""
PATIENCE_S = 10
"""A run takes a twentieth of a second; one that takes so long hangs, and says where."""
REAL_VFS = "unix"


class MortalFile(apsw.VFSFile):
    """Dies on the way into the flush; counts the flushes of all threads, which strace counts apart."""

    countdown = 0

    def xSync(self, flags: int) -> None:  # noqa: N802 (SQLite's name)
        MortalFile.countdown -= 1
        if MortalFile.countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().xSync(flags)


class MortalVfs(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("mortal", REAL_VFS, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> MortalFile:  # noqa: N802 (SQLite's name)
        return MortalFile(REAL_VFS, name, flags)


PR_SET_PTRACER = 0x59616D61
ANYBODY = ctypes.c_ulong(-1)


def die_at_fdatasync(number: int) -> None:
    """Be killed on the way into that flush of a thread, by a strace that attaches here: it would slow an interpreter's start down."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY)  # some kernels let nobody but a parent attach
    kill = f"inject=fdatasync:signal=KILL:when={number}"
    command = ["strace", "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", kill, "-p", str(os.getpid())]
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    assert "attached" in said, said


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
        if "fdatasync" in order:
            die_at_fdatasync(order["fdatasync"])
        code: int = agent.run_once(order["variant"], order["store"])
    except BaseException:  # noqa: BLE001 (whatever it is, it is shown)
        traceback.print_exc()
        return 1
    return code


def serve() -> None:
    TypeAdapter(None)  # the first one looks through everything that is installed, for plugins
    for line in sys.stdin:
        order = json.loads(line)
        agent = importlib.import_module(f"agents_for_tests.{order['agent']}")
        pid = os.fork()
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
