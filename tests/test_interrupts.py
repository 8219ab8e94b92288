"""Ctrl-C in a blocking run, at any instruction of the engine: nothing hangs, nothing is lost, and no effect happens twice."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

import pytest
from psycopg import pq

import holdfast as hf
import holdfast.sync as hfs
from holdfast.app.frames import without_our_frames
from holdfast.errors import Stopped, StoreBusy, StoreError
from holdfast.life.run import active
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.running import playing
from holdfast.stores._live_files import LiveFiles
from holdfast.stores._postgres_address import address_of
from holdfast.stores._postgres_line import Line as PostgresLine
from holdfast.stores._seat import SEAT, Seat
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.sample import create
from holdfast.verbs import threads
from interrupting import Site, in_time, interrupted

LEDGER: list[int] = []
PRESSED: list[int] = []
LEASE_S = 0.2
"""Who was kept from closing its store is no longer waited for after that."""
SAMPLE = 60
"""Sites of some 1,300 that are tried each time, by dice; all of them take a minute."""


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    LEDGER.clear()


@hf.step
def look(number: int) -> int:
    return number


def find(number: int) -> hf.Verdict[int]:
    return hf.Landed(number) if number in LEDGER else hf.NotLanded()


@hf.effect(in_doubt=hf.verify(find, settle=0))
def pay(number: int) -> int:
    LEDGER.append(number)
    if number in PRESSED:
        PRESSED.remove(number)
        raise KeyboardInterrupt
    return number


@hf.agent
def buys() -> int:
    look(1)
    pay(2)
    hfs.gather(lambda: look(3), lambda: look(4))
    pay(5)
    return look(6)


def life(path: Path, chosen: Site | None = None) -> list[Site]:
    """Run the agent in this thread until its end, or until Ctrl-C; the store is closed after either."""
    with interrupted(chosen) as sites, in_time():
        app = hf.Holdfast(path, lease=LEASE_S)
        try:
            app.run(buys, run_id="r")
        finally:
            app.close()
    return list(sites)


def who_has_it_can_be_proven_dead(path: Path) -> bool:
    with closing(SqliteStore(path)) as store:
        head = store.head("r")
        return head is None or head.owner is None or store.pulse(head.owner) is not None


def sampled(sites: list[Site]) -> list[Site]:
    return random.Random().sample(sites, min(SAMPLE, len(sites)))


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("in_doubt", [False, True])
def test_ctrl_c_anywhere_neither_hangs_nor_loses_nor_repeats(tmp_path: Path, in_doubt: bool) -> None:  # noqa: FBT001
    def begin(folder: Path) -> Path:
        folder.mkdir()
        LEDGER.clear()
        if in_doubt:
            PRESSED.append(5)
            life(folder / "runs.db")
        return folder / "runs.db"

    for number, site in enumerate(sampled(life(begin(tmp_path / "all")))):
        path = begin(tmp_path / str(number))
        life(path, site)
        assert not active, site
        assert who_has_it_can_be_proven_dead(path), site
        with in_time(), hf.Holdfast(path, lease=LEASE_S) as app:
            assert app.run(buys, run_id="r", wait=False) == 6, site
        assert LEDGER == [2, 5], site


def test_ctrl_c_tells_of_an_effect_that_it_broke_off() -> None:
    PRESSED.append(5)
    with hf.Holdfast("memory:") as app, pytest.raises(KeyboardInterrupt) as told:
        app.run(buys, run_id="r")
    assert str(told.value) == (
        "run 'r' was left as it is: what is recorded stays, and the same line again goes on. "
        "Whether this has happened is not known: pay at step 4; to see it: holdfast show r"
    )


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """Also in a process that a shell has put into the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_ctrl_c_in_a_blocking_body_of_an_async_agent_leaves_no_doubt_about_the_effect_behind_it() -> None:
    sent: list[str] = []

    @hf.step
    def block() -> int:
        signal.raise_signal(signal.SIGINT)
        return 1

    @hf.effect(in_doubt="ask")
    async def send() -> str:
        sent.append("sent")
        return "sent"

    @hf.agent
    async def blocks() -> str:
        block()
        return await send()

    with hf.Holdfast("memory:") as app:
        with pytest.raises(KeyboardInterrupt) as told:
            app.run(blocks, run_id="r")
        assert "is not known" not in str(told.value)
        assert (app.inbox(), sent) == ([], [])
        assert (app.run(blocks, run_id="r"), sent) == ("sent", ["sent"])


def test_an_effect_that_ctrl_c_broke_off_is_put_before_a_person_who_may_say_what_became_of_it() -> None:
    PRESSED.append(5)
    with hf.Holdfast("memory:") as app:
        with pytest.raises(KeyboardInterrupt):
            app.run(buys, run_id="r")
        (item,) = app.inbox()
        assert (item.kind, item.step_id, app.show("r").status) == ("doubt", "4", "queued")
        assert app.show("r").next_commands == item.commands
        assert item.commands[:3] == [
            "holdfast resolve r 4 --landed RESULT", "holdfast resolve r 4 --not-landed", "holdfast resume r --here APP.py",
        ]  # fmt: skip
        LEDGER.clear()  # the probe would say that it did not happen
        app.resolve("r", "4", landed=5, by="ann")
        assert (app.inbox(), app.run(buys, run_id="r"), LEDGER) == ([], 6, [])


def test_ctrl_c_behind_the_end_of_a_run_says_that_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with hf.Holdfast("memory:") as app:
        monkeypatch.setattr(playing._Stage, "close", pressed)
        with pytest.raises(KeyboardInterrupt, match="'r' has come to its end all the same: the same line again gives its result"):
            app.run(buys, run_id="r")
        monkeypatch.undo()
        for run in list(active):
            active.discard(run)
        app.engine.keeper.runs.clear()


def test_ctrl_c_inside_a_lock_of_pythons_own_is_ctrl_c_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for, pressed = threads._wait_for, [True]

    def interrupted_once(started: Sequence[threads.Branch], *within: float) -> None:
        if not pressed:
            return wait_for(started, *within)
        try:
            pressed.clear()
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(threads, "_wait_for", interrupted_once)
    with hf.Holdfast("memory:") as app:
        with pytest.raises(KeyboardInterrupt, match="the same line again goes on"):
            app.run(buys, run_id="r")
        assert (app.run(buys, run_id="r"), LEDGER) == (6, [2, 5])


def test_a_branch_whose_thread_begins_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BEGINS_S", 0.0)
    taken, waited = threads._taken, list[float]()

    class Late:
        """The mark of a branch that takes its time to begin, if it is given any."""

        def __init__(self) -> None:
            self._lock = taken()

        def acquire(self, *, timeout: float) -> bool:
            waited.append(timeout)
            return self._lock.acquire(timeout=timeout)

        def release(self) -> None:
            time.sleep(0.05)
            self._lock.release()

    marks: Iterator[Any] = (Late() if number % 2 == 0 else taken() for number in range(4))
    monkeypatch.setattr(threads, "_taken", lambda: next(marks))

    @hf.agent
    def adds() -> int:
        return sum(hfs.gather(lambda: look(1), lambda: look(2)))

    with hf.Holdfast("memory:") as app:
        assert (app.run(adds, run_id="r"), waited) == (3, [threads.ANY_TIME_S] * 2)


def test_ctrl_c_in_a_group_of_branches_is_not_lost_to_a_step_in_a_finally(monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.agent
    def tidies() -> int:
        try:
            hfs.gather(lambda: look(1), lambda: look(2))
        finally:
            look(3)
        return 4

    def pressed(*_: object) -> NoReturn:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with hf.Holdfast("memory:") as app:
        monkeypatch.setattr(threads, "_wait_for", pressed)
        with in_time(), pytest.raises(KeyboardInterrupt):
            app.run(tidies, run_id="r")
        assert app.run(tidies, run_id="r") == 4


def test_an_app_goes_on_behind_ctrl_c_in_its_first_claim(tmp_path: Path) -> None:
    for number, site in enumerate([site for site in life(tmp_path / "all.db") if site[1] in ("Keeper.enroll", "SqliteStore.enroll")]):
        with in_time(), hf.Holdfast(tmp_path / f"{number}.db", lease=LEASE_S) as app:
            with interrupted(site):
                app.run(buys, run_id="r")
            assert app.run(buys, run_id="r") == 6, site


def test_branches_that_cannot_be_begun_stop_the_run_and_it_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.endswith("3.2"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with hf.Holdfast("memory:") as app:
        with monkeypatch.context() as patch, pytest.raises(hf.RunInterrupted, match=r"step 3: its branches .*can't start new thread"):
            patch.setattr(threading.Thread, "start", refused)
            app.run(buys, run_id="r", wait=False)
        assert app.show("r").status == "queued"
        assert (app.run(buys, run_id="r"), LEDGER) == (6, [2, 5])


def test_a_signal_handler_in_the_middle_of_a_transaction_is_refused_and_changes_nothing_of_it(tmp_path: Path) -> None:
    with in_time(), closing(SqliteStore(tmp_path / "runs.db")) as store:
        refused: list[str] = []

        def handler(*_: object) -> None:
            try:
                store.post("run", "message", b"{}", 1)
            except StoreError as error:
                refused.append(str(error))

        def pressed(*_: object) -> bool:
            signal.raise_signal(signal.SIGUSR1)
            return True

        before = signal.signal(signal.SIGUSR1, handler)
        store.append([create("run")])
        calls = store._writer._cursor
        assert calls is not None
        calls.set_exec_trace(pressed)
        try:
            assert store.append([create("other")]) == [None]
        finally:
            calls.set_exec_trace(None)
            signal.signal(signal.SIGUSR1, before)
        assert (store.head("other") is not None, store.letters(["run"])) == (True, [])
        assert refused
        assert all("in the middle of using it" in one for one in refused)


def test_ctrl_c_in_one_thread_tells_the_others_whose_records_it_was_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with hf.Holdfast("memory:") as app:
        committer, journal, other = app.engine.committer, Journal("mine"), Journal("other")
        for each in (journal, other):
            committer.commit(each, [rec.RunStarted(agent="a", fingerprint="f", origin="o", owner="me")])
        theirs = committer.submit(other, [rec.StepDone(step_id="1", name="s", fingerprint="f", value=b"1")])
        mine = committer.submit(journal, [rec.StepDone(step_id="1", name="s", fingerprint="f", value=b"1")])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Journal, "stored", pressed)
            committer.settle(mine)
        assert (theirs.done, mine.done) == (True, True)
        with in_time(), pytest.raises(Stopped, match="KeyboardInterrupt"):
            committer.settle(theirs)


def test_a_transaction_that_an_interruption_left_open_is_undone_by_the_next_use(tmp_path: Path) -> None:
    with in_time(), closing(SqliteStore(tmp_path / "runs.db")) as store:
        line = store._writer
        line.begin(0).execute("INSERT INTO meters VALUES ('left', 1)")
        assert store.append([create("run")]) == [None]
        assert store.stands("left", 7) == 7
        line.begin(0)


def test_another_thread_is_refused_what_an_interruption_left_and_gets_it_afterwards(tmp_path: Path) -> None:
    with in_time(), closing(SqliteStore(tmp_path / "runs.db")) as store:
        store._writer.begin(0)
        assert elsewhere(lambda: store.append([create("run")], wait=False)) is StoreBusy
        store.append([create("mine")])
        assert elsewhere(lambda: store.append([create("run")], wait=False)) is None


def test_who_waits_for_the_seat_gets_it_when_it_is_left_and_not_before() -> None:
    seat, said = Seat(), list[str]()
    assert seat.take(0)

    def wait() -> None:
        if seat.take(20):
            said.append("mine")
            seat.leave()

    other = threading.Thread(target=wait)
    other.start()
    assert elsewhere(lambda: said.append(f"taken: {seat.take(0.02)}")) is None
    seat.leave()
    other.join(20)
    assert (said, seat.take(0)) == (["taken: False", "mine"], True)


def test_nobody_is_kept_from_the_seat_by_who_takes_it_again_and_again() -> None:
    seat, taken = Seat(), threading.Event()

    def wait() -> None:
        if seat.take(20):
            taken.set()

    other = threading.Thread(target=wait)
    assert seat.take(0)
    other.start()
    turns = 0
    while not taken.is_set() and seat.take(1):
        seat.leave()
        turns += bool(seat._line)
    other.join(20)
    assert (taken.is_set(), turns <= 1) == (True, True)


def test_who_is_interrupted_while_it_waits_does_not_keep_the_seat() -> None:
    seat = Seat()
    assert elsewhere(lambda: said(seat.take(0))) is None

    def pressed(*_: object) -> NoReturn:
        seat.by[SEAT] = seat._line.popleft()[0]  # it was handed over at that moment
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, pressed)
    try:
        threading.Timer(0.02, signal.raise_signal, [signal.SIGUSR1]).start()
        with pytest.raises(KeyboardInterrupt):
            seat.take(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (seat.by, list(seat._line)) == ({}, [])


def test_the_seat_of_another_thread_is_not_left_for_it() -> None:
    seat = Seat()
    assert seat.take(0)
    assert elsewhere(seat.leave) is None
    assert elsewhere(lambda: 1 // seat.take(0)) is ZeroDivisionError


def test_emitting_goes_on_behind_an_interruption(tmp_path: Path) -> None:
    files = LiveFiles(tmp_path / "live", lambda _: False)
    files._seat.take(0)
    files.publish("r", b"word")
    assert [line for _, line in files.published("r", 0)] == [b"word"]
    files._seat.take(0)
    with in_time():
        files.close()


def test_a_session_with_a_server_that_an_interruption_left_is_not_used_again(postgres_url: str) -> None:
    line = PostgresLine(address_of(postgres_url))
    with closing(line):
        assert line.take(0)
        line.session().execute("BEGIN")
        with line.held():
            assert line.run(lambda session: session.info.transaction_status, again=True) == pq.TransactionStatus.IDLE


def framed() -> FrameType:
    try:
        return sys._getframe()
    finally:
        LEDGER.clear()


def test_a_session_with_a_server_is_refused_to_who_breaks_in_on_its_use(postgres_url: str) -> None:
    with closing(PostgresLine(address_of(postgres_url))) as line, line.held():
        with pytest.raises(StoreError, match="in the middle of using it"):
            line.run(lambda _: line.take(0), again=False)
        assert line.run(lambda session: session.execute("SELECT 1").fetchone(), again=False) == (1,)


def test_an_error_between_two_lines_has_a_traceback_all_the_same() -> None:
    frame = framed()
    nowhere = next(2 * index for index, place in enumerate(frame.f_code.co_positions()) if place[0] is None)
    error = KeyboardInterrupt().with_traceback(TracebackType(None, frame, nowhere, -1))
    without_our_frames(error)
    assert error.__traceback__ is not None


def test_what_a_blocking_agent_sets_in_its_context_stays_there() -> None:
    colour = ContextVar("colour", default="white")

    @hf.agent
    def paints() -> str:
        colour.set("red")
        return colour.get()

    with hf.Holdfast("memory:") as app:
        assert (app.run(paints), colour.get()) == ("red", "white")


def said(true: object) -> None:
    assert true


def elsewhere(action: Callable[[], object]) -> type[BaseException] | None:
    """What kind of error it raised in another thread."""
    raised: list[type[BaseException]] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 (which one it was is what is asked)
            raised.append(type(error))

    thread = threading.Thread(target=act)
    thread.start()
    thread.join(20)
    return raised[0] if raised else None
