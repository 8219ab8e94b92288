"""Leave a run to whoever works on the store: it is recorded as queued, and nothing of it is executed here."""

from __future__ import annotations

from holdfast._failpoints import reach
from holdfast.errors import LeaseLost
from holdfast.records.journal import Journal
from holdfast.records.kinds import RunStarted
from holdfast.running.engine import Engine, Order
from holdfast.running.runner import refuse_conflict, refuse_pruned, started


def submit(engine: Engine, order: Order) -> None:
    """Record the run, unless it is there; the same id with another agent or other arguments is refused."""
    while (found := engine.store.load(order.run_id)) is None:
        reach("submit.before")
        try:
            engine.committer.commit(Journal(order.run_id), [_in_line(engine, order)])
        except LeaseLost:  # somebody was faster, or its id was used by a run that is gone
            refuse_pruned(engine, order.run_id)
            continue
        reach("submit.after")
        return
    refuse_conflict(order, Journal.load(*found))


def _in_line(engine: Engine, order: Order) -> RunStarted:
    return started(engine, order, owner="").but(turn_us=engine.meter.turn_us(order.queue, order.lane))
