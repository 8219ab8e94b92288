"""A copy of a run leaves the run as it is: one that has ended comes in as it was, any other one as a fork that knows what happened."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync
from crashing import FailingStore, loaded, play, records, status
from holdfast.errors import Refusal, StoreFailed
from holdfast.moving import archive
from holdfast.moving.copying import Copying, last_point
from holdfast.operating import pruning
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore

did: list[str] = []
keys: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    did.clear()


@hf.effect(in_doubt="ask")
def pay(what: str) -> str:
    did.append(what)
    keys.append(hf.key())
    if what == "unclear":
        raise RuntimeError("reset by peer")
    return f"paid {what}"


@hf.step
def draw() -> hf.Artifact:
    return hf.Artifact(b"a picture")


@hf.agent
def fine() -> list[str]:
    return [draw().bytes().decode(), pay("a")]


@hf.agent
def asking() -> list[object]:
    return [draw().bytes().decode(), pay("a"), holdfast.sync.ask("go on?"), pay("b")]


@hf.agent
def doubting() -> list[str]:
    return [pay("a"), pay("unclear")]


@hf.step
def shaky() -> str:
    if "mended" not in did:
        raise ValueError("not yet")
    return "fine"


@hf.agent
def failing() -> str:
    pay("a")
    return shaky()


@hf.agent
def child() -> str:
    return f"{pay('low')} {holdfast.sync.ask('go on?')}"


@hf.agent
def parent() -> list[str]:
    return [pay("top"), child()]


@hf.agent
def grown_up() -> list[object]:
    return [fine(), holdfast.sync.ask("go on?")]


def begun(agent: Any) -> MemoryStore:
    store = MemoryStore()
    with suppress(hf.RunWaiting, hf.RunFailed, ValueError):
        play(store, agent)
    return store


def copied(source: Any, to: Any, **more: Any) -> Copying:
    with hf.Holdfast(source) as app:
        return app.copy("r", to=to, by="ann", **more)


def through(way: str, source: MemoryStore, target: Any, folder: Path, **more: Any) -> Copying:
    """From one store to another, directly or through a file."""
    if way == "store":
        return copied(source, target, **more)
    if not (folder / "r.holdfast").exists():
        copied(source, folder / "r.holdfast")
    with hf.Holdfast(target) as app:
        return app.copy(folder / "r.holdfast", by="ann", **more)


WAYS = pytest.mark.parametrize("way", ["store", "file"])


@WAYS
def test_a_run_that_has_ended_comes_in_as_it_is(way: str, tmp_path: Path) -> None:
    source, target = begun(fine), MemoryStore()
    before = loaded(source)
    found = through(way, source, target, tmp_path)
    assert (found.new_id, found.at, found.status, found.existed, found.artifacts) == ("r", "", "done", False, 1)
    assert loaded(target) == loaded(source) == before
    assert play(target, fine) == ["a picture", "paid a"]
    assert did == ["a"]
    with hf.Holdfast(target) as app:
        assert app.check("r")[0].good
    again = copied(source, target)
    assert again.existed


@WAYS
@pytest.mark.parametrize("new_id", ["r", "r.f1", None])
def test_no_copy_shares_a_key_with_its_source_or_another_copy(way: str, tmp_path: Path, new_id: str | None) -> None:
    source, stores = begun(asking), [MemoryStore(), MemoryStore()]
    copies = [through(way, source, store, tmp_path, new_id=new_id).new_id for store in stores]
    assert [copied(source, store, new_id=new_id).existed for store in stores] == [True, True]
    with hf.Holdfast(source) as app:
        places = [(source, "r"), (source, app.fork("r", at=2)), *zip(stores, copies, strict=True)]
    for store, run_id in places:
        with suppress(hf.RunWaiting):
            play(store, asking, run_id=run_id)
        with hf.Holdfast(store) as app:
            app.answer(run_id, "3", yes=True)
        play(store, asking, run_id=run_id)
    started = [[record for record in records(store, run_id) if isinstance(record, rec.StepStarted)] for store, run_id in places]
    assert len({each[0].key for each in started}) == 1  # this was done before they went apart
    assert len({each[-1].key for each in started}) == len(places)


def test_forks_of_a_copy_and_of_its_source_share_no_key_either() -> None:
    source, target = begun(asking), MemoryStore()
    copied(source, target, new_id="r")
    origins = []
    for store in (source, target):
        with hf.Holdfast(store) as app:
            assert app.fork("r", at=2) == "r.f1"
        origins += [record.origin for record in records(store, "r.f1") if isinstance(record, rec.RunForked)][-1:]
    assert len(set(origins)) == 2


@WAYS
def test_an_unfinished_run_comes_in_as_a_fork_and_both_go_on(way: str, tmp_path: Path) -> None:
    source, target = begun(asking), MemoryStore()
    before = loaded(source)
    found = through(way, source, target, tmp_path)
    assert (found.new_id, found.at, found.existed) == ("r.f1", "2", False)
    assert loaded(source) == before
    assert target.head("r") is None
    forked = next(record for record in records(target, "r.f1") if isinstance(record, rec.RunForked))
    assert (forked.source, forked.by, forked.effects) == ("r", "ann", "ask")
    results = []
    for store, run_id in ((source, "r"), (target, "r.f1")):
        with suppress(hf.RunWaiting):
            play(store, asking, run_id=run_id)
        with hf.Holdfast(store) as app:
            app.answer(run_id, "3", yes=True)
        results.append(play(store, asking, run_id=run_id))
    assert results == [["a picture", "paid a", True, "paid b"]] * 2
    assert did == ["a", "b", "b"]


def test_two_forks_of_one_archive_in_two_places_have_keys_of_their_own(tmp_path: Path) -> None:
    copied(begun(asking), tmp_path / "r.holdfast")
    keys.clear()
    for folder in ("a.db", "b.db"):
        with hf.Holdfast(tmp_path / folder) as app:
            found = app.copy(tmp_path / "r.holdfast", by="ann")
            assert (found.new_id, app.copy(tmp_path / "r.holdfast", by="ann").existed) == ("r.f1", True)
            with suppress(hf.RunWaiting):
                app.run(asking, run_id="r.f1", wait=False)
            app.answer("r.f1", "3", yes=True)
            app.run(asking, run_id="r.f1")
    assert len(keys) == len(set(keys)) == 2


def test_the_fork_of_a_failed_run_tries_again_what_failed() -> None:
    source, target = begun(failing), MemoryStore()
    assert status(source) == "failed"
    found = copied(source, target)
    assert found.at == "1"
    did.append("mended")
    assert play(target, failing, run_id=found.new_id) == "fine"


def test_what_is_in_doubt_is_asked_about_in_the_fork_too() -> None:
    source, target = begun(doubting), MemoryStore()
    found = copied(source, target, new_id="mine")
    assert (found.new_id, found.at, status(source)) == ("mine", "1", "waiting")
    with pytest.raises(hf.RunWaiting):
        play(target, doubting, run_id="mine")
    assert did == ["a", "unclear"]
    with hf.Holdfast(target) as app:
        assert 'pay(what="unclear")' in app.inbox()[0].what
        app.resolve("mine", "2", landed="paid after all")
    assert play(target, doubting, run_id="mine") == ["paid a", "paid after all"]
    assert did == ["a", "unclear"]


def test_a_copy_that_is_repeated_is_the_same_and_one_that_went_on_is_another() -> None:
    source, target = begun(asking), MemoryStore()
    assert [copied(source, target).new_id, copied(source, target).existed] == ["r.f1", True]
    with suppress(hf.RunWaiting):
        play(target, asking, run_id="r.f1")
    assert copied(source, target).new_id == "r.f2"
    with pytest.raises(Refusal, match=r"there is a run 'x' in memory: already"):
        play(target, fine, run_id="x")
        copied(source, target, new_id="x")


@pytest.mark.parametrize("agent", [fine, asking])
def test_who_is_interrupted_behind_the_append_repeats_it(agent: Any) -> None:
    source, target = begun(agent), FailingStore(lambda row: True, written=True)
    with pytest.raises(StoreFailed):
        copied(source, target)
    target.mend()
    assert copied(source, target).existed
    assert len(target._heads) == 1


def test_another_run_of_that_id_is_not_touched() -> None:
    source, target = begun(fine), begun(asking)
    before = loaded(target)
    with pytest.raises(Refusal, match="there is another run 'r' in memory:; nothing was copied"):
        copied(source, target)
    with pytest.raises(Refusal, match="comes in as it is, under its own id"):
        copied(source, MemoryStore(), new_id="x")
    assert loaded(target) == before


def test_a_run_that_needs_its_children_is_moved_not_copied(tmp_path: Path) -> None:
    source, target = begun(parent), MemoryStore()
    with pytest.raises(Refusal, match=r"may still need its child run 'r\.2'"):
        copied(source, target)
    grown, other = begun(grown_up), MemoryStore()
    found = copied(grown, other)
    with suppress(hf.RunWaiting):
        play(other, grown_up, run_id=found.new_id)
    with hf.Holdfast(other) as app:
        app.answer(found.new_id, "2", yes=True)
    assert play(other, grown_up, run_id=found.new_id) == [["a picture", "paid a"], True]
    assert did == ["top", "low", "a"]
    assert copied(source, tmp_path / "backup.holdfast").done  # a backup can always be made


def test_a_dry_run_changes_nothing_and_looks_through_an_archive(tmp_path: Path) -> None:
    source, target = begun(asking), MemoryStore()
    assert copied(source, target, dry_run=True).at == "2"
    assert copied(source, tmp_path / "r.holdfast", dry_run=True).done is False
    assert list(tmp_path.iterdir()) == []
    digest = copied(source, tmp_path / "r.holdfast").digest
    with hf.Holdfast(target) as app:
        found = app.copy(tmp_path / "r.holdfast", dry_run=True)
        assert (found.done, found.digest, found.records) == (False, digest, len(loaded(source)[1]))
    assert target._heads == {}


def test_a_file_is_never_written_over_and_never_half_written(tmp_path: Path) -> None:
    source, file = begun(asking), tmp_path / "r.holdfast"
    head, rows = loaded(source)
    writing = archive.pack(file, archive.Packed(head, rows, source, "memory:"), [])
    assert next(writing) == "run.json"
    writing.close()
    assert list(tmp_path.iterdir()) == []
    copied(source, file)
    before = file.read_bytes()
    with pytest.raises(hf.StoreError, match="there is a file of that name already; nothing was written"):
        copied(source, file)
    assert (file.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (before, ["r.holdfast"])
    with pytest.raises(hf.StoreError, match="there is no folder"):
        copied(source, tmp_path / "nowhere" / "r.holdfast")


def test_what_is_meant_must_be_said(tmp_path: Path) -> None:
    source = begun(asking)
    with hf.Holdfast(source) as app:
        with pytest.raises(hf.Misuse, match="copy needs to="):
            app.copy("r")
        with pytest.raises(hf.Misuse, match="gone with this process"):
            app.copy("r", to="memory:")
        with pytest.raises(Refusal, match="under its own id"):
            app.copy("r", to=tmp_path / "r.holdfast", new_id="x")
        with pytest.raises(hf.UnknownRun):
            app.copy("x", to=tmp_path / "r.holdfast")


def test_the_last_point_lies_before_all_that_is_under_way() -> None:
    assert last_point(Journal.load(*loaded(begun(asking)))) == "2"
    assert last_point(Journal.load(*loaded(begun(doubting)))) == "1"

    @hf.agent
    def at_once() -> str:
        return pay("unclear")

    assert last_point(Journal.load(*loaded(begun(at_once)))) == "0"


def test_an_id_that_was_pruned_in_the_target_stays_taken() -> None:
    source, target = begun(fine), begun(fine)
    with hf.Holdfast(target) as app:
        app.prune(hf.Retention(max_age=0), dry_run=False)
    with pytest.raises(hf.RunPruned):
        copied(source, target)


def test_a_store_is_not_copied_into_itself(tmp_path: Path) -> None:
    with hf.Holdfast(tmp_path / "a.db") as app:
        app.run(fine, run_id="r")
        with pytest.raises(Refusal, match=r"is in .*a\.db already; nothing was copied"):
            app.copy("r", to=tmp_path / "a.db")


@hf.step
def read(pages: int) -> str:
    return "p" * pages


@hf.agent
def studying(left: int) -> int:
    pages = len(read(70_000 + left))
    return hf.continue_as(left - 1) if left else pages + len(draw().bytes())


@pytest.mark.parametrize("to", ["b.db", "folder/"])
def test_a_run_that_was_made_smaller_comes_back_from_its_archive_with_all_that_it_refers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setattr(pruning, "WORTH_BYTES", 1)
    with hf.Holdfast(tmp_path / "a.db") as app:
        result = app.run(studying, 2, run_id="r")
        app.prune(hf.Retention(details=0), dry_run=False)
        assert app.store.load("r")[1][1].seq > 2  # type: ignore[index]
        app.copy("r", to=tmp_path / "r.holdfast")
    with hf.Holdfast(f"{tmp_path}/{to}") as app:
        assert not app.copy(tmp_path / "r.holdfast").existed
        app.prune(hf.Retention(max_age="1h"), dry_run=False)
        assert app.store.sweep_blobs(1 << 62).blobs == 0  # type: ignore[attr-defined]
        assert app.check("r")[0].good
        assert app.run(studying, 2, run_id="r") == result
        assert app.copy(tmp_path / "r.holdfast").existed
