"""A PostgreSQL store whose server dies and whose connections are cut: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import holdfast as hf
from crashing import HEARS_CTRL_C
from cutting_proxy import Proxy, proxy
from holdfast.errors import StoreFailed
from holdfast.store import Append, Head, Row, Stale
from holdfast.stores import _postgres_line, postgres
from holdfast.stores._postgres_append import written
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.pruning import removal
from holdfast.testing.sample import create, head
from postgres_server import HOST, server

RUNS = ("a", "b", "c")
MODES = ("before", "after", "at once")
CUTS = 30


@pytest.fixture
def schema() -> str:
    return "t_" + secrets.token_hex(6)


@pytest.fixture
def direct(postgres_url: str, schema: str) -> Iterator[PostgresStore]:
    """The store without anything in between."""
    with closing(PostgresStore(f"{postgres_url}?schema={schema}")) as store:
        yield store


@pytest.fixture
def between(postgres_url: str) -> Iterator[Proxy]:
    with proxy(int(postgres_url.rpartition(":")[2].partition("/")[0])) as opened:
        yield opened


@pytest.fixture
def through(direct: PostgresStore, between: Proxy, schema: str) -> Iterator[PostgresStore]:
    """The same store behind the proxy."""
    with closing(PostgresStore(f"postgresql://postgres@{HOST}:{between.port}/postgres?schema={schema}")) as store:
        yield store


def row(seq: int) -> Row:
    return Row(seq, 1, seq, "step.done", str(seq), b"{}", secrets.token_bytes(20), None, secrets.token_bytes(32))


def onward(run_id: str, seq: int) -> Append:
    """The append behind `seq`, with a digest that no other has."""
    new = row(seq + 1)
    head = Head(run_id, "agent", "running", None, 1, seq + 1, new.digest, None, 1, seq, "{}", 0.0, "")
    return Append(run_id, 1 if seq else 0, seq, [new], head)


class Load:
    """Appends to several runs, batch after batch, and remembers what was acknowledged."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.acknowledged: dict[str, list[Row]] = {run_id: [] for run_id in RUNS}

    def batch(self) -> None:
        batch = [onward(run_id, len(rows)) for run_id, rows in self.acknowledged.items()]
        self.append(batch)
        self.append([onward("a", len(self.acknowledged["a"]))])

    def append(self, batch: list[Append]) -> None:
        assert self.store.append(batch) == [None] * len(batch)
        for one in batch:
            self.acknowledged[one.run_id] += one.rows

    def holds_in(self, store: PostgresStore) -> None:
        """Everything that was acknowledged is there, and nothing else."""
        for run_id, rows in self.acknowledged.items():
            found = store.load(run_id)
            assert found is not None
            assert found[1] == rows
            assert found[0].seq == len(rows)


def test_cut_connections_lose_and_double_nothing(direct: PostgresStore, through: PostgresStore, between: Proxy) -> None:
    load = Load(through)
    load.batch()
    for number in range(CUTS):
        between.cut_how = MODES[number % len(MODES)]
        load.batch()
        between.cut_how = MODES[number % len(MODES)]
        load.append([onward("b", len(load.acknowledged["b"]))])
    assert [between.cuts.count(mode) for mode in MODES] == [2 * CUTS // len(MODES)] * len(MODES)
    load.holds_in(direct)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [b"relname = ANY", b"pg_advisory_xact_lock", b"CREATE SCHEMA", b"COMMIT"])
def test_a_connection_that_is_cut_while_the_store_is_opened_is_told_and_the_next_opening_finds_all_or_nothing(
    between: Proxy, schema: str, at: bytes, mode: str
) -> None:
    url = f"postgresql://postgres@{HOST}:{between.port}/postgres?schema={schema}"
    between.at, between.cut_how = at, mode
    with pytest.raises(StoreFailed):
        PostgresStore(url)
    assert between.cuts == [mode]
    with closing(PostgresStore(url)) as store:
        load = Load(store)
        load.batch()
        load.holds_in(store)


def test_without_the_look_a_lost_reply_looks_like_a_lost_run(
    through: PostgresStore, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: who repeats without looking is refused by his own rows."""
    monkeypatch.setattr(postgres, "_looked_up", written)
    load = Load(through)
    load.batch()
    between.cut_how = "after"
    with pytest.raises(AssertionError):
        load.batch()


def stuck(direct: PostgresStore, through: PostgresStore, between: Proxy, url: str) -> list[Stale | None]:
    """The answers to an append that waits in the server while its client is cut off, until a lock that is held there is let go of."""
    direct.append([onward("run", 0)])
    through.append([onward("other", 0)])
    answers: list[Stale | None] = []
    with psycopg.connect(url) as holder:
        holder.execute(f"SELECT 1 FROM {direct._address.schema}.runs FOR UPDATE".encode())
        between.cut_how = "stuck"
        thread = threading.Thread(target=lambda: answers.extend(through.append([onward("run", 1)])))
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        for _ in range(500):
            if between.cuts and holder.execute(waiting).fetchone() != (0,):
                break
            threading.Event().wait(0.01)
        threading.Event().wait(0.3)
    thread.join(30)
    return answers


def test_what_the_server_is_still_busy_with_is_ended_before_it_is_looked_for(
    direct: PostgresStore, through: PostgresStore, between: Proxy, postgres_url: str
) -> None:
    assert stuck(direct, through, between, postgres_url) == [None]
    found = direct.head("run")
    assert found is not None
    assert found.seq == 2


def test_without_ending_it_the_server_writes_it_behind_our_back(
    direct: PostgresStore, through: PostgresStore, between: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: nothing was found, and then there it was."""
    monkeypatch.setattr(_postgres_line, "settle_earlier", lambda connection, key: None)
    (answer,) = stuck(direct, through, between, postgres_url)
    assert isinstance(answer, Stale)


def test_a_server_that_is_killed_and_started_again_loses_and_doubles_nothing() -> None:
    with server() as one:
        with closing(PostgresStore(one.url())) as store:
            load, enough = Load(store), threading.Event()
            failures: list[BaseException] = []

            def work() -> None:
                try:
                    while not enough.is_set():
                        load.batch()
                except BaseException as error:  # noqa: BLE001 (told to the test)
                    failures.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            for _ in range(4):
                before = len(load.acknowledged["a"])
                while len(load.acknowledged["a"]) < before + 20 and thread.is_alive():
                    threading.Event().wait(0.005)
                one.kill()
                one.start()
            enough.set()
            thread.join(60)
            assert failures == []
        with closing(PostgresStore(one.url())) as again:
            load.holds_in(again)
            assert again.check() == []


@hf.effect(in_doubt="ask")
async def charge(ledger: str, order: str) -> str:
    with Path(ledger).open("a") as file:  # noqa: ASYNC230 (it takes no time)
        file.write(f"{order}\n")
    return order


@hf.agent
async def shopping(ledger: str, name: str) -> list[str]:
    return [await charge(ledger, f"{name}-{number}") for number in range(10)]


def test_agents_go_on_through_cut_connections_and_do_nothing_twice(through: PostgresStore, between: Proxy, tmp_path: Path) -> None:
    ledger, over = tmp_path / "ledger", threading.Event()

    def cut() -> None:
        for mode in itertools.cycle(MODES):
            between.cut_how = mode
            if over.wait(0.01):
                return

    async def shop(app: hf.Holdfast) -> list[list[str]]:
        handles = [await app.start(shopping, str(ledger), name, run_id=name) for name in "abcdefgh"]
        return [await handle.result() for handle in handles]

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        with hf.Holdfast(through) as app:
            results = asyncio.run(shop(app))
            over.set()
            cutter.join()
            between.cut_how = None
            assert [verdict.good for verdict in app.check()] == [True] * 8
    finally:
        over.set()
    assert len(between.cuts) >= 10
    assert results == [[f"{name}-{number}" for number in range(10)] for name in "abcdefgh"]
    assert sorted(ledger.read_text().split()) == sorted(itertools.chain(*results))


HUNG = """
import os, signal, sys, threading
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.sample import create, onward
store = PostgresStore(sys.argv[1])
store.append([create("run")])
print("ready", flush=True)
sys.stdin.readline()
try:
    store.append([onward("run", 1)])
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)
"""


def test_ctrl_c_gets_through_while_the_server_hangs(postgres_url: str, direct: PostgresStore) -> None:
    command = [*HEARS_CTRL_C, sys.executable, "-c", HUNG, f"{postgres_url}?schema={direct._address.schema}"]
    pipe = subprocess.PIPE
    with psycopg.connect(postgres_url) as holder, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        holder.execute(f"SELECT 1 FROM {direct._address.schema}.runs FOR UPDATE".encode())
        one.stdin.write("go\n")
        one.stdin.flush()
        for _ in range(500):
            if holder.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))").fetchall():
                break
            threading.Event().wait(0.01)
        one.send_signal(signal.SIGINT)
        assert one.stdout.readline() == "interrupted\n"


def test_a_removal_whose_reply_is_lost_is_said_to_be_uncertain_and_can_be_looked_up(
    direct: PostgresStore, through: PostgresStore, between: Proxy
) -> None:
    direct.append([create("run")])
    between.at, between.cut_how = b"COMMIT", "after"
    with pytest.raises(StoreFailed, match="not known whether that was done"):
        through.remove([removal(head("run", 1))])
    assert direct.tombstone("run") is not None
    assert through.load("run") is None


def test_where_the_look_behind_a_lost_reply_is_broken_off_nobody_is_told_that_nothing_was_written(
    direct: PostgresStore, through: PostgresStore, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(through)
    load.batch()

    def broken_off(*_: object) -> None:
        raise psycopg.errors.QueryCanceled("canceling statement due to user request")

    monkeypatch.setattr(postgres, "landed", broken_off)
    between.cut_how = "after"
    with pytest.raises(StoreFailed, match=r"user request\. It is not known whether the last records were written"):
        load.append([onward("b", 1)])
    found = direct.head("b")
    assert found is not None
    assert found.seq == 2


def test_a_server_that_stays_away_is_said_and_what_follows_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.2)
    with server() as one, closing(PostgresStore(one.url())) as store:
        load = Load(store)
        load.batch()
        one.kill()
        with pytest.raises(StoreFailed, match="not known whether"):
            load.batch()
        one.start()
        load.batch()
        load.holds_in(store)
