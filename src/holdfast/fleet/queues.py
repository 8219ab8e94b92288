"""Where the queues of a store stand: how many runs are in line, execute or are paused, who serves them, and what holds them back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast._turns import QUEUE
from holdfast.operating.holding import HoldView, held, over
from holdfast.operating.roster import MOST_OWNED, WorkerView, serving
from holdfast.records.chain import CHILD_OF
from holdfast.running.engine import Engine
from holdfast.store import Head, Query

Lines: TypeAlias = defaultdict[str, list[Head]]

MOST = 1_000
"""Runs of a queue that are counted one by one; beyond that it is said that there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue. `more` names the counts that are only the least there can be: `in_line`, `paused`.

    Child runs are not counted, they go on inside those that called them. `paused` are runs that were paused one by one, `held` is what
    holds back all of the queue. `limit` is how many may execute at a time, as the workers say that serve it; of several the smallest.
    """

    queue: str
    in_line: int
    oldest_us: int | None
    running: int
    paused: int
    workers: int
    limit: int | None
    held: HoldView | None
    more: tuple[str, ...]


def standing(engine: Engine) -> list[QueueView]:
    """The queues in which there are runs, which a worker serves or which are held back, by name.

    Of more than `MOST` runs in line only those that came last are looked at for queues and agents that no worker serves.
    """
    working, holds = serving(engine), held(engine)
    in_line, paused = (engine.store.heads(Query(statuses=[status], limit=MOST + 1)) for status in ("queued", "paused"))
    running = _by_queue(engine.store.heads(Query(statuses=["running"], limit=MOST_OWNED)))
    served = Counter(queue for worker in working for queue in dict.fromkeys(worker.queues))
    names = {*served, *running, *_by_queue(in_line), *_by_queue(paused), *(one.queue for one in holds if one.queue is not None)}
    lines, rests = (_first_of(engine, heads, names, working) for heads in (in_line, paused))
    return [
        QueueView(
            queue=name, in_line=min(len(lines[name]), MOST), oldest_us=min((head.updated_us for head in lines[name]), default=None),
            running=len(running.get(name, ())), paused=min(len(rests[name]), MOST), workers=served[name], limit=_limit(working, name),
            held=over(holds, name), more=_more(in_line=lines[name], paused=rests[name]),
        )
        for name in sorted(names)
    ]  # fmt: skip


def _first_of(engine: Engine, newest: Sequence[Head], names: Iterable[str], working: Sequence[WorkerView]) -> Lines:
    """By queue, the runs that rest like these, of each agent as many as are counted; where these are not all, the store is asked anew."""
    if len(newest) <= MOST:
        return _by_queue(newest)
    agents = {*(head.agent for head in newest), *(agent for worker in working for agent in worker.agents)}
    asked = (Query(statuses=[newest[0].status], queue=name, agent=agent, limit=MOST + 1) for name in names for agent in sorted(agents))
    return _by_queue(head for query in asked for head in engine.store.heads(query))


def _by_queue(heads: Iterable[Head]) -> Lines:
    found: Lines = defaultdict(list)
    for head in heads:
        if CHILD_OF not in head.tags:
            found[head.queue or QUEUE].append(head)
    return found


def _limit(working: Sequence[WorkerView], queue: str) -> int | None:
    return min((worker.limits[queue] for worker in working if queue in worker.queues and queue in worker.limits), default=None)


def _more(**counted: Sequence[Head]) -> tuple[str, ...]:
    return tuple(name for name, heads in counted.items() if len(heads) > MOST)
