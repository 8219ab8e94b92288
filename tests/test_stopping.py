"""Cancelling and pausing reach what real workers execute: a run, a queue, the fleet, also where workers are killed meanwhile."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast as hf
import starting
from agents_for_tests import stopping_app
from agents_for_tests.fleet_ledger import Ledger, Server
from chaos_fleet import command, surroundings
from holdfast import Holdfast
from holdfast.store import Roster

APP = Path(stopping_app.__file__)
BOUND_S = 60.0
SOON_S = stopping_app.LONG_S / 6
"""Far less than the steps would take, far more than a second: the machine may be busy."""


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def desk(ledger: Ledger) -> Iterator[Server]:
    with Server(ledger) as opened:
        yield opened


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(tmp_path / "runs.db") as opened:
        yield opened


@contextmanager
def worker(url: str, desk: Server, *, broken: str = "") -> Iterator[subprocess.Popen[bytes]]:
    env = {**surroundings(desk.port), "STOPPING_BROKEN": broken}
    process = starting.Popen[bytes](command(APP, url), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(true: Callable[[], object], within_s: float = BOUND_S) -> None:
    until_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until_s, "it did not come to that in time"
        time.sleep(0.02)


def status(app: Holdfast, run_id: str) -> str:
    return app.show(run_id).status


# --- one run --------------------------------------------------------------------------------------------------------


def test_a_cancellation_ends_an_async_step_that_is_under_way(app: Holdfast, ledger: Ledger, desk: Server) -> None:
    app.submit(stopping_app.naps, "o-1", run_id="run")
    with worker(app.store.url, desk):
        until(lambda: ledger.inside)
        app.cancel("run", by="ann")
        until(lambda: status(app, "run") == "cancelled" and not ledger.inside, within_s=SOON_S)
    assert ledger.booked == []


def test_a_cancellation_ends_a_run_in_a_thread_behind_the_step_that_is_under_way(app: Holdfast, ledger: Ledger, desk: Server) -> None:
    app.submit(stopping_app.digs, "o-1", run_id="run")
    with worker(app.store.url, desk):
        until(lambda: ledger.inside)
        app.cancel("run", by="ann")
        until(lambda: status(app, "run") == "cancelled", within_s=SOON_S)
    assert [line.state for line in app.history("run") if line.step_id == "1"] == ["done"]
    assert ledger.booked == []


def test_a_pause_at_once_breaks_an_effect_off_and_leaves_a_doubt(app: Holdfast, ledger: Ledger, desk: Server) -> None:
    app.submit(stopping_app.pays, "o-1", run_id="run")
    with worker(app.store.url, desk):
        until(lambda: ledger.inside)
        app.pause("run", now=True, by="ann")
        until(lambda: status(app, "run") == "paused" and not ledger.inside, within_s=SOON_S)
        assert [item.what for item in app.inbox()] == ['did pay(order="o-1") happen? (the run is paused by ann)']
        app.resume("run", by="ann")
        until(lambda: [item.what for item in app.inbox()] == ['did pay(order="o-1") happen? its body was broken off; a person must say'])
    assert ledger.booked == []


def test_a_pause_lets_a_step_in_a_thread_end_and_the_run_goes_on_behind_it(app: Holdfast, ledger: Ledger, desk: Server) -> None:
    app.submit(stopping_app.digs, "o-1", run_id="run")
    with worker(app.store.url, desk):
        until(lambda: ledger.inside)
        app.pause("run", now=True, by="ann")
        until(lambda: status(app, "run") == "paused", within_s=SOON_S)
        assert ledger.booked == []
        app.resume("run", by="ann")
        until(lambda: status(app, "run") == "done")
    assert [one["name"] for one in ledger.booked] == ["fill"]


# --- a queue --------------------------------------------------------------------------------------------------------

PACES = 48
HELD = ("held-1", "held-2", "child-of-held")


@dataclass
class Seen:
    """What came to pass: how many paces the held runs made while they were held, and how often each pace was booked in the end."""

    while_held: int
    in_the_end: set[int]
    notes: set[str]
    came_later: str


def paced(ledger: Ledger, *orders: str) -> int:
    with ledger.lock:
        return sum(one["name"] in orders for one in ledger.booked)


def held_queue(app: Holdfast, ledger: Ledger, desk: Server, *, broken: str = "") -> Seen:
    """A queue is paused, one of two workers killed, and another one started, while a run of another queue goes on and tells the time."""
    for run_id in HELD:
        app.submit(stopping_app.leads if "child" in run_id else stopping_app.walks, run_id, PACES, run_id=run_id, queue="narrow")
    app.submit(stopping_app.walks, "free", PACES + 12, run_id="free")
    with ExitStack() as stack:
        first, _ = (stack.enter_context(worker(app.store.url, desk, broken=broken)) for _ in range(2))
        until(lambda: all(paced(ledger, order) > 1 for order in (*HELD, "free")))
        app.pause_queue("narrow", by="ann", reason="look")
        first.send_signal(signal.SIGKILL)
        stack.enter_context(worker(app.store.url, desk, broken=broken))
        app.submit(stopping_app.walks, "later", 1, run_id="later", queue="narrow")
        since = paced(ledger, "free")
        until(lambda: paced(ledger, "free") >= since + 28)  # longer than a worker may take to see it
        until(lambda: broken or not any(run.owner_lives for run in app.runs(queue="narrow")), within_s=SOON_S)
        moved = paced(ledger, *HELD, "later")
        until(lambda: paced(ledger, "free") >= since + 38)
        moved = paced(ledger, *HELD, "later") - moved
        notes = {run.note for run in app.runs(status="queued") if run.run_id in HELD}
        later = status(app, "later")
        app.resume_queue("narrow")
        until(lambda: broken or {run.status for run in app.runs()} == {"done"})
    ends = {sum(one["order"] == str(nr) for one in ledger.booked if one["name"] == order) for order in HELD for nr in range(PACES)}
    return Seen(moved, ends, notes, later)


def test_nothing_of_a_paused_queue_goes_on_before_it_is_resumed_and_then_all_does(app: Holdfast, ledger: Ledger, desk: Server) -> None:
    seen = held_queue(app, ledger, desk)
    assert seen.while_held == 0
    assert seen.came_later == "queued"
    let_go, gone = "queue narrow was paused by ann: look", "is gone, and queue narrow is paused"
    assert all(note == let_go or note.endswith(gone) for note in seen.notes)
    assert seen.in_the_end == {1}


def test_where_workers_do_not_look_what_is_held_that_is_noticed(app: Holdfast, ledger: Ledger, desk: Server) -> None:
    assert held_queue(app, ledger, desk, broken="yes").while_held > 0


# --- the fleet ------------------------------------------------------------------------------------------------------


def beats(app: Holdfast) -> list[int]:
    """How often the workers that live have renewed since they began: a clock of theirs."""
    assert isinstance(app.store, Roster)
    living = {one.owner for one in app.workers() if one.life == "alive" and one.agents}
    return [one.beat for one in app.store.owners() if one.owner in living]


def test_a_fleet_that_is_paused_at_once_rests_through_deaths_and_goes_on_when_it_is_resumed(
    postgres_url: str, ledger: Ledger, desk: Server
) -> None:
    url = f"{postgres_url}?schema=t_{secrets.token_hex(6)}"
    with Holdfast(url) as app, ExitStack() as stack:
        app.submit(stopping_app.pays, "o-1", run_id="pays")
        app.submit(stopping_app.walks, "walk", 25, run_id="walks", queue="narrow")
        first = stack.enter_context(worker(url, desk))
        until(lambda: ledger.inside and paced(ledger, "walk"))
        app.pause_fleet(now=True, by="ann")
        until(lambda: {run.status for run in app.runs()} == {"queued"} and not ledger.inside, within_s=SOON_S)
        assert {run.note for run in app.runs()} == {"the fleet was paused by ann"}
        os.kill(first.pid, signal.SIGKILL)
        moved = len(ledger.booked)
        stack.enter_context(worker(url, desk))
        until(lambda: [beat for beat in beats(app) if beat > 1])
        assert ({run.status for run in app.runs()}, len(ledger.booked)) == ({"queued"}, moved)
        app.resume_fleet()
        until(lambda: status(app, "walks") == "done" and [item.run_id for item in app.inbox()] == ["pays"])
    assert sorted(int(one["order"]) for one in ledger.booked) == list(range(25))


def test_a_program_that_executes_its_run_itself_is_not_concerned(app: Holdfast) -> None:
    @hf.agent
    def adds(one: int) -> int:
        return one + 1

    app.pause_fleet(by="ann")
    assert app.run(adds, 1) == 2
