"""`holdfast prune`: what it says, what it asks, and what it refuses."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from cli_stage import Stage, staged
from holdfast.cli import pruning


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path, capsys)


def ids(stage: Stage) -> set[str]:
    return {run["run_id"] for run in stage.document("runs")["runs"]}


def test_a_dry_run_shows_what_would_go_and_then_it_goes(stage: Stage) -> None:
    text = stage.told("prune", "--keep-last", "0", "--dry-run")
    assert "would go" in text
    assert "\n  removed" not in text
    assert text.startswith("4 runs looked at, 1 run would be pruned; nothing is changed yet\n")
    assert ids(stage) == {"done", "failed", "waiting", "dead"}
    text = stage.told("prune", "--keep-last", "0", "--by", "ann")
    assert text.startswith("4 runs looked at, 1 run pruned\n")
    assert ids(stage) == {"failed", "waiting", "dead"}
    code, _, err = stage.give("show", "done")
    assert code == 1
    assert "was pruned at" in err
    assert "by ann (keep_last=0)" in err


def test_the_document_names_every_run_and_the_bytes(stage: Stage) -> None:
    report = stage.document("prune", "--max-age", "0s", "--failed", "--details", "0s", "--reason", "room")["prune"]
    assert {one["run_id"]: one["what"] for one in report["runs"]} == {"done": "removed", "failed": "removed", "dead": "kept"}
    assert (report["removed"], report["kept"], report["policy"]) == (2, 1, "max_age=0s, details=0s, keep_failed=False")
    assert report["bytes"] == sum(one["bytes"] for one in report["runs"]) > 0
    assert stage.document("check", "--all")["good"]


@pytest.mark.parametrize("said", ["n\n", "y\n"])
def test_a_person_is_asked_first(stage: Stage, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(pruning, "is_terminal", lambda stream: stream is not sys.stderr)
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    code, out, err = stage.give("prune", "--keep-last", "0")
    assert "Remove 1 run of 4 for good (done)?" in out
    assert (code, "done" in ids(stage), "nothing was removed" in err) == ((1, True, True) if said == "n\n" else (0, False, False))


def test_yes_does_not_ask(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "is_terminal", lambda stream: True)
    stage.told("prune", "--keep-last", "0", "--yes")
    assert "done" not in ids(stage)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what is kept"),
        (("--failed",), "say what is kept"),
        (("--max-age", "soon"), "'soon' is not a duration"),
        (("--keep-last", "-1"), "greater than or equal to 0"),
        (("--keep-last", "1", "--status", "over"), "'over' is not a status"),
        (("--keep-last", "1", "--tag", "x"), "is not KEY=VALUE"),
    ],
)
def test_what_is_not_a_policy_is_refused_and_nothing_goes(stage: Stage, words: tuple[str, ...], said: str) -> None:
    code, _, err = stage.give("prune", *words)
    assert code == 2
    assert said in err
    assert len(ids(stage)) == 4
