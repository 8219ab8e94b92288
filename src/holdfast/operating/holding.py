"""What is held back for all workers of a store, a queue or the whole fleet: who said so, since when, and why; the verbs for it.

The store keeps it under a name, "fleet" or "queue NAME", with what is said of it as JSON. Nothing of it is in a run: a run that is held
back stands where it stood, and whoever lets go of one because of it records why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from holdfast._ids import checked_text
from holdfast.errors import Misuse, Refusal
from holdfast.operating.advice import Hands
from holdfast.operating.family import top_of
from holdfast.operating.roster import WorkerView, serving, workers
from holdfast.running.engine import Engine
from holdfast.running.ordering import QUEUE_NAME
from holdfast.store import Head, Hold, Holds, Query, Roster

FLEET = "fleet"
OF_QUEUE = "queue "


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldView:
    """One thing that is held back: a queue, or everything where `queue` is None; with `now`, steps under way are broken off."""

    queue: str | None
    by: str
    reason: str
    now: bool
    since_us: int

    def named(self) -> str:
        """What it is, as one says it."""
        return named(self.queue)

    def told(self) -> str:
        """By whom, and why."""
        return f"by {self.by}{': ' + self.reason if self.reason else ''}"

    def lifted_by(self) -> str:
        """The command that lets it go on."""
        return lifted_by(self.queue)

    def concerns(self, queue: str) -> bool:
        """Whether runs of that queue are held back by it."""
        return self.queue in (None, queue)


def named(queue: str | None) -> str:
    """A queue, or everything, as one says it."""
    return "the fleet" if queue is None else f"queue {queue}"


def lifted_by(queue: str | None) -> str:
    """The command that lets it go on."""
    return "holdfast resume --fleet" if queue is None else f"holdfast resume --queue {queue}"


def held(engine: Engine) -> list[HoldView]:
    """All that is held back, the fleet first; nothing in a store that cannot hold anything back."""
    return [_view(one) for one in engine.store.held_back()] if isinstance(engine.store, Holds) else []


def over(holds: Sequence[HoldView], queue: str) -> HoldView | None:
    """What holds runs of a queue back; of two, the one that wants it at once."""
    return next(iter(sorted((one for one in holds if one.concerns(queue)), key=lambda one: not one.now)), None)


class Fleet:
    """Who goes on with runs that are ready; the store is asked once, when that is first wanted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def hands(self, head: Head) -> Hands:
        """In whose hands a run is when it can go on."""
        top = top_of(self._engine.store, head)
        if over(self._held, top.queue) is not None:
            return "nobody"
        return "workers" if any(top.agent in one.agents and top.queue in one.queues for one in self._serving) else "here"

    @cached_property
    def _held(self) -> list[HoldView]:
        return held(self._engine)

    @cached_property
    def _serving(self) -> list[WorkerView]:
        return serving(self._engine)


def pause(engine: Engine, queue: str | None, *, now: bool, by: str, reason: str) -> str:
    """Let no worker go on with runs of a queue, or with any, until that is lifted; gives what happens, in words."""
    store, by, reason = _able(engine), checked_text(by, "by"), checked_text(reason, "reason")
    what, earlier = _name(queue), _found(engine, queue)
    if earlier is not None and (earlier.now or not now):
        return f"{named(queue)} is paused already, {earlier.told()}; nothing was changed. It goes on after: {lifted_by(queue)}"
    about = {"by": by, "reason": reason, "now": now, "since_us": engine.clock.now_us()}
    store.hold_back(what, json.dumps(about).encode())
    when = "at once, and steps under way are broken off" if now else "before their next step"
    whose = "run" if queue is None else "run of it"
    told = f"{named(queue)} is paused: within a second workers take no {whose}, and let go of those that they execute {when}"
    return f"{told}. It goes on after: {lifted_by(queue)}{_strange(engine, queue)}"


def resume(engine: Engine, queue: str | None) -> str:
    """Lift it, so that the runs go on by themselves; gives what happens, in words."""
    store, what = _able(engine), _name(queue)
    lifted = store.release(what)
    others = [one for one in held(engine) if queue is None or one.queue is None]
    stays = "".join(f". {one.named().capitalize()} stays paused, {one.told()}: {one.lifted_by()}" for one in others)
    return f"{named(queue)} goes on by itself{stays}" if lifted else f"{named(queue)} is not paused; nothing was changed{stays}"


def _able(engine: Engine) -> Holds:
    if not isinstance(engine.store, Holds):
        remedy = "pause runs one by one, or keep them in SQLite or PostgreSQL, which workers share"
        raise Refusal(f"{engine.store.url} cannot hold back a queue or a fleet; nothing was changed: {remedy}")
    return engine.store


def _name(queue: str | None) -> str:
    """What the store knows it by."""
    if queue is not None and not QUEUE_NAME.fullmatch(checked_text(queue, "queue")):
        raise Misuse(f"queue {queue!r:.80}: a queue is named by letters, digits, '.', '_' and '-', 64 at the most; nothing was changed")
    return FLEET if queue is None else f"{OF_QUEUE}{queue}"


def _found(engine: Engine, queue: str | None) -> HoldView | None:
    return next((one for one in held(engine) if one.queue == queue), None)


def _view(one: Hold) -> HoldView:
    """What the store keeps; what cannot be read holds all the same."""
    told: dict[str, object] = {}
    with suppress(ValueError, TypeError):
        told = dict(json.loads(one.about))
    since = told.get("since_us")
    return HoldView(
        queue=one.what.removeprefix(OF_QUEUE) if one.what.startswith(OF_QUEUE) else None, by=str(told.get("by") or "somebody"),
        reason=str(told.get("reason") or ""), now=bool(told.get("now")), since_us=since if isinstance(since, int) else 0,
    )  # fmt: skip


def _strange(engine: Engine, queue: str | None) -> str:
    """A hint where the queue may have been mistyped: no worker takes runs of it, and none is in line."""
    if queue is None or engine.store.heads(Query(statuses=["queued"], queue=queue, limit=1)):
        return ""
    taken = sorted({each for worker in workers(engine) for each in worker.queues}) if isinstance(engine.store, Roster) else []
    known = f" Workers take runs of: {', '.join(taken)}" if taken else ""
    return "" if queue in taken else f". No run of it is in line, and no worker takes any: is that its name?{known}"
