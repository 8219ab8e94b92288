"""Named places where a test may kill the process; in ordinary life each costs one look at a variable.

`HOLDFAST_FAILPOINT=name:3` sends SIGKILL to this process when `name` is reached for the third time.
"""

from __future__ import annotations

import os
import signal

NAMES = (
    "claim.before",
    "claim.after",
    "step.before_body",
    "step.after_body",
    "step.after_outcome",
    "effect.before_intent",
    "effect.after_intent",
    "effect.after_body",
    "effect.after_outcome",
    "doubt.before_settle",
    "doubt.after_settle",
    "run.before_done",
    "run.after_done",
)

WAITS = (
    "ask.before",
    "ask.after",
    "wait.before",
    "wait.after",
    "wait.before_outcome",
    "wait.after_outcome",
    "send.before",
    "send.after",
    "park.before",
    "park.after",
    "stay.begun",
)
"""Places that only a run passes which waits, or sends to one that does."""

PACKING = ("pack.before_blob", "pack.after_blob")
"""Places that only those pass who record values that are stored as blobs."""

ARTIFACTS = ("blob.before", "blob.after", "sweep.before", "sweep.after")
"""Places that only those pass who keep artifacts, or sweep them."""

PRUNES = ("prune.before", "prune.after", "shed.before", "shed.after", "forget.before", "forget.after")
"""Places that only a prune passes."""

MILESTONES = ("milestone.before", "milestone.after", "partial.before", "partial.after", "continue.before", "continue.after")
"""Places that only a run passes which has milestones, saves partial results, or continues as another."""

CHILDREN = ("child.before", "child.after", "child.before_take", "child.after_take", "child.before_cancel")
"""Places that only a run passes which calls another one."""

TIME_TRAVEL = ("edit.before", "edit.after", "fork.before", "fork.after", "effect.before_reuse", "effect.after_reuse")
"""Places that are passed by who goes back in a run, and by a call whose result is taken over."""

FILES = ("file.written", "file.linked", "turn.before", "turn.base", "turn.after", "adopt.before_back", "adopt.after_back")
"""Places that only the store of readable files passes."""

TAILS = ("tail.made", "tail.added", "tail.settled", "tail.closed")
"""Places that only the store in SQLite passes; the last, only one that takes a run from a process that has written to its tail."""

MOVES = (
    "seal.before", "seal.after", "carry.before", "carry.after", "import.before", "import.after", "hand.before", "hand.after",
    "activate.before", "activate.after", "mark.before", "mark.after",
)  # fmt: skip
"""Places that only those pass who move a run to another store."""

COPIES = ("copy.before", "copy.after")
"""Places that only those pass who copy a run to another store."""

TRANSACTIONS = (
    "transaction.before",
    "transaction.begun",
    "transaction.after_body",
    "transaction.before_commit",
    "transaction.after_commit",
    "transaction.after",
)
"""Places that only a step passes which commits with its outcome in one transaction."""

FLEET = ("submit.before", "submit.after", "pause.before", "pause.after")
"""Places that are passed by who leaves a run to a worker, or pauses one."""

DEPLOYS = ("block.before",)
"""Places that only a run passes which the code does not fit."""

BESIDE = (*FLEET, "repair.before", "repair.after", "answer.before", "answer.after", *PRUNES, *MOVES, *COPIES)
"""Places that no run passes."""

ALL = (*NAMES, *DEPLOYS, *WAITS, *PACKING, *ARTIFACTS, *MILESTONES, *CHILDREN, *TIME_TRAVEL, *TRANSACTIONS, *BESIDE, *FILES, *TAILS)

_armed: dict[str, int] | None = None


def arm(spec: str) -> None:
    """Arm `name:count`; an unknown name is an error, so that a sweep cannot silently test nothing."""
    global _armed  # noqa: PLW0603 (a process has one set of failpoints)
    name, _, count = spec.partition(":")
    if name not in ALL:
        raise ValueError(f"no failpoint is called {name!r}")
    _armed = {name: int(count or 1)}


def reach(name: str) -> None:
    """Die here, if this is the place and the time."""
    if _armed is None or name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)


if "HOLDFAST_FAILPOINT" in os.environ:
    arm(os.environ["HOLDFAST_FAILPOINT"])
