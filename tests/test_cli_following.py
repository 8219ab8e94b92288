"""`holdfast tail`: what it says to people, what it gives to scripts, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast.sync as hf
from cli_stage import HOSTILE, Stage, staged
from holdfast.cli.exits import Exit


@hf.step
def write(topic: str) -> str:
    hf.emit("kelp ")
    hf.emit(HOSTILE)
    return topic


@hf.agent
def report(topic: str) -> str:
    hf.emit({"done": 0, "of": 1})
    return write(topic)


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    with hf.Holdfast(tmp_path / "runs.db") as app:
        app.run(report, "kelp", run_id="r")
    return Stage(tmp_path, capsys)


def test_a_person_sees_a_line_for_each_event_and_nothing_that_a_terminal_obeys(stage: Stage) -> None:
    text = stage.told("tail", "r")
    lines = [line.split(maxsplit=2)[1:] for line in text.splitlines()]
    assert [line[0] for line in lines] == ["-", "-", "1", "1", "1", "-"]
    assert lines[1][1].split(maxsplit=1) == ["emit", '{"done": 0, "of": 1}']
    assert lines[4][1].split(maxsplit=1) == ["done", 'write(topic="kelp")  "kelp"']
    assert lines[5][1] == "run done"
    assert not set(text) & set("\x1b\x07\u202e\r")


def test_a_script_gets_json_lines(stage: Stage) -> None:
    events = [json.loads(line) for line in stage.told("tail", "r", "--json").splitlines()]
    assert [event["kind"] for event in events] == ["run.started", "emit", "emit", "emit", "step.done", "run.done"]
    assert [event["value"] for event in events[1:5]] == [{"done": 0, "of": 1}, "kelp ", HOSTILE, "kelp"]
    assert all(event["at"].endswith("Z") for event in events)
    behind = [json.loads(line) for line in stage.told("tail", "r", "--json", "--after", "2").splitlines()]
    assert behind == events[5:]


def test_only_the_texts_come_as_running_text(stage: Stage) -> None:
    assert stage.told("tail", "r", "--text") == "kelp [red]no stock[/red] \\x1b]0;owned\\x07\\x1b[31m\\u202e\n"


def test_a_run_that_failed_is_shown_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = staged(tmp_path, capsys).told("tail", "failed").splitlines()
    assert "run failed" in lines[-1]
    assert "[red]no stock[/red]" in lines[-1]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("tail", "nobody"), Exit.REFUSED, "there is no run 'nobody'"),
        (("tail", "../r"), Exit.REFUSED, "run id"),
        (("tail", "r", "--after", "-1"), Exit.USAGE, "--after"),
        (("tail", "r", "--after", "x"), Exit.USAGE, "--after"),
        (("tail", "r", "--after", "9" * 30), Exit.REFUSED, "give the seq"),
        (("tail", "r", "--text", "--json"), Exit.USAGE, "only one of"),
        (("tail",), Exit.USAGE, "RUN"),
    ],
)
def test_what_cannot_be_followed_is_refused(stage: Stage, words: tuple[str, ...], code: Exit, says: str) -> None:
    found, out, err = stage.give(*words)
    assert found == code
    assert says in out + err
