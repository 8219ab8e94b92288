"""A process that has imported Holdfast, and forks another one for each command of Python's that comes in: a start without the imports.

    nursery.py FD    commands come in over the socket of that number, as `starting.py` sends them

A command is a packet of JSON with its three standard files; the answer is the process id. The new process is handed over to whoever
started this one: the one between ends at once, and what it leaves behind falls to the nearest of its ancestors that adopts orphans.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import types
import warnings
from pathlib import Path
from typing import Any

from agents_for_tests.forking import forked, prepare, prepare_commands
from holdfast import _failpoints, sync
from holdfast._clock import SystemClock
from holdfast.cli import commands, working
from holdfast.fleet import worker
from holdfast.running import code

LOADED = (commands, sync, worker, working)
"""What a new process need not import for itself."""
MOST = 1 << 17
"""Bytes of a packet; most of it is the environment."""


def serve(asked: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each command. In the new process: what it is to be, and its standard files; at the end, nothing."""
    while True:
        packet, files, _, _ = socket.recv_fds(asked, MOST, 3)
        if not packet:
            return None
        reading, writing = os.pipe()
        between = forked()
        if between == 0:
            parent = os.getpid()
            if pid := os.fork():
                os.write(writing, b"%d" % pid)
                os._exit(0)
            while os.getppid() == parent:  # it begins as the child of whoever has it from now on
                os.sched_yield()
            os.close(reading)
            os.close(writing)
            return json.loads(packet), files
        os.waitpid(between, 0)
        asked.send(os.read(reading, 100))
        for one in (reading, writing, *files):
            os.close(one)


def become(order: dict[str, Any], files: list[int]) -> None:
    """Be what the order says, as if it had been started."""
    if order["new_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell, which the tests may be, ignores it
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (as long as the process)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.stdout.reconfigure(line_buffering=os.isatty(1) or "PYTHONUNBUFFERED" in order["environment"])
    sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if "PYTHONWARNINGS" in os.environ:
        warnings.simplefilter(os.environ["PYTHONWARNINGS"])  # type: ignore[arg-type]
    code._began_us = SystemClock().now_us()
    if "HOLDFAST_FAILPOINT" in os.environ:
        _failpoints.arm(os.environ["HOLDFAST_FAILPOINT"])
    play(*order["words"])


def play(how: str, *words: str) -> None:
    """`python -m module ...`, `python -c code ...` or `python file ...`."""
    first = {"-m": str(Path.cwd()), "-c": ""}.get(how, str(Path(how).parent))
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    match how:
        case "-m":
            sys.argv = list(words)
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        case "-c":
            sys.argv = ["-c", *words[1:]]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(words[0], "<string>", "exec"), main.__dict__)
        case _:
            sys.argv = [how, *words]
            runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    prepare()
    prepare_commands()
    with socket.socket(fileno=int(sys.argv[1])) as served:
        child = serve(served)
    if child is not None:
        become(*child)
