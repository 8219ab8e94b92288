"""News of runs, for whoever waits in this process: a wait ends when the store rings, and otherwise when it is time to look again.

A ring may be lost, and not every store rings. So each waits no longer than it would without: a ring that is lost costs one pause.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Self

from holdfast._clock import Clock, SystemClock
from holdfast.store import Ringing, Store


class Bell:
    """Who is to be told of which run."""

    def __init__(self, store: Store) -> None:
        self._store = store if isinstance(store, Ringing) else None
        self._lock = threading.Lock()
        self._listening = False
        self._waiting: dict[str, set[News]] = {}
        self._everything: list[Callable[[str], object]] = []

    @property
    def rings(self) -> bool:
        """Whether there is anything to be heard."""
        return self._store is not None

    def listen(self) -> None:
        """Begin to hear what the store tells; the first who waits does it."""
        with self._lock:
            begins, self._listening = not self._listening, True
        if begins and self._store is not None:
            self._store.listen(self.ring)

    def tell(self, hear: Callable[[str], object]) -> None:
        """Have `hear` called with the id of every run that there is news of, and with "" where some may have been missed."""
        self._everything.append(hear)

    def news(self, run_ids: Iterable[str]) -> News:
        """What there is to be heard of these runs from now on."""
        news = News(self, frozenset(run_ids))
        with self._lock:
            for run_id in news.run_ids:
                self._waiting.setdefault(run_id, set()).add(news)
        return news

    def forget(self, news: News) -> None:
        """Nobody waits for these any more."""
        with self._lock:
            for run_id in news.run_ids & self._waiting.keys():
                self._waiting[run_id].discard(news)
                if not self._waiting[run_id]:
                    del self._waiting[run_id]

    def ring(self, run_id: str) -> None:
        """There is news of a run, or of any; called from a thread of the store's."""
        with self._lock:
            waiting = self._waiting.get(run_id, set()) if run_id else set().union(*self._waiting.values())
            told = list(waiting)
        for news in told:
            news.rung()
        for hear in self._everything:
            hear(run_id)


class News:
    """What one who waits was told since it last waited; what comes between two waits ends the second at once."""

    __slots__ = ("_bell", "_future", "_rung", "run_ids")

    def __init__(self, bell: Bell, run_ids: frozenset[str]) -> None:
        self._bell, self.run_ids = bell, run_ids
        self._rung = threading.Event()
        self._future: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bell.forget(self)

    def wait(self, clock: Clock, duration_s: float) -> None:
        """Block until there is news, that long at the most."""
        if not self._bell.rings or not isinstance(clock, SystemClock):  # who brings a time of his own waits in it
            clock.sleep(duration_s)
            return
        self._bell.listen()
        self._rung.wait(duration_s)
        self._rung.clear()

    async def wait_async(self, duration_s: float) -> None:
        """The same on an event loop."""
        if not self._bell.rings:
            await asyncio.sleep(duration_s)
            return
        self._bell.listen()
        self._future = asyncio.get_running_loop().create_future()
        if not self._rung.is_set():
            await asyncio.wait([self._future], timeout=duration_s)
        self._future = None
        self._rung.clear()

    def rung(self) -> None:
        """End the wait, or the next one."""
        self._rung.set()
        future = self._future
        if future is not None:
            try:
                future.get_loop().call_soon_threadsafe(_complete, future)
            except RuntimeError:  # its loop is closed: nobody waits there any more
                return


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
