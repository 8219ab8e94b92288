"""What goes along with a run that is moved: letters, child runs, lineage and artifacts, each once."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast as hf
import holdfast.sync
from crashing import play, records, status
from holdfast._clock import SystemClock
from holdfast.errors import Refusal
from holdfast.moving import moving
from holdfast.moving.parcels import carried
from holdfast.records import kinds as rec
from holdfast.records.away import left
from holdfast.store import Letter
from holdfast.stores.memory import MemoryStore
from movers import Meddling, asking, begun, expecting, into, moved, paid, parent, play_to_wait


@pytest.fixture(autouse=True)
def _fresh() -> None:
    paid.clear()


def test_messages_go_along_each_once() -> None:
    source, target = begun(expecting), MemoryStore()
    with hf.Holdfast(source) as app:
        app.send("r", "go", "one", key="k")
        source.post("r", "message", source.letters(["r"])[0].body, 7)  # its sender died, and repeated itself
        app.send("r", "go", "two")
        assert app.move("r", to=target).letters == 3
        assert source.letters(["r"]) == []
    assert status(target) == "queued"
    assert play(target, expecting) == ["paid a", "one", "two", "paid b"]
    assert [what for what, _ in paid] == ["a", "b"]


def test_a_message_that_went_along_is_known_to_whoever_sends_its_key_again() -> None:
    source, target = begun(expecting), MemoryStore()
    with hf.Holdfast(source) as app:
        app.send("r", "go", "one", key="k")
        app.move("r", to=target)
    with hf.Holdfast(target) as app:
        assert app.send("r", "go", "one", key="k") == "a message with key 'k' was sent before; nothing was sent"
        other = app.send("r", "go", "two", key="k")
        assert other == "a message with key 'k' was sent before with something else in it, which holds; nothing was sent"
        assert target.letters(["r"]) == []
        app.send("r", "go", "three", key="k-2")
    assert play(target, expecting) == ["paid a", "one", "three", "paid b"]


def test_what_an_owner_was_told_before_it_died_is_heard_in_the_new_place() -> None:
    source, target = begun(asking), MemoryStore()
    source.post("r", "answer", b'{"ask": "2", "by": "ann", "yes": true, "value": "true"}', 7)
    moved(source, target)
    assert [(letter.kind, letter.at_us) for letter in target.letters(["r"])] == [("answer", 7)]
    assert play(target, asking) == "paid a True"


def test_a_message_that_comes_while_the_run_is_handed_over_is_taken_along_or_refused() -> None:
    told: list[str] = []

    def late() -> None:
        sender.start()
        while not store.letters(["r"]):
            asyncio.run(asyncio.sleep(0))

    def send() -> None:
        try:
            left(store, SystemClock(), "r", ("message", b'{"name": "go", "value": "late", "by": "bob"}'))
        except hf.RunMoved as error:
            told.append(str(error))

    store, target, sender = Meddling("run.handed_over", late), MemoryStore(), threading.Thread(target=send)
    into(store, begun(expecting))
    moved(store, target)
    sender.join()
    assert len(told) == 1
    assert "being moved to memory:" in told[0] or "was moved to memory:" in told[0]
    assert records(target)[-1].value is None
    moved(target, store)  # it comes back, and what was refused is not heard
    assert store.letters(["r"]) == []


def test_a_message_that_comes_right_before_goes_along() -> None:
    body = b'{"name": "go", "value": "now", "by": "bob"}'
    store, target = Meddling("run.sealed", lambda: store.post("r", "message", body, 7)), MemoryStore()
    into(store, begun(expecting))
    moved(store, target)
    assert play_to_wait(target) == ["paid a"]
    assert [record.name for record in records(target) if isinstance(record, rec.MessageTaken)] == ["go"]


def test_a_run_moves_with_its_children_and_no_child_without_its_parent() -> None:
    source, target = begun(parent), MemoryStore()
    with pytest.raises(Refusal, match=r"is a child of 'r', and goes with it; nothing was changed. Move 'r'"):
        moved(source, target, "r.2")
    found = moved(source, target)
    assert found.runs == ["r", "r.2"]
    assert [status(source, each) for each in found.runs] == ["moved", "moved"]
    with hf.Holdfast(target) as app:
        app.answer("r.2", "2", yes=True, by="ann")
    assert play(target, parent) == ["paid top", "paid low True"]
    assert [what for what, _ in paid] == ["top", "low"]


def test_children_that_a_take_back_did_not_come_to_are_let_go_by_the_next_one() -> None:
    source, target = begun(parent), MemoryStore()
    with hf.Holdfast(source) as app:
        order = moving.ordered(app.engine, target, "r", by="ann", reason="")
        list(moving._sealed(order, "t"))
        assert moving._let_stand(order, "t", "r")
        assert [status(source, each) for each in ("r", "r.2")] == ["waiting", "moving"]
        with pytest.raises(Refusal, match="is being moved with 'r'"):
            app.move("r.2", back=True)
        app.move("r", back=True)
        assert status(source, "r.2") == "waiting"
        list(moving._sealed(order, "t"))
        moving._let_stand(order, "t", "r")
        assert app.move("r", to=target).runs == ["r", "r.2"]
    assert [status(target, each) for each in ("r", "r.2")] == ["waiting", "waiting"]


@pytest.mark.parametrize("how", ["back", "on"])
def test_a_child_that_ends_while_its_parent_is_sealed_wakes_it_once_that_stands_again(how: str) -> None:
    source, target = begun(parent), MemoryStore()
    with hf.Holdfast(source) as here, hf.Holdfast(target) as there:
        moving._token(moving.ordered(here.engine, target, "r", by="ann", reason=""))  # the mover dies behind the first of two seals
        here.cancel("r.2", by="bob")
        here.move("r", **({"back": True} if how == "back" else {"to": target}))
        stands = here if how == "back" else there
        assert [head.run_id for head in stands.ready()] == ["r"]
        with pytest.raises(hf.RunCancelled, match="by bob"):
            stands.run(parent, run_id="r")


def test_a_child_that_ends_in_the_new_place_before_its_parent_can_be_taken_there_wakes_it() -> None:
    source, target = begun(parent), MemoryStore()
    with hf.Holdfast(source) as here, hf.Holdfast(target) as there:
        order = moving.ordered(here.engine, target, "r", by="ann", reason="")
        token = moving._token(order)
        list(moving._sealed(order, token))
        for run_id in ("r", "r.2"):
            list(moving._imported(order, token, run_id))
        for run_id in ("r", "r.2"):
            moving._handed_over(order, token, run_id)
        list(moving._activated(order, token, "r.2"))  # the mover dies before he comes to the parent
        there.cancel("r.2", by="bob")
        here.move("r", to=target)
        assert [head.run_id for head in there.ready()] == ["r"]


def test_a_fork_keeps_its_lineage_and_what_it_knows() -> None:
    source, target = begun(asking), MemoryStore()
    with hf.Holdfast(source) as app:
        app.fork("r", at=0, new_id="f", effects="reuse")
    moved(source, target, "f")
    with hf.Holdfast(target) as app:
        assert app.show("f").forked_from == "r@0"
        with suppress(hf.RunWaiting):
            app.run(asking, run_id="f", wait=False)
    assert len(paid) == 1


def test_artifacts_go_along_and_one_that_is_damaged_keeps_the_run_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("leaf")

    @hf.step
    def make() -> list[hf.Artifact]:
        return [hf.Artifact(b"picture"), hf.Artifact(tmp_path / "folder")]

    @hf.agent
    def drawing() -> list[hf.Artifact]:
        return make()

    source, target = begun(drawing), MemoryStore()
    leaf = next(digest for digest, (data, _) in source._blobs.items() if data == b"leaf")
    kept = source._blobs.pop(leaf)
    with pytest.raises(Refusal, match="is damaged: it is not there; nothing was changed"):
        moved(source, target)
    source._blobs[leaf] = (b"loaf", 0)
    with pytest.raises(Refusal, match="is damaged: it is not what was kept"):
        moved(source, target)
    source._blobs[leaf] = kept
    assert status(source) == "done"
    assert moved(source, target).artifacts == 3
    with hf.Holdfast(target) as app:
        picture, folder = app.run(drawing, run_id="r")
        assert (picture.bytes(), (folder.path() / "a").read_text()) == (b"picture", "leaf")
        assert app.check("r")[0].good
    assert list(carried(source, target, "r", at_us=1))
    assert target.sweep_blobs(1 << 62).blobs == 0


def test_a_letter_is_told_from_one_that_cannot_be_read() -> None:
    source, target = begun(asking), MemoryStore()
    source._letters[9] = Letter(9, "r", 5, "damaged", b"\xff\x00")
    moved(source, target)
    assert [(letter.kind, letter.body) for letter in target.letters(["r"])] == [("damaged", b"\xff\x00")]


def test_a_message_that_cannot_be_read_does_not_hold_a_move_up() -> None:
    source, target = begun(expecting), MemoryStore()
    for body in (b"\xff\x00", b"[]", b"{}"):
        source.post("r", "message", body, 5)
    moved(source, target)
    assert (source.letters(["r"]), target.letters(["r"])) == ([], [])
    assert status(source) == "moved"
    assert status(target) in ("waiting", "queued")


def test_a_run_that_sends_to_one_that_was_moved_is_told_where_it_is() -> None:
    source, target = begun(expecting), MemoryStore()
    moved(source, target)

    @hf.agent
    def telling() -> None:
        holdfast.sync.send("r", "go", "now")

    with hf.Holdfast(source) as app, pytest.raises(hf.Undeliverable, match="it is moved to memory:"):
        app.run(telling, run_id="t")
