"""A store of objects whose requests and replies are lost: what was acknowledged is there, once, and late writes are refused."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import obstore
import pytest

import holdfast as hf
from holdfast.errors import StoreFailed
from holdfast.store import Append, Head, Letter, Prunable, Query, Removal, Row, Shelf, Stale, Tombstone
from holdfast.stores._object_blobs import ObjectShelf, Seen
from holdfast.stores._object_place import ObjectPlace
from holdfast.stores.objects import ObjectStore
from holdfast.testing.sample import create, head, onward, row
from object_proxy import Fault, Proxy, Request, proxy
from object_server import BUCKET

MODES = ("before", "after", "half", "500 after")
RUNS = [f"run{number}" for number in range(8)]
CUTS = 200


@pytest.fixture
def prefix() -> str:
    return f"f{secrets.token_hex(6)}"


@pytest.fixture
def direct(object_endpoint: str, prefix: str) -> Iterator[ObjectStore]:
    """The store without anything in between."""
    with closing(ObjectStore(f"s3://{BUCKET}/{prefix}?endpoint={object_endpoint}")) as store:
        yield store


@pytest.fixture
def between(object_endpoint: str) -> Iterator[Proxy]:
    with proxy(object_endpoint) as opened:
        yield opened


@pytest.fixture
def through(direct: ObjectStore, between: Proxy, prefix: str) -> Iterator[ObjectStore]:
    """The same store behind the proxy."""
    with closing(ObjectStore(f"s3://{BUCKET}/{prefix}?endpoint={between.endpoint}")) as store:
        yield store


def each_commit_once(modes: Iterator[str]) -> Callable[[Request], Fault | None]:
    """A fault for every commit, when it is first sent."""
    met: set[str] = set()
    lock = threading.Lock()

    def fault(request: Request) -> Fault | None:
        with lock:
            if not request.creates or "/sealed-" not in request.path or request.path in met:
                return None
            met.add(request.path)
            return next(modes)

    return fault


def fresh(run_id: str, seq: int) -> Append:
    """The append behind `seq`, with a value that no other has."""
    new = Row(seq + 1, 1, seq, "step.done", str(seq), b"{}", secrets.token_bytes(20), None, secrets.token_bytes(32))
    after = Head(run_id, "agent", "running", None, 1, seq + 1, new.digest, None, 1, seq, "{}", 0.0, "")
    return Append(run_id, 1 if seq else 0, seq, [new], after)


def test_two_hundred_cut_connections_lose_and_double_nothing(direct: ObjectStore, through: ObjectStore, between: Proxy) -> None:
    acknowledged: dict[str, list[Row]] = {run_id: [] for run_id in RUNS}
    between.fault = each_commit_once(itertools.cycle(MODES))
    for _ in range(CUTS // len(RUNS)):
        batch = [fresh(run_id, len(rows)) for run_id, rows in acknowledged.items()]
        assert through.append(batch) == [None] * len(RUNS)
        for one in batch:
            acknowledged[one.run_id] += one.rows
    assert [between.faults.count(mode) for mode in MODES] == [CUTS // len(MODES)] * len(MODES)
    for run_id, rows in acknowledged.items():
        found = direct.load(run_id)
        assert found is not None
        assert (found[1], found[0].seq) == (rows, len(rows))
    assert direct.check() == []


@hf.effect(in_doubt="ask")
async def charge(ledger: str, order: str) -> str:
    with Path(ledger).open("a") as file:  # noqa: ASYNC230 (it takes no time)
        file.write(f"{order}\n")
    return order


@hf.agent
async def shopping(ledger: str, name: str) -> list[str]:
    return [await charge(ledger, f"{name}-{number}") for number in range(3)]


def test_agents_go_on_through_cut_connections_and_do_nothing_twice(through: ObjectStore, between: Proxy, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    between.fault = each_commit_once(itertools.cycle(MODES))

    async def shop(app: hf.Holdfast) -> list[list[str]]:
        handles = [await app.start(shopping, str(ledger), name, run_id=name) for name in "abcd"]
        return [await handle.result() for handle in handles]

    with hf.Holdfast(through) as app:
        results = asyncio.run(shop(app))
        assert [verdict.good for verdict in app.check()] == [True] * 4
    assert len(between.faults) >= 24
    assert results == [[f"{name}-{number}" for number in range(3)] for name in "abcd"]
    assert sorted(ledger.read_text().split()) == sorted(itertools.chain(*results))


def test_a_server_that_stays_away_is_said_and_what_follows_goes_on(through: ObjectStore, between: Proxy) -> None:
    through._objects.patience_s = 0.2
    assert through.append([create("run")]) == [None]
    between.fault = lambda _: "after"
    with pytest.raises(StoreFailed, match="not known whether the last records were written"):
        through.append([onward("run", 1)])
    between.fault = lambda _: None
    found = through.head("run")
    assert found is not None
    assert found.seq == 2
    assert through.append([onward("run", 2)]) == [None]


def repeated(direct: ObjectStore, through: ObjectStore, between: Proxy) -> list[Letter]:
    """The letters that a run finds which took one while its sender, whose reply was lost, was about to put it once more."""
    direct.append([create("run")])

    def taken_first(request: Request) -> Fault | None:
        if request.creates and "/letters/" in request.path and between.seen[request.path] == 0:
            between.seen[request.path] += 1
            return "after"
        if request.creates and "/letters/" in request.path:
            (letter,) = direct.letters(["run"])
            assert direct.append([onward("run", 1)._replace(takes=[letter.letter_id])]) == [None]
        return None

    between.fault = taken_first
    through.post("run", "message", b"{}", 1)
    between.fault = lambda _: None
    return direct.letters(["run"])


def test_a_letter_that_was_taken_before_its_lost_reply_was_made_up_for_is_not_there_twice(
    direct: ObjectStore, through: ObjectStore, between: Proxy, object_endpoint: str, prefix: str
) -> None:
    assert repeated(direct, through, between) == []
    with closing(ObjectStore(f"s3://{BUCKET}/{prefix}?endpoint={object_endpoint}")) as other:
        assert other.letters(["run"]) == []
        assert other.append([onward("run", 2)]) == [None]
        assert other.letters(["run"]) == []
        assert other.heads(Query(addressed=True)) == []


def test_without_its_number_in_the_commits_behind_it_would_be_there_twice(
    direct: ObjectStore, through: ObjectStore, between: Proxy
) -> None:
    """The negative control."""
    direct._letters.late_us = 0
    assert len(repeated(direct, through, between)) == 1


# --- the fence ---------------------------------------------------------------------------------------------------------


def late_write(zombie: ObjectStore, other: ObjectStore) -> list[Stale | None]:
    """What becomes of a write by somebody who slept while another claimed the run."""
    assert zombie.append([create("run")]) == [None]
    claim = Append("run", 1, 1, [row(2, epoch=2)], head("run", 2, epoch=2, owner="other"))
    assert other.append([claim]) == [None]
    return zombie.append([onward("run", 1)])


def test_a_late_write_is_refused_and_told_who_owns_the_run(direct: ObjectStore, through: ObjectStore) -> None:
    assert late_write(through, direct) == [Stale(head("run", 2, epoch=2, owner="other"))]
    found = direct.load("run")
    assert found is not None
    assert [row.epoch for row in found[1]] == [1, 2]


def test_with_an_overwriting_put_a_late_write_would_go_in(
    direct: ObjectStore, through: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the fence."""
    monkeypatch.setattr(obstore, "put", lambda *args, mode=None, put=obstore.put, **options: put(*args, **options))
    assert late_write(through, direct) == [None]


def removed(store: Prunable, found: Head) -> None:
    assert store.remove([Removal(found, Tombstone(found.run_id, "agent", "f", "done", 1, 2, "ann", "old"))]) == [True]


def test_a_late_write_to_a_run_that_was_removed_is_refused(direct: ObjectStore, through: ObjectStore) -> None:
    assert through.append([create("run", rows=2)]) == [None]
    removed(direct, head("run", 2))
    assert through.append([onward("run", 2)]) == [Stale(None)]
    assert direct.load("run") is None
    assert direct.heads(Query()) == []


def test_with_names_that_are_free_again_a_removed_run_could_be_written(
    direct: ObjectStore, through: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of names that stay taken."""
    monkeypatch.setattr(ObjectPlace, "vacate", ObjectPlace.purge)
    assert through.append([create("run", rows=2)]) == [None]
    removed(direct, head("run", 2))
    assert through.append([onward("run", 2)]) == [None]


def test_a_creation_that_slept_through_the_whole_life_of_the_run_is_refused(
    direct: ObjectStore, through: ObjectStore, between: Proxy
) -> None:
    """It had looked whether there is a tombstone, and had found none."""
    between.next("late", when=lambda request: request.creates and request.path.endswith("run.json"))
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(_answer(through, create("run"))))
    thread.start()
    assert between.held.acquire(timeout=20)
    assert direct.append([create("run", rows=2)]) == [None]
    removed(direct, head("run", 2))
    between.release.set()
    thread.join(60)
    assert answers == [[Stale(None)]]
    assert direct.load("run") is None


def _answer(store: ObjectStore, one: Append) -> object:
    try:
        return store.append([one])
    except BaseException as error:  # noqa: BLE001 (told to the test)
        return error


def test_an_id_that_was_forgotten_can_live_again(direct: ObjectStore) -> None:
    direct.append([create("run", rows=2)])
    removed(direct, head("run", 2))
    assert direct.forget(100) == 1
    assert list(direct._objects.sizes("runs/")) == []
    assert direct.append([create("run")]) == [None]


# --- blobs without a lock ------------------------------------------------------------------------------------------------


LATE_US = 1 << 60


def test_a_sweep_spares_what_somebody_refers_to_while_it_goes_on(direct: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = direct.keep_blob([b"wanted"], at_us=1)
    replace = ObjectPlace.replace

    def refer_first(place: ObjectPlace, name: str, data: bytes) -> None:
        if name.endswith(".gone"):
            assert direct.append([create("run")._replace(refs=[digest])]) == [None]
        replace(place, name, data)

    monkeypatch.setattr(ObjectPlace, "replace", refer_first)
    assert direct.sweep_blobs(LATE_US) == (0, 0)
    assert _content(direct, digest) == b"wanted"
    assert direct.touch_blob(digest, at_us=2)


def test_who_finds_a_blob_going_keeps_a_copy_of_his_own(direct: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = direct.keep_blob([b"wanted"], at_us=1)
    remove = ObjectShelf._remove

    def come_late(shelf: ObjectShelf, going: str, found: Seen, ours: str) -> None:
        assert direct.append([create("run")._replace(refs=[digest])]) == [Stale(None, [digest])]
        assert direct.keep_blob([b"wanted"], at_us=2) == digest
        assert direct.append([create("run")._replace(refs=[digest])]) == [None]
        remove(shelf, going, found, ours)

    monkeypatch.setattr(ObjectShelf, "_remove", come_late)
    assert direct.sweep_blobs(LATE_US) == (1, 6)
    assert _content(direct, digest) == b"wanted"
    assert direct.sweep_blobs(LATE_US) == (0, 0)


def test_a_part_that_is_swept_while_its_whole_is_being_kept_is_missed(direct: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps a folder may have slept between its files and its listing, for longer than a sweep spares what nobody refers to."""
    part = direct.keep_blob([b"part"], at_us=1)
    upload = ObjectPlace.upload

    def swept_first(place: ObjectPlace, name: str, file: Path) -> None:
        assert direct.sweep_blobs(LATE_US).blobs == 2  # the part, and that the whole is to be kept
        upload(place, name, file)

    monkeypatch.setattr(ObjectPlace, "upload", swept_first)
    with pytest.raises(KeyError, match=part):
        direct.keep_blob([b"whole"], at_us=1, parts=[part])
    monkeypatch.undo()
    assert direct.keep_blob([b"part"], at_us=1) == part
    whole = direct.keep_blob([b"whole"], at_us=1, parts=[part])
    assert direct.append([create("run")._replace(refs=[whole])]) == [None]
    assert direct.sweep_blobs(LATE_US) == (0, 0)
    assert (_content(direct, part), direct.blob_parts(whole)) == (b"part", [part])


def test_a_whole_that_is_kept_while_its_parts_are_being_swept_keeps_them(direct: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    part = direct.keep_blob([b"part"], at_us=1)
    replace, wholes = ObjectPlace.replace, list[str]()

    def kept_first(place: ObjectPlace, name: str, data: bytes) -> None:
        if name.endswith(".gone") and not wholes:
            wholes.append("")
            wholes[0] = direct.keep_blob([b"whole"], at_us=1, parts=[part])
        replace(place, name, data)

    monkeypatch.setattr(ObjectPlace, "replace", kept_first)
    assert direct.sweep_blobs(LATE_US) == (0, 0)
    assert direct.append([create("run")._replace(refs=wholes)]) == [None]
    assert _content(direct, part) == b"part"


def test_one_sweep_does_not_take_back_the_word_of_another(
    direct: ObjectStore, through: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sees that somebody refers to a blob by now; the first has not seen it, and is about to remove what it found."""
    digest = direct.keep_blob([b"wanted"], at_us=1)
    remove, everything, looks = ObjectShelf._remove, ObjectShelf._all, list[int]()

    def referred_by_then(shelf: ObjectShelf) -> dict[str, Seen]:
        looks.append(1)
        if shelf is through._shelf and len(looks) == 4:
            assert shelf._marked(f"runs/run/artifacts/{digest}")
        return everything(shelf)

    def second_sweep(shelf: ObjectShelf, going: str, found: Seen, ours: str) -> None:
        assert through.sweep_blobs(LATE_US) == (0, 0)
        assert not shelf._lives(going)  # whoever has referred to it looks now
        remove(shelf, going, found, ours)

    monkeypatch.setattr(ObjectShelf, "_all", referred_by_then)
    monkeypatch.setattr(ObjectShelf, "_remove", second_sweep)
    assert direct.sweep_blobs(LATE_US) == (1, 6)
    assert len(looks) == 4


def test_a_blob_of_many_megabytes_comes_back_through_lost_replies(direct: ObjectStore, through: ObjectStore, between: Proxy) -> None:
    pieces = [secrets.token_bytes(1 << 20) for _ in range(6)]
    between.next("after", times=3, when=lambda request: "/blobs/" in request.path)
    digest = through.keep_blob(iter(pieces), at_us=1)
    between.next("before", times=3, when=lambda request: request.method == "GET" and "/blobs/" in request.path)
    assert _content(through, digest) == b"".join(pieces)


def _content(shelf: Shelf, digest: str) -> bytes:
    stream = shelf.open_blob(digest)
    assert stream is not None
    with stream:
        return stream.read()
