"""`holdfast fork` and `holdfast edit`: what they say, what they refuse, and the value written in an editor."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.cli.timetravel import read_edits

APP = """
import os
import holdfast as hf

@hf.step
def look(what: str) -> dict[str, int]:
    return {"cents": 5}

@hf.effect(in_doubt="ask")
def pay(cents: int) -> str:
    return f"paid {cents}"

@hf.step
def end(paid: str) -> str:
    if os.environ.get("BREAKS"):
        raise ConnectionRefusedError("no network")
    return paid

@hf.agent
def buy(what: str) -> str:
    notes = hf.state({"tries": 0})
    notes["tries"] += 1
    return end(pay(look(what)["cents"]))
"""

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """A store with a failed run "r", and a way to give commands about it."""
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("BREAKS", "1")
    from holdfast.cli.app_file import loaded

    with Holdfast(tmp_path / "runs.db") as app, pytest.raises(ConnectionRefusedError):
        app.run(loaded(tmp_path / "app.py").buy, "kelp", run_id="r")
    monkeypatch.delenv("BREAKS")

    def given(*words: str) -> tuple[int, str, str]:
        code = main(words)
        told = capsys.readouterr()
        return code, told.out, told.err

    return given


def stored(path: Path) -> object:
    with Holdfast(path / "runs.db") as app:
        return [app.store.load(run.run_id) for run in app.runs()]


def test_an_edit_is_made_and_the_run_goes_on_from_there(say: Say) -> None:
    code, out, _ = say("edit", "r", "1", "--value", '{"cents": 7}', "--by", "ann", "--reason", "a better offer")
    assert code == 0
    assert "happened after it: pay (step 2)" in out
    code, out, _ = say("resume", "r", "--here", "app.py", "--json")
    assert json.loads(out)["result"] == "paid 7"
    code, out, _ = say("history", "r")
    assert "done, superseded" in out
    assert 'ann: {"cents":7} (a better offer)' in out


def test_a_fork_tells_its_id_and_how_to_go_on_and_both_sides_name_each_other(say: Say) -> None:
    code, out, _ = say("fork", "r", "--at", "1", "--edit", '1={"cents": 9}', "--effects", "reuse", "--id", "b")
    assert (code, out) == (0, "b goes on from step 1 of r: holdfast resume b --here APP.py\n")
    assert json.loads(say("fork", "r", "--at", "0", "--json")[1])["run_id"] == "r.f1"
    assert json.loads(say("resume", "b", "--here", "app.py", "--json")[1])["result"] == "paid 9"
    assert "fork of" in say("show", "b")[1]
    assert "r.f1" in say("show", "r")[1]


def test_a_question_about_a_call_that_was_made_names_its_result_in_the_command(say: Say) -> None:
    say("edit", "r", "1", "--value", '{"cents": 5}', "--by", "ann")
    assert say("resume", "r", "--here", "app.py", "--no-wait")[0] == 3
    out = say("inbox")[1]
    assert "before ann edited step 1" in out
    assert """holdfast resolve r 2 --landed '"paid 5"'""" in out


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["edit", "r", "1", "--value", "{"], 2, "is not JSON"),
        (["edit", "r"], 2, "say either STEP, or --state NAME with --at STEP"),
        (["edit", "r", "1", "--state", "1", "--at", "1", "--value", "1"], 2, "say either STEP"),
        (["edit", "r", "1", "--value", "1", "--effects", "never"], 2, "is not one of ask, reuse and repeat"),
        (["edit", "r", "1", "--value", '"x"'], 1, "it is a text, and was an object"),
        (["edit", "r", "1", "--value", '{"cents": "x"}', "--here", "app.py"], 1, "it is not what step 1, 'look', returns"),
        (["edit", "r", "7", "--value", "1"], 1, "has no step '7'"),
        (["edit", "r", "--state", "2", "--at", "1", "--value", "{}"], 1, "has no state '2'"),
        (["fork", "r", "--at", "7"], 1, "has no step '7'"),
        (["fork", "r", "--at", "1", "--edit", "x"], 2, "is not STEP=JSON"),
        (["fork", "r", "--at", "1", "--id", "/"], 1, "run id"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_changes(say: Say, tmp_path: Path, words: list[str], code: int, why: str) -> None:
    before = stored(tmp_path)
    found, _, err = say(*words)
    assert (found, why in err) == (code, True), err
    assert stored(tmp_path) == before


def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """An editor that is a program: `text` is what it finds, and what it leaves."""
    script = tmp_path / "editor.py"
    script.write_text(f"import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\ntext = file.read_text()\n{code}\nfile.write_text(text)\n")
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    monkeypatch.delenv("VISUAL", raising=False)


def test_without_a_value_the_recorded_one_is_opened_in_an_editor(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor(tmp_path, monkeypatch, "text = text.replace('5', '8')")
    assert say("edit", "r", "1", "--here", "app.py")[0] == 0
    assert json.loads(say("resume", "r", "--here", "app.py", "--json")[1])["result"] == "paid 8"


def test_what_was_written_is_kept_where_it_is_refused(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor(tmp_path, monkeypatch, "text = text.replace('5', 'none')")
    code, _, err = say("edit", "r", "1")
    assert code == 1
    kept = Path(err.rpartition("kept in ")[2].strip())
    assert kept.read_text() == '{\n  "cents": none\n}\n'
    kept.unlink()


def test_a_value_that_is_left_as_it_was_changes_nothing(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored(tmp_path)
    editor(tmp_path, monkeypatch, "")
    assert "left it as it was; nothing was changed" in say("edit", "r", "1")[2]
    monkeypatch.delenv("EDITOR")
    assert say("edit", "r", "1")[0] == 2
    assert stored(tmp_path) == before


@pytest.mark.parametrize("command", ["/nowhere/editor", "unclosed 'quote", "rm", """sh -c 'printf "\\377" > $0'"""])
def test_an_editor_that_does_no_work_changes_nothing(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    before = stored(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("EDITOR", command)
    monkeypatch.delenv("VISUAL", raising=False)
    code, _, err = say("edit", "r", "1")
    assert (code, "nothing was changed" in err) == (1, True)
    assert stored(tmp_path) == before


def test_a_state_is_edited_at_a_step(say: Say) -> None:
    assert say("edit", "r", "--state", "1", "--at", "2", "--value", '{"tries": 40}')[0] == 0
    say("resume", "r", "--here", "app.py")
    assert json.loads(say("show", "r", "--at", "2", "--json")[1])["at"]["state"] == {"/state.1": {"tries": 40}}


def test_edits_are_read_as_steps_and_json() -> None:
    assert read_edits(['12={"a": "="}', "1.2.3=1"]) == {"12": {"a": "="}, "1.2.3": 1}


@pytest.mark.parametrize("words", [("edit",), ("artifact",), ("send",)])
def test_usage_has_each_bracket_once(say: Say, words: tuple[str, ...]) -> None:
    _, out, _ = say(*words, "--help")
    assert "[[" not in out
    assert "[OPTIONS] RUN" in out


@pytest.mark.parametrize("editor", ["nosuch-editor", "vi 'unclosed", "/"])
def test_an_editor_that_cannot_be_started_is_refused(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: str
) -> None:
    before = stored(tmp_path)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code, _, err = say("edit", "r", "1")
    assert (code, "cannot be started" in err, "--value JSON" in err) == (1, True, True)
    assert stored(tmp_path) == before
