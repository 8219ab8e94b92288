"""Answers and messages that cannot be: each gets a clear error, by the API and by the command, and the store is what it was."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

import apsw
import pytest
from pydantic import BaseModel

import holdfast as hf
from cli_stage import Stage
from holdfast.errors import Refusal


class Parcel(BaseModel):
    number: str
    grams: int


@hf.agent
async def asks() -> list[Any]:
    async def patience() -> str:
        await hf.sleep(0.001)
        return "gone"

    first = await hf.first(hf.ask("closed?", str), patience())
    second = hf.ask("colour?", Literal["red", "blue"], who=["ann", "bob"])
    rest = hf.ask("how many?", int), hf.ask("which parcel?", Parcel), hf.ask("sure?")
    return [first, *await hf.gather(second, *rest)]


@hf.agent
async def ends() -> str:
    return await hf.ask("colour?", str, timeout="1h", default="grey")


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    """A run that asks for many things, one that is done, one that is cancelled."""
    stage = Stage(tmp_path, capsys)
    with hf.Holdfast(stage.store) as app:
        for run_id, agent in (("w", asks), ("done", ends), ("closed", ends)):
            with suppress(hf.RunWaiting):
                app.run(agent, run_id=run_id, wait=False)
        app.answer("done", "1", "red", by="ann")
        assert app.run(ends, run_id="done") == "red"
        app.cancel("closed", by="ann")
    return stage


def everything(store: Path) -> list[Any]:
    """All that is stored, but for who has opened it since."""
    with closing(apsw.Connection(str(store))) as connection:
        return [connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in ("meta", "runs", "journal", "letters")]


CLOSED = "question '1' of run 'w' is closed, the run went on without an answer; nothing was changed"
ANSWERS: list[tuple[str, str, Any, str, str]] = [
    ("w", "3", "green", "ann", '"green" is not what is asked for: "red" | "blue"; nothing was changed'),
    ("w", "3", "red", "eve", "'3' of run 'w' is for ann, bob to answer, not eve; nothing was changed"),
    ("w", "4", "many", "ann", '"many" is not what is asked for'),
    ("w", "4", "1.5", "ann", "1.5 is not what is asked for"),
    ("w", "5", '{"number": "p-1"}', "ann", "nothing was changed"),
    ("w", "5", '{"number": "p-1", "grams": "heavy"}', "ann", "nothing was changed"),
    ("w", "6", "perhaps", "ann", '"perhaps" is not what is asked for: yes or no'),
    ("w", "1", "red", "ann", CLOSED),
    ("w", "99", "red", "ann", "run 'w' has no question '99'; nothing was changed"),
    ("done", "1", "blue", "ann", "run 'done' is done and stays so; nothing was changed"),
    ("closed", "1", "blue", "ann", "run 'closed' is cancelled and stays so; nothing was changed"),
]


def named(case: tuple[str, str, Any, str, str]) -> str:
    return f"{case[0]}-{case[1]}-{case[2]}-{case[3]}"


@pytest.mark.parametrize("case", ANSWERS, ids=named)
def test_an_answer_that_cannot_be_is_refused_and_changes_nothing(stage: Stage, case: tuple[str, str, Any, str, str]) -> None:
    run_id, ask_id, typed, by, said = case
    before = everything(stage.store)
    with hf.Holdfast(stage.store) as app, pytest.raises(Refusal) as refusal:
        app.answer(run_id, ask_id, typed=typed, by=by)
    assert said in str(refusal.value)
    assert everything(stage.store) == before
    code, out, err = stage.give("answer", f"{run_id}/{ask_id}", typed, "--by", by)
    assert (code, out, said in err) == (1, "", True), err
    assert everything(stage.store) == before


VALUES: list[tuple[str, Any]] = [("3", 7), ("4", "7"), ("4", True), ("5", ["p-1", 5]), ("5", {"number": 7, "grams": 5}), ("6", "yes")]


@pytest.mark.parametrize(("ask_id", "value"), VALUES, ids=str)
def test_a_value_of_another_type_is_refused_and_changes_nothing(stage: Stage, ask_id: str, value: object) -> None:
    before = everything(stage.store)
    with hf.Holdfast(stage.store) as app, pytest.raises(Refusal, match="nothing was changed"):
        app.answer("w", ask_id, value, by="ann")
    assert everything(stage.store) == before


@pytest.mark.parametrize("value", [object(), float("nan"), {"a": object()}, [float("inf")]], ids=["object", "nan", "dict", "list"])
def test_a_message_that_is_no_json_is_refused_and_changes_nothing(stage: Stage, value: object) -> None:
    before = everything(stage.store)
    with hf.Holdfast(stage.store) as app, pytest.raises(Refusal, match="nothing was changed"):
        app.send("w", "note", value)
    assert everything(stage.store) == before


MESSAGES = [
    (("done", "note", "1"), "run 'done' is done and takes no messages any more; nothing was sent"),
    (("closed", "note", "1"), "run 'closed' is cancelled and takes no messages any more; nothing was sent"),
    (("nobody", "note", "1"), "there is no run 'nobody'"),
    (("w", "", "1"), "a message needs a name"),
]


@pytest.mark.parametrize(("words", "said"), MESSAGES, ids=["done", "cancelled", "unknown", "nameless"])
def test_a_message_that_nobody_can_take_is_refused_and_changes_nothing(stage: Stage, words: tuple[str, ...], said: str) -> None:
    before = everything(stage.store)
    run_id, name, value = words
    with hf.Holdfast(stage.store) as app, pytest.raises(hf.HoldfastError) as refusal:
        app.send(run_id, name, value)
    assert said in str(refusal.value)
    code, out, err = stage.give("send", *words)
    assert (code, out, said in err) == (1, "", True), err
    assert everything(stage.store) == before


def test_an_answer_that_fits_does_change_the_store(stage: Stage) -> None:
    """What the tests above compare is what an answer and a message would change."""
    before = everything(stage.store)
    assert stage.give("send", "w", "note", "1")[0] == 0
    sent = everything(stage.store)
    assert stage.give("answer", "w/3", "red", "--by", "bob")[0] == 0
    answered = everything(stage.store)
    assert len({str(each) for each in (before, sent, answered)}) == 3


def test_an_answer_to_what_is_asked_no_more_is_refused_on_the_command_line(stage: Stage) -> None:
    items = {item["step_id"]: item["about"] for item in stage.document("inbox")["items"]}
    before = everything(stage.store)
    code, _, err = stage.give("answer", "w/4", "7", "--about", str(items["4"] + 1))
    assert (code, "is not the one that was seen" in err) == (1, True)
    assert everything(stage.store) == before
    assert stage.give("answer", "w/4", "7", "--about", str(items["4"]))[0] == 0


def test_what_is_due_is_listed_on_the_command_line(stage: Stage) -> None:
    assert stage.document("runs", "--due")["runs"] == []
    stage.told("answer", "w/4", "7")
    assert [run["run_id"] for run in stage.document("runs", "--due")["runs"]] == ["w"]
    assert stage.document("runs", "--due", "--agent", "ends")["runs"] == []
    assert stage.give("runs", "--due", "--status", "waiting")[0] == 2
