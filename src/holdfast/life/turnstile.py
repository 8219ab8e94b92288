"""Outcomes are given back to the code one at a time, in the order of their seq, live and on replay alike.

What a race, a shared list or a raw `asyncio.wait` sees depends on the order in which outcomes arrive. So an outcome is released only
when every recorded one before it has been, and when the code that the previous one woke has run. On an event loop "has run" means that
nothing is left that could run at once; between threads it means that the woken one has come back for more, or has ended. A run that has
no branches and one call under way needs no ordering: its outcomes are released on the spot.

Where somebody went behind a failure, what is done anew has a later seq than what was recorded since, and some of that may not be asked for
before: a branch that begins only when another one has ended, the end of a race that the failure had won. Then the later one goes first.

A recorded outcome that nobody asks for would hold up the others: after STALL_S it is passed over, with a warning. A code path that really
changed shows as a mismatch soon after.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from holdfast.life.commit import Held, held

SETTLE_HOPS = 64
"""Rounds of the event loop after which the code counts as having run, even where other runs never let the loop become idle."""
STALL_S = 2.0
REDONE_S = 0.1
"""How long what is done anew waits for outcomes from before the failure, once nothing moves any more."""

log = logging.getLogger("holdfast")


class Turnstile:
    """The order of outcomes of one run. `alone` tells whether only one step is in progress, which needs no ordering.

    `resumed` are the seqs at which somebody went behind failures.
    """

    def __init__(
        self, recorded: Iterable[int], *, alone: Callable[[], bool], boundary: Callable[[int], None], resumed: Sequence[int] = ()
    ) -> None:
        self.recorded = deque(recorded)
        self._alone, self._boundary, self._resumed = alone, boundary, resumed
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._threads: list[int] = []
        self._hops = self._released = 0
        self._condition = threading.Condition()
        self._holder: object | None = None
        self._open = False

    @property
    def replaying(self) -> bool:
        """Whether recorded outcomes are still to be given back."""
        return bool(self.recorded)

    def busy(self) -> bool:
        """Whether others wait for their turn."""
        return bool(self._waiting or self._hops)

    def open(self) -> None:
        """The run is taken down: what would have been asked for is not any more, so nobody waits for it. From any thread."""
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def go_on(self) -> None:
        """Look again who may go; on the event loop."""
        if self._waiting:
            self._settle()

    def pass_by(self, seq: int) -> None:
        """Release without waiting: a blocking step on the event loop's own thread, whose place is fixed by the code around it."""
        if self.recorded:
            try:
                self.recorded.remove(seq)
            except ValueError:
                return
        self._boundary(seq)
        if self._waiting:
            self._settle()

    def at_once(self, seq: int) -> bool:
        """Release `seq` if it is its turn already."""
        if self._waiting or self._hops or not self._alone():
            return False
        if self.recorded:
            if not self._next(seq):
                return False
            self._release_recorded(seq)
        else:
            self._boundary(seq)
        return True

    async def turn(self, seq: int) -> None:
        """Wait until it is the turn of `seq`; a cancellation is held back until then."""
        future = Held(loop=asyncio.get_running_loop())
        heapq.heappush(self._waiting, (seq, future))
        self._settle()
        await held(future)

    def turn_blocking(self, seq: int, holder: object) -> None:
        """The same between threads; `holder` is the branch that the outcome wakes."""
        with self._condition:
            replay, still_s = bool(self.recorded), 0.0
            self._threads.append(seq)
            while not (self._next(seq) and (self._open or self._holder in (None, holder))):
                ahead = (self.recorded[0] if self.recorded else 0, self._holder)
                still_s = 0.0 if self._condition.wait(REDONE_S) else still_s + REDONE_S
                if still_s and self._holder in (None, holder) and seq == self._redone(self._threads):
                    break
                if still_s >= STALL_S:
                    self._pass_over(ahead)
                    still_s = 0.0
            self._threads.remove(seq)
            self._release_recorded(seq)
            self._holder = holder if replay else None
            self._condition.notify_all()

    def come_back(self, holder: object) -> None:
        """The branch that was woken last asks for more, or has ended."""
        if self._holder is holder:
            with self._condition:
                self._holder = None
                self._condition.notify_all()

    def _next(self, seq: int) -> bool:
        return not self.recorded or self._open or self.recorded[0] >= seq

    def _redone(self, waiting: Iterable[int]) -> int | None:
        """Which of those who wait may go before what is next, since it was done anew behind a failure: the first."""
        ahead = self.recorded[0] if self.recorded else 0
        return min((seq for seq in waiting if any(ahead < resumed < seq for resumed in self._resumed)), default=None)

    def _release_recorded(self, seq: int) -> None:
        if self.recorded and self.recorded[0] == seq:
            self.recorded.popleft()
        elif seq in self.recorded:  # it was done anew, or the run is taken down
            self.recorded.remove(seq)
        self._released += 1
        self._boundary(seq)

    def _settle(self) -> None:
        """Let everything run that can, then release the next one."""
        if not self._hops:
            self._hops = SETTLE_HOPS
            asyncio.get_running_loop().call_soon(self._hop)

    def _hop(self) -> None:
        loop = asyncio.get_running_loop()
        self._hops = self._hops - 1 if getattr(loop, "_ready", True) else 0  # a loop that does not tell is taken for busy
        if self._hops:
            loop.call_soon(self._hop)
        else:
            self._pump()

    def _pump(self) -> None:
        """Release the next one if it may go; otherwise see to it that nobody waits for ever."""
        if self._hops or not self._waiting:
            return
        if self._next(self._waiting[0][0]):
            self._release(*heapq.heappop(self._waiting))
        else:
            loop, ahead = asyncio.get_running_loop(), self.recorded[0]
            loop.call_later(STALL_S, self._unstall, ahead)
            if self._resumed:
                loop.call_later(REDONE_S, self._overtake, self._released)

    def _release(self, seq: int, future: asyncio.Future[None]) -> None:
        """Let one go, and what it wakes, before the next."""
        if not future.done():
            future.set_result(None)
        self._release_recorded(seq)
        if self._waiting:
            self._settle()

    def _overtake(self, released: int) -> None:
        """Let what was done anew go first, where nobody else has gone since."""
        seq = None if self._hops or self._released != released else self._redone(waiting for waiting, _ in self._waiting)
        for each in [each for each in self._waiting if each[0] == seq]:
            self._waiting.remove(each)
            heapq.heapify(self._waiting)
            self._release(*each)

    def _unstall(self, ahead: int) -> None:
        if self.recorded and self.recorded[0] == ahead and self._waiting and self._waiting[0][0] != ahead:
            self._pass_over((ahead, self._holder))
        self._pump()

    def _pass_over(self, ahead: tuple[int, object | None]) -> None:
        seq, holder = ahead
        if holder is not None and self._holder is holder:
            self._holder = None
        elif seq and self.recorded and self.recorded[0] == seq:
            if not any(seq < resumed for resumed in self._resumed):  # else it may well wait for what is done anew
                log.warning("nobody asked for the recorded outcome %d within %.0f s; the code may have changed", seq, STALL_S)
            self.recorded.popleft()
