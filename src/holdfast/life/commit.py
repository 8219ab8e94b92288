"""Group commit: what waits, from all runs of the process, goes to the store in one transaction.

Whoever wants to write puts a ticket into the queue. A blocking caller then takes the lock and commits everything that waits, its own ticket
included. For an event loop a thread does the same, and completes the futures afterwards. One run alone pays for neither: when nothing
else waits and the lock is free at once, the commit happens in place. Nothing is acknowledged before the store has flushed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence

from holdfast._clock import Clock
from holdfast.errors import Stopped, StoreBusy, StoreError, StoreFailed, Unwinding
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.store import Append, Live, Stale, Store, Transaction, Undone

MAX_BATCH = 500
"""Tickets in one transaction at the most, so that an acknowledgement never waits for an endless one."""


class Ticket:
    """One request to write: what, for which run, and where the answer goes."""

    __slots__ = ("done", "error", "future", "guard", "journal", "records", "seq", "takes")

    def __init__(
        self, journal: Journal, records: Sequence[rec.Record], *, takes: Sequence[int] = (), guard: Callable[[], bool] | None = None
    ) -> None:
        self.journal, self.records, self.takes, self.guard = journal, records, takes, guard
        self.future: asyncio.Future[None] | None = None
        self.done = False
        self.seq = 0
        self.error: BaseException | None = None

    def result(self) -> int:
        """The seq of the last record, once it is durable; otherwise the error that says why it is not."""
        if self.error is not None:
            raise self.error
        return self.seq


class Committer:
    """The one way from the journals of this process to its store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.live = store if isinstance(store, Live) else None
        self.lanes = 0
        self._queue: deque[Ticket] = deque()
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # one thread only, and none behind a close
        self._closing = False

    def enter(self, lanes: int) -> None:
        """So many more lines of execution may share a flush from now on; fewer when negative."""
        with self._counting:
            self.lanes += lanes

    def submit(self, journal: Journal, records: Sequence[rec.Record], takes: Sequence[int] = ()) -> Ticket:
        """Queue what somebody will `settle`; what is submitted first is written first."""
        return self._put(Ticket(journal, records, takes=takes))

    def _put(self, ticket: Ticket) -> Ticket:
        with ticket.journal.lent:
            return self._put_now(ticket)

    def _put_now(self, ticket: Ticket) -> Ticket:
        ticket.journal.begin_write()
        self._queue.append(ticket)
        return ticket

    def commit(self, journal: Journal, records: Sequence[rec.Record], takes: Sequence[int] = ()) -> int:
        """Write, blocking until it is durable, and give the seq of the last record; the letters it takes go with it."""
        return self.settle(self.submit(journal, records, takes))

    def flush(self, journal: Journal, riders: Sequence[rec.Record] = ()) -> None:
        """Write what this run holds back, and what rides, blocking until it is durable."""
        self.settle(self._put(Ticket(journal, riders, guard=lambda: bool(riders or journal.held))))

    def flush_soon(self, journal: Journal) -> None:
        """The same when convenient; nobody waits for it."""
        self.post(journal, (), lambda: bool(journal.held))

    def settle(self, ticket: Ticket) -> int:
        """Block until a submitted ticket is durable, writing whatever waits if nobody else does."""
        while not ticket.done:
            batch: list[Ticket] = []
            with self._lock:
                if not ticket.done:
                    batch = self._flush()
            _tell(batch)
        return ticket.result()

    def commit_inline(self, journal: Journal, records: Sequence[rec.Record]) -> int | None:
        """Write in place if nothing else waits and every lock is free at once; otherwise None, with nothing written."""
        if self._queue or not self.store.inline or self._lock.locked():
            return None
        with self._lock:  # never `acquire` and `try`: Ctrl-C between them would lock it for ever
            holds = journal.holds
            if holds:
                journal.begin_write()
            try:
                return self._write_alone(journal, records)
            finally:
                if holds:
                    journal.end_write()

    def _write_alone(self, journal: Journal, records: Sequence[rec.Record]) -> int | None:
        append = journal.seal(records, at_us=self.clock.now_us())
        try:
            (stale,) = self.store.append((append,), wait=False)
        except StoreBusy:
            return None  # everything is as it was
        except BaseException as error:
            journal.broken = Stopped(error if isinstance(error, StoreError) else _collapsed(self.store, error))
            if not isinstance(error, Exception):
                raise  # an interruption stays what it is; what was written is found out by whoever loads the run
            raise journal.broken from error
        if stale is not None:
            raise journal.refused(_swept(self.store, stale), stale.full)
        journal.stored(append, records)
        return append.head.seq

    async def commit_async(self, journal: Journal, records: Sequence[rec.Record], takes: Sequence[int] = ()) -> int:
        """Write through the committing thread; a cancellation is held back until the result is known."""
        ticket = Ticket(journal, records, takes=takes)
        loop = asyncio.get_running_loop()
        ticket.future = Held(loop=loop)
        self._put(ticket)
        self._rouse()
        await held(ticket.future)
        return ticket.result()

    def commit_within(
        self, journal: Journal, riders: Sequence[rec.Record], records: Sequence[rec.Record], transaction: Transaction
    ) -> int:
        """Write in a transaction of the user's, which commits with it; where both are rolled back (`Undone`), what rides is written alone.

        Whoever calls has `journal.lent`: what this run had queued before is numbered before, and what it queues meanwhile behind this.
        Other runs are not held up.
        """
        journal.begin_write()
        try:
            self.settle(self._put_now(Ticket(journal, (), guard=lambda: False)))
            return self._write_within(journal, [*riders, *records], transaction)
        except Undone:
            if riders:
                self.settle(self._put_now(Ticket(journal, riders)))
            raise
        finally:
            journal.end_write()

    def _write_within(self, journal: Journal, records: Sequence[rec.Record], transaction: Transaction) -> int:
        append = journal.seal(records, at_us=self.clock.now_us())
        try:
            stale = transaction.commit(append)
        except Undone:
            raise
        except BaseException as error:
            journal.broken = Stopped(error if isinstance(error, StoreError) else _collapsed(self.store, error))
            if not isinstance(error, Exception):
                raise  # an interruption stays what it is; what was written is found out by whoever loads the run
            raise journal.broken from error
        if stale is not None:
            raise journal.refused(_swept(self.store, stale))
        journal.stored(append, records)
        return append.head.seq

    def post(self, journal: Journal, records: Sequence[rec.Record], guard: Callable[[], bool]) -> None:
        """Write when convenient, if `guard` still holds then; nobody waits for it."""
        self._put(Ticket(journal, records, guard=guard))
        self._rouse()

    def close(self) -> None:
        """Write what waits and stop the thread."""
        with self._starting:
            self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _rouse(self) -> None:
        with self._starting:
            if not self._closing:
                if self._thread is None:
                    thread = threading.Thread(target=self._loop, name="holdfast-commit", daemon=True)
                    thread.start()
                    self._thread = thread  # only now: one that Ctrl-C kept from starting cannot be joined
                self._wake.set()
                return
        with self._lock:  # nobody else would write it any more
            batch = self._flush()
        _tell(batch)

    def _loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                with self._lock:
                    batch = self._flush()
                _tell(batch)  # without the lock: who is told may want to commit in place
            if self._closing:
                return

    def _flush(self) -> list[Ticket]:
        """Take what waits and write it in one transaction; the lock is held. Gives the tickets, whose loops are yet to be told."""
        batch: list[Ticket] = []
        try:
            self._write(self._seal(self._take(batch)))
        except BaseException as error:
            _give_up(batch, _collapsed(self.store, error))  # whoever waits must hear of it, whatever it was
            if not isinstance(error, Exception):
                _finish(batch)
                _tell(batch)
                raise
        _finish(batch)
        return batch

    def _write(self, sealed: list[tuple[Append, list[Ticket]]]) -> None:
        try:
            answers = self.store.append([append for append, _ in sealed]) if sealed else []
        except StoreError as error:
            for _, tickets in sealed:
                _give_up(tickets, error)
            return
        for (append, tickets), stale in zip(sealed, answers, strict=True):
            if stale is None:
                _settle(append, tickets)
            else:
                _refuse(tickets, tickets[0].journal.refused(_swept(self.store, stale), stale.full))

    def _take(self, batch: list[Ticket]) -> list[list[Ticket]]:
        """What waits, grouped by run, and into the batch; a second journal of the same run has to wait for the next one."""
        groups: dict[str, list[Ticket]] = {}
        while self._queue and len(batch) < MAX_BATCH:
            ticket = self._queue[0]
            group = groups.setdefault(ticket.journal.head.run_id, [])
            if group and group[0].journal is not ticket.journal:
                break
            batch.append(ticket)  # before it leaves the queue: Ctrl-C in between must not lose it
            self._queue.popleft()
            group.append(ticket)
        return list(groups.values())

    def _seal(self, groups: list[list[Ticket]]) -> list[tuple[Append, list[Ticket]]]:
        """One append per run, holding all its tickets in their order."""
        at_us = self.clock.now_us()
        sealed = []
        for group in groups:
            tickets = [ticket for ticket in group if ticket.guard is None or ticket.guard()]
            try:
                if tickets:
                    sealed.append((tickets[0].journal.seal(_records_of(tickets), at_us=at_us, takes=_takes_of(tickets)), tickets))
            except (Exception, Unwinding) as error:  # noqa: BLE001 (a journal that is lost or broken says so to its own tickets alone)
                _refuse(tickets, error)
        return sealed


def _collapsed(store: Store, error: BaseException) -> StoreError:
    return StoreFailed(store.url, f"the store broke down, and it is not known what was written ({type(error).__name__}: {error})")


def _records_of(tickets: list[Ticket]) -> list[rec.Record]:
    return [record for ticket in tickets for record in ticket.records]


def _takes_of(tickets: list[Ticket]) -> list[int]:
    return [letter_id for ticket in tickets for letter_id in ticket.takes]


def _refuse(tickets: list[Ticket], error: BaseException) -> None:
    for ticket in tickets:
        ticket.error = error


def _give_up(tickets: list[Ticket], error: StoreError) -> None:
    """It is not known whether these were written, but for those that were told so: every run of them must be loaded again."""
    for ticket in tickets:
        if not ticket.seq and ticket.error is None:
            ticket.error = ticket.journal.broken = ticket.journal.broken or Stopped(error)


def _swept(store: Store, stale: Stale) -> StoreError | None:
    """The error of an append that refers to what is not there any more."""
    if not stale.missing:
        return None
    names = ", ".join(digest[:12] for digest in stale.missing)
    return StoreFailed(store.url, f"{names}: not there; nothing that refers to it was recorded. Run again: it is kept anew")


def _settle(append: Append, tickets: list[Ticket]) -> None:
    journal = tickets[0].journal
    records = _records_of(tickets)
    journal.stored(append, records)
    seq = append.head.seq - len(records)
    for ticket in tickets:
        seq += len(ticket.records)
        ticket.seq = seq


def _finish(batch: list[Ticket]) -> None:
    for ticket in batch:
        if ticket.future is None:
            ticket.journal.end_write()
        ticket.done = True


def _tell(batch: list[Ticket]) -> None:
    """Complete every waiter on a loop under guard: its future may be cancelled, its loop closed."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
    for ticket in batch:
        if ticket.future is not None:
            by_loop.setdefault(ticket.future.get_loop(), []).append(ticket)
    for loop, tickets in by_loop.items():
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_complete, tickets)


def _complete(tickets: list[Ticket]) -> None:
    """On the loop itself: what is held back from now on is given to the code after what was just stored."""
    for ticket in tickets:
        ticket.journal.end_write()
        if ticket.future is not None and not ticket.future.done():
            ticket.future.set_result(None)


class Held(asyncio.Future[None]):
    """A future that a cancelled task goes on waiting for: the cancellation is thrown in once the result is known."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 (the parent's signature)
        return False


async def held(future: Held) -> None:
    """Wait for `future` come what may; a cancellation that arrives meanwhile is delivered at the next await after it."""
    try:
        await future
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
            task.cancel()
