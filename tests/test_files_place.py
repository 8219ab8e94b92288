"""A folder as a place of names that are created once: flushed, whole or not there, and refused once vacated."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import StoreFailed, StoreFull, StoreReadOnly
from holdfast.stores._files_place import HALF_WRITTEN, FilesPlace


@pytest.fixture
def place(tmp_path: Path) -> FilesPlace:
    found = FilesPlace(tmp_path, "file:///x")
    found.make("a/b/")
    return found


def test_a_name_is_created_once(place: FilesPlace) -> None:
    assert place.create("a/b/1", b"first")
    assert not place.create("a/b/1", b"second")
    assert place.read("a/b/1") == b"first"
    assert place.has("a/b/1")
    assert list((place.root / HALF_WRITTEN).iterdir()) == []


def test_of_many_who_create_a_name_one_does(place: FilesPlace) -> None:
    with ThreadPoolExecutor(8) as pool:
        for name in map(str, range(20)):
            found = list(pool.map(lambda n, name=name: place.create(f"a/b/{name}", b"%d" % n), range(8)))
            assert found.count(True) == 1
            assert place.read(f"a/b/{name}") == b"%d" % found.index(True)


def test_names_are_listed_in_order_behind_one(place: FilesPlace) -> None:
    for name in ("3", "1", "2"):
        place.create(f"a/b/{name}", b"")
    assert place.names("a/b/") == ["1", "2", "3"]
    assert place.names("a/b/", after="1") == ["2", "3"]
    assert place.names("a/") == ["b/"]
    assert place.names("nowhere/") == []


def test_what_was_vacated_takes_nothing_any_more(place: FilesPlace) -> None:
    place.create("a/b/1", b"")
    place.vacate("a/b/")
    assert not place.create("a/b/1", b"again")
    assert not place.create("a/b/2", b"")
    assert place.names("a/") == []
    assert list((place.root / HALF_WRITTEN).iterdir()) == []
    place.vacate("a/b/")


def test_a_name_in_a_folder_that_was_never_made_is_refused(place: FilesPlace) -> None:
    assert not place.create("nowhere/1", b"")
    assert place.read("nowhere/1") is None
    place.remove("nowhere/1")
    place.settle("nowhere/")


@pytest.mark.parametrize(
    ("number", "kind"), [("ENOSPC", StoreFull), ("EDQUOT", StoreFull), ("EIO", StoreFailed), ("EROFS", StoreReadOnly)]
)
@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_what_the_system_refuses_is_said_and_nothing_is_left(
    place: FilesPlace, monkeypatch: pytest.MonkeyPatch, call: str, number: str, kind: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise OSError(getattr(errno, number), number)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(kind):
            place.create("a/b/1", b"data")
    assert place.read("a/b/1") is None
    assert list((place.root / HALF_WRITTEN).iterdir()) == []
    assert place.create("a/b/1", b"data")


def test_what_a_crash_left_half_written_goes_when_it_is_old(tmp_path: Path) -> None:
    FilesPlace(tmp_path, "file:///x")
    old, new, folder = (tmp_path / HALF_WRITTEN / name for name in ("old", "new", "folder"))
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    folder.mkdir()
    for each in (old, folder):
        os.utime(each, (1, 1))
    FilesPlace(tmp_path, "file:///x")
    assert list((tmp_path / HALF_WRITTEN).iterdir()) == [new]
