"""What the tests of the engine share: ways to die in the middle of a run, and to look at what was recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import holdfast as hf
from holdfast._clock import SystemClock
from holdfast.errors import StoreFailed
from holdfast.large.packed import packed
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.store import Append, Head, Row, Stale, Store
from holdfast.stores.memory import MemoryStore

LEASE_S = 0.02
"""So short that a run whose owner died with its store is taken over at once."""

HEARS_CTRL_C = (
    sys.executable, "-c", "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
)  # fmt: skip
"""Before a command that SIGINT is sent to: a shell's background job ignores it, and so would everything started from there."""


class Crash(BaseException):
    """The process dies here, as far as the agent's code is concerned: no framework catches it."""


class FailingStore(MemoryStore):
    """Fails once the append that holds a row for which `fails` is true arrives, before or after writing it, and ever after."""

    def __init__(self, fails: Callable[[Row], bool] = lambda row: False, *, written: bool = False) -> None:
        super().__init__()
        self.fails, self.written, self.failed = fails, written, False

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        if self.failed or any(self.fails(row) for append in batch for row in append.rows):
            if self.written and not self.failed:
                super().append(batch, wait=wait)
            self.failed = True
            raise StoreFailed(self.url, "the disk is gone")
        return super().append(batch, wait=wait)

    def mend(self) -> None:
        """From here on it is a good store."""
        self.fails, self.failed = lambda row: False, False


def dies_at(kind: str, step_id: str = "", *, written: bool = False) -> FailingStore:
    """A store that is lost when the first record of this kind (and step) is to be written."""
    return FailingStore(lambda row: row.kind == kind and (not step_id or row.step_id == step_id), written=written)


def play(store: Store, agent: Callable[..., Any], *args: Any, run_id: str = "r", resources: Sequence[object] = ()) -> Any:
    """Run the agent in a process of its own, as far as ownership goes; never wait for a person."""
    with hf.Holdfast(store, lease=LEASE_S, resources=resources) as app:
        return app.run(agent, *args, run_id=run_id, wait=False)


def loaded(store: Store, run_id: str = "r") -> tuple[Head, Sequence[Row]]:
    """The head and the rows of a run, which the engine may have packed."""
    found = packed(store, SystemClock()).load(run_id)
    assert found is not None
    return found


def records(store: Store, run_id: str = "r") -> list[rec.Record]:
    """Everything that was recorded; the chain is verified on the way."""
    head, rows = loaded(store, run_id)
    Journal.load(head, rows)
    return [record_of(row) for row in rows]


def lines(store: Store, run_id: str = "r") -> list[str]:
    """Kind and step of every record, in order."""
    return [f"{record.kind} {record.step_id}".strip() for record in records(store, run_id)]


def status(store: Store, run_id: str = "r") -> str:
    return loaded(store, run_id)[0].status


def crashing(action: Callable[[], object]) -> None:
    """Do something that must die."""
    try:
        action()
    except Crash:
        return
    raise AssertionError("it did not crash")


class AnHourLater(SystemClock):
    def now_us(self) -> int:
        return super().now_us() + 3_600_000_000


def an_hour_later(store: MemoryStore, agent: Any) -> Any:
    with hf.Holdfast(store, lease=LEASE_S, clock=AnHourLater()) as app:
        return app.run(agent, run_id="r", wait=False)
