"""Rows, heads and appends for tests of stores: everything in them that a test does not care about is made up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from holdfast.store import Append, Head, Query, Repair, Repairable, Row, Store

BIG = 8 * 1024 * 1024
WRITERS, WRITES, TRIES = 4, 15, 2_000

Words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
Bytes = st.binary(max_size=200)
examples = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


def row(seq: int, *, body: bytes = b"{}", value: bytes | None = None, args: bytes | None = None, epoch: int = 1) -> Row:
    """A row with everything in it that a test does not care about."""
    return Row(seq, epoch, 1_000 + seq, "step.done", str(seq), body, value, args, b"digest-%d" % seq)


def head(run_id: str, seq: int, *, epoch: int = 1, status: str = "running", owner: str | None = "me", updated_us: int = 1) -> Head:
    """A head with everything in it that a test does not care about."""
    return Head(run_id, "agent", status, owner, epoch, seq, b"digest-%d" % seq, None, 1, updated_us, "{}", 0.25, "note")


def create(run_id: str, rows: int = 1) -> Append:
    """The append that creates a run under epoch 1."""
    return Append(run_id, 0, 0, [row(n) for n in range(1, rows + 1)], head(run_id, rows))


def onward(run_id: str, seq: int, *, epoch: int = 1, rows: int = 1, takes: Sequence[int] = ()) -> Append:
    """The append that adds rows behind `seq` under the same epoch."""
    return Append(
        run_id, epoch, seq, [row(seq + n, epoch=epoch) for n in range(1, rows + 1)], head(run_id, seq + rows, epoch=epoch), takes
    )


def listed(store: Store, query: Query) -> list[str]:
    """The ids of the runs that `query` lists."""
    return [found.run_id for found in store.heads(query)]


def keep(store: Store, kept: Head) -> None:
    """Put a run with exactly this head into the store."""
    assert store.append([Append(kept.run_id, 0, 0, [row(1)], kept)]) == [None]


def repair(run_id: str, *, rows: int, good: int) -> Repair:
    """The repair that keeps the first `good` of so many rows and goes on with one more, under epoch 2."""
    kept, added = [row(n) for n in range(1, good + 1)], row(good + 1, epoch=2)
    return Repair(run_id, head(run_id, rows), kept, [added], head(run_id, good + 1, epoch=2, owner=None), 77, "ann", "because")


def repaired(store: Store, run_id: str, *, rows: int, good: int) -> Repairable:
    """The store, holding a run to be repaired; a store that cannot do that is none the worse for it."""
    if not isinstance(store, Repairable):
        pytest.skip("this store cannot move rows aside")
    assert store.append([create(run_id, rows=rows)]) == [None]
    assert store.found(run_id) == (head(run_id, rows), [row(n) for n in range(1, rows + 1)])
    assert good < rows
    return store
