"""How a process has its own system calls watched, refused or turned into its death, from here on: without its start, which is slow then.

tracing.py TRACED PROGRAM ...    TRACED is a JSON list of options of strace; then run a program as Python does
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import subprocess
import sys

PR_SET_PTRACER = 0x59616D61
ANYBODY = ctypes.c_ulong(-1)


def traced(*options: str) -> None:
    """Go on under a strace that attaches here, and ends after this process: whoever reads this one's output to its end waits for both."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY)  # some kernels let nobody but a parent attach
    command = ["strace", "-f", *options, "-p", str(os.getpid())]
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    assert "attached" in said, said


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.argv = sys.argv[2:]
    traced(*given)
    runpy.run_path(sys.argv[0], run_name="__main__")
