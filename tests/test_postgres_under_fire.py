"""Runs on a PostgreSQL that is killed and started again behind a proxy that cuts connections, 200 times, before and after the reply.

No acknowledged record is lost, none is doubled, every run finishes, and what it did outside was done once.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

import holdfast as hf
from cutting_proxy import Proxy, proxy
from holdfast.errors import Unwinding
from holdfast.store import Append, Query, Stale
from holdfast.stores import _postgres_append as appending
from holdfast.stores import postgres
from holdfast.stores.postgres import PostgresStore
from postgres_server import HOST, Server, server

CUTS, KILLS = 200, 3
COMMIT = b"Q\0\0\0\x0bCOMMIT\0"
PLACES = [(mode, at) for at in (appending.NAME, appending.NAME, COMMIT) for mode in ("before", "after", "at once")]
NAMES = "abcdefgh"
PIECES = 6
STUCK_S = 15
"""Without a cut for so long, somebody waits for nothing."""

pytestmark = pytest.mark.timeout(120)


class Noting(PostgresStore):
    """Remembers what it has acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged: set[tuple[str, int, bytes]] = set()
        super().__init__(url)

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        answers = super().append(batch, wait=wait)
        for one, stale in zip(batch, answers, strict=True):
            self.acknowledged |= {(one.run_id, row.seq, row.digest) for row in one.rows if stale is None}
        return answers


@hf.transaction
def book(item: str) -> str:
    hf.connection().execute("INSERT INTO bookings VALUES (%s)", (item,))
    return item


@hf.effect(in_doubt="ask")
async def charge(ledger: str, item: str) -> str:
    with Path(ledger).open("a") as file:  # noqa: ASYNC230 (it takes no time)
        file.write(f"{item}\n")
    return item


@hf.agent
async def shopping(ledger: str, name: str) -> list[str]:
    found = [(await charge(ledger, f"{name}-{number}"), book(f"{name}-{number}")) for number in range(PIECES)]
    return [item for pair in found for item in pair]


def unblock(between: Proxy, over: threading.Event) -> None:
    """End all connections where a cut has left somebody waiting for a reply that the proxy does not have: such a wait has no limit."""
    seen = -1
    while not over.wait(STUCK_S):
        if len(between.cuts) == seen:
            between.cut()
        seen = len(between.cuts)


@contextmanager
def fire(one: Server, between: Proxy, kills: int) -> Iterator[None]:
    """Cut and kill, until it is over."""
    over = threading.Event()

    def cut() -> None:
        for between.cut_how, between.at in itertools.cycle(PLACES):
            if over.wait(0.008):
                return

    def kill() -> None:
        for number in range(1, kills + 1):
            while len(between.cuts) < number * CUTS // (kills + 1) and not over.wait(0.01):
                pass
            one.kill()
            one.start()

    threads = [threading.Thread(target=work, daemon=True) for work in (cut, kill, partial(unblock, between, over))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
        between.cut_how = None


async def shop(app: hf.Holdfast, ledger: Path, turn: int) -> list[str]:
    handles = [await app.start(shopping, str(ledger), f"{name}{turn}", run_id=f"{name}{turn}") for name in NAMES]
    return [item for handle in handles for item in await handle.result()]


def under_fire(ledger: Path, cuts: int, kills: int) -> list[str]:
    """What is not as it must be, after so many cuts and kills under load."""
    with server() as one, proxy(one.port) as between:
        with psycopg.connect(one.url().partition("?")[0], autocommit=True) as admin:
            admin.execute("CREATE TABLE bookings (item text)")
        store, got = Noting(f"postgresql://postgres@{HOST}:{between.port}/postgres"), list[str]()
        with hf.Holdfast(store) as app:
            with fire(one, between, kills):
                for turn in itertools.count():
                    if len(between.cuts) >= cuts:
                        break
                    got += asyncio.run(shop(app, ledger, turn))
            good = all(verdict.good for verdict in app.check())
            unfinished = [run.run_id for run in app.runs(limit=10_000) if run.status != "done"]
        with closing(PostgresStore(one.url())) as again:
            there = [place for head in again.heads(Query(limit=10_000)) for place in places(again, head.run_id)]
        with psycopg.connect(one.url().partition("?")[0]) as admin:
            booked = sorted(item for (item,) in admin.execute("SELECT item FROM bookings"))
    due = sorted(f"{name}{number}-{piece}" for number in range(turn) for name in NAMES for piece in range(PIECES))
    found = {
        "lost": store.acknowledged - set(there), "doubled": len(there) - len(set(there)), "damaged": not good, "unfinished": unfinished,
        "results": sorted(got) != sorted(due * 2), "charged": sorted(ledger.read_text().split()) != due, "booked": booked != due,
        "spared": {mode for mode, _ in PLACES} - set(between.cuts),
    }  # fmt: skip
    return [f"{name}: {each}" for name, each in found.items() if each]


def places(store: PostgresStore, run_id: str) -> list[tuple[str, int, bytes]]:
    found = store.load(run_id)
    assert found is not None
    return [(run_id, row.seq, row.digest) for row in found[1]]


def test_nothing_is_lost_or_doubled_and_every_run_finishes(tmp_path: Path) -> None:
    assert under_fire(tmp_path / "ledger", CUTS, KILLS) == []


def test_a_store_that_acknowledges_too_early_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a lost reply is taken for a yes."""
    monkeypatch.setattr(postgres, "_looked_up", lambda _, batch: [None] * len(batch))
    with pytest.raises(Unwinding):
        under_fire(tmp_path / "ledger", CUTS, 0)
