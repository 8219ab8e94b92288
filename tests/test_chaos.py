"""A short form of `make chaos`, and what it must find where the fleet is broken on purpose."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import chaos_judging as judging
from agents_for_tests import fleet_app
from agents_for_tests.fleet_ledger import Ledger
from agents_for_tests.fleet_ledger import Server as LedgerServer
from chaos import Wanted, chaos
from chaos_fleet import LEASE_S, Fleet
from holdfast import Holdfast
from postgres_server import Server, server

BOUND_S = 60.0
LONGER_S = 2 * LEASE_S
"""So long that a busy machine has both workers back in time once the database is."""

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    """A server of its own: it is killed."""
    with server() as started:
        yield started


def test_every_run_ends_and_every_effect_happens_once_whatever_becomes_of_workers_and_database(
    database: Server, tmp_path: Path
) -> None:
    each = ("kill", "stop", "part", "cut", "drain", "restart")
    seed = secrets.randbelow(10_000)
    outcome = chaos(Wanted(seed=seed, runs=40, seconds=60, actions=each, most_actions=len(each)), database, tmp_path)
    if outcome.wrong:
        pytest.fail("\n".join([f"seed {seed}: {len(outcome.wrong)} violations", *outcome.wrong, *outcome.told]), pytrace=False)
    assert outcome.seen["done"] >= 40
    assert outcome.seen["taken over"] > 0


def test_without_the_fence_it_is_seen_that_runs_are_owned_twice(database: Server, tmp_path: Path) -> None:
    outcome = chaos(
        Wanted(seed=1, runs=24, seconds=30, actions=["stop"], most_actions=1, broken="fence", calm_s=4), database, tmp_path
    )
    assert any("was owned twice: record" in line for line in outcome.wrong)


def test_without_renewing_it_is_seen_that_the_living_lose_their_runs_and_without_limits_that_they_are_exceeded(
    database: Server, tmp_path: Path
) -> None:
    outcome = chaos(Wanted(seed=1, runs=40, seconds=LEASE_S + 3, actions=[], broken="renewing,limits", calm_s=0), database, tmp_path)
    assert any("which was alive and undisturbed: it did not renew its lease" in line for line in outcome.wrong)
    assert any(line.startswith("queue narrow: ") for line in outcome.wrong)


# --- one worker, separated from the database ------------------------------------------------------------------------


def until(true: Callable[[], object]) -> None:
    until_s = time.monotonic() + BOUND_S
    while not true():
        assert time.monotonic() < until_s, "it did not come to that"
        threading.Event().wait(0.05)


def separated(database: Server, folder: Path, broken: str = "") -> tuple[list[judging.Stored], Ledger]:
    """A worker is cut off while it executes a step for longer than its lease; another one takes over and ends the run; then it is back."""
    schema, ledger = f"parted_{secrets.token_hex(4)}", Ledger()
    with Holdfast(database.url(schema), lease=LEASE_S) as app, LedgerServer(ledger) as desk:
        with Fleet(database, schema, ledger, desk.port, folder, size=1, broken=broken) as first:
            app.submit(fleet_app.lingers, "o-1", run_id="run")
            until(lambda: ledger.inside)
            first.members[0].proxy.part()
            with Fleet(database, schema, ledger, desk.port, folder, size=1, broken=broken):
                until(lambda: len(ledger.inside) == 2)
                ledger.held.set()
                until(lambda: app.show("run").status == "done")
            first.members[0].proxy.join()
            app.submit(fleet_app.lingers, "o-2", run_id="next")
            until(lambda: app.show("next").status == "done")
        return judging.stored(app.store), ledger


def test_a_worker_that_was_cut_off_loses_its_run_once_is_refused_when_it_is_back_and_works_on(database: Server, tmp_path: Path) -> None:
    runs, ledger = separated(database, tmp_path)
    (run,) = [one for one in runs if one.head.run_id == "run"]
    assert [(one.silent, one.by != one.owner) for one in judging.takeovers([run])] == [(True, True)]
    assert list(judging.owned_twice(runs)) == []
    assert run.rows[-1].kind == "run.done"
    assert {row.epoch for row in run.rows} == {1, 2, 3}
    assert list(judging.repeated(ledger)) == []


def test_a_worker_goes_on_with_its_run_when_the_database_was_away_for_longer_than_the_lease(database: Server, tmp_path: Path) -> None:
    schema, ledger = f"away_{secrets.token_hex(4)}", Ledger()
    with Holdfast(database.url(schema), lease=LONGER_S) as app, LedgerServer(ledger) as desk:
        with Fleet(database, schema, ledger, desk.port, tmp_path, size=2, lease_s=LONGER_S) as fleet:
            app.submit(fleet_app.lingers, "o-1", run_id="run")
            until(lambda: ledger.inside and len(app.workers()) == 2)
            database.kill()
            threading.Event().wait(LONGER_S + 1)
            database.start()
            ledger.held.set()
            until(lambda: app.show("run").status == "done")
            assert [member.process.poll() for member in fleet.members] == [None, None]
        runs = judging.stored(app.store)
    assert list(judging.takeovers(runs)) == []
    assert [one["name"] for one in ledger.booked] == ["mail"]


def test_without_the_fence_what_it_writes_when_it_is_back_is_seen(database: Server, tmp_path: Path) -> None:
    runs, _ = separated(database, tmp_path, broken="fence")
    assert any("run run was owned twice" in line for line in judging.owned_twice(runs))
