"""A value changed by hand in a file becomes an official edit, with an author; anything else stays what it is, damage."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import _failpoints
from holdfast.cli import main
from holdfast.errors import Damaged, Refusal
from holdfast.moving.adopting import adopt
from holdfast.operating.timetravel import word
from holdfast.stores.files import FilesStore
from holdfast.stores.memory import MemoryStore


class Shop:
    """What the agent does outside, and whether it fails at the end."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.fails = True


@hf.step
def search(query: str) -> dict[str, int]:
    return {"cents": 700}


@hf.step
def weigh(cents: int) -> int:
    return cents // 100


@hf.effect(in_doubt="ask")
def charge(cents: int) -> str:
    hf.resource(Shop).charged.append(cents)
    return f"r-{cents}"


@hf.agent
def buy(order: str) -> str:
    known = hf.state({"tries": 0})
    cents = search(order)["cents"]
    known["tries"] += 1
    weight = weigh(cents)
    if hf.resource(Shop).fails:
        raise RuntimeError("the shop is closed")
    return f"{charge(cents)} {weight} {known['tries']}"


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def app(tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[hf.Holdfast]:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with hf.Holdfast(FilesStore(tmp_path / "runs"), resources=[shop]) as app:
        with pytest.raises(RuntimeError, match="closed"):
            app.run(buy, "o", run_id="r")
        shop.fails = False
        yield app


def change(tmp_path: Path, view: str, old: str, new: str) -> None:
    path = tmp_path / "runs/runs/r/journal" / view
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def adopted(app: hf.Holdfast, **more: str) -> str:
    return adopt(app.engine, "r", said=word(more.get("by", "ann"), more.get("reason", "too dear"), "ask"))


def test_a_changed_result_becomes_an_edit_with_an_author_and_the_run_goes_on(app: hf.Holdfast, tmp_path: Path, shop: Shop) -> None:
    change(tmp_path, "000002-search.json", '"cents": 700', '"cents": 650')
    with pytest.raises(Damaged, match=r"000002-search\.json"):
        app.run(buy, "o", run_id="r")
    assert adopted(app).startswith("adopted: step 1.")
    edited = [line for line in app.history("r") if "edited" in line.state]
    assert [(line.step_id, "ann" in line.note, "650" in line.note) for line in edited] == [("1", True, True)]
    (view,) = (tmp_path / "runs/runs/r/journal").glob("*-search-edited.json")
    assert [row["value"] for row in json.loads(view.read_text())["rows"] if row["kind"] == "step.edited"] == [{"cents": 650}]
    assert app.run(buy, "o", run_id="r") == "r-650 6 1"
    assert shop.charged == [650]
    assert [verdict.good for verdict in app.check()] == [True]


def test_a_check_names_the_file_and_what_is_good_before_it(app: hf.Holdfast, tmp_path: Path) -> None:
    change(tmp_path, "000003-weigh.json", '"value": 7', '"value": 8')
    (verdict,) = app.check()
    assert (verdict.good, verdict.seq, verdict.records, verdict.checkpoint) == (False, 4, 3, "step 1, search")
    assert "000003-weigh.json is not what was recorded, which is still there" in verdict.what


def test_a_changed_state_becomes_an_edit(app: hf.Holdfast, tmp_path: Path) -> None:
    change(tmp_path, "000003-weigh.json", '"tries": 1', '"tries": 9')
    assert adopted(app).startswith("adopted: state /state.1 at step 2.")
    assert app.run(buy, "o", run_id="r") == "r-700 7 9"


def test_of_two_changes_none_is_lost_unsaid(app: hf.Holdfast, tmp_path: Path) -> None:
    before = app.history("r")
    change(tmp_path, "000002-search.json", '"cents": 700', '"cents": 500')
    change(tmp_path, "000003-weigh.json", '"value": 7', '"value": 70')
    with pytest.raises(Refusal, match=r"000002-search\.json and .*000003-weigh\.json cannot both be adopted: step 2 began after step 1"):
        adopted(app)
    change(tmp_path, "000003-weigh.json", '"value": 70', '"value": 7')
    adopted(app)
    assert [line for line in app.history("r") if line.seq <= before[-1].seq and not line.superseded] == before[:2] + before[3:]
    assert app.run(buy, "o", run_id="r") == "r-500 5 1"


def test_a_result_and_a_state_of_one_step_are_both_adopted(app: hf.Holdfast, tmp_path: Path) -> None:
    change(tmp_path, "000003-weigh.json", '"tries": 1', '"tries": 9')
    change(tmp_path, "000003-weigh.json", '"value": 7', '"value": 70')
    assert adopted(app).startswith("adopted: state /state.1 at step 2, step 2.")
    assert app.run(buy, "o", run_id="r") == "r-700 70 9"


def test_the_history_says_which_edits_were_given_up_by_a_later_one(app: hf.Holdfast) -> None:
    app.edit("r", 2, 8)
    app.edit_state("r", {"tries": 5}, at="2")
    app.edit_state("r", {"tries": 0}, at="1")
    app.edit("r", 1, {"cents": 600})
    lines = [(line.step_id, line.superseded) for line in app.history("r") if line.state.endswith("edited")]
    assert lines == [("2", True), ("/state.1", True), ("/state.1", False), ("1", False)]


def test_results_of_steps_that_ran_side_by_side_are_both_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    begun, met = list[int](), asyncio.Event()

    @hf.effect(in_doubt="ask")
    async def ship(number: int) -> int:
        begun.append(number)
        if len(begun) == 2:
            met.set()
        await met.wait()
        return number

    @hf.agent
    async def both() -> list[int]:
        found = await hf.gather(ship(1), ship(2))
        if len(begun) == 2:
            begun.append(3)
            raise RuntimeError("the shop is closed")
        return list(found)

    with hf.Holdfast(FilesStore(tmp_path / "runs")) as app:
        with pytest.raises(RuntimeError, match="closed"):
            app.run(both, run_id="r")
        for view in sorted((tmp_path / "runs/runs/r/journal").glob("*-ship.json")):
            view.write_text(re.sub(r'"value": ([12])', r'"value": 7\1', view.read_text()))
        told = adopted(app)
        assert ("step 1" in told, "step 2" in told) == (True, True)
        assert app.run(both, run_id="r") == [71, 72]
        assert [line.superseded for line in app.history("r") if line.state == "step edited"] == [False, False]
    assert begun == [1, 2, 3]


@pytest.mark.parametrize(
    ("view", "old", "new", "why"),
    [
        ("000002-search.json", '"cents": 700', '"cents": ', "not JSON"),
        ("000002-search.json", '"cents": 700', '"cents": "much"', "is a text, and was a number"),
        ("000002-search.json", '"query": "o"', '"query": "p"', 'more than the value .*: record 2, args, query was "o" and is "p"'),
        ("000002-search.json", '"seq": 2', '"seq": 3', "more than the value .*: record 2 is gone"),
        ("000002-search.json", '"value": {', '"worth": {', "more than the value .*: record 2, worth was added"),
        ("000002-search.json", '"rows": [', '"rows": [7,', "other fields"),
        ("000001-run-started.json", '"agent": "buy"', '"agent": "sell"', "more than the value"),
    ],
)
def test_anything_else_is_refused_and_changes_nothing(
    app: hf.Holdfast, tmp_path: Path, *, view: str, old: str, new: str, why: str
) -> None:
    recorded = app.store.load("r")
    change(tmp_path, view, old, new)
    changed = (tmp_path / "runs/runs/r/journal" / view).read_text()
    with pytest.raises(Refusal, match=why) as error:
        adopted(app)
    assert ("To put back" in str(error.value)) == (f"holdfast check r --repair --store file://{tmp_path}/runs" in str(error.value))
    assert (tmp_path / "runs/runs/r/journal" / view).read_text() == changed
    assert app.repair("r", dry_run=False, by="ann").done
    assert app.store.load("r") == recorded


@hf.step
def read(pages: int) -> str:
    return "p" * pages


@hf.agent
def study(pages: int) -> int:
    text = read(pages)
    if hf.resource(Shop).fails:
        raise RuntimeError("the library is closed")
    return len(text)


def test_a_packed_value_is_changed_by_writing_it_as_a_whole(app: hf.Holdfast, tmp_path: Path, shop: Shop) -> None:
    shop.fails = True
    with pytest.raises(RuntimeError, match="closed"):
        app.run(study, 70_000, run_id="s")
    shop.fails = False
    view = tmp_path / "runs/runs/s/journal/000002-read.json"
    recorded = view.read_text()
    view.write_text(recorded.replace("70002", "70001"))
    with pytest.raises(Refusal, match="stands there packed"):
        adopt(app.engine, "s", said=word("ann", "", "ask"))
    view.write_text(re.sub(r'"value_text": .*', '"value": "short",', recorded))
    assert adopt(app.engine, "s", said=word("ann", "", "ask")).startswith("adopted: step 1.")
    assert app.run(study, 70_000, run_id="s") == len("short")


def test_a_run_that_was_moved_here_shows_each_record_and_is_edited_by_hand(app: hf.Holdfast, tmp_path: Path, shop: Shop) -> None:
    app.move("r", to=tmp_path / "db.db", by="ann")
    with hf.Holdfast(tmp_path / "db.db", resources=[shop]) as between:
        between.move("r", to=FilesStore(tmp_path / "other"), by="ann")
    (tmp_path / "runs").rename(tmp_path / "before")
    (tmp_path / "other").rename(tmp_path / "runs")
    names = {path.name.partition("-")[2]: path.name for path in (tmp_path / "runs/runs/r/journal").iterdir()}
    assert {"run-started.json", "search.json", "weigh.json", "run-arrived.json"} <= names.keys()
    with hf.Holdfast(FilesStore(tmp_path / "runs"), resources=[shop]) as here:
        change(tmp_path, names["weigh.json"], '"value": 7', '"value": 70')
        change(tmp_path, names["state-saved.json"], '"tries": 1', '"tries": 9')
        assert (here.check()[0].seq, here.check()[0].good) == (3, False)
        assert adopted(here).startswith("adopted: state /state.1 at step 2, step 2.")
        assert here.run(buy, "o", run_id="r") == "r-700 70 9"


def test_what_was_given_up_by_an_earlier_edit_is_named_as_such(app: hf.Holdfast, tmp_path: Path) -> None:
    app.edit("r", 1, {"cents": 600})
    change(tmp_path, "000003-weigh.json", '"value": 7', '"value": 8')
    with pytest.raises(Refusal, match="step 2 was superseded since, by an edit of an earlier step"):
        adopted(app)
    change(tmp_path, "000003-weigh.json", '"value": 8', '"value": 7')
    assert app.run(buy, "o", run_id="r") == "r-600 6 1"
    change(tmp_path, "000003-weigh.json", '"tries": 1', '"tries": 3')
    with pytest.raises(Refusal, match="cannot be adopted: run 'r' is done"):
        adopted(app)


def test_a_state_that_was_given_up_is_not_taken_for_the_one_that_came_anew(app: hf.Holdfast, tmp_path: Path, shop: Shop) -> None:
    shop.fails = True
    app.edit("r", 1, {"cents": 600})
    with pytest.raises(RuntimeError, match="closed"):
        app.run(buy, "o", run_id="r")
    change(tmp_path, "000003-weigh.json", '"tries": 1', '"tries": 3')
    with pytest.raises(Refusal, match=r"state /state\.1 at step 2 was superseded"):
        adopted(app)


def test_a_way_leads_from_an_edited_file_of_a_done_run_to_a_fork(
    app: hf.Holdfast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app.run(buy, "o", run_id="r")
    change(tmp_path, "000002-search.json", '"cents": 700', '"cents": 650')
    with pytest.raises(Refusal) as error:
        adopted(app)
    commands = re.findall(r"holdfast ((?:check|fork) .*?)(?:; then|$)", str(error.value))
    assert [main(shlex.split(command)) for command in commands] == [0, 0]
    repaired = capsys.readouterr().out
    assert "at record 2:" in repaired
    assert ("--adopt" in repaired, "moved aside" in repaired, "holdfast show r" in repaired) == (False, False, True)
    assert app.run(buy, "o", run_id="r.f1") == "r-650 6 1"


def test_without_a_change_there_is_nothing_to_adopt(app: hf.Holdfast) -> None:
    with pytest.raises(Refusal, match="no file of run 'r' was changed"):
        adopted(app)
    with hf.Holdfast(MemoryStore()) as other, pytest.raises(Refusal, match="no files"):
        adopt(other.engine, "r", said=word("ann", "", "ask"))


@pytest.mark.parametrize("point", ["edit.before", "edit.after", "adopt.before_back", "adopt.after_back"])
def test_who_dies_while_adopting_can_adopt_again(app: hf.Holdfast, tmp_path: Path, point: str) -> None:
    change(tmp_path, "000002-search.json", '"cents": 700', '"cents": 650')
    child = os.fork()
    if child == 0:
        _failpoints.arm(point)
        with hf.Holdfast(FilesStore(tmp_path / "runs")) as other:
            adopted(other)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    if point != "adopt.after_back":
        adopted(app)
    assert app.run(buy, "o", run_id="r") == "r-650 6 1"
    assert sum("edited" in line.state for line in app.history("r")) == 1


def test_a_state_of_a_path_that_was_given_up_is_not_adopted_on_another(app: hf.Holdfast, tmp_path: Path, shop: Shop) -> None:
    shop.fails = True
    app.edit("r", 1, {"cents": 900}, by="ann")
    with pytest.raises(RuntimeError, match="closed"):
        app.run(buy, "o", run_id="r")
    shop.fails = False
    change(tmp_path, "000003-weigh.json", '"tries": 1', '"tries": 9')
    with pytest.raises(Refusal, match=r"state /state\.1 at step 2 was superseded since"):
        adopted(app)
    change(tmp_path, "000003-weigh.json", '"tries": 9', '"tries": 1')
    assert app.run(buy, "o", run_id="r") == "r-900 9 1"


def test_a_state_and_a_result_of_one_step_are_both_adopted(app: hf.Holdfast, tmp_path: Path) -> None:
    change(tmp_path, "000003-weigh.json", '"value": 7', '"value": 70')
    change(tmp_path, "000003-weigh.json", '"tries": 1', '"tries": 9')
    adopted(app)
    assert app.run(buy, "o", run_id="r") == "r-700 70 9"


def test_the_command_line_adopts(app: hf.Holdfast, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        main(["edit", "r", "--adopt", *words, "--store", f"{tmp_path}/runs/"])
        told = capsys.readouterr()
        return f"{told.out} {told.err}"

    change(tmp_path, "000002-search.json", '"cents": 700', '"cents": 650')
    assert "neither a step nor a value" in said("--value", "1")
    assert "adopted: step 1." in said("--by", "ann", "--reason", "too dear")
    assert app.run(buy, "o", run_id="r") == "r-650 6 1"
