"""The PostgreSQL store: held to the conformance suite on a real server, and what is its own."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreError
from holdfast.store import Query, Store
from holdfast.stores import _postgres_append, _postgres_transaction, postgres
from holdfast.stores._postgres_heads import statement
from holdfast.stores._postgres_line import Connection
from holdfast.stores.postgres import PostgresStore
from holdfast.testing import StoreConformance, ringing, transactional
from holdfast.testing.sample import create, onward, row


def schema_of(folder: Path) -> str:
    return "t_" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


class TestPostgres(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str) -> None:
        self.server_url = postgres_url

    def open(self, folder: Path) -> Store:
        return PostgresStore(f"{self.server_url}?schema={schema_of(folder)}")


# --- negative controls: one broken promise each, and the test that must notice -------------------------------------


BROKEN = [
    ("ONE_STATEMENT", b" AND seq = $3", b" AND $3::bigint > 0", "test_another_seq_is_stale", {"seq": 1}),
    ("ONE_STATEMENT", b" AND epoch = $2", b" AND $2::bigint > 0", "test_another_epoch_is_stale", {"epoch": 3}),
    ("STATEMENT", b" AND runs.seq = w.at_seq", b" AND runs.epoch = 1", "test_a_stale_append_fails_alone", {}),
    ("STATEMENT", b" AND (t.nr IN (SELECT nr FROM went_in)) IS TRUE", b"", "test_a_stale_append_takes_nothing", {}),
    ("STATEMENT", b"letters.letter_id = t.letter_id AND", b"false AND", "test_taking_removes_a_letter_with_the_append", {}),
    ("STATEMENT", b" WHERE (nr IN (SELECT nr FROM went_in)) IS TRUE", b" WHERE seq = 1", "test_all_rows_of_an_append_are_kept", {}),
]


@pytest.mark.parametrize(("name", "good", "bad", "test", "options"), BROKEN, ids=[case[3] for case in BROKEN])
def test_the_suite_notices_a_broken_statement(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, name: str, good: bytes, bad: bytes, test: str, options: Any
) -> None:
    sound = getattr(_postgres_append, name)
    assert good in sound
    monkeypatch.setattr(_postgres_append, name, sound.replace(good, bad))
    with closing(PostgresStore(f"{postgres_url}?schema={schema_of(tmp_path)}")) as store, pytest.raises((AssertionError, StoreError)):
        getattr(StoreConformance(), test)(store, **options)


# --- listing and appending stay cheap ------------------------------------------------------------------------------


FILL = """
    INSERT INTO runs (
        run_id, agent, status, owner, epoch, seq, digest, wake_us, created_us, updated_us, tags, usd, note, queue, turn, lane, tagged
    )
    SELECT 'run' || n, 'agent', (ARRAY['done', 'failed', 'waiting'])[1 + n % 3], NULL, 1, 1, '', n, 1, n, '{}', 0, '',
    'q', n::text, '', '{}'
    FROM generate_series(1, 20000) AS n
"""
QUERIES = [
    Query(limit=50),
    Query(limit=50, statuses=["done"]),
    Query(limit=50, statuses=["done", "failed"], idle_before_us=900),
    Query(limit=50, due_by_us=70),
    Query(limit=50, addressed=True),
    Query(limit=50, after="run5"),
    Query(limit=50, statuses=["waiting"], queue="q", agent="agent"),
    Query(limit=50, statuses=["waiting"], queue="q", agent="another"),
    Query(limit=50, statuses=["waiting"], queue="q", agent="agent", behind=("5000", "run5000"), not_lanes=["full"]),
    Query(limit=50, due_by_us=15_000, queue="q", behind=(10_000, "run10000")),
]


@pytest.fixture
def store(postgres_url: str, tmp_path: Path) -> Iterator[PostgresStore]:
    with closing(PostgresStore(f"{postgres_url}?schema={schema_of(tmp_path)}")) as opened:
        yield opened


def test_listing_does_not_read_what_it_does_not_list(store: PostgresStore) -> None:
    def pages(connection: Connection, query: Query) -> int:
        sql, values = statement(query)
        (found,) = connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, values).fetchall()
        plan = found[0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    store._others.run(lambda connection: connection.execute(FILL))
    store._others.run(lambda connection: connection.execute("ANALYZE runs"))
    whole = store._others.run(lambda connection: connection.execute("SELECT pg_relation_size('runs') / 8192").fetchall()[0][0])
    read = store._others.run(lambda connection: [pages(connection, query) for query in QUERIES])
    assert whole > 300
    assert max(read) < 200
    assert len(store.heads(QUERIES[0])) == 50


def test_an_owned_run_moves_without_touching_an_index(store: PostgresStore) -> None:
    """PostgreSQL calls it HOT: the new line stands beside the old one, and the indexes still point at the first of them."""
    store.append([create("run")])
    for seq in range(1, 41):
        assert store.append([onward("run", seq)]) == [None]
    with store._writer.held():
        store._writer.session().execute("SELECT pg_stat_force_next_flush()")
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = current_schema() AND relname = 'runs'"
    assert store._others.run(lambda connection: connection.execute(counts).fetchall()) == [(40, 40)]


def test_two_writers_of_the_same_runs_get_in_one_after_the_other(postgres_url: str, store: PostgresStore, tmp_path: Path) -> None:
    names = [f"run{number}" for number in range(40)]
    store.enroll("me")
    store.append([create(name) for name in names])

    def write(mine: PostgresStore, order: list[str]) -> int:
        """How many appends went in, of as many batches as there are seqs."""
        return sum(mine.append([onward(name, seq) for name in order]).count(None) for seq in range(1, 21))

    with closing(PostgresStore(f"{postgres_url}?schema={schema_of(tmp_path)}")) as other, ThreadPoolExecutor(2) as pool:
        written = list(pool.map(write, [store, other], [names, names[::-1]]))
    heads = store.heads(Query(limit=100))
    assert sum(written) == sum(found.seq - 1 for found in heads)
    assert store.check() == []


def test_what_is_too_large_is_refused_before_it_is_sent(postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres_append, "MOST_BYTES", 10_000)
    large = create("run")._replace(rows=[row(1, value=b"x" * 10_000)])
    with pytest.raises(StoreError, match="Keep large data as artifacts"):
        postgres_store.append([large])
    assert postgres_store.append([create("run")]) == [None]


def test_the_suite_notices_a_store_that_tells_nobody(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "POST", "INSERT INTO letters VALUES (%b, %b, %b, %b, %b)")
    monkeypatch.setattr(ringing, "PATIENCE_S", 2)
    suite = TestPostgres()
    suite.server_url = postgres_url
    with pytest.raises(queue.Empty):
        suite.test_who_listens_is_told_of_letters_and_of_runs_that_rest(tmp_path)


def test_the_suite_notices_a_transaction_without_its_append(postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres_transaction, "written", lambda *_: [None])
    suite = transactional.TransactionalConformance()
    with pytest.raises(AssertionError):
        suite.test_an_append_goes_in_with_its_transaction(postgres_store)
    with pytest.raises(AssertionError):
        suite.test_a_transaction_with_a_stale_append_is_refused(postgres_store, epoch=2, seq=2)
