"""How long a run that only waits stays in place, its code and its lease kept, before it parks.

In place an answer reaches the code at once, and nothing is replayed: what the code has open stays open. It costs a process that waits. The
time is counted anew whenever a line of execution has gone on.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast._clock import Clock
from holdfast._failpoints import reach

LOOK_S = 0.1
"""How often a run that stays in place is looked at."""


class Stay:
    """The time that one run stays: `begun` is called when it begins to, `look` now and then while it does."""

    __slots__ = ("_begun", "_clock", "_look", "_since_s", "length_s", "looking")

    def __init__(
        self, clock: Clock, length_s: float = 0.0, *, begun: Callable[[], object] = lambda: None, look: Callable[[], object] = lambda: None
    ) -> None:
        self.length_s, self.looking = length_s, False
        self._clock, self._begun, self._look = clock, begun, look
        self._since_s: float | None = None

    def over(self) -> bool:
        """Whether it has stayed long enough; asked whenever nothing is left but to wait."""
        if not self.length_s:
            return True
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
            reach("stay.begun")
            self._begun()
        else:
            self._look()
        return now_s - self._since_s >= self.length_s

    def begin_anew(self) -> None:
        """A line of execution goes on, or has ended."""
        self._since_s = None
