"""The only readers of time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the engine reads the time, so that a test can bring its own."""

    def now_us(self) -> int:
        """Microseconds since 1970, as people reckon."""

    def monotonic_s(self) -> float:
        """Seconds that never jump, for measuring how long something has lasted."""

    def sleep(self, duration_s: float) -> None:
        """Block this thread."""


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


def to_datetime(at_us: int) -> datetime:
    """The moment as an aware datetime in UTC."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)
