"""`_postgres_blobs` and `_postgres_live`: blobs of many pieces are streamed, and what runs emit is swept, or lost without a word."""

from __future__ import annotations

import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from holdfast.stores import _postgres_live
from holdfast.stores._postgres_blobs import PIECE_BYTES
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.sample import create, head, keep
from holdfast.testing.shelf import LATE, referring


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5])
def test_a_blob_of_any_number_of_pieces_is_streamed(postgres_store: PostgresStore, size: int) -> None:
    data = os.urandom(size)
    digest = postgres_store.keep_blob((data[at : at + 1000] for at in range(0, size, 1000)), at_us=1)
    assert digest == hashlib.sha256(data).hexdigest()
    stream = postgres_store.open_blob(digest)
    assert stream is not None
    with stream:
        assert stream.read() == data
        assert stream.seek(-min(size, 10), io.SEEK_END) == max(0, size - 10)
        assert stream.read() == data[-10:]


def test_blobs_that_are_kept_at_the_same_time_are_kept_once(postgres_store: PostgresStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: postgres_store.keep_blob([b"x" * 1000], at_us=1), range(8)))) == 1
    count = "SELECT (SELECT count(*) FROM blobs), (SELECT count(*) FROM blob_pieces)"
    assert postgres_store._others.run(lambda connection: connection.execute(count).fetchall()) == [(1, 1)]


def test_a_sweep_waits_for_an_append_that_refers(postgres_url: str, postgres_store: PostgresStore) -> None:
    """Either the reference is seen by the sweep, or the append is told that the blob is gone: never neither."""
    with closing(PostgresStore(f"{postgres_url}?schema={postgres_store._address.schema}")) as other, ThreadPoolExecutor(2) as pool:
        for number in range(20):
            digest = postgres_store.keep_blob([b"%d" % number], at_us=1)
            sweep = pool.submit(other.sweep_blobs, LATE)
            (stale,) = pool.submit(postgres_store.append, [referring(f"run{number}", 0, [digest])]).result()
            sweep.result()
            stream = postgres_store.open_blob(digest)
            assert (stream is None) == (stale is not None)
            assert stale is None or list(stale.missing) == [digest]


def test_what_a_run_said_is_swept_once_nobody_owns_it(postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres_live, "SWEEP", _postgres_live.SWEEP.replace(_postgres_live.LAST_WORDS, "0 seconds"))
    postgres_store.enroll("me")
    postgres_store.append([create("owned")])
    keep(postgres_store, head("rests", 1, owner=None))
    for run_id in ("owned", "rests", "nobody"):
        postgres_store.publish(run_id, b"1")
    postgres_store.renew("me")
    assert [len(postgres_store.published(run_id, 0)) for run_id in ("owned", "rests", "nobody")] == [1, 0, 0]


def test_what_cannot_be_published_is_lost_and_said_once(postgres_store: PostgresStore, caplog: pytest.LogCaptureFixture) -> None:
    postgres_store._live.close()
    postgres_store.publish("run", b"1")
    postgres_store.publish("run", b"2")
    assert postgres_store.published("run", 0) == []
    assert len(caplog.records) == 1
