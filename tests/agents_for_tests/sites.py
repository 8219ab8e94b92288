"""Stores that count, fail or wait on purpose, and a clock that goes when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from holdfast._clock import SystemClock
from holdfast.errors import StoreFailed
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


class Watched:
    """Keeps the kinds of rows of every append; fails once at the append that holds `trips_at`, having written it or not."""

    url: str
    trips_at = ""
    trips_after = False
    hold: threading.Event | None = None

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        kinds = [row.kind for one in batch for row in one.rows]
        if self.hold is not None:
            self.entered.set()
            self.hold.wait(30)
        if self.trips_at and self.trips_at in kinds:
            self.trips_at = ""
            if self.trips_after:
                super().append(batch, wait=wait)  # type: ignore[misc]
            raise StoreFailed(self.url, "the disk is gone, on purpose")
        answers: list[Stale | None] = super().append(batch, wait=wait)  # type: ignore[misc]
        self.appends.append(kinds)
        self.batches.append([one.run_id for one in batch])
        return answers

    @property
    def appends(self) -> list[list[str]]:
        return self.__dict__.setdefault("_appends", [])  # type: ignore[no-any-return]

    @property
    def batches(self) -> list[list[str]]:
        return self.__dict__.setdefault("_batches", [])  # type: ignore[no-any-return]

    @property
    def entered(self) -> threading.Event:
        return self.__dict__.setdefault("_entered", threading.Event())  # type: ignore[no-any-return]


class WatchedMemory(Watched, MemoryStore):
    """In memory."""


class WatchedSqlite(Watched, SqliteStore):
    """In a file."""


class HandClock(SystemClock):
    """Real time plus what was added by hand."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + int(self.ahead_s * 1e6)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


def eventually(true: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Look until it is true; an error when the deadline has come."""
    deadline_s = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline_s:
            raise AssertionError("it did not become true in time")
        time.sleep(0.005)


class StillClock:
    """Time that stands still but for sleeping, which takes no time; it remembers how long each sleep was."""

    def __init__(self) -> None:
        self.at_us = 1_700_000_000_000_000
        self.slept: list[float] = []

    def now_us(self) -> int:
        return self.at_us

    def monotonic_s(self) -> float:
        return self.at_us / 1e6

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self.at_us += int(duration_s * 1e6)
