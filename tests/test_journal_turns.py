"""A run of readable files that is pruned, repaired or removed while somebody reads it: who finds that finishes it, and nothing is lost."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store import Shedding, Stale
from holdfast.stores import _files_place
from holdfast.stores._journal_runs import seq_name
from holdfast.stores.files import FilesStore
from holdfast.testing.pruning import removal
from holdfast.testing.sample import create, head, onward, repair, row


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # power loss has tests of its own
    return tmp_path / "runs"


def read_meanwhile(reader: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody reads the run as soon as the next file has its name, before its folder is flushed."""

    def reach(point: str) -> None:
        if point == "file.linked":
            monkeypatch.undo()
            reader.load("run")

    monkeypatch.setattr(_files_place, "reach", reach)


def test_who_reads_a_turn_before_it_is_flushed_finishes_it_and_nothing_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(FilesStore(folder)) as writer, closing(FilesStore(folder)) as reader:
        writer.append([create("run", rows=3)])
        added = onward("run", 3)
        read_meanwhile(reader, monkeypatch)
        assert writer.shed(Shedding(head("run", 3), [], added, (2, 2)))
        for store in (writer, reader):
            assert [one.seq for one in store.load("run")[1]] == [1, 3, 4]  # type: ignore[index]
        assert writer.append([onward("run", 4)]) == [None]


def turned_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody prunes the run as soon as the next file has its name, before its folder is flushed."""

    def reach(point: str) -> None:
        if point == "file.linked":
            monkeypatch.undo()
            with closing(FilesStore(folder)) as other:
                now = other.head("run")
                assert now is not None
                assert other.shed(Shedding(now, [], onward("run", now.seq)))

    monkeypatch.setattr(_files_place, "reach", reach)


def test_an_append_that_went_into_the_next_generation_before_it_was_flushed_is_not_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(FilesStore(folder)) as store:
        store.append([create("run")])
        letter_id = store.post("run", "message", b"hello", 1)
        turned_meanwhile(folder, monkeypatch)
        assert store.append([onward("run", 1)._replace(takes=(letter_id,))]) == [None]
        assert store.letters(["run"]) == []
        assert [one.seq for one in store.load("run")[1]] == [1, 2, 3]  # type: ignore[index]
        assert store.append([onward("run", 1)]) == [Stale(head("run", 3))]


def test_the_old_generation_stays_until_the_new_one_has_begun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(FilesStore(folder)) as store:
        store.append([create("run", rows=3)])
        create_ = store._place.create
        monkeypatch.setattr(store._place, "create", lambda name, data: not name.endswith(seq_name(0)) and create_(name, data))
        store.shed(Shedding(head("run", 3), [], onward("run", 3), (2, 2)))
        monkeypatch.undo()
        assert [one.seq for one in store.load("run")[1]] == [1, 3, 4]  # type: ignore[index]


def test_who_reads_a_removal_before_it_is_flushed_finishes_it_and_it_is_no_less_a_removal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(FilesStore(folder)) as writer, closing(FilesStore(folder)) as reader:
        writer.append([create("run")])
        read_meanwhile(reader, monkeypatch)
        assert writer.remove([removal(head("run", 1))]) == [True]
        assert reader.load("run") is None
        assert reader.tombstone("run") == removal(head("run", 1)).grave


def test_who_reads_while_a_run_turns_and_goes_on_sees_one_moment_and_no_damage(folder: Path) -> None:
    writer, reader = FilesStore(folder), FilesStore(folder)
    writer.append([create("run")])

    def turning() -> None:
        for _ in range(15):
            now = writer.head("run")
            assert now is not None
            kept = onward("run", now.seq, epoch=now.epoch)
            assert writer.shed(Shedding(now, [], kept))
            assert writer.append([onward("run", now.seq + 1, epoch=now.epoch)]) == [None]
            shut = repair("run", rows=now.seq + 2, good=1)._replace(found=writer.head("run"))
            raised = head("run", 2, epoch=now.epoch + 1)
            assert writer.set_aside(shut._replace(rows=[row(2, epoch=now.epoch + 1)], head=raised))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(turning)
        while True:
            last = writing.done()
            found = reader.load("run")
            assert found is not None
            assert [one.seq for one in found[1]] == list(range(1, found[0].seq + 1))
            if last:
                break
    writing.result()
    writer.close()
    reader.close()
