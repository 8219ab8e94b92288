"""Going back in a run: fork and edit, what becomes of effects that happened, and what is refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, loaded
from holdfast.errors import Refusal
from holdfast.operating import timetravel
from holdfast.records import journal
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


@dataclass
class World:
    """What the effects did, and what the agent was told to do."""

    charged: list[tuple[str, int]] = field(default_factory=list)
    mailed: list[str] = field(default_factory=list)
    refunded: list[int] = field(default_factory=list)
    looked: int = 0
    keys: list[str] = field(default_factory=list)
    breaks: bool = False


WORLD = World()


@hf.step
async def look(order: str) -> dict[str, int]:
    WORLD.looked += 1
    return {"cents": 500}


@hf.effect(in_doubt="ask")
async def charge(order: str, cents: int) -> str:
    WORLD.charged.append((order, cents))
    WORLD.keys.append(hf.key())
    return f"r-{len(WORLD.charged)}"


@hf.effect(in_doubt="ask")
async def mail(text: str) -> None:
    WORLD.mailed.append(text)


@hf.step
async def finish(receipt: str) -> str:
    if WORLD.breaks:
        raise ConnectionRefusedError("no network")
    return f"sent {receipt}"


@hf.agent
async def buy(order: str) -> str:
    offer = await look(order)
    receipt = await charge(order, offer["cents"])
    await mail(receipt)
    return await finish(receipt)


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    WORLD.__init__()  # type: ignore[misc]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    yield opened
    opened.close()


@pytest.fixture
def app(store: Store) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(store, lease=LEASE_S) as opened:
        yield opened


def bought(app: hf.Holdfast, **options: Any) -> Any:
    return app.run(buy, "o-1", wait=False, **{"run_id": "r", **options})


def stopped(app: hf.Holdfast) -> None:
    """A run that has charged and mailed, and stands at its last step."""
    WORLD.breaks = True
    with pytest.raises(ConnectionRefusedError):
        bought(app)
    WORLD.breaks = False


def test_a_fork_of_a_done_run_asks_before_it_charges_again(app: hf.Holdfast) -> None:
    assert bought(app) == "sent r-1"
    assert app.fork("r", at=1) == "r.f1"
    with pytest.raises(hf.RunWaiting):
        bought(app, run_id="r.f1")
    [item] = app.inbox()
    assert (item.kind, item.run_id, item.step_id) == ("doubt", "r.f1", "2")
    assert "the same call was made at step 2 of run r" in item.what
    assert 'returned "r-1"' in item.what
    assert WORLD.charged == [("o-1", 500)]
    assert WORLD.looked == 1


def test_an_edit_goes_on_from_there_and_a_different_call_executes(app: hf.Holdfast) -> None:
    stopped(app)
    app.edit("r", 1, {"cents": 700}, by="ann", reason="a better offer")
    assert bought(app) == "sent r-2"
    assert WORLD.charged == [("o-1", 500), ("o-1", 700)]
    assert WORLD.keys[0] != WORLD.keys[1]
    assert WORLD.mailed == ["r-1", "r-2"]
    assert WORLD.looked == 1


def test_what_is_asked_can_be_settled_with_the_recorded_result_or_repeated(app: hf.Holdfast) -> None:
    bought(app)
    for new_id, verdict, charges in (("again", {"not_landed": True}, 2), ("taken", {"landed": "r-1"}, 2)):
        app.fork("r", at=1, new_id=new_id)
        with pytest.raises(hf.RunWaiting):
            bought(app, run_id=new_id)
        [item] = [item for item in app.inbox() if item.run_id == new_id]
        assert item.commands[0] == f"holdfast resolve {new_id} 2 --landed '\"r-1\"'"
        app.resolve(new_id, "2", **verdict)
        with pytest.raises(hf.RunWaiting) if new_id == "taken" else contextlib.nullcontext():
            bought(app, run_id=new_id)
        assert len(WORLD.charged) == charges
    assert WORLD.mailed == ["r-1", "r-2"]
    assert len(set(WORLD.keys)) == 2


def test_reuse_takes_recorded_results_without_executing(app: hf.Holdfast) -> None:
    bought(app)
    app.fork("r", at=1, effects="reuse")
    assert bought(app, run_id="r.f1") == "sent r-1"
    assert (len(WORLD.charged), len(WORLD.mailed)) == (1, 1)
    assert [line.note for line in app.history("r.f1") if line.step_id == "2"] == ['"r-1", taken over from step r@2; not executed']
    assert bought(app, run_id="r.f1") == "sent r-1"


def test_repeat_does_it_again_under_other_keys(app: hf.Holdfast) -> None:
    bought(app)
    app.fork("r", at=0, effects="repeat")
    assert bought(app, run_id="r.f1") == "sent r-2"
    assert (len(WORLD.charged), len(set(WORLD.keys)), WORLD.looked) == (2, 2, 2)


def test_a_recorded_result_is_taken_over_once(app: hf.Holdfast) -> None:
    """The run had charged once; its branch charges twice, and the second one is new."""
    times = [1]

    @hf.agent
    async def charges() -> list[str]:
        await look("a")
        return [await charge("o", 5) for _ in range(times[0])]

    app.run(charges, run_id="r")
    times[0] = 2
    app.fork("r", at=1, effects="reuse")
    assert app.run(charges, run_id="r.f1") == ["r-1", "r-2"]
    assert len(WORLD.charged) == 2


def test_without_the_knowledge_of_the_source_a_fork_charges_twice(app: hf.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(timetravel, "happened", lambda histories, after: [])
    bought(app)
    app.fork("r", at=1)
    bought(app, run_id="r.f1")
    assert WORLD.charged == [("o-1", 500)] * 2


def test_without_the_knowledge_of_what_is_superseded_an_edit_charges_twice(app: hf.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the edit."""
    monkeypatch.setattr(journal, "happened", lambda histories, after: [])
    stopped(app)
    app.edit("r", 1, {"cents": 500})
    bought(app)
    assert WORLD.charged == [("o-1", 500)] * 2


@pytest.mark.parametrize("effects", ["ask", "reuse"])
def test_an_edit_does_not_repeat_what_happened(app: hf.Holdfast, effects: Any) -> None:
    stopped(app)
    told = app.edit("r", 1, {"cents": 500, "note": 1}, effects=effects, by="ann")
    assert "happened after it: charge (step 2), mail (step 3)" in told
    if effects == "ask":
        with pytest.raises(hf.RunWaiting, match="before ann edited step 1"):
            bought(app)
    else:
        assert bought(app) == "sent r-1"
    assert (len(WORLD.charged), len(WORLD.mailed)) == (1, 1)


def test_history_marks_what_is_superseded_and_says_who_edited_and_why(app: hf.Holdfast) -> None:
    stopped(app)
    app.edit("r", 1, {"cents": 700}, by="ann", reason="a better offer")
    bought(app)
    lines = [line for line in app.history("r") if line.step_id in ("1", "2", "3", "4")]
    told = [(line.step_id, line.state, line.superseded) for line in lines]
    assert told[:4] == [("1", "done", False), ("2", "done", True), ("3", "done", True), ("4", "failed", True)]
    assert told[4:] == [("1", "step edited", False), ("2", "done", False), ("3", "done", False), ("4", "done", False)]
    assert lines[4].note == 'ann: {"cents":700} (a better offer)'
    assert app.show("r").steps_done == 4
    assert app.show_at("r", "1").result == {"cents": 700}


def test_a_failed_step_is_given_a_result(app: hf.Holdfast) -> None:
    stopped(app)
    app.edit("r", 4, "sent by hand", by="ann")
    assert bought(app) == "sent by hand"
    assert (len(WORLD.charged), len(WORLD.mailed)) == (1, 1)


def test_the_result_of_an_effect_is_corrected_without_executing_it(app: hf.Holdfast) -> None:
    stopped(app)
    app.edit("r", 2, "r-77", effects="repeat")
    assert bought(app) == "sent r-77"
    assert WORLD.charged == [("o-1", 500)]
    assert WORLD.mailed == ["r-1", "r-77"]


def test_lineage_is_shown_on_both_sides(app: hf.Holdfast) -> None:
    bought(app)
    assert [app.fork("r", at=1), app.fork("r", at=2), app.fork("r.f1", at=1)] == ["r.f1", "r.f2", "r.f1.f1"]
    assert sorted(app.show("r").forks) == ["r.f1", "r.f2"]
    assert [app.show(run_id).forked_from for run_id in ("r", "r.f2", "r.f1.f1")] == ["", "r@2", "r.f1@1"]
    assert {run.run_id for run in app.runs(tags={"fork_of": "r"})} == {"r.f1", "r.f2"}
    assert all(verdict.good for verdict in app.check())


def test_a_fork_of_a_fork_knows_what_happened_in_both(app: hf.Holdfast) -> None:
    bought(app)
    app.fork("r", at=1, edits={1: {"cents": 700}}, effects="reuse")
    assert bought(app, run_id="r.f1") == "sent r-2"
    app.fork("r.f1", at=1, effects="reuse")
    assert bought(app, run_id="r.f1.f1") == "sent r-2"
    app.fork("r.f1", at=1, edits={1: {"cents": 500}}, effects="reuse", new_id="back")
    assert bought(app, run_id="back") == "sent r-1"
    assert WORLD.charged == [("o-1", 500), ("o-1", 700)]


def test_calls_of_two_paths_at_one_step_are_told_apart(app: hf.Holdfast) -> None:
    stopped(app)
    app.edit("r", 1, {"cents": 700})
    assert bought(app) == "sent r-2"
    app.fork("r", at=1)
    with pytest.raises(hf.RunWaiting):
        bought(app, run_id="r.f1")
    [item] = app.inbox()
    assert item.commands[0].endswith("""--landed '"r-2"'""")
    app.resolve("r.f1", "2", landed="r-2")
    app.fork("r", at=1, edits={1: {"cents": 500}}, effects="reuse")
    assert bought(app, run_id="r.f2") == "sent r-1"
    assert WORLD.charged == [("o-1", 500), ("o-1", 700)]


def test_the_same_fork_again_is_that_fork_and_another_one_is_refused(app: hf.Holdfast, store: Store) -> None:
    bought(app)
    for _ in range(2):
        assert app.fork("r", at=1, edits={1: {"cents": 1}}, new_id="b", by="ann") == "b"
        assert app.fork("r", at=2, by="ann") == "r.f1"
    before = loaded(store, "b")
    with pytest.raises(hf.RunWaiting):
        bought(app, run_id="r.f1")
    assert app.fork("r", at=2, by="ann") == "r.f2"
    with pytest.raises(Refusal, match="there is a run 'b' already"):
        app.fork("r", at=1, new_id="b", by="ann")
    with pytest.raises(Refusal, match="there is a run 'b' already"):
        app.fork("r", at=1, edits={1: {"cents": 2}}, new_id="b", by="ann")
    with pytest.raises(Refusal, match="there is a run 'r' already"):
        app.fork("r", at=1, new_id="r")
    assert loaded(store, "b") == before


def test_the_same_edit_again_changes_nothing(app: hf.Holdfast, store: Store) -> None:
    stopped(app)
    app.edit("r", 1, {"cents": 7}, by="ann")
    before = loaded(store)
    assert "made already" in app.edit("r", 1, {"cents": 7}, by="ann")
    assert loaded(store) == before


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda app: app.fork("r", at=9), "run 'r' has no step '9'; nothing was changed. It can go back to 0, 1, 2, 3, 4"),
        (lambda app: app.fork("r", at=1, edits={2: "x"}), "step 2 comes after step 1"),
        (lambda app: app.fork("r", at=1, effects="maybe"), "it is one of ask, reuse, repeat"),
        (lambda app: app.edit("r", 9, 1), "has no step '9'"),
        (lambda app: app.edit("r", 1, "cheap"), "it is a text, and was an object"),
        (lambda app: app.edit("r", 1, {"cents": "few"}), "cents is a text, and was a number"),
        (lambda app: app.edit("r", 1, {"cents": "few"}, fits=look), "it is not what step 1, 'look', returns"),
        (lambda app: app.edit("r", 2, object()), "it must be JSON, and object is not"),
        (lambda app: app.edit_state("r", {}, at=1), "has no states"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(app: hf.Holdfast, store: Store, act: Any, why: str) -> None:
    stopped(app)
    before = loaded(store)
    with pytest.raises(Refusal, match=re.escape(why)):
        act(app)
    assert loaded(store) == before
    assert [run.run_id for run in app.runs()] == ["r"]


def test_a_run_that_is_final_is_forked_not_edited(app: hf.Holdfast, store: Store) -> None:
    bought(app)
    with pytest.raises(Refusal, match=r"is done and stays so; nothing was changed\. Branch it: holdfast fork r"):
        app.edit("r", 1, {"cents": 1})


def test_a_cancelled_run_is_forked(app: hf.Holdfast) -> None:
    stopped(app)
    app.cancel("r")
    with pytest.raises(Refusal, match="is cancelled and stays so"):
        app.edit("r", 1, {"cents": 1})
    app.fork("r", at=3)
    assert bought(app, run_id="r.f1") == "sent r-1"


def test_an_edit_is_refused_while_an_effect_runs_and_so_is_a_fork_behind_it(app: hf.Holdfast, store: Store) -> None:
    refused = []

    @hf.effect(in_doubt="ask")
    async def slow() -> str:
        before = loaded(store)
        with pytest.raises(Refusal) as edited:
            app.edit("r", 1, {"cents": 1})
        with pytest.raises(Refusal) as forked:
            app.fork("r", at=2)
        refused.extend([str(edited.value), str(forked.value)])
        assert loaded(store) == before
        app.fork("r", at=1)
        return "done"

    @hf.agent
    async def slowly() -> str:
        await look("a")
        result = await slow()
        await look("b")
        return result

    assert app.run(slowly, run_id="r") == "done"
    assert "the effect at step 2 runs" in refused[0]
    assert "step 2 of run 'r' has no outcome yet" in refused[1]
    with pytest.raises(hf.RunWaiting, match="whether it happened is not known"):
        app.run(slowly, run_id="r.f1", wait=False)


def test_a_doubt_after_the_point_is_settled_before_an_edit_and_stays_one_in_a_fork(app: hf.Holdfast) -> None:
    sure = [False]

    @hf.effect(in_doubt="ask")
    async def risky() -> str:
        if not sure[0]:
            raise TimeoutError("no reply")
        return "sure"

    @hf.agent
    async def dares() -> str:
        await look("a")
        return await risky()

    with pytest.raises(hf.RunWaiting):
        app.run(dares, run_id="r", wait=False)
    with pytest.raises(Refusal, match="step 2 of run 'r' is in doubt: settle it first"):
        app.edit("r", 1, {"cents": 1})
    app.fork("r", at=1, effects="reuse")
    with pytest.raises(hf.RunWaiting, match=r"the same call was made at step 2 of run r.*not known"):
        app.run(dares, run_id="r.f1", wait=False)
    sure[0] = True
    app.resolve("r.f1", "2", not_landed=True)
    assert app.run(dares, run_id="r.f1") == "sure"


def waits_at_the_charge(app: hf.Holdfast, run_id: str) -> Any:
    """The item of a run that asks whether the call was made before."""
    with pytest.raises(hf.RunWaiting):
        bought(app, run_id=run_id)
    [item] = [item for item in app.inbox() if item.run_id == run_id]
    return item


@pytest.mark.parametrize("how", ["fork", "edit"])
def test_a_question_about_an_earlier_call_shows_the_key_that_was_sent(app: hf.Holdfast, how: str) -> None:
    stopped(app)
    run_id = app.fork("r", at=1) if how == "fork" else "r"
    if how == "edit":
        app.edit("r", 1, {"cents": 500, "note": 1})
    item = waits_at_the_charge(app, run_id)
    assert item.key == WORLD.keys[0]
    assert WORLD.keys[0] in item.what
    assert WORLD.keys[0] in app.show(run_id).waits
    assert WORLD.keys[0] in app.resolve(run_id, "2", not_landed=True)
    bought(app, run_id=run_id)
    assert WORLD.keys[1] != WORLD.keys[0]


@pytest.mark.parametrize("taken", ["reuse", "landed"])
def test_a_branch_of_a_branch_shows_the_key_that_was_sent(app: hf.Holdfast, taken: str) -> None:
    bought(app)
    app.fork("r", at=1, effects="reuse" if taken == "reuse" else "ask")
    if taken == "landed":
        waits_at_the_charge(app, "r.f1")
        app.resolve("r.f1", "2", landed="r-1")
        with pytest.raises(hf.RunWaiting):
            bought(app, run_id="r.f1")
        app.resolve("r.f1", "3", landed=None)
    assert bought(app, run_id="r.f1") == "sent r-1"
    app.fork("r.f1", at=1, new_id="second")
    assert waits_at_the_charge(app, "second").key == WORLD.keys[0]


def test_a_second_edit_names_what_happened_before_the_first(app: hf.Holdfast) -> None:
    """The first edit's question is open: the charge is on a path that was given up, and must not be forgotten with the question."""
    stopped(app)
    app.edit("r", 1, {"cents": 500, "note": 1})
    waits_at_the_charge(app, "r")
    told = app.edit("r", 1, {"cents": 450})
    assert told.startswith("happened after it: charge (step 2), mail (step 3)")
    assert "With other arguments it is executed, and what happened stays" in told
    assert app.inbox() == []
    app.edit("r", 1, {"cents": 500, "note": 2})
    assert waits_at_the_charge(app, "r").key == WORLD.keys[0]


def test_an_edit_in_a_branch_names_what_its_source_did(app: hf.Holdfast) -> None:
    bought(app)
    app.fork("r", at=1)
    waits_at_the_charge(app, "r.f1")
    told = app.edit("r.f1", 1, {"cents": 450})
    assert "happened on a path given up before: charge (step 2 of run r), mail (step 3 of run r)" in told


def test_every_call_that_may_have_happened_is_named_with_its_key(app: hf.Holdfast) -> None:
    """Who looks only for the first would say that it did not happen, and charge a third time."""
    bought(app)
    app.fork("r", at=1, effects="repeat")
    bought(app, run_id="r.f1")
    app.fork("r.f1", at=1, new_id="third")
    item = waits_at_the_charge(app, "third")
    assert item.key == ", ".join(WORLD.keys)
    assert all(key in item.what for key in WORLD.keys)
    assert "r-1" in item.what
    assert "r-2" in item.what


def test_a_branch_counts_how_often_it_was_taken_up_itself(app: hf.Holdfast) -> None:
    """So that `attempt == 1` is true in its first life, as in that of every run."""
    seen: list[int] = []

    @hf.agent
    async def counts() -> str:
        seen.append(hf.current().attempt)
        return await finish((await look("a"))["cents"].__str__())

    app.run(counts, run_id="c")
    app.fork("c", at=1)
    app.run(counts, run_id="c.f1")
    assert (seen, app.show("c.f1").attempt) == ([1, 1], 1)


def test_whoever_only_made_a_run_ready_has_not_taken_it_up(app: hf.Holdfast) -> None:
    stopped(app)
    app.resume("r", by="ann")
    assert [line.state for line in app.history("r")][-1] == "run ready"
    bought(app)
    assert [line.state for line in app.history("r")].count("run resumed") == 1
