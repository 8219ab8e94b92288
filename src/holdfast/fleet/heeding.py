"""A worker heeds what is held back: it looks before it takes runs, and has those leave that it executes.

For the latter a thread of its own looks, so that code which blocks the event loop does not keep it from seeing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from holdfast.errors import HoldfastError
from holdfast.life.run import Run
from holdfast.operating.holding import HoldView, held, over
from holdfast.records import kinds as rec
from holdfast.running.engine import Engine

LOOK_S = 0.4
"""How often a worker looks what is held back."""

log = logging.getLogger("holdfast")


class Heeding:
    """What a worker knows of what is held back, and the runs that it has told to leave because of it."""

    def __init__(self, engine: Engine, executes: Callable[[], Sequence[str]]) -> None:
        self._engine, self._executes = engine, executes
        self._known: list[HoldView] = []
        self._looked_s = float("-inf")
        self._looking = threading.Lock()
        self._broken_off: dict[str, Run] = {}
        self._over = threading.Event()

    def start(self) -> None:
        """Look from now on, until it is stopped."""
        threading.Thread(target=self._loop, name="holdfast-heeding", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def let_through(self, queues: Sequence[str]) -> list[str]:
        """Those of the queues that are not held back now."""
        self._look(not_older_s=0.0)
        return [queue for queue in queues if over(self._known, queue) is None]

    def _loop(self) -> None:
        away = False
        while not self._over.wait(LOOK_S):
            try:
                self._look(not_older_s=LOOK_S / 2)
                self._let_go()
                away = False
            except HoldfastError as error:
                if not away:
                    log.warning("it cannot be seen what is paused; what was seen last holds meanwhile: %s", error)
                away = True

    def _look(self, *, not_older_s: float) -> None:
        """Know what is held back, unless that was looked at in the last so many seconds; where it cannot be, what was known stays."""
        with self._looking:
            now_s = self._engine.clock.monotonic_s()
            if now_s - self._looked_s < not_older_s:
                return
            before, self._known = self._known, held(self._engine)
            self._looked_s = now_s
            self._tell(before)

    def _tell(self, before: Sequence[HoldView]) -> None:
        """Say in the log what is held back now and was not, and the reverse."""
        for one in self._known:
            if one not in before:
                log.info("%s is paused %s", one.named(), one.told())
        for one in before:
            if one.queue not in [each.queue for each in self._known]:
                log.info("%s goes on", one.named())

    def _let_go(self) -> None:
        """Have the runs that are held back leave; those that are to leave at once are broken off, once each."""
        executed = list(self._executes())
        self._broken_off = {run_id: run for run_id, run in self._broken_off.items() if run_id in executed}
        for run_id in executed:
            run = self._engine.keeper.runs.get(run_id)
            hold = over(self._known, run.journal.head.queue) if run is not None else None
            if run is None or hold is None:
                continue
            at_once = hold.now and self._broken_off.get(run_id) is not run
            if run.leaving is None or at_once:
                run.leave(run.leaving or rec.RunReleased(reason=f"{hold.named()} was paused {hold.told()}"), at_once=at_once)
            if at_once:
                self._broken_off[run_id] = run
