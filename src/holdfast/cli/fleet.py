"""The pages about those who share a store: which processes work on it, where its queues stand, and why none goes on with a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.cli.page import Cell, Column, Line, Page, Table
from holdfast.cli.views import Setting
from holdfast.cli.wording import ago, count
from holdfast.fleet.queues import MOST, QueueView
from holdfast.operating.family import hindrance
from holdfast.operating.holding import HoldView, over
from holdfast.operating.roster import WorkerView
from holdfast.store import Head, Store

WORKERS = (
    Column("worker"), Column("state"), Column("since"), Column("runs", right=True), Column("code"), Column("agents", below=True)
)  # fmt: skip
QUEUES = (
    Column("queue"), Column("in line", right=True), Column("oldest"), Column("running", right=True), Column("paused", right=True),
    Column("workers", right=True), Column("state", below=True),
)  # fmt: skip
STYLES = {"working": "green", "executing": "green", "stopping": "yellow", "paused": "yellow", "silent": "yellow", "dead": "red"}

SHOWN = 5
"""Runs that are named; `--json` names all."""


def fleet_page(workers: Sequence[WorkerView], setting: Setting, unserved: Mapping[str, int], held: Sequence[HoldView] = ()) -> Page:
    """The processes, one line each, and the runs in line that none of them takes."""
    page: Page = [Table(WORKERS, [_row(worker, setting, held) for worker in workers])]
    nobody: Page = [Line("nobody works on this store. Start one: holdfast worker APP.py")]
    return [*(page if workers else nobody), *([Line("")] if workers and unserved else []), *unserved_lines(unserved)]


def queues_page(queues: Sequence[QueueView], setting: Setting) -> Page:
    """The queues, one line each."""
    if not queues:
        return [Line("no run is in line, executes or is paused, and no worker serves a queue")]
    counted = any(one.more for one in queues) or sum(one.in_line for one in queues) >= MOST
    missing = f"more than {MOST:,} in line: queues that no worker serves, and whose runs came before those, may be missing"
    told = [Line(""), Line(missing, "dim")]
    return [Table(QUEUES, [_queue_row(one, setting) for one in queues]), *(told if counted else [])]


def _queue_row(one: QueueView, setting: Setting) -> list[Cell]:
    in_line, paused = (f"{many}{'+' if name in one.more else ''}" for name, many in (("in_line", one.in_line), ("paused", one.paused)))
    running = f"{one.running}" if one.limit is None else f"{one.running}/{one.limit}"
    oldest = ago(one.oldest_us, setting.now_us) if one.oldest_us is not None else ""
    state = f"paused {one.held.told()}" if one.held is not None else "no worker takes its runs" if one.in_line and not one.workers else ""
    cells = [Cell(one.queue), Cell(in_line), Cell(oldest, "dim"), Cell(running), Cell(paused), Cell(str(one.workers))]
    return [*cells, Cell(state, "yellow")]


def unserved_lines(unserved: Mapping[str, int]) -> Page:
    """What keeps runs in line that nobody takes."""
    return [Line(f"{why}: {count(runs, 'run')} in line", "yellow") for why, runs in unserved.items()]


def unserved_line(unserved: Mapping[str, int]) -> Page:
    """The same of one run, which may be asleep."""
    return [Line(f"{why}: none would go on with it", "yellow") for why in unserved]


def hindered_line(store: Store, head: Head | None) -> Page:
    """What stands above a run and keeps it from going on; nothing of one that has ended."""
    found = hindrance(store, head) if head is not None and head.status not in ("done", "cancelled", "moved") else None
    return [Line(found.told[0].upper() + found.told[1:], "yellow")] if found is not None else []


def _row(worker: WorkerView, setting: Setting, held: Sequence[HoldView]) -> list[Cell]:
    state = _state(worker, held)
    room = f"{len(worker.runs)}/{worker.concurrency}" if worker.concurrency else f"{len(worker.runs)}"
    of = f" of queue {', '.join(worker.queues)}" if worker.queues and worker.queues != ("default",) else ""
    named = ", ".join(worker.runs[:SHOWN]) + (", ..." if len(worker.runs) > SHOWN else "")
    since = ago(worker.since_us, setting.now_us) if worker.since_us else ""
    where = f"{worker.owner} (pid {worker.pid})" if worker.pid else worker.owner
    code, agents = ", ".join(dict.fromkeys(filter(None, worker.codes.values()))), f"{', '.join(worker.agents)}{of}"
    does = "; ".join(filter(None, (agents, f"{'executed' if state == 'dead' else 'executes'} {named}" if named else "")))
    return [Cell(where), Cell(state, STYLES[state]), Cell(since, "dim"), Cell(room), Cell(code, "dim"), Cell(does)]


def _state(worker: WorkerView, held: Sequence[HoldView]) -> str:
    if worker.life != "alive":
        return "dead" if worker.life == "dead" else "silent"
    if not worker.agents:
        return "executing"
    paused = all(over(held, queue) is not None for queue in worker.queues)
    return "stopping" if worker.stopping else "paused" if paused else "working"
