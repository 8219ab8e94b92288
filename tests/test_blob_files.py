"""Blobs as files: whole or not there, swept when a crash left them, and never taken from whoever writes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores._blob_files import HALF_WRITTEN, BlobFiles, condemned
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.shelf import LATE, content, referring

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
