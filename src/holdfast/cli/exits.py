"""Exit codes: what a script can tell from how a command ended."""

from __future__ import annotations

from enum import IntEnum

from holdfast.errors import Damaged, RunWaiting, StoreDamaged, StoreError


class Exit(IntEnum):
    """How a command ended; the names and numbers stand in docs/command-line.md."""

    FINE = 0
    REFUSED = 1
    USAGE = 2
    WAITING = 3
    DAMAGED = 4
    STORE = 5
    DRIFTED = 6
    INTERRUPTED = 130


MEANINGS = {
    Exit.FINE: "fine",
    Exit.REFUSED: "refused, or the run failed",
    Exit.USAGE: "the command was not understood",
    Exit.WAITING: "the run waits, for a person, a time or a message (resume --here)",
    Exit.DAMAGED: "damage was found",
    Exit.STORE: "the store cannot be used: missing, locked, foreign, newer or read-only",
    Exit.DRIFTED: "something that the run relies on is not what it was (show --drift)",
    Exit.INTERRUPTED: "interrupted with Ctrl-C; a run that was executing can go on later",
}


def exit_of(error: BaseException) -> Exit:
    """The code that belongs to one of our errors."""
    match error:
        case Damaged() | StoreDamaged():
            return Exit.DAMAGED
        case StoreError():
            return Exit.STORE
        case RunWaiting():
            return Exit.WAITING
        case _:
            return Exit.REFUSED
