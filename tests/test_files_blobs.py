"""Blobs in a folder of files: stored once, found in the folder of each run, and never swept from under it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store import Query
from holdfast.stores._matching import listed
from holdfast.stores.files import FilesStore
from holdfast.testing.pruning import removal
from holdfast.testing.sample import head
from holdfast.testing.shelf import LATE, content, referring


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FilesStore]:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    store = FilesStore(tmp_path / "runs")
    yield store
    store.close()


def test_a_blob_is_stored_once_and_found_in_the_folder_of_each_run(store: FilesStore) -> None:
    digest = store.keep_blob([b"kept"], at_us=1)
    store.append([referring("a", 0, [digest]), referring("b", 0, [digest])])
    links = [store.path / "runs" / run / "artifacts" / digest for run in "ab"]
    assert [link.read_bytes() for link in links] == [b"kept"] * 2
    assert len({link.stat().st_ino for link in [*links, *store.path.glob(f"blobs/*/{digest[2:]}")]}) == 1


def test_a_copy_of_the_store_keeps_its_blobs(store: FilesStore, tmp_path: Path) -> None:
    digest = store.keep_blob([b"kept"], at_us=1)
    store.append([referring("a", 0, [digest])])
    shutil.copytree(store.path, tmp_path / "copy")
    copy = FilesStore(tmp_path / "copy")
    assert copy.sweep_blobs(LATE) == (0, 0)
    assert content(copy, digest) == b"kept"
    copy.close()


def test_where_a_blob_has_too_many_links_the_name_alone_holds_it(store: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.keep_blob([b"kept"], at_us=1)
    link = os.link

    def full(source: str, target: str) -> None:
        if "artifacts" in str(target):
            raise OSError(errno.EMLINK, "Too many links")
        link(source, target)

    monkeypatch.setattr(os, "link", full)
    assert store.append([referring("a", 0, [digest])]) == [None]
    assert store.blob_refs("a") == [digest]
    assert store.sweep_blobs(LATE) == (0, 0)


def test_a_removed_run_lets_go_of_its_blobs(store: FilesStore) -> None:
    digest = store.keep_blob([b"kept"], at_us=1)
    first = referring("a", 0, [digest])
    store.append([first])
    assert store.remove([removal(first.head)]) == [True]
    assert store.sweep_blobs(LATE) == (1, 4)


def test_heads_are_matched_one_by_one_and_paged() -> None:
    heads = [head(name, 1, updated_us=number) for number, name in enumerate("abc")]
    assert [found.run_id for found in listed(heads, Query(limit=2))] == ["c", "b"]
    assert [found.run_id for found in listed(heads, Query(limit=2, after="a"))] == ["b", "c"]
