"""What all runs of one opened store share, and what somebody wants to have run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast._clock import Clock
from holdfast.budget import Budget
from holdfast.codec.fingerprint import fingerprint
from holdfast.life.bell import Bell
from holdfast.life.calls import Call
from holdfast.life.commit import Committer
from holdfast.life.metering import Meter
from holdfast.life.run import Nest, OnAsk, Run
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.running.lease import Keeper, Observer
from holdfast.store import Ceiling, Store
from holdfast.verbs.decorators import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What all runs of one opened store share."""

    store: Store
    clock: Clock
    committer: Committer
    keeper: Keeper
    observer: Observer
    resources: Sequence[object]
    lease_s: float
    on_ask: OnAsk | None = None
    park_after_s: float = 0.0
    bell: Bell
    nest: Callable[[Engine, Agent[..., Any]], Nest] | None = None
    meter: Meter


class Voice(Protocol):
    """Somebody at hand who may be asked while the run waits."""

    def put(self, run_id: str) -> bool:
        """Show what the run asks; False where there is nothing to show, or nobody listens."""

    def look(self) -> None:
        """Take what was said meanwhile, without waiting for it."""


@dataclass(slots=True)
class Nested:
    """The call of a step that is a run of its own, and what is known of that run once somebody has looked."""

    call: Call
    journal: Journal | None = None

    def entered(self, taken: Run | Journal) -> None:
        """The child was taken up, or had ended."""
        run, step_id = self.call.run, self.call.step_id
        self.journal = taken.journal if isinstance(taken, Run) else taken
        run.outlays[self.journal.head.run_id] = taken.outlay if isinstance(taken, Run) else taken.ledger.outlay
        if isinstance(taken, Run):
            run.children[step_id] = taken
            taken.leaving = run.leaving_below()
            taken.cancelling = run.unwanted.get(step_id)

    def origin(self) -> str:
        """The root of the child's keys: another one in every branch of its parent's history."""
        journal = self.call.run.journal
        root = self.call.run.origin if journal.forked is None else journal.forked.origin
        return f"{root}/{self.call.step_id}{f'~{journal.generation}' if journal.generation else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What somebody wants to have run."""

    agent: Agent[..., Any]
    run_id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    budget: Budget | None = None
    wait: bool = True
    recorded_arguments: bool = False
    voice: Voice | None = None
    park_after_s: float | None = None
    nested: Nested | None = None
    undo: rec.RunUndoing | None = None
    queue: str = ""
    priority: int = 0
    lane: str = ""
    ceilings: Sequence[Ceiling] = ()
    stood: tuple[int, int] | None = None
    """Epoch and seq at which whoever orders it has seen the run: one that was blocked or has failed since is left alone."""
    patient: bool = True
    """Whether to wait for whoever has the run, and to take one that was paused where its recorded arguments are used."""

    def undoes(self, journal: Journal) -> bool:
        """Whether the run is taken up to be undone, whatever its end was, which nobody has begun yet."""
        return self.undo is not None and journal.undoing is None

    def fingerprint(self) -> str:
        return fingerprint(self.agent.arguments.bind(self.args, self.kwargs))

    def encoded(self) -> bytes:
        return self.agent.orders.keep(self.args, self.kwargs)
