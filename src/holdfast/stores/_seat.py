"""A lock that knows at every moment which thread has it, so that what an interruption left behind is found.

Ctrl-C raises between any two instructions of the main thread: behind the `acquire` of an ordinary lock and before the `try`, say, and then
nobody ever releases it. Here taking is one operation that also says who took. A thread that finds the seat taken by itself has been
interrupted in its last use, and has to put in order what that left; unless it is still in the middle of it, and a signal handler asks.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from threading import get_ident

from holdfast._clock import SystemClock

LOOK_S = 0.05
"""How long who waits trusts in being told: whoever left may have been interrupted before it said so."""
SEAT = 0
STORES = __name__.rpartition(".")[0]
IN_USE = "this thread is in the middle of using it, below a signal handler most likely; nothing was done. A handler should only note things"


class Seat:
    """For one thread at a time; who waits gets it in turn.

    No lock guards it: each line changes one thing, in one operation, and what may come between two of them is said there.
    """

    __slots__ = ("_line", "by")

    def __init__(self) -> None:
        self.by: dict[int, int] = {}
        self._line: deque[tuple[int, threading.Lock]] = deque()

    def take(self, patience_s: float) -> bool:
        """Whether this thread has it now: at once, or within that time."""
        me = get_ident()
        return self.by.setdefault(SEAT, me) == me or (patience_s > 0 and self._waited(me, patience_s))

    def was_left(self) -> bool:
        """Whether this thread has it already: its last use was interrupted."""
        return self.by.get(SEAT) == get_ident()

    def is_in_use(self) -> bool:
        """Whether this thread has it and is in the middle of that use: a signal handler has come in between."""
        return self.was_left() and _below()

    def leave(self) -> None:
        """Hand it to who has waited longest; nothing where this thread has it no longer."""
        if self.by.get(SEAT) != get_ident():
            return
        try:
            waiting = self._line.popleft() if self._line else None
        except IndexError:  # the last one has just stepped out
            waiting = None
        if waiting is None:  # who joins the line from here on finds it free when it looks again
            del self.by[SEAT]
            return
        self.by[SEAT], bell = waiting
        bell.release()

    def _waited(self, me: int, patience_s: float) -> bool:
        clock, bell = SystemClock(), threading.Lock()
        until_s, waiting = clock.monotonic_s() + patience_s, (me, bell)
        bell.acquire()
        try:
            self._line.append(waiting)
            while self.by.setdefault(SEAT, me) != me:
                left_s = until_s - clock.monotonic_s()
                if left_s <= 0:
                    return self._gave_up(waiting)
                bell.acquire(timeout=min(left_s, LOOK_S))
        except BaseException:
            if self._gave_up(waiting):
                self.leave()
            raise
        self._gave_up(waiting)
        return True

    def _gave_up(self, waiting: tuple[int, threading.Lock]) -> bool:
        """Step out of the line; whether the seat was handed to this thread meanwhile."""
        try:
            self._line.remove(waiting)
        except ValueError:  # somebody is handing it over at this moment, or has done so
            if not self.was_left():
                waiting[1].acquire(timeout=LOOK_S)
        return self.was_left()


def _below() -> bool:
    """Whether this thread executes other code of the stores, below that which asks."""
    frame, elsewhere = inspect.currentframe(), False
    while frame is not None:
        ours = str(frame.f_globals.get("__name__")).startswith(STORES)
        if ours and elsewhere:
            return True
        elsewhere, frame = elsewhere or not ours, frame.f_back
    return False
