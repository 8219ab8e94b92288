"""The store of objects: held to the conformance suite on an S3-compatible server, and what is its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.running.lease import LETTERS_S
from holdfast.running.runner import POLL_S, poll_s
from holdfast.store import Append, Distant, Query, Shedding, Stale, Store
from holdfast.stores import _object_runs
from holdfast.stores.memory import MemoryStore
from holdfast.stores.objects import ObjectStore
from holdfast.testing import StoreConformance
from holdfast.testing.sample import create, head, onward, row
from object_server import BUCKET


def prefix_of(folder: Path) -> str:
    return "t-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


class TestObjects(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, object_endpoint: str) -> None:
        self.endpoint = object_endpoint

    def open(self, folder: Path) -> Store:
        return ObjectStore(f"s3://{BUCKET}/{prefix_of(folder)}?endpoint={self.endpoint}")


@pytest.fixture
def store(object_endpoint: str, tmp_path: Path) -> Iterator[ObjectStore]:
    with closing(ObjectStore(f"s3://{BUCKET}/{prefix_of(tmp_path)}?endpoint={object_endpoint}")) as opened:
        yield opened


def test_of_two_who_claim_a_run_at_once_one_is_refused(store: ObjectStore) -> None:
    with closing(ObjectStore(store.url)) as other:
        for name in ("a", "b", "c", "d"):
            store.append([create(name)])
            assert other.head(name) is not None
            claims = [Append(name, 1, 1, [row(2, epoch=2)], head(name, 2, epoch=2, owner=owner)) for owner in ("me", "you")]
            with ThreadPoolExecutor(2) as pool:
                answers = list(pool.map(lambda one: one[0].append([one[1]])[0], zip((store, other), claims, strict=True)))
            (refused,) = filter(None, answers)
            winner = claims[answers.index(None)].head
            assert refused == Stale(winner)
            assert store.head(name) == other.head(name) == winner


def test_a_run_that_turned_into_another_generation_is_listed_once(store: ObjectStore) -> None:
    store.append([create("run", rows=3)])
    with closing(ObjectStore(store.url)) as other:
        assert [found.seq for found in other.heads(Query())] == [3]
        added = onward("run", 3)
        assert store.shed(Shedding(head("run", 3), [], added, (2, 2)))
        assert other.heads(Query()) == [added.head]
        assert [row.seq for row in store.load("run")[1]] == [1, 3, 4]  # type: ignore[index]


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_turn_whose_answer_is_lost_may_have_been_finished_by_who_reads(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    store.append([create("run", rows=3)])
    create_ = store._objects.create

    def creating(name: str, data: bytes) -> bool:
        monkeypatch.undo()
        if lost == "answer":
            assert create_(name, data)
            with closing(ObjectStore(store.url)) as reader:
                assert reader.load("run") is not None
        return False

    monkeypatch.setattr(store._objects, "create", creating)
    assert store.shed(Shedding(head("run", 3), [], onward("run", 3), (2, 2))) == (lost == "answer")
    found = store.load("run")
    assert found is not None
    assert [row.seq for row in found[1]] == ([1, 3, 4] if lost == "answer" else [1, 2, 3])


def test_pages_of_all_runs_go_through_the_names_once(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([create(f"run{number}") for number in range(6)])
    first = store.heads(Query(after="", limit=3))
    monkeypatch.setattr(store._objects, "below", None)
    second = store.heads(Query(after=first[-1].run_id, limit=3))
    assert [found.run_id for found in (*first, *second)] == [f"run{number}" for number in range(6)]
    monkeypatch.setattr(_object_runs, "PAGES_S", 0)
    with pytest.raises(TypeError):
        store.heads(Query(after=first[-1].run_id, limit=3))


def test_a_distant_store_is_asked_for_letters_less_often(store: ObjectStore) -> None:
    assert isinstance(store, Distant)
    with hf.Holdfast(store) as app, hf.Holdfast(MemoryStore()) as near:
        assert app.engine.keeper._letters_s == 4 * near.engine.keeper._letters_s == 4 * LETTERS_S
        assert poll_s(app.engine) == 10 * poll_s(near.engine) == 10 * POLL_S


@hf.agent
async def asking() -> str:
    return await hf.ask("which?", str)


def test_a_run_waits_for_a_person_and_goes_on_with_the_answer(store: ObjectStore) -> None:
    with hf.Holdfast(store) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(asking, run_id="r", wait=False)
        (item,) = app.inbox()
        app.answer(item.run_id, item.step_id, "this", by="ann")
        assert app.run(asking, run_id="r") == "this"
