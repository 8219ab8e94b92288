"""The committer: one transaction for what waits, one stale run fails alone, and nothing is acknowledged before it is durable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.sites import WatchedMemory, WatchedSqlite, eventually
from holdfast._clock import SystemClock
from holdfast.errors import LeaseLost, Stopped, StoreBusy
from holdfast.life.commit import MAX_BATCH, Committer
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore


@pytest.fixture
def store() -> WatchedMemory:
    return WatchedMemory()


@pytest.fixture
def committer(store: WatchedMemory) -> Iterator[Committer]:
    opened = Committer(store, SystemClock())
    yield opened
    opened.close()


def begun(committer: Committer, run_id: str) -> Journal:
    journal = Journal(run_id)
    committer.commit(journal, [rec.RunStarted(agent="a", fingerprint="", origin=run_id, owner="me")])
    return journal


def done(step_id: str) -> list[rec.Record]:
    return [rec.StepDone(step_id=step_id, name="s", fingerprint="", value=b"1")]


def stolen(committer: Committer, run_id: str) -> None:
    """Somebody else takes the run."""
    loaded = committer.store.load(run_id)
    assert loaded is not None
    committer.commit(Journal.load(*loaded), [rec.RunResumed(owner="them", why="")])


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Call all at the same time; gives what each returned or raised."""
    answers: list[Any] = [None] * len(calls)

    def call(index: int) -> None:
        try:
            answers[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001 (an answer like any other)
            answers[index] = error

    threads = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return answers


# --- batches --------------------------------------------------------------------------------------------------------


def test_what_many_runs_wait_for_is_one_transaction(committer: Committer, store: WatchedMemory) -> None:
    journals = [begun(committer, f"r{n}") for n in range(20)]

    async def main() -> list[int]:
        return await asyncio.gather(*(committer.commit_async(journal, done("1")) for journal in journals))

    before = len(store.batches)
    assert asyncio.run(main()) == [2] * 20
    assert sum(len(batch) for batch in store.batches[before:]) == 20
    assert len(store.batches) - before <= 3


def test_the_records_of_one_run_keep_the_order_in_which_they_were_asked_for(committer: Committer, store: WatchedMemory) -> None:
    journal = begun(committer, "r")

    async def main() -> list[int]:
        return await asyncio.gather(*(committer.commit_async(journal, done(str(n))) for n in range(1, 31)))

    assert asyncio.run(main()) == list(range(2, 32))
    loaded = store.load("r")
    assert loaded is not None
    assert [row.step_id for row in loaded[1][1:]] == [str(n) for n in range(1, 31)]


def test_a_batch_has_a_limit(committer: Committer, store: WatchedMemory) -> None:
    journal = begun(committer, "r")
    tickets = [committer.submit(journal, done(str(n))) for n in range(MAX_BATCH + 10)]
    assert committer.settle(tickets[-1]) == MAX_BATCH + 11
    assert [len(kinds) for kinds in store.appends[1:]] == [MAX_BATCH, 10]


def test_one_stale_run_fails_alone(committer: Committer) -> None:
    journals = [begun(committer, f"r{n}") for n in range(5)]
    stolen(committer, "r2")
    tickets = [committer.submit(journal, done("1")) for journal in journals]
    answers = in_threads(*(lambda ticket=ticket: committer.settle(ticket) for ticket in tickets))
    assert [answer for index, answer in enumerate(answers) if index != 2] == [2] * 4
    assert isinstance(answers[2], LeaseLost)


def test_what_lost_its_lease_once_can_never_commit_again(committer: Committer, store: WatchedMemory) -> None:
    journal = begun(committer, "r")
    stolen(committer, "r")
    for _ in range(2):
        with pytest.raises(LeaseLost):
            committer.commit(journal, done("1"))
    with pytest.raises(LeaseLost):
        committer.commit_inline(journal, done("1"))
    loaded = store.load("r")
    assert loaded is not None
    assert [row.kind for row in loaded[1]] == ["run.started", "run.resumed"]


def test_two_journals_of_one_run_do_not_meet_in_a_batch(committer: Committer, store: WatchedMemory) -> None:
    journal = begun(committer, "r")
    loaded = store.load("r")
    assert loaded is not None
    second = Journal.load(*loaded)
    tickets = [committer.submit(journal, done("1")), committer.submit(second, done("1"))]
    answers = in_threads(*(lambda ticket=ticket: committer.settle(ticket) for ticket in tickets))
    assert answers[0] == 2
    assert isinstance(answers[1], LeaseLost)


def test_a_ticket_whose_guard_no_longer_holds_is_not_written(committer: Committer, store: WatchedMemory) -> None:
    journal = begun(committer, "r")
    committer.post(journal, done("late"), lambda: False)
    committer.post(journal, done("seen"), lambda: True)
    eventually(lambda: len(store.appends) == 2)
    loaded = store.load("r")
    assert loaded is not None
    assert [row.step_id for row in loaded[1]] == ["", "seen"]


# --- waiters --------------------------------------------------------------------------------------------------------


def test_a_cancelled_waiter_does_not_hinder_the_others(committer: Committer, store: WatchedMemory) -> None:
    journals = [begun(committer, f"r{n}") for n in range(3)]

    async def main() -> list[Any]:
        store.hold = threading.Event()
        tasks = [asyncio.create_task(committer.commit_async(journal, done("1"))) for journal in journals]
        await asyncio.to_thread(store.entered.wait, 10)
        tasks[1].cancel()
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        store.hold.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(main())
    assert answers[0] == answers[2] == 2
    head = store.head("r1")
    assert head is not None
    assert head.seq == 2


def test_a_waiter_whose_loop_is_gone_does_not_hinder_the_others(committer: Committer, store: WatchedMemory) -> None:
    orphan, journal = begun(committer, "orphan"), begun(committer, "r")
    loop = asyncio.new_event_loop()
    ticket = committer.submit(orphan, done("1"))
    ticket.future = loop.create_future()
    loop.close()
    assert committer.commit(journal, done("1")) == 2
    assert ticket.done
    assert store.batches[-1] == ["orphan", "r"]


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_failed_flush_breaks_every_run_of_the_batch(committer: Committer, store: WatchedMemory) -> None:
    journals = [begun(committer, f"r{n}") for n in range(3)]
    store.trips_at = "step.done"
    tickets = [committer.submit(journal, done("1")) for journal in journals]
    answers = in_threads(*(lambda ticket=ticket: committer.settle(ticket) for ticket in tickets))
    assert all(isinstance(answer, Stopped) for answer in answers)
    for journal in journals:
        with pytest.raises(Stopped, match="on purpose"):
            committer.commit(journal, done("1"))
    assert store.appends[-1] == ["run.started"]


@pytest.mark.parametrize("written", [False, True])
def test_after_a_failed_flush_the_runs_go_on_from_what_was_written(tmp_path: Path, *, written: bool) -> None:
    store = WatchedSqlite(tmp_path / "runs.db")
    began: list[str] = []

    @hf.step
    async def work(name: str, n: int) -> int:
        began.append(name)
        return n

    @hf.agent
    async def agent(name: str) -> int:
        return sum([await work(name, n) for n in range(5)])

    async def both(app: hf.Holdfast) -> list[Any]:
        handles = [await app.start(agent, name, run_id=name) for name in ("a", "b", "c")]
        return await asyncio.gather(*(handle.result() for handle in handles), return_exceptions=True)

    with hf.Holdfast(store) as app:
        store.trips_at, store.trips_after = "step.done", written
        first = asyncio.run(both(app))
        assert any(isinstance(answer, hf.StoreError) for answer in first)
        broken = {name for name, answer in zip("abc", first, strict=True) if isinstance(answer, hf.StoreError) and name in began}
        assert asyncio.run(both(app)) == [10, 10, 10]
        assert all(verdict.good for verdict in app.check())
    assert len(began) == 15 + (0 if written else len(broken))


class Collapsing(WatchedMemory):
    """A store that breaks in a way it has no word for."""

    def append(self, batch: Any, *, wait: bool = True) -> Any:
        if any(row.kind == "step.done" for one in batch for row in one.rows):
            raise RuntimeError("a bug in the store")
        return super().append(batch, wait=wait)


def test_an_interruption_of_a_flush_goes_on_and_whoever_waits_for_the_batch_hears_of_it(
    committer: Committer, store: WatchedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = [committer.submit(journal, done("1")) for journal in [begun(committer, "mine"), begun(committer, "theirs")]]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            committer.settle(mine)
        with pytest.raises(Stopped, match="not known what was written"):
            committer.settle(theirs)
    with pytest.raises(Stopped):  # what was written is found out by whoever loads the run
        committer.commit(theirs.journal, done("2"))


def test_a_store_that_collapses_lets_nobody_wait_for_ever() -> None:
    committer = Committer(Collapsing(), SystemClock())
    journals = [begun(committer, f"r{n}") for n in range(2)]

    async def main() -> list[Any]:
        tasks = [committer.commit_async(journal, done("1")) for journal in journals]
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)

    answers = asyncio.run(main())
    assert all(isinstance(answer, BaseException) and "a bug in the store" in str(answer) for answer in answers)
    begun(committer, "later")
    committer.close()


# --- inline ---------------------------------------------------------------------------------------------------------


def threads_used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From which threads the memory store is written."""
    used: list[int] = []
    original = MemoryStore.append

    def append(self: MemoryStore, batch: Any, *, wait: bool = True) -> Any:
        used.append(threading.get_ident())
        return original(self, batch, wait=wait)

    monkeypatch.setattr(MemoryStore, "append", append)
    return used


@hf.step
async def quick(n: int) -> int:
    return n


@hf.agent
async def alone() -> int:
    return sum([await quick(n) for n in range(6)])


@hf.agent
async def together() -> int:
    return sum(await hf.gather(quick(1), quick(2)))


def test_a_run_alone_commits_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with hf.Holdfast("memory:") as app:
        used = threads_used(monkeypatch)
        app.run(alone, run_id="r")
        assert used[1:] == [threading.get_ident()] * 7  # the thread that claimed has let go of its lock when it tells of that


def test_branches_share_a_flush_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    with hf.Holdfast("memory:") as app:
        used = threads_used(monkeypatch)
        app.run(together, run_id="r")
        assert threading.get_ident() not in used[1:-1]


def test_a_store_that_is_slow_is_never_written_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "inline", False)
    with hf.Holdfast("memory:") as app:
        used = threads_used(monkeypatch)
        app.run(alone, run_id="r")
        assert used
        assert threading.get_ident() not in used


def test_nothing_is_written_in_place_while_somebody_waits(committer: Committer, store: WatchedMemory) -> None:
    first, second = begun(committer, "a"), begun(committer, "b")
    ticket = committer.submit(first, done("1"))
    assert committer.commit_inline(second, done("1")) is None
    assert committer.settle(ticket) == 2
    assert committer.commit_inline(second, done("1")) == 2
    assert store.appends[-2:] == [["step.done"], ["step.done"]]


def test_a_busy_lock_is_not_waited_for_in_place(committer: Committer, store: WatchedMemory) -> None:
    journal = begun(committer, "r")
    with store._lock:
        assert committer.commit_inline(journal, done("1")) is None
        with pytest.raises(StoreBusy):
            store.append((journal.seal(done("1"), at_us=1),), wait=False)
    assert committer.commit_inline(journal, done("1")) == 2


# --- acknowledgement ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [False, True])
def test_nothing_goes_on_before_the_store_has_written(store: WatchedMemory, *, beside: bool) -> None:
    """With another run beside it the commit goes through the thread, without it happens in place."""
    went_on: list[int] = []
    held = threading.Event()

    @hf.step
    async def work(n: int) -> int:
        store.hold = held
        return n

    @hf.agent
    async def agent() -> int:
        went_on.append(await work(1))
        return 1

    @hf.agent
    async def idle() -> int:
        await asyncio.sleep(0.5)
        return 1

    async def main(app: hf.Holdfast) -> None:
        handles = [await app.start(idle, run_id="idle")] if beside else []
        await asyncio.sleep(0.05 if beside else 0)
        handles.append(await app.start(agent, run_id="r"))
        await asyncio.gather(*(handle.result() for handle in handles))

    with hf.Holdfast(store) as app:
        thread = threading.Thread(target=lambda: asyncio.run(main(app)))
        thread.start()
        eventually(store.entered.is_set)
        thread.join(0.1)
        assert went_on == []
        held.set()
        thread.join(20)
    assert went_on == [1]


def test_what_comes_after_closing_does_not_wait_for_ever(committer: Committer) -> None:
    journal = begun(committer, "r")

    async def main() -> int:
        assert await committer.commit_async(journal, done("1")) == 2
        committer.close()
        return await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(committer.commit_async(journal, done("2")))), 5)

    thread_answers = in_threads(lambda: asyncio.run(main()))
    assert thread_answers == [3]


def test_closing_waits_for_a_thread_that_is_just_being_started(
    committer: Committer, store: WatchedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, starting, go_on = begun(committer, "r"), threading.Event(), threading.Event()
    start = threading.Thread.start

    def slowly(thread: threading.Thread) -> None:
        if thread.name == "holdfast-commit":
            starting.set()
            assert go_on.wait(20)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    posting = threading.Thread(target=lambda: committer.post(journal, done("1"), lambda: True), daemon=True)
    closing = threading.Thread(target=committer.close, daemon=True)
    posting.start()
    assert starting.wait(20)
    closing.start()
    go_on.set()
    closing.join(20)
    posting.join(20)
    assert [closing.is_alive(), posting.is_alive()] == [False, False]
    assert len(store.load("r")[1]) == 2  # type: ignore[index]
