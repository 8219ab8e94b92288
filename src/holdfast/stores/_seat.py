"""A lock that knows at every moment which thread has it, so that what an interruption left behind is found.

Ctrl-C raises between any two instructions of the main thread: behind the `acquire` of an ordinary lock and before the `try`, say, and then
nobody ever releases it. Here taking is one operation that also says who took. A thread that finds the seat taken by itself has been
interrupted in its last use, and has to put in order what that left.
"""

from __future__ import annotations

import threading
from collections import deque
from threading import get_ident

from holdfast._clock import SystemClock

LOOK_S = 0.05
"""How long who waits trusts in being told: whoever left may have been interrupted before it said so."""
SEAT = 0


class Seat:
    """For one thread at a time; who waits gets it in turn."""

    __slots__ = ("_line", "_told", "by")

    def __init__(self) -> None:
        self.by: dict[int, int] = {}
        self._line: deque[int] = deque()
        self._told = threading.Condition()

    def take(self, patience_s: float) -> bool:
        """Whether this thread has it now: at once, or within that time."""
        me = get_ident()
        return self.by.setdefault(SEAT, me) == me or (patience_s > 0 and self._waited(me, patience_s))

    def was_left(self) -> bool:
        """Whether this thread has it already: its last use was interrupted."""
        return self.by.get(SEAT) == get_ident()

    def leave(self) -> None:
        """Let another thread have it; nothing where this one has it no longer."""
        if self.by.get(SEAT) != get_ident():
            return
        if not self._line:
            del self.by[SEAT]
            return
        with self._told:
            if self._line:
                self.by[SEAT] = self._line.popleft()
                self._told.notify_all()
            else:
                del self.by[SEAT]

    def _waited(self, me: int, patience_s: float) -> bool:
        clock = SystemClock()
        until_s = clock.monotonic_s() + patience_s
        with self._told:
            self._line.append(me)
            try:
                while self.by.setdefault(SEAT, me) != me:
                    left_s = until_s - clock.monotonic_s()
                    if left_s <= 0:
                        return False
                    self._told.wait(min(left_s, LOOK_S))
            except BaseException:
                self.leave()  # where it was given to one who is interrupted
                raise
            finally:
                if me in self._line:
                    self._line.remove(me)
        return True
