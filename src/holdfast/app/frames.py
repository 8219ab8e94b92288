"""Tracebacks that show the user's code: the frames of the engine between its lines say nothing to who reads them at night.

`HOLDFAST_TRACEBACK=full` keeps them, for those who look for a bug of ours.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import TracebackType

from holdfast.errors import HoldfastError, Unwinding

OURS = (str(Path(__file__).parent.parent) + os.sep, str(Path(asyncio.__file__).parent) + os.sep)
MAX_CHAIN = 20
"""Errors behind an error that are looked at."""


def without_our_frames(error: BaseException) -> None:
    """Leave the engine's frames out of the traceback of an error and of those it came from.

    What has no others keeps them, unless it is an error of ours, which says in words what they would show.
    """
    if os.environ.get("HOLDFAST_TRACEBACK") == "full":
        return
    seen: list[BaseException] = []
    stack: list[BaseException | None] = [error]
    while stack and len(seen) < MAX_CHAIN:
        current = stack.pop()
        if current is None or current in seen:
            continue
        seen.append(current)
        kept = _kept(current.__traceback__)
        if kept is not None or isinstance(current, HoldfastError | Unwinding):
            current.__traceback__ = kept
        stack += [current.__cause__, current.__context__]


def interrupted(pressed: KeyboardInterrupt, told: str) -> KeyboardInterrupt:
    """What Ctrl-C raises out of a blocking run: in words what is true now, and without the frames of the loop that it came through."""
    without_our_frames(pressed)
    found = _kept(pressed.__traceback__)
    told_so = KeyboardInterrupt(told)
    return told_so.with_traceback(found if os.environ.get("HOLDFAST_TRACEBACK") != "full" else pressed.__traceback__)


def _kept(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OURS):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno or 0)  # between two lines it has none
    return kept
