"""Blobs as files: whole or not there, swept when a crash left them, and never taken from whoever writes."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.stores import _sqlite_blobs
from holdfast.stores._blob_files import HALF_WRITTEN, BlobFiles, condemned
from holdfast.stores._sqlite_blobs import forget
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.shelf import LATE, content, referring

TURNS = 10
OTHER = hashlib.sha256(b"other").hexdigest()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_blob_stands_under_its_digest_and_nobody_may_write_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    digest = store.keep_blob([b"content"], at_us=1)
    store.close()
    assert files_in(tmp_path / "runs.db.blobs") == [f"{digest[:2]}/{digest[2:]}"]
    assert BlobFiles(tmp_path / "runs.db.blobs").path(digest).stat().st_mode & 0o777 == 0o400


def test_a_sweep_takes_what_a_crash_left_and_not_what_is_being_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    swept = []

    def slowly() -> Iterator[bytes]:
        yield b"first"
        (tmp_path / "runs.db.blobs" / HALF_WRITTEN / "left").write_bytes(b"1234567")
        swept.append(store.sweep_blobs(LATE))
        yield b"second"

    digest = store.keep_blob(slowly(), at_us=1)
    assert swept == [(1, 7)]
    assert content(store, digest) == b"firstsecond"
    store.close()


def test_a_blob_of_the_wrong_size_is_written_anew(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    digest = store.keep_blob([b"content"], at_us=1)
    path = BlobFiles(tmp_path / "runs.db.blobs").path(digest)
    path.chmod(0o600)
    path.write_bytes(b"cut")
    assert store.keep_blob([b"content"], at_us=1) == digest
    assert content(store, digest) == b"content"
    store.close()


def test_what_is_no_digest_is_no_path(tmp_path: Path) -> None:
    for name in ("../../../etc/passwd", "", "A" * 64, "0" * 63):
        with pytest.raises(ValueError, match="is no SHA-256"):
            BlobFiles(tmp_path).path(name)


def test_a_store_without_references_has_no_tables_for_them(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    assert store.sweep_blobs(LATE) == (0, 0)
    assert (store.blob_refs("run"), store.blob_parts(OTHER), store.check()) == ([], [], [])
    digest = store.keep_blob([b"x"], at_us=1)
    assert store.append([referring("run", 0, [digest])]) == [None]
    assert (store.blob_refs("run"), store.check()) == ([digest], [])
    store.close()


def test_what_a_removed_run_referred_to_is_swept(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    with store._writer.transaction() as cursor:
        forget(cursor, "run")  # before there is a table
    digest = store.keep_blob([b"x"], at_us=1)
    assert store.append([referring("run", 0, [digest]), referring("other", 0, [digest])]) == [None, None]
    for run_id, swept in (("run", (0, 0)), ("other", (1, 1))):
        with store._writer.transaction() as cursor:
            forget(cursor, run_id)
        assert store.sweep_blobs(LATE) == swept
    store.close()


@pytest.mark.parametrize("looks", [True, False], ids=["as it is", "an append that does not look"])
def test_keeping_sweeping_and_referring_at_once_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, looks: bool) -> None:
    if not looks:
        monkeypatch.setattr(_sqlite_blobs, "missing", lambda cursor, *_: list(cursor.execute(_sqlite_blobs.TABLES)))
    store, other = SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "runs.db")
    over, found = threading.Event(), Counter[str]()

    def keep_on(number: int) -> None:
        shelf = store if number % 2 else other
        for turn in range(TURNS):
            digest = shelf.keep_blob([b"%d" % (turn % 3)], at_us=1)
            (stale,) = shelf.append([referring(f"{number}-{turn}", 0, [digest])])
            found["refused" if stale else "lost" if content(shelf, digest) is None else "there"] += 1
            with shelf._writer.transaction() as cursor:
                forget(cursor, f"{number}-{turn}")

    def sweep_on() -> int:
        swept = 0
        while not over.is_set():
            swept += other.sweep_blobs(LATE).blobs
        return swept

    with ThreadPoolExecutor() as pool:
        sweeping = pool.submit(sweep_on)
        list(pool.map(keep_on, range(4)))
        over.set()
        assert sweeping.result() > 0
    assert (found["lost"] == 0) is looks
    assert found["there"] > 0
    store.close()
    other.close()


def test_a_word_on_parts_of_a_whole_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    part = store.keep_blob([b"part"], at_us=1)
    whole = store.keep_blob([b"whole"], at_us=1, parts=[part])
    BlobFiles(tmp_path / "runs.db.blobs").remove(whole)  # as a sweep that died before its commit leaves it
    assert store.sweep_blobs(LATE) == (1, 4)
    store.close()


def test_wholes_of_wholes_are_condemned_together_or_not_at_all() -> None:
    parts = [("a", "b"), ("b", "c"), ("x", "c")]
    assert condemned({"a", "b", "c"}, parts) == {"a", "b"}
    assert condemned({"a", "b", "c", "x"}, parts) == {"a", "b", "c", "x"}
    assert condemned({"b", "c", "x"}, parts) == {"x"}
