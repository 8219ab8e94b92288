"""Who waits: a step of a run for a word, and a run that holds nothing meanwhile, with the runs below it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import Unwinding

if TYPE_CHECKING:
    from holdfast.life.run import Scope


class Waiter:
    """A step that waits for a word on `step_id`, itself or a question: woken by it, or unwound when the run parks.

    `place` is what it is known by among those that wait: several steps may wait for one answer.
    """

    __slots__ = ("event", "future", "outcome", "place", "scope", "step_id")

    def __init__(self, step_id: str, place: str, scope: Scope) -> None:
        self.step_id, self.place, self.scope = step_id, place, scope
        self.event = threading.Event()
        self.future: asyncio.Future[None] | None = None
        self.outcome: Unwinding | None = None

    def wake(self, outcome: Unwinding | None = None) -> None:
        """Let it go on, or unwind it with `outcome`; from any thread."""
        self.outcome = outcome
        self.event.set()
        if self.future is not None:
            self.future.get_loop().call_soon_threadsafe(_resolve, self.future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Parking(NamedTuple):
    """A run that waits, holding nothing: what it waits for, until when, which letters it had heard, the child runs it waits for.

    `asks` where a person must say something.
    """

    run_id: str
    told: str
    wake_us: int
    heard: set[int]
    within: tuple[Parking, ...] = ()
    asks: bool = False

    def family(self) -> Iterator[Parking]:
        """It and all runs below it."""
        yield self
        for child in self.within:
            yield from child.family()
