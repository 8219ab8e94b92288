"""Who works on a store: the processes that are enrolled, whether they live, what they say of themselves and what they execute."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from holdfast.errors import Refusal
from holdfast.operating.family import MAX_DEPTH
from holdfast.records.chain import CHILD_OF
from holdfast.records.fitting import is_held_up, is_misfit, tries
from holdfast.records.journal import Journal
from holdfast.running.engine import Engine
from holdfast.running.lease import Life
from holdfast.store import Head, Query, Roster

MOST_OWNED = 100_000
"""Runs that execute now, which are looked through."""

MOST_LOOKED_AT = 1_000
"""Runs in line of which it is looked whether there is a worker for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One process that is enrolled: a worker, which has said so, or whoever else executes runs."""

    owner: str
    life: Life
    host: str
    pid: int
    since_us: int
    agents: tuple[str, ...]
    codes: Mapping[str, str]
    """By agent, the print of the code that executes it."""
    queues: tuple[str, ...]
    concurrency: int
    stopping: bool
    runs: tuple[str, ...]
    limits: Mapping[str, int] = field(default_factory=dict)
    """By queue, how many runs of it may execute at a time, where a `Limit` says so."""


def introduction(
    engine: Engine, *, agents: Sequence[str], queues: Sequence[str], concurrency: int, stopping: bool,
    codes: Mapping[str, str] = MappingProxyType({}),
) -> bytes:  # fmt: skip
    """What a worker says of itself."""
    told = {
        "host": socket.gethostname(), "pid": os.getpid(), "since_us": engine.clock.now_us(), "agents": list(agents), "queues": list(queues),
        "concurrency": concurrency, "stopping": stopping, "codes": dict(codes),
        "limits": {one.queue: one.running for one in engine.meter.limits if one.queue},
    }  # fmt: skip
    return json.dumps(told).encode()


def workers(engine: Engine) -> list[WorkerView]:
    """Everybody who is enrolled, by name."""
    if not isinstance(engine.store, Roster):
        raise Refusal(f"{engine.store.url} does not tell who works on it; its runs are executed all the same. SQLite and PostgreSQL tell")
    executed: dict[str, list[str]] = defaultdict(list)
    for head in engine.store.heads(Query(statuses=["running"], limit=MOST_OWNED)):
        if head.owner is not None:
            executed[head.owner].append(head.run_id)
    return [_view(engine, one.owner, one.about, executed[one.owner]) for one in engine.store.owners()]


def _view(engine: Engine, owner: str, about: bytes, runs: Sequence[str]) -> WorkerView:
    told: dict[str, Any] = {}
    with suppress(ValueError, TypeError):
        told = dict(json.loads(about or b"{}"))
    return WorkerView(
        owner=owner, life=engine.observer.life_of(owner), host=str(told.get("host") or owner.rpartition(".")[0]),
        pid=int(told.get("pid") or 0), since_us=int(told.get("since_us") or 0), agents=tuple(told.get("agents", ())),
        codes=dict(told.get("codes") or {}),
        queues=tuple(told.get("queues", ())), concurrency=int(told.get("concurrency") or 0), stopping=bool(told.get("stopping")),
        runs=tuple(sorted(runs)), limits=dict(told.get("limits") or {}),
    )  # fmt: skip


def forget_dead(engine: Engine) -> None:
    """Strike out the owners that are proven dead and hold nothing: nobody will ask for them any more."""
    if isinstance(engine.store, Roster):
        for worker in workers(engine):
            if worker.life == "dead" and not worker.runs:
                engine.store.retire(worker.owner)


def unserved(engine: Engine, heads: Sequence[Head]) -> dict[str, int]:
    """Why runs are taken by none of the workers there are, should there be any, and how many; nothing where there is one for each."""
    if not isinstance(engine.store, Roster):
        return {}
    wanted = [head for head in heads if (head.status in ("queued", "waiting") or is_misfit(head)) and CHILD_OF not in head.tags]
    working = [worker for worker in workers(engine) if worker.agents and worker.life == "alive"] if wanted else []
    told = (_hindrance(working, head.agent, head.queue) for head in wanted)
    return dict(Counter(why for why in told if why))


def serving(engine: Engine) -> list[WorkerView]:
    """The workers that live and take runs; what they execute is not looked up."""
    found = [_view(engine, one.owner, one.about, ()) for one in engine.store.owners()] if isinstance(engine.store, Roster) else []
    return [one for one in found if one.agents and not one.stopping and one.life == "alive"]


def may_fit(engine: Engine, head: Head) -> bool:
    """Whether a run waits for fitting code and a worker lives that has not tried it yet."""
    if not is_held_up(head) or not isinstance(engine.store, Roster) or not _waits_for_code(engine, head):
        return False
    found = engine.store.load(head.run_id)
    tried = {"", *(one.code for one in tries(found[1]))} if found is not None else {""}
    working = [_view(engine, one.owner, one.about, ()) for one in engine.store.owners()]
    untried = [one for one in working if one.codes.get(head.agent, "") not in tried and head.queue in one.queues]
    return any(one.life == "alive" and not one.stopping for one in untried)


def _waits_for_code(engine: Engine, head: Head, depth: int = MAX_DEPTH) -> bool:
    """Whether the code of a run does not fit, or that of a run inside it, which has stopped it."""
    found = engine.store.load(head.run_id) if depth and is_held_up(head) and not is_misfit(head) else None
    within = [engine.store.head(child) for child in Journal.load(*found).open_children()] if found is not None else []
    return is_misfit(head) or any(_waits_for_code(engine, child, depth - 1) for child in within if child is not None)


def in_line(engine: Engine) -> list[Head]:
    """The runs that were put in line last, and those whose time to wake has come."""
    due = Query(statuses=["waiting"], due_by_us=engine.clock.now_us(), limit=MOST_LOOKED_AT)
    return [*engine.store.heads(Query(statuses=["queued"], limit=MOST_LOOKED_AT)), *engine.store.heads(due)]


def _hindrance(working: Sequence[WorkerView], agent: str, queue: str) -> str:
    if not any(agent in worker.agents for worker in working):
        return f"no worker has agent {agent}"
    served = any(agent in worker.agents and queue in worker.queues for worker in working)
    return "" if served else f"no worker that has agent {agent} takes runs of queue {queue}"
