"""A run is handed over to another store: it stands there as it stood, with all that belongs to it, and is closed where it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync
from crashing import lines, loaded, play, records, status
from holdfast.app.transferring import Transferring
from holdfast.errors import Refusal, StoreFailed
from holdfast.moving import moving
from holdfast.operating import pruning
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.transfers import RunSealed
from holdfast.store import Append, Head, Row, Stale
from holdfast.stores.memory import MemoryStore
from movers import FarStore, Meddling, asking, begun, claimed, counting, expecting, failing, fine, into, moved, paid, parent, sleeping


@pytest.fixture(autouse=True)
def _fresh() -> None:
    paid.clear()


@pytest.mark.parametrize("agent", [fine, asking, sleeping, failing, expecting])
def test_a_run_stands_in_its_new_place_as_it_stood(agent: Any) -> None:
    source, target = begun(agent), MemoryStore()
    before = loaded(source)[0]
    found = moved(source, target, reason="more room")
    after, here = loaded(target)[0], loaded(source)[0]
    assert (found.done, found.runs, found.status) == (True, ["r"], "moved")
    same = ("agent", "status", "owner", "wake_us", "created_us", "tags", "usd", "note")
    assert {name: getattr(after, name) for name in same} == {name: getattr(before, name) for name in same}
    assert after.epoch == before.epoch + 1
    assert loaded(target)[1][: before.seq] == loaded(source)[1][: before.seq]
    assert (here.status, here.owner, here.wake_us, here.note) == ("moved", None, None, f"to {target.url}")


def test_an_interrupted_run_goes_on_there_and_its_effects_keep_their_keys() -> None:
    source, target = begun(asking), MemoryStore()
    moved(source, target)
    with hf.Holdfast(target) as app:
        assert app.inbox()[0].what == "sure?"
        app.answer("r", "2", yes=True, by="ann")
    assert play(target, asking) == "paid a True"
    assert len(paid) == 1
    done = [record for record in records(target) if isinstance(record, rec.StepStarted | rec.StepDone) and record.effect]
    assert paid[0][1] in {getattr(record, "key", "") for record in done}


def test_a_run_whose_owner_fell_silent_can_be_taken_at_once_in_its_new_place() -> None:
    source, target = begun(asking), MemoryStore()
    claimed(source, "ghost")
    moved(source, target)
    assert (loaded(target)[0].status, loaded(target)[0].owner) == ("queued", None)
    assert [record.silent for record in records(target) if isinstance(record, RunSealed)] == [True]
    assert Journal.load(*loaded(target)).silences == [(3, next(row.at_us for row in loaded(target)[1] if row.kind == RunSealed.kind))]


SAID: dict[str, Callable[[hf.Holdfast], object]] = {
    "run": lambda app: app.run(asking, run_id="r", wait=False),
    "handle": lambda app: app.handle("r").wait(timeout=1),
    "send": lambda app: app.send("r", "go", 1),
    "answer": lambda app: app.answer("r", "2", yes=True),
    "resolve": lambda app: app.resolve("r", "1", not_landed=True),
    "resume": lambda app: app.resume("r"),
    "budget": lambda app: app.resume("r", budget=hf.Budget(steps=9)),
    "cancel": lambda app: app.cancel("r"),
    "undo": lambda app: app.cancel("r", undo=True),
    "edit": lambda app: app.edit("r", 1, "paid b"),
    "fork": lambda app: app.fork("r", at=1),
    "copy": lambda app: app.copy("r", to=MemoryStore()),
    "resume here": lambda app: app.resume_here("r", [asking], wait=False),
    "move": lambda app: app.move("r", to=FarStore()),
}


@pytest.mark.parametrize("verb", SAID)
def test_who_wants_something_of_it_where_it_was_is_told_where_it_went(verb: str) -> None:
    source = begun(asking)
    moved(source, MemoryStore())
    before = loaded(source)
    with hf.Holdfast(source) as app, pytest.raises(hf.RunMoved, match="run 'r' was moved to memory:"):
        SAID[verb](app)
    assert loaded(source) == before


def test_what_is_sealed_is_refused_with_how_to_go_on_and_can_be_taken_back() -> None:
    source, target = begun(asking), MemoryStore()
    before = loaded(source)[0]
    with hf.Holdfast(source) as app:
        order = moving.ordered(app.engine, target, "r", by="ann", reason="")
        assert list(moving._sealed(order, "t")) == ["sealed r"]
        with pytest.raises(hf.RunMoved, match=r"finish that: holdfast move r --to memory:; or take it back: holdfast move r --back"):
            app.answer("r", "2", yes=True)
        assert [(item.kind, item.commands) for item in app.inbox()] == [
            ("move", ["holdfast move r --to memory:", "holdfast move r --back"])
        ]
        found = app.move("r", back=True, by="ann", reason="not after all")
        assert (found.back, found.status) == (True, "waiting")
        with pytest.raises(Refusal, match="not being moved"):
            app.move("r", back=True)
        app.answer("r", "2", yes=True)
    after = loaded(source)[0]
    assert (after.status, before.status) == ("queued", "waiting")
    assert play(source, asking) == "paid a True"
    assert len(paid) == 1


def test_who_takes_the_move_back_before_it_is_handed_over_is_heeded() -> None:
    def take_back() -> None:
        with hf.Holdfast(store) as app:
            app.move("r", back=True, by="bob")

    store, target = Meddling("run.handed_over", take_back), MemoryStore()
    into(store, begun(asking))
    with pytest.raises(Refusal, match="was taken back meanwhile, and it stays where it is"):
        moved(store, target)
    assert (status(store), status(target)) == ("waiting", "moving")
    with pytest.raises(hf.RunMoved, match="is being moved from"):
        play(target, asking)
    moved(store, target)  # what was left there is taken up
    assert (status(store), status(target)) == ("moved", "waiting")


def test_what_is_handed_over_is_not_brought_again_to_a_place_that_lost_it() -> None:
    source, target = begun(asking), MemoryStore()
    with hf.Holdfast(source) as app:
        order = moving.ordered(app.engine, target, "r", by="ann", reason="")
        token = moving._token(order)
        list(moving._imported(order, token, "r"))
        moving._handed_over(order, token, "r")
        with pytest.raises(hf.StoreError, match="is not here any more"):
            app.move("r", to=MemoryStore())
        app.move("r", to=target)


def test_a_move_whose_run_has_ended_in_its_new_place_and_was_pruned_there_is_finished() -> None:
    source, target = begun(asking), MemoryStore()
    with hf.Holdfast(source) as app, hf.Holdfast(target) as there:
        order = moving.ordered(app.engine, target, "r", by="ann", reason="")
        token = moving._token(order)
        list(moving._imported(order, token, "r"))
        moving._handed_over(order, token, "r")
        list(moving._activated(order, token, "r"))  # the mover dies before he marks it
        there.cancel("r")
        assert there.prune(hf.Retention(keep_last=0), dry_run=False).removed == 1
        assert status(source) == "moving"
        assert app.move("r", to=target).status == "moved"
    assert status(source) == "moved"
    assert target.head("r") is None


def test_what_is_handed_over_can_only_be_finished() -> None:
    source, target = begun(asking), MemoryStore()
    with hf.Holdfast(source) as app:
        order = moving.ordered(app.engine, target, "r", by="ann", reason="")
        list(moving._sealed(order, "t"))
        list(moving._imported(order, "t", "r"))
        moving._handed_over(order, "t", "r")
        with pytest.raises(Refusal, match=r"is handed over to memory:; nothing was changed. Finish it"):
            app.move("r", back=True)
        with hf.Holdfast(target) as there, pytest.raises(hf.RunMoved, match=r"is being moved from memory:.*--store memory: --to URL"):
            there.run(asking, run_id="r")
        with hf.Holdfast(target) as there, pytest.raises(hf.RunMoved):
            there.move("r", back=True)
        assert app.move("r", to=target).done
    assert (status(source), status(target)) == ("moved", "waiting")


def test_a_run_that_somebody_executes_is_not_moved() -> None:
    source, target = MemoryStore(), MemoryStore()

    @hf.step
    def busy() -> str:
        with hf.Holdfast(source) as other, pytest.raises(Refusal, match=r"executes now in .*stop that process"):
            other.move("r", to=target)
        return "done"

    @hf.agent
    def executing() -> str:
        return busy()

    with hf.Holdfast(source, lease=0.3) as app:
        assert app.run(executing, run_id="r") == "done"
    assert target.head("r") is None


def test_whoever_claims_the_run_before_the_seal_keeps_it() -> None:
    def claim() -> None:
        owner = worker.engine.keeper
        owner.enroll()
        owner.runs["r"] = None  # type: ignore[assignment]
        claimed(store, owner.owner)

    store, target = Meddling("run.sealed", claim), MemoryStore()
    into(store, begun(asking))
    worker = hf.Holdfast(store, lease=0.3)
    with hf.Holdfast(store, lease=5) as app, pytest.raises(Refusal, match="executes now"):
        app.move("r", to=target)
    worker.engine.keeper.runs.clear()
    worker.close()
    assert (status(store), target.head("r")) == ("running", None)


def test_a_place_that_has_another_run_of_that_id_is_refused_and_the_run_stays() -> None:
    source, target = begun(asking), begun(fine)
    with pytest.raises(Refusal, match="there is another run 'r' in memory:"):
        moved(source, target)
    assert lines(source)[-1] == "run.waiting"

    late = Meddling("run.arrived", lambda: into(late, begun(fine)))
    with pytest.raises(Refusal, match="there is another run 'r'"):
        moved(source, late)
    assert lines(source)[-2:] == ["run.sealed", "run.unsealed"]
    assert status(source) == "waiting"
    moved(source, MemoryStore())


class Unreachable(MemoryStore):
    url = "memory:unreachable"

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        raise StoreFailed(self.url, "the network is gone")


def test_a_place_that_cannot_be_reached_leaves_the_run_where_it_is() -> None:
    source = begun(asking)
    with pytest.raises(hf.StoreError, match="the network is gone"):
        moved(source, Unreachable())
    assert status(source) == "waiting"
    target = MemoryStore()
    moved(source, target)
    assert (status(source), status(target)) == ("moved", "waiting")


def test_an_interrupted_move_goes_on_to_where_it_was_going_and_nowhere_else() -> None:
    source, target = begun(asking), MemoryStore()
    with hf.Holdfast(source) as app:
        order = moving.ordered(app.engine, target, "r", by="ann", reason="")
        list(moving._sealed(order, "t"))
        with pytest.raises(hf.RunMoved, match="is being moved to memory:"):
            app.move("r", to=FarStore())
        app.move("r", to=target)
        assert app.move("r", to=target).existed
    tokens = {record.token for record in records(target) if isinstance(record, rec.RunSealed | rec.RunArrived)}
    assert tokens == {"t"}


@pytest.mark.parametrize("number", range(3))
def test_two_who_move_it_at_once_move_it_once(tmp_path: Path, number: int) -> None:
    with suppress(hf.RunWaiting):
        hf.run(asking, run_id="r", store=tmp_path / "a.db", wait=False)
    said: list[object] = []

    def mover() -> None:
        with hf.Holdfast(tmp_path / "a.db") as app:
            together.wait()
            try:
                said.append(app.move("r", to=tmp_path / "b.db", by=f"mover {number}").status)
            except (Refusal, hf.RunMoved) as error:
                said.append(error)

    together = threading.Barrier(2)
    threads = [threading.Thread(target=mover) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with hf.Holdfast(tmp_path / "a.db") as app:
        app.move("r", to=tmp_path / "b.db")
        assert "moved" in said, said
        kinds = states_of(app, "r")
    with hf.Holdfast(tmp_path / "b.db") as app:
        assert app.show("r").status == "waiting"
        assert states_of(app, "r")["run arrived"] == 2
    assert (kinds["run handed over"], kinds["run moved"]) == (1, 1)


def states_of(app: hf.Holdfast, run_id: str) -> dict[str, int]:
    states = [line.state for line in app.history(run_id)]
    return {state: states.count(state) for state in states}


def test_a_run_comes_back_to_the_store_that_it_left() -> None:
    one, two = begun(asking), MemoryStore()
    moved(one, two)
    with hf.Holdfast(two) as app:
        app.answer("r", "2", yes=False, by="ann")
    moved(two, one)
    assert (status(one), status(two)) == ("queued", "moved")
    moved(one, two)
    assert play(two, asking) == "paid a False"
    moved(two, one)
    assert play(one, asking) == "paid a False"
    assert len(paid) == 1
    assert [aside.what for aside in one.aside("r")].count("head") == 2


def test_a_run_whose_records_were_pruned_behind_a_gap_moves_and_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hf.Holdfast(tmp_path / "a.db") as app:
        with suppress(hf.RunWaiting):
            app.run(counting, 1, run_id="r", wait=False)
        monkeypatch.setattr(pruning, "WORTH_BYTES", 1)
        app.prune(hf.Retention(details=0), dry_run=False)
        assert app.store.load("r")[1][1].seq > 2  # type: ignore[index]
        app.move("r", to=tmp_path / "b.db")
        assert app.prune(hf.Retention(max_age=0), dry_run=False).removed == 1
    with hf.Holdfast(tmp_path / "b.db") as app:
        assert app.check("r")[0].good
        assert app.store.check() == []
        app.answer("r", "2", yes=True)
        assert app.run(counting, 1, run_id="r") == "counted True"
        with pytest.raises(hf.RunPruned):
            app.move("r", to=tmp_path / "a.db")
    assert [what for what, _ in paid] == ["1", "2", "3"]


def test_a_damaged_run_is_not_moved_and_a_moved_one_is_not_revived_by_a_repair() -> None:
    source, target = begun(asking), MemoryStore()
    whole = source._rows["r"][1]
    source._rows["r"][1] = whole._replace(body=b"{}")
    with pytest.raises(hf.Damaged):
        moved(source, target)
    source._rows["r"][1] = whole
    moved(source, target)
    source._rows["r"][-1] = source._rows["r"][-1]._replace(body=b"{}")
    with hf.Holdfast(source) as app, pytest.raises(Refusal, match="was moved from here, or was about to be"):
        app.repair("r", dry_run=False)
    target._rows["r"][1] = whole._replace(body=b"{}")  # where it is, it can be repaired like any other
    with hf.Holdfast(target) as app:
        assert app.repair("r", dry_run=False).done
        assert app.check("r")[0].good


def test_a_dry_run_says_what_would_go_and_changes_nothing() -> None:
    source, target = begun(parent), MemoryStore()
    before = loaded(source)
    found = moved(source, target, dry_run=True)
    assert (found.done, found.runs, found.records) == (False, ["r", "r.2"], sum(loaded(source, each)[0].seq for each in ("r", "r.2")))
    assert loaded(source) == before
    assert target.head("r") is None


def test_a_move_needs_one_place_and_not_the_one_where_it_is(tmp_path: Path) -> None:
    with hf.Holdfast(tmp_path / "a.db") as app:
        app.run(fine, run_id="r")
        for words in (dict[str, Any](), {"to": "b.db", "back": True}, {"back": True, "dry_run": True}):
            with pytest.raises(hf.Misuse, match="move takes one of"):
                app.move("r", **words)
        with pytest.raises(Refusal, match=r"is in .* already; nothing was changed"):
            app.move("r", to=tmp_path / "a.db")
        with pytest.raises(hf.Misuse, match="would be too; nothing was changed"):
            app.move("r", to="memory:")
        with pytest.raises(hf.UnknownRun):
            app.move("x", to=tmp_path / "b.db")
    assert issubclass(hf.Holdfast, Transferring)


def test_a_moved_run_is_listed_followed_and_pruned_as_one_that_is_over() -> None:
    source, target = begun(asking), MemoryStore()
    moved(source, target)
    with hf.Holdfast(source) as app:
        assert [run.note for run in app.runs(status="moved")] == ["to memory:"]
        assert [event.kind for event in app.tail("r")][-1] == RunSealed.kind.replace("sealed", "moved")
        assert app.show("r").next_commands == ["holdfast show r --store memory:"]
        assert (app.inbox(), app.ready()) == ([], [])
        assert app.prune(hf.Retention(max_age=0), dry_run=False).removed == 1


class Late(MemoryStore):
    """The first look at a run finds nothing, since somebody else puts it there right after it."""

    looks = 1

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        self.looks -= 1
        return None if self.looks == 0 else super().load(run_id)


def test_of_two_who_import_a_run_the_second_leaves_the_copy_as_it_is() -> None:
    source, target = begun(asking), Late()
    target.looks = 0
    with hf.Holdfast(source) as app:
        order = moving.ordered(app.engine, target, "r", by="ann", reason="")
        token = moving._token(order)
        list(moving._imported(order, token, "r"))
        before = loaded(target)
        target.looks = 1
        list(moving._imported(order, token, "r"))
        assert loaded(target) == before
        app.move("r", to=target)
    assert status(target) == "waiting"
