"""The store of readable files: every promise of the seam, its fence against zombies of every age, and what it refuses to open."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.errors import Damaged, StoreDamaged, StoreError, StoreFailed, StoreForeign, StoreNewer
from holdfast.store import Append, Query, Shedding, Stale, Store
from holdfast.stores import _files_opening, files
from holdfast.stores._journal_letters import LETTERS
from holdfast.stores._journal_runs import MOST_KNOWN, seq_name
from holdfast.stores._journal_store import JournalStore
from holdfast.stores._journal_turns import PRUNED
from holdfast.stores._place import Place
from holdfast.stores._sealed import with_seal
from holdfast.stores.files import FilesStore
from holdfast.stores.opening import open_store
from holdfast.testing import StoreConformance
from holdfast.testing.pruning import removal
from holdfast.testing.sample import create, head, listed, onward, repair, row


class TestFiles(StoreConformance):
    def open(self, folder: Path) -> Store:
        return FilesStore(folder / "runs")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # power loss has tests of its own
    return tmp_path / "runs"


@pytest.fixture
def store(folder: Path) -> Iterator[FilesStore]:
    store = FilesStore(folder)
    yield store
    store.close()


# --- the fence -----------------------------------------------------------------------------------------------------


def claim(epoch: int, seq: int, owner: str) -> Append:
    return Append("run", epoch, seq, [row(seq + 1, epoch=epoch + 1)], head("run", seq + 1, epoch=epoch + 1, owner=owner))


def claimed(store: FilesStore) -> None:
    assert store.append([claim(1, 3, "you")]) == [None]


def went_on(store: FilesStore) -> None:
    claimed(store)
    assert store.append([onward("run", seq, epoch=2) for seq in (4,)]) == [None]


def shed(store: FilesStore) -> None:
    assert store.shed(Shedding(head("run", 3), [row(2, body=b"[]")], onward("run", 3)))


def repaired(store: FilesStore) -> None:
    assert store.set_aside(repair("run", rows=3, good=1))


def removed(store: FilesStore) -> None:
    assert store.remove([removal(head("run", 3))]) == [True]


def born_again(store: FilesStore) -> None:
    removed(store)
    assert store.forget(99) == 1
    assert store.append([create("run", rows=2)]) == [None]


MOVES = [claimed, went_on, shed, repaired, removed, born_again]


def late_write(folder: Path, move: Callable[[FilesStore], None]) -> tuple[object, list[int], list[int]]:
    """A zombie that knows the run well writes after somebody else has moved it: what it is told, and the seqs before and after."""
    zombie, other = FilesStore(folder), FilesStore(folder)
    zombie.append([create("run")])
    zombie.append([onward("run", 1)])
    zombie.append([onward("run", 2)])
    move(other)
    before = other.load("run")
    said = zombie.append([onward("run", 3)])[0]
    other.close()
    zombie.close()
    fresh = FilesStore(folder)
    after = fresh.load("run")
    fresh.close()
    return said, [one.epoch for one in before[1]] if before else [], [one.epoch for one in after[1]] if after else []


@pytest.mark.parametrize("move", MOVES)
def test_the_late_write_of_a_zombie_is_refused(folder: Path, move: Callable[[FilesStore], None]) -> None:
    said, before, after = late_write(folder, move)
    assert isinstance(said, Stale)
    assert before == after


def test_who_was_stopped_while_it_removed_a_run_does_not_remove_the_next_of_that_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, other = FilesStore(folder), FilesStore(folder)
    other.append([create("run", rows=3)])
    make, waiting = stopped._place.make, ["pruned/"]

    def made(name: str) -> None:
        make(name)
        if name in waiting:
            waiting.remove(name)
            assert other.head("run") is None
            assert other.forget(99) == 1
            assert other.append([create("run", rows=2)]) == [None]
            other.post("run", "k", b"", 1)

    monkeypatch.setattr(stopped._place, "make", made)
    removed(stopped)
    assert waiting == []
    assert other.load("run") == (head("run", 2), [row(1), row(2)])
    assert len(other.letters(["run"])) == 1
    assert other.tombstone("run") is None
    other.close()
    stopped.close()


def test_with_a_rename_instead_of_a_link_a_zombie_overwrites(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(source: str, target: str) -> None:
        shutil.copyfile(source, f"{source}-2")
        os.replace(f"{source}-2", target)  # noqa: PTH105

    FilesStore(folder).close()
    monkeypatch.setattr(os, "link", renamed)
    monkeypatch.setattr(_files_opening, "_refuse_unlinkable", lambda *_: None)
    said, before, after = late_write(folder, claimed)
    assert said is None
    assert before != after


@pytest.mark.parametrize("again", range(3))
def test_of_workers_that_claim_the_same_run_one_gets_it(folder: Path, again: int) -> None:
    stores = [FilesStore(folder) for _ in range(4)]
    stores[again].append([create("run")])
    with ThreadPoolExecutor(4) as pool:
        for epoch in range(1, 20):
            told = list(pool.map(lambda n, epoch=epoch: stores[n].append([claim(epoch, epoch, str(n))])[0], range(4)))
            assert told.count(None) == 1
            winner = head("run", epoch + 1, epoch=epoch + 1, owner=str(told.index(None)))
            assert {stale.head for stale in told if stale is not None} == {winner}
    for store in stores:
        store.close()


def test_of_two_who_create_a_run_one_does(folder: Path) -> None:
    stores = [FilesStore(folder) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for name in map(str, range(20)):
            made = [Append(name, 0, 0, [row(1)], head(name, 1, owner=str(n))) for n in range(4)]
            told = list(pool.map(lambda n, made=made: stores[n].append([made[n]])[0], range(4)))
            assert told.count(None) == 1
            assert {stale.head for stale in told if stale is not None} == {made[told.index(None)].head}
    for store in stores:
        store.close()


def test_a_put_whose_answer_was_lost_counts_as_made(store: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([create("run")])
    create_ = store._place.create
    monkeypatch.setattr(store._place, "create", lambda name, data: create_(name, data) and False)
    assert store.append([onward("run", 1)]) == [None]
    assert store.append([onward("run", 1)]) == [Stale(head("run", 2))]


# --- what is read --------------------------------------------------------------------------------------------------


def test_another_process_sees_at_once_what_was_written(folder: Path) -> None:
    here, there = FilesStore(folder), FilesStore(folder)
    here.append([create("run")])
    assert there.head("run") == head("run", 1)
    here.append([onward("run", 1, rows=3)])
    assert there.head("run") == head("run", 4)
    assert there.rows_after("run", 2) == (head("run", 4), [row(3), row(4)])
    assert listed(there, Query()) == ["run"]
    here.close()
    there.close()


@pytest.mark.parametrize(
    "ask", [lambda store: store.head("run"), lambda store: store.load("run"), lambda store: store.rows_after("run", 0)]
)
def test_who_looks_while_a_run_goes_into_another_generation_does_not_take_it_for_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[FilesStore], object]
) -> None:
    writer, reader = FilesStore(folder), FilesStore(folder)
    writer.append([create("run", rows=3)])
    names, turns = reader._place.names, [shed]

    def listed_before(name: str, *, after: str = "") -> list[str]:
        found = names(name, after=after)
        if name == "runs/run/" and turns:
            turns.pop()(writer)
        return found

    monkeypatch.setattr(reader._place, "names", listed_before)
    assert ask(reader) == ask(writer)
    assert ask(reader) is not None
    writer.close()
    reader.close()


def test_more_runs_than_are_remembered_are_listed(store: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_KNOWN > 1000
    monkeypatch.setattr("holdfast.stores._journal_runs.MOST_KNOWN", 3)
    store.append([create(f"r{number}") for number in range(9)])
    assert sorted(listed(store, Query())) == [f"r{number}" for number in range(9)]
    assert len(store._runs._known) == 3


def test_a_letter_that_was_taken_stays_taken_where_a_crash_left_its_file(folder: Path) -> None:
    store = FilesStore(folder)
    store.append([create("run")])
    letter = store.post("run", "k", b"", 1)
    store._runs.letters = None  # it dies before it has removed the letter
    assert store.append([onward("run", 1, takes=[letter])]) == [None]
    store.close()
    assert (folder / LETTERS / "run" / f"{letter:020d}.json").exists()
    again = FilesStore(folder)
    assert again.letters(["run"]) == []
    assert listed(again, Query(addressed=True)) == []
    assert again.append([onward("run", 2)]) == [None]
    assert not (folder / LETTERS / "run" / f"{letter:020d}.json").exists()
    assert again.append([onward("run", 3)]) == [None]
    assert b'"taken"' not in (again._place.read(again._runs._known["run"].last) or b"")
    again.close()


def test_runs_whose_letters_were_taken_are_not_looked_at_for_letters(store: FilesStore, folder: Path) -> None:
    store.append([create("run")])
    store.append([onward("run", 1, takes=[store.post("run", "k", b"", 1)])])
    assert list((folder / LETTERS).iterdir()) == []
    letter = store.post("run", "k", b"", 1)
    assert [found.letter_id for found in store.letters(["run"])] == [letter]


def test_letters_that_are_damaged_are_of_no_kind_that_anybody_acts_on(store: FilesStore, folder: Path) -> None:
    store.append([create("run")])
    letter = store.post("run", "cancel", b"", 1)
    path = folder / LETTERS / "run" / f"{letter:020d}.json"
    path.write_text(path.read_text().replace("cancel", "answer"))
    assert [found.kind for found in store.letters(["run"])] == ["damaged"]
    assert any("is damaged" in told for told in store.check())


def test_a_store_of_a_parent_process_is_not_used_in_a_child(store: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    with pytest.raises(StoreError, match=r"os\.fork"):
        store.append([create("run")])


# --- what is damaged -----------------------------------------------------------------------------------------------


def sealed_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs/run/sealed-*/*.json"))


def test_a_sealed_commit_that_changed_is_named(store: FilesStore, folder: Path) -> None:
    store.append([create("run")])
    store.append([onward("run", 1)])
    path = sealed_files(folder)[1]
    path.write_bytes(path.read_bytes().replace(b"digest", b"didest"))
    with pytest.raises(Damaged, match=str(path)) as error:
        FilesStore(folder).load("run")
    assert error.value.seq == 2
    assert any(str(path) in told for told in store.check())


def test_a_sealed_commit_that_is_gone_is_missed_as_long_as_its_view_tells_of_it(store: FilesStore, folder: Path) -> None:
    store.append([create("run")])
    store.append([onward("run", 1)])
    sealed_files(folder)[1].unlink()
    fresh = FilesStore(folder)
    with pytest.raises(Damaged, match="sealed commit is missing"):
        fresh.load("run")
    assert fresh.found("run") == (head("run", 2), [row(1), row(2)])
    fresh.close()


@pytest.mark.parametrize("gone", ["sealed-*", "sealed-*/*", "journal"])
def test_a_run_that_lost_its_commits_is_not_begun_anew(store: FilesStore, folder: Path, gone: str) -> None:
    store.append([create("run")])
    for path in folder.glob(f"runs/run/{gone}"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    fresh = FilesStore(folder)
    if gone == "journal":
        assert fresh.load("run") == (head("run", 1), [row(1)])
    else:
        with pytest.raises(StoreDamaged, match="Restore a backup, or move"):
            fresh.append([create("run")])
    fresh.close()


def test_a_view_from_before_a_repair_is_not_missed(store: FilesStore, folder: Path) -> None:
    store.append([create("run")])
    store.append([onward("run", 1)])
    store.append([onward("run", 2)])
    views = sorted(folder.glob("runs/run/journal/*"))
    kept = views[-1].read_bytes()
    assert store.set_aside(repair("run", rows=3, good=1))
    views[-1].write_bytes(kept)  # somebody who was reading the run meanwhile put it there
    assert store.load("run") == (head("run", 2, epoch=2, owner=None), [row(1), row(2, epoch=2)])
    assert store.found("run") == store.load("run")


def test_what_the_tools_of_a_person_leave_in_a_folder_is_not_ours(store: FilesStore, folder: Path) -> None:
    store.append([create("run")])
    for path in sealed_files(folder):
        path.with_name(f"{path.name}~").write_bytes(b"an editor's")
        path.with_name(".DS_Store").write_bytes(b"a viewer's")
    (folder / "runs" / "notes.txt").write_text("mine")
    fresh = FilesStore(folder)
    assert fresh.append([onward("run", 1)]) == [None]
    assert fresh.load("run") == (head("run", 2), [row(1), row(2)])
    assert listed(fresh, Query()) == ["run"]
    fresh.close()


@pytest.mark.parametrize("name", ["{}.bak", "{}-copy", "{} (copy)", "sealed-backup", "sealed-9999-old"])
def test_a_copy_of_the_commits_that_a_person_made_beside_them_is_not_the_run(store: FilesStore, folder: Path, name: str) -> None:
    store.append([create("run")])
    generation = sealed_files(folder)[0].parent
    shutil.copytree(generation, generation.with_name(name.format(generation.name)))
    assert store.append([onward("run", 1)]) == [None]
    fresh = FilesStore(folder)
    assert fresh.load("run") == (head("run", 2), [row(1), row(2)])
    assert fresh.append([onward("run", 1)]) == [Stale(head("run", 2))]
    fresh.close()


@pytest.mark.parametrize("name", ["run-2", "run copy"])
def test_a_copy_of_a_whole_run_that_a_person_made_is_not_listed_as_a_second_one(store: FilesStore, folder: Path, name: str) -> None:
    store.append([create("run")])
    shutil.copytree(folder / "runs/run", folder / "runs" / name)
    fresh = FilesStore(folder)
    assert listed(fresh, Query()) == listed(fresh, Query(after="")) == ["run"]
    fresh.close()


def test_what_is_no_letter_is_not_taken_for_one(store: FilesStore, folder: Path) -> None:
    unowned = create("run")
    store.append([unowned._replace(head=unowned.head._replace(owner=None))])
    number = store.post("run", "k", b"", 1)
    (folder / "letters/run/.DS_Store").write_bytes(b"a viewer's")
    assert [letter.letter_id for letter in store.letters(["run"])] == [number]
    assert store.append([onward("run", 1, takes=[number])]) == [None]
    assert listed(store, Query(addressed=True)) == []
    assert store.post("run", "k", b"", 1) > number


@pytest.mark.parametrize("came_in", [1, 3])
def test_a_repair_takes_what_a_view_still_holds(store: FilesStore, folder: Path, came_in: int) -> None:
    store.append([create("run", rows=came_in)])
    store.append([onward("run", came_in)])
    sealed_files(folder)[0].write_bytes(b"{}")
    fresh, last = FilesStore(folder), came_in + 1
    expected = head("run", last), [row(seq) for seq in range(1, last + 1)]
    assert fresh.found("run") == expected
    assert fresh.set_aside(repair("run", rows=last, good=last)._replace(rows=(), head=head("run", last)))
    assert fresh.load("run") == expected
    assert fresh.append([onward("run", last)]) == [None]
    fresh.close()


def test_a_view_that_is_missing_too_is_not_made_up(store: FilesStore, folder: Path) -> None:
    store.append([create("run", rows=3)])
    store.append([onward("run", 3)])
    sealed_files(folder)[0].write_bytes(b"{}")
    next(folder.glob("runs/run/journal/000002-*")).unlink()
    assert store.found("run")[1] == [row(4)]


# --- opening -------------------------------------------------------------------------------------------------------


def test_a_folder_is_opened_by_its_url_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (f"file://{tmp_path}/runs", f"{tmp_path}/runs/", f"{tmp_path}/runs", "runs", "runs/", tmp_path / "runs"):
        store = open_store(text)
        assert isinstance(store, JournalStore)
        assert store.url == f"file://{tmp_path}/runs"
        assert isinstance(store._place, Place)
        store.close()


def test_a_folder_that_another_process_is_just_making_a_store_of_is_no_foreign_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = _files_opening._holds_others

    def meanwhile(path: Path) -> bool:
        monkeypatch.setattr(_files_opening, "_holds_others", others)
        FilesStore(path).close()
        return others(path)

    monkeypatch.setattr(_files_opening, "_holds_others", meanwhile)
    store = FilesStore(tmp_path / "runs")
    assert _files_opening._holds_others is others
    assert store.head("r") is None
    store.close()


def test_what_is_no_store_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    for name in ("mine", "file"):
        with pytest.raises(StoreForeign):
            FilesStore(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine", "thesis.txt"]
    with pytest.raises(StoreError, match="there is no folder"):
        FilesStore(tmp_path / "not" / "there")


def test_a_newer_store_is_refused_and_so_is_one_that_does_not_say_what_it_is(tmp_path: Path) -> None:
    FilesStore(tmp_path / "runs").close()
    about = tmp_path / "runs" / "holdfast.json"
    said = json.loads(about.read_text())
    about.write_bytes(with_seal({"store": "holdfast", "format": said["format"] + 1, "id": said["id"]}))
    with pytest.raises(StoreNewer):
        FilesStore(tmp_path / "runs")
    about.write_text("{}")
    with pytest.raises(StoreDamaged, match=r"holdfast\.json"):
        FilesStore(tmp_path / "runs")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    with pytest.raises(StoreFailed, match="hard links"):
        FilesStore(tmp_path / "runs")


def test_one_where_a_link_overwrites_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", shutil.copyfile)
    with pytest.raises(StoreFailed, match="overwrites"):
        FilesStore(tmp_path / "runs")


def test_on_a_network_file_system_no_lock_proves_a_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, dead in (("ext4", True), ("nfs4", False)):
        monkeypatch.setattr(files, "file_system", lambda _, kind=kind: kind)
        owner, observer = FilesStore(tmp_path / kind), FilesStore(tmp_path / kind)
        owner.enroll("me")
        owner.close()
        assert observer.pulse("me") == (1, dead)
        observer.close()


def test_under_git_the_runs_are_kept_and_not_what_the_processes_need_that_are_at_work(store: FilesStore, folder: Path) -> None:
    store.enroll("me")
    store.append([create("run")])
    store.post("run", "message", b"{}", 1)
    store.publish("run", b"token")
    store.sweep_blobs(0)
    subprocess.run(["git", "init", "-q", folder], check=True)
    told = subprocess.run(["git", "-C", folder, "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    assert sorted(told.split()[1::2]) == [".gitignore", "holdfast.json", "letters/", "runs/"]
    (folder / ".gitignore").write_text("mine")
    FilesStore(folder).close()
    assert (folder / ".gitignore").read_text() == "mine"


def test_the_names_of_a_run_are_what_is_documented(store: FilesStore, folder: Path) -> None:
    store.append([create("run"), create("Gone")])
    store.remove([removal(head("Gone", 1))])
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.json")}
    generation = json.loads((folder / "runs/run/run.json").read_text())["generation"]
    assert names == {
        "holdfast.json", "runs/run/run.json", f"runs/run/{generation}/{seq_name(1)}", "runs/run/journal/000001-step-done.json",
        "runs/run/state.json", f"{PRUNED}^gone.json",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "file://", "file://host/folder", "file:folder"])
def test_what_names_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="file:///FOLDER"):
        open_store(text)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_makes_no_store_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for text in (f"file://{tmp_path}/none", f"{tmp_path}/none/", f"{tmp_path}/empty"):
        assert main(["runs", "--store", text]) != 0
        assert "there is no store here" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    FilesStore(tmp_path / "empty").close()
    assert main(["runs", "--store", f"{tmp_path}/empty"]) == 0
