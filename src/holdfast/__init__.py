"""Holdfast makes AI agents survive crashes: a step that is done stays done, and nothing outside is done twice."""

from typing import TYPE_CHECKING

from ._landing import Landed, NotLanded, Unknown, Verdict
from .app.app import Holdfast, run, start
from .app.handle import Handle
from .breaker import Breaker
from .budget import Budget, Spent
from .errors import (
    BudgetExceeded,
    CircuitOpen,
    Damaged,
    Drifted,
    HoldfastError,
    InDoubt,
    LeaseLost,
    LostContext,
    Misuse,
    ModelChanged,
    NestedStep,
    NoRun,
    NotKept,
    Refused,
    ReplayMismatch,
    ResultNotKept,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunInterrupted,
    RunMoved,
    RunPaused,
    RunPruned,
    RunWaiting,
    StepFailed,
    StoreError,
    Undeliverable,
    UnknownRun,
)  # fmt: skip
from .large.artifact import Artifact
from .limits import Limit
from .retention import Retention
from .retry import Retry
from .schedules import Schedule
from .verbs.branches import first, gather, map
from .verbs.continuing import continue_as
from .verbs.decorators import agent, effect, resend, reset, step, transaction, verify
from .verbs.emit import emit
from .verbs.milestones import milestone
from .verbs.partials import partial
from .verbs.timeouts import timeout
from .verbs.verbs import cleanup, connection, current, key, now, plain, resource, state, usage, watch
from .verbs.waits import ask, receive, send, sleep

__all__ = [
    "Artifact", "Breaker", "Budget", "BudgetExceeded", "CircuitOpen", "Damaged", "Drifted", "Handle", "Holdfast", "HoldfastError",
    "InDoubt", "Landed", "LeaseLost", "Limit", "LostContext", "Misuse", "ModelChanged", "NestedStep", "NoRun", "NotKept", "NotLanded",
    "Refused", "ReplayMismatch", "ResultNotKept", "Retention", "Retry", "RunCancelled", "RunConflict", "RunFailed", "RunInterrupted",
    "RunMoved", "RunPaused", "RunPruned", "RunWaiting", "Schedule", "Spent", "StepFailed", "StoreError", "Undeliverable", "Unknown",
    "UnknownRun", "Verdict", "agent", "ask", "cleanup", "connection", "continue_as", "current", "effect", "emit", "first", "gather",
    "key", "map", "milestone", "now", "partial", "plain", "receive", "resend", "reset", "resource", "run", "send", "sleep", "start",
    "state", "step", "timeout", "transaction", "usage", "verify", "watch",
]  # fmt: skip

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """The version, read when somebody asks: finding it out costs more than all of this file."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version("holdfast")
