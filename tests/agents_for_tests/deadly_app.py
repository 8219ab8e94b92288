"""Agents that kill whoever executes them, again and again: one that gets on meanwhile, inside a run of its own, and one that does not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import holdfast as hf
import holdfast.sync


@hf.sync.step
def note(folder: str, nr: int) -> int:
    Path(folder, f"noted-{nr}").touch(exist_ok=False)
    return nr


@hf.sync.step
def die_once(folder: str, nr: int) -> int:
    try:
        Path(folder, f"died-{nr}").touch(exist_ok=False)
    except FileExistsError:
        return nr
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives that")


@hf.sync.agent
def trudges(folder: str, lives: int) -> int:
    for nr in range(lives):
        note(folder, nr)
        die_once(folder, nr)
    return lives


@hf.sync.agent
def sends(folder: str, lives: int) -> int:
    return trudges(folder, lives)
