"""Ctrl-C at a chosen instruction: `KeyboardInterrupt` is raised where Python itself looks whether a signal has come."""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import holdfast

OURS = str(Path(holdfast.__file__).parent)
LOOKS_BEHIND = ("CALL", "RESUME")
"""Python looks for signals behind an instruction whose name begins so, and where it jumps backwards to."""
HANGS_S = 20

Site = tuple[str, str, int]
"""A module, a function in it, and an instruction of that."""


@cache
def _looked_at(code: CodeType) -> frozenset[int]:
    """The instructions before which Python looks, as far as an error raised there is handled as one of the instruction before."""
    found, before = dict[int, int](), None
    for each in dis.get_instructions(code):
        if before is not None and before.opname.startswith(LOOKS_BEHIND):
            found[each.offset] = before.offset
        if "JUMP_BACKWARD" in each.opname and isinstance(each.argval, int):
            found[each.argval] = each.offset
        before = each
    return frozenset(at for at, behind in found.items() if _handlers(code, at) == _handlers(code, behind))


def _handlers(code: CodeType, offset: int) -> list[int]:
    entries: list[Any] = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return [entry.target for entry in entries if entry.start <= offset < entry.end]


class _Tracer:
    """Notes each site of our code when it is come to, and raises at the one that was chosen."""

    def __init__(self, chosen: Site | None) -> None:
        self.chosen, self.sites = chosen, dict[Site, None]()

    def called(self, frame: FrameType, _event: str, _arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.stepped

    def stepped(self, frame: FrameType, event: str, _arg: object) -> Any:
        code = frame.f_code
        if event == "opcode" and frame.f_lasti in _looked_at(code):
            site = (code.co_filename[len(OURS) + 1 :], code.co_qualname, frame.f_lasti)
            if site == self.chosen:
                sys.settrace(None)
                self.chosen = None
                raise KeyboardInterrupt
            self.sites[site] = None
        return self.stepped


@contextmanager
def interrupted(chosen: Site | None = None) -> Iterator[dict[Site, None]]:
    """Ctrl-C when the block comes to this site for the first time; gives the sites that it has come to."""
    tracer, before = _Tracer(chosen), sys.gettrace()
    sys.settrace(tracer.called)
    try:
        with suppress(KeyboardInterrupt):
            yield tracer.sites
    finally:
        sys.settrace(before)


@contextmanager
def in_time() -> Iterator[None]:
    """What hangs is ended."""

    def ring(*_: object) -> NoReturn:
        raise AssertionError(f"it hangs: nothing for {HANGS_S} s")

    before, left = signal.signal(signal.SIGALRM, ring), signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)  # that of the test itself
